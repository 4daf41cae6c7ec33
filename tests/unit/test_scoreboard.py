"""The scoreboard and the front page's table: every claim once, numbers and verdicts as recorded, nothing unescaped."""

import re

import pytest
from bs4 import BeautifulSoup

from transformer_circuits import paths
from transformer_circuits.claims import Verdict, judge, ledger, show
from transformer_circuits.pages import scoreboard

RECORDED = {
    "02_zero layers": [judge("Z2", 0.0312, detail="most are <td and `</script>` | *stars*\n\n# no heading\n\n:::{note}")],
    "07_induction_heads": [judge("T14", intact=0.8, without_previous=0.3, without_other=0.7), judge("O1", 1e-7), judge("O2", 1e-2)],
}


@pytest.fixture(scope="module")
def text():
    return scoreboard.page(scoreboard.Results(RECORDED))


@pytest.fixture(scope="module")
def page(text):
    return BeautifulSoup("\n".join(re.findall(r"```\{raw\} html\n(.*?)\n```\n", text, flags=re.DOTALL)), "html.parser")


def test_every_claim_has_one_row_and_one_cell_that_leads_to_it(page):
    rows = [row["id"] for row in page.select(".tc-scoreboard tbody tr")]
    assert sorted(rows) == sorted(ledger.load_claims())
    assert [cell["href"][1:] for cell in page.select(".tc-cell")] == list(ledger.load_claims())
    assert {ledger.claim_of(row["id"]).kind for row in page.select(".tc-folded tbody tr")} <= {"identity"}


def test_a_record_shows_values_verdict_what_fell_short_and_its_chapter(page, text):
    row = page.find("tr", id="Z2")
    assert row.select_one("dd").text == "3.12 %"
    assert row.select_one(".tc-verdict.tc-reproduced").text.split() == ["✓", "reproduced"]
    assert "most are <td and `</script>` | *stars*" in row.text and "</script>" not in text
    assert row.select_one("a")["href"] == "../notebooks/02_zero%20layers.html#claim-Z2"
    assert "without the previous-token head: 30 %, needed: at most 20 %" in page.find("tr", id="T14").text
    assert "not run" in page.find("tr", id="O3").text and page.find("tr", id="O3").a is None
    assert "criterion amended" in page.find("tr", id="T8").text and "Amended." in page.find("tr", id="T8").text


def test_the_counts_are_those_of_all_claims(page):
    found = [" ".join(part.text.split()) for part in page.select(".tc-count")]
    assert found == ["1 × ✓ reproduced", "1 × ◐ partly", "1 × ✓ identity holds", "1 × ✗ identity fails", "56 × – not run"]


def test_the_front_page_has_the_headlines(page):
    text = scoreboard.headlines(scoreboard.Results(RECORDED))
    assert "of the paper's 18 exact identities 1 hold here, of its 42 claims about trained models 1 are reproduced and 1 in part" in text
    rows = BeautifulSoup(text, "html.parser").select(".tc-headlines tbody tr")
    assert [row.a["href"] for row in rows] == [f"scoreboard.html#{id}" for id in scoreboard.HEADLINES]
    assert "score 80\u00a0%; without that head 30\u00a0%" in rows[3].text
    assert len(page.select(".tc-headlines tbody tr")) == 10


def test_headlines_name_values_of_their_claims():
    for id, (_, here) in scoreboard.HEADLINES.items():
        assert {name.removeprefix("n_") for name in re.findall(r"\{(\w+)\}", here)} <= set(ledger.claim_of(id).quantities), id


def test_the_html_is_closed_to_markdown(text):
    for block in re.findall(r"```\{raw\} html\n(.*?)\n```\n", text, flags=re.DOTALL):
        assert "`" not in block and "\n\n" not in block
    outside = re.sub(r"```\{raw\} html\n.*?\n```\n", "", text, flags=re.DOTALL)
    assert "stars" not in outside and outside.startswith("# Scoreboard\n")


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_every_verdict_has_a_badge_that_can_be_read():
    css = (paths.ROOT / "book" / "_static" / "scoreboard.css").read_text()
    for verdict in Verdict:
        if verdict != Verdict.NOT_RUN:  # the badge's own background
            assert f".tc-verdict.{show.css_class(verdict)}" in css and f".{show.css_class(verdict)}.tc-cell" in css
        assert show.EDGES[verdict] in css
        assert 1.05 / (luminance(show.EDGES[verdict]) + 0.05) >= 4.5, verdict  # white text, WCAG 2.1
