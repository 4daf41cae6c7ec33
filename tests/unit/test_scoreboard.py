"""The scoreboard and the front page's table: every claim once, numbers and verdicts as recorded, failures shown, nothing unescaped."""

import re

import pytest
from bs4 import BeautifulSoup

from transformer_circuits.claims import judge, ledger
from transformer_circuits.pages import scoreboard

ODD = "most are <td and `</script>` | *stars*\n\n# no heading\n\n:::{note}"
MEASURED = dict(intact=(0.8, 0.5), left_read=(0.3, 0.01), left_unread=(0.9, 0.01), separation=(0.5, 0.01))
MEASURED["near_chance"] = 2
RECORDED = {
    "02_zero layers": [judge("Z2", 0.0312, detail=ODD)],
    "07_induction_heads": [judge("T14", **MEASURED), judge("O1", 1e-7), judge("O2", 1e-2)],
}
UNMET = "Not met: fraction of the score that remains without the head that the keys read most is 30% ± 1%"


@pytest.fixture(scope="module")
def text():
    return scoreboard.page(scoreboard.Results(RECORDED))


@pytest.fixture(scope="module")
def page(text):
    return BeautifulSoup(text, "html.parser")


def test_every_claim_has_one_card_and_one_cell_that_leads_to_it(page):
    cards = [card["id"] for card in page.select(".tc-scoreboard .tc-claim")]
    assert sorted(cards) == sorted(ledger.load_claims())
    assert [cell["href"][1:] for cell in page.select(".tc-cell")] == list(ledger.load_claims())


def test_a_card_begins_with_a_plain_sentence_and_folds_names_and_formulas(page, text):
    card = page.find(id="Z2")
    assert card.select_one(".tc-rule").text.strip() == ledger.claim_of("Z2").in_words
    assert [dt.text for dt in card.select(".tc-facts > div > dt")] == ["Paper", "Here", "Chance"]
    assert card.select_one("dl.tc-values dd").text == "3.12%"
    assert card.select_one(".tc-verdict.tc-reproduced").text.split() == ["✓", "reproduced"]
    assert "most are <td and `</script>` | *stars*" in card.text and text.count("</script>") == 1
    assert card.select_one("a")["href"] == "../notebooks/02_zero%20layers.html#claim-Z2"
    assert "self_largest" in card.details.text
    card.details.extract()
    assert "self_largest" not in card.text


def test_a_card_says_which_condition_is_not_met_and_how_its_criterion_was_amended(page, text):
    card = page.find(id="T14")
    assert f"{UNMET}; the criterion requires at most 25%" in card.text
    assert "within error of the threshold" in card.select_one(".tc-head").text
    assert [dt.text for dt in card.select(".tc-facts > div > dt")] == ["Question", "Here", "Text"]
    amended = card.select_one("details.tc-amended")
    assert amended.summary.text.startswith("Criterion amended")
    assert all(word in amended.text for word in ("Before.", "models of that time.", "Reason."))
    claims = ledger.load_claims().values()
    amended = sum(bool(claim.amended) for claim in claims)
    assert len(page.select(".tc-amended")) == amended
    assert f"{amended} claims were amended" in text and "S8, W6, and W8 are exceptions" in text


def test_a_claim_that_was_not_measured_leads_to_its_chapter_if_there_is_one(page):
    assert "not run" in page.find(id="O3").text and page.find(id="O3").a is None
    assert page.find(id="Z1").a["href"] == "../notebooks/02_zero%20layers.html"


def test_the_three_tallies_name_every_outcome_and_are_not_added_up(page, text):
    rows = page.select(".tc-tallies > div")
    found = [[" ".join(part.text.split()) for part in row.select(".tc-count")] for row in rows]
    assert found == [
        ["1 × ✓ identity holds", "1 × ✗ identity fails", "17 × – not run"],
        ["1 × ✓ reproduced", "0 × ◐ partly reproduced", "0 × ✗ not reproduced", "30 × – not run"],
        ["0 × ✓ yes", "1 × ◐ partly", "0 × ✗ no", "6 × – not run"],
    ]
    assert not re.search(r"\b60\b(?!%)", re.sub(r"<[^>]*>", "", text))


def test_the_front_page_has_the_headlines():
    text = scoreboard.headlines(scoreboard.Results(RECORDED))
    rows = BeautifulSoup(text, "html.parser").select(".tc-headlines tbody tr")
    ids = [*scoreboard.HEADLINES, *scoreboard.QUESTIONS]
    assert [row.a["href"] for row in rows] == [f"scoreboard.html#{id}" for id in ids]
    assert UNMET in rows[ids.index("T14")].text
    assert len(BeautifulSoup(text, "html.parser").select(".tc-tallies > div")) == 3


def test_the_front_page_shows_a_failure_if_there_is_one():
    def rows(**recorded):
        results = scoreboard.Results({"05_copying": [judge(id, **values) for id, values in recorded.items()]})
        assert "Not met:" in scoreboard.headlines(results)
        return [claim.id for claim, *_ in results.headlines()]

    unlisted = {"E6": dict(akin=0.1, akin_random=0.1, akin_random_error=0, raises=0.5)}
    listed = {"T9": dict(previous_share=(0.1, 0), direct_share=(0.2, 0))}
    assert rows(**unlisted) == [*scoreboard.HEADLINES, "E6"]
    assert rows(**unlisted, **listed) == list(scoreboard.HEADLINES)


def test_the_html_is_closed_to_markdown(text):
    for block in re.findall(r"```\{raw\} html\n(.*?)\n```\n", text, flags=re.DOTALL):
        assert "`" not in block and "\n\n" not in block
    outside = re.sub(r"```\{raw\} html\n.*?\n```\n", "", text, flags=re.DOTALL)
    assert "stars" not in outside and outside.startswith("# Scoreboard\n")
