"""The claims of the book as it was just built: all verdicts accepted, no identity fails, every claim once, failures shown, nothing unescaped."""

import json
import re

import pytest
import yaml
from bs4 import BeautifulSoup, Tag
from small_book import soup

from book_build.build import records, run
from book_build.pages import scoreboard
from transformer_circuits.claims import Verdict, ledger, show
from transformer_circuits.paths import DATA, ROOT

ODD = "most are <td and `</script>` | *stars*\n\n# no heading\n\n:::{note}"


@pytest.fixture(scope="module")
def recorded(html):
    return {record.id: record for found in records(run(ROOT)).values() for record in found}


@pytest.fixture(scope="module")
def page(html):
    return soup(html / "book" / "scoreboard.html")


@pytest.fixture(scope="module")
def front(html):
    return soup(html / "book" / "intro.html")


def test_no_verdict_changed_unseen_and_no_identity_fails(recorded):
    accepted = yaml.safe_load((ROOT / "book" / "verdicts.yml").read_text(encoding="utf-8"))
    now = {id: str(record.verdict) for id, record in recorded.items()}
    assert now == accepted, "read these chapters again, then `make accept`"
    assert Verdict.FAILS not in now.values()


def words(node: Tag) -> str:
    return " ".join(node.text.split())


def shown(sentence: str) -> str:
    """Return the words of a sentence as a card has them, with subscripts."""
    return words(BeautifulSoup(show.subscripts(sentence), "html.parser"))


def test_every_claim_has_one_card_and_a_card_says_why_it_failed_and_what_was_changed(page, recorded):
    cards = {card["id"].removeprefix("claim-"): card for card in page.select(".tc-scoreboard .tc-claim")}
    assert cards.keys() == ledger.load_claims().keys()
    seed = ledger.held_out_seed(DATA)
    for id, card in cards.items():
        record, line = recorded[id], words(card.summary)
        assert shown(record.claim.title) in line and shown(show.our_result(record)) in words(card)
        assert not set(line) & set("†‡≈✓◐✗"), "a line begins with a word"
        if record.claim.judged:
            assert words(card.select_one(".tc-rule")) == record.claim.in_words
        assert [words(unmet) for unmet in card.select(".tc-unmet")] == [*map(shown, show.unmet_conditions(record))]
        assert ("Noise could change this verdict" in card.text) == record.within_error
        assert len(card.select(".tc-amended")) == bool(record.claim.amended)
        assert ("Held-out seed" in card.text) == (seed.of(id) is not None)


def test_a_detail_is_shown_literally_and_the_html_is_closed_to_markdown(recorded):
    odd = [record.model_copy(update={"detail": ODD}) for record in recorded.values()]
    text = scoreboard.page(scoreboard.Results({"02_zero layers": odd}))
    card = BeautifulSoup(text, "html.parser").find(id="claim-Z2")
    assert "most are <td and </script> | *stars*" in card.text and text.count("</script>") == 1
    assert card.select_one(".tc-shown")["href"] == "../notebooks/02_zero%20layers.html#claim-Z2"
    for block in re.findall(r"```\{raw\} html\n(.*?)\n```\n", text, flags=re.DOTALL):
        assert "`" not in block and "\n\n" not in block
    outside = re.sub(r"```\{raw\} html\n.*?\n```\n", "", text, flags=re.DOTALL)
    assert "stars" not in outside and outside.startswith("# Scoreboard")


def test_the_front_page_counts_findings_as_the_scoreboard_does_and_both_have_a_square_for_each(page, front):
    counted = [int(count.text) for count in page.select_one(".tc-tallies tbody tr").select("td")]
    findings = sorted(f"#claim-{claim.id}" for claim in scoreboard.counted_in("finding"))
    assert sum(counted) == len(findings), "results that barely test their statement are counted apart"
    assert sorted(square["href"] for square in page.select("a.tc-cell")) == findings
    assert sorted(square["href"].removeprefix("scoreboard.html") for square in front.select("a.tc-square")) == findings
    line = front.select_one(".tc-squares").text
    assert [int(number) for number in re.findall(r"\d+", line)] == [len(findings), *counted]


def test_the_stage_and_the_models_page_have_the_score_of_the_ledger(recorded, html):
    """Where tests of words do not look (test_one_number): in the title of a head, and in a table."""
    score = recorded["T8"].values["induction_2l"]
    script = (html / "_static" / "play" / "model.js").read_text(encoding="utf-8")
    said = json.loads(re.match(r'pageData\((.*), "[^"]*"\);\n', script)[1])["facts"]["scores"]
    best = max(range(12), key=lambda head: f"induction score {score:.2f}" in said[1][head])
    assert f"induction score {score:.2f}" in said[1][best]
    assert f"{score:.3f} (1.{best})" in soup(html / "book" / "models.html").table.text


def test_a_square_says_its_claim_and_a_link_to_a_claim_opens_its_card(html, reused):
    shown = reused.page
    shown.goto((html / "book" / "scoreboard.html").as_uri())
    assert shown.locator('.tc-cell[href="#claim-T8"]').get_attribute("title") == ledger.claim_of("T8").title
    shown.goto(f"{(html / 'book' / 'scoreboard.html').as_uri()}#claim-T8")
    assert shown.locator("#claim-T8").get_attribute("open") is not None
    assert shown.locator("#claim-T9[open]").count() == 0
