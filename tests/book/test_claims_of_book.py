"""The claims of the book as it was just built: all verdicts accepted, no identity fails, and every page shows the same numbers."""

import json
import re

import pytest
import yaml
from small_book import soup

from book_build.build import records, run
from transformer_circuits.claims import Verdict, ledger, show
from transformer_circuits.paths import ROOT


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


def test_the_front_page_counts_findings_as_the_scoreboard_does(page, front):
    tallies = {tally.th.text.split(" (")[0]: tally for tally in page.select(".tc-tallies tbody tr")}
    findings = tallies["The paper's findings on trained models"]
    counted = [int(count.text) for count in findings.select("td")]
    listed = [claim for claim in ledger.load_claims().values() if claim.kind == "finding" and not claim.weak]
    assert sum(counted) == len(listed), "results that barely test their statement are counted apart"
    line = next(li.text for li in front.select("article li") if "findings on trained models" in li.text)
    assert [int(number) for number in re.findall(r"\d+", line)][:4] == [sum(counted), *counted]


def words_of(html, chapter):
    return " ".join(soup(html / "notebooks" / f"{chapter}.html").article.text.split())


def on_card(html, name, row):
    """The value and the head in a row of the table of the family's models."""
    table = soup(html / "book" / "models.html").table
    column = [cell.text.strip() for cell in table.select("thead th")].index(name)
    lines = {line.td.text.strip(): line.select("td") for line in table.select("tbody tr")}
    cell = lines[row][column].text.strip()
    value, layer, head = re.fullmatch(r"([\d.]+) \((\d+)\.(\d+)\)", cell).groups()
    return float(value), int(layer), int(head)


def test_one_score_of_one_head_is_the_same_number_on_every_page(recorded, front, page, html):
    """Best induction score: front page, scoreboard, chapters 0 and 7, model card, Play; previous-token score: chapter 0, model card, Play."""
    score = recorded["T8"].values["induction_2l"]
    precise, rounded = show.show_quantity(score, "share"), f"{score:.0%}"
    assert show.show_quantity(score, "share", digits=2) in front.article.text
    assert any(value.text.startswith(precise) for value in page.find(id="claim-T8").select(".tc-values dd"))
    for chapter in ("00_how_to_read", "07_induction_heads"):
        assert f"{rounded} of its attention" in words_of(html, chapter)
    script = (html / "_static" / "play" / "model.js").read_text(encoding="utf-8")
    play = json.loads(re.match(r'pageData\((.*), "[^"]*"\);\n', script)[1])["facts"]["scores"]
    value, layer, head = on_card(html, "attn-only-2l", "induction score")
    assert value == round(score, 3) and f"induction score {score:.2f}" in play[layer][head]
    value, layer, head = on_card(html, "attn-only-2l", "previous-token score")
    shown = re.search(r"(\d+)% of its attention on the previous token", play[layer][head])[1]
    assert f"puts {shown}% of its attention" in words_of(html, "00_how_to_read")
    assert abs(value - int(shown) / 100) < 0.0056


def test_a_square_says_its_sentence_and_a_link_to_a_claim_opens_its_card(html, reused):
    shown = reused.page
    shown.goto((html / "book" / "scoreboard.html").as_uri())
    shown.hover('.tc-cell[href="#claim-T8"]')
    assert ledger.claim_of("T8").title in shown.locator(".tc-sentence").inner_text()
    shown.goto(f"{(html / 'book' / 'scoreboard.html').as_uri()}#claim-T8")
    assert shown.locator("#claim-T8").get_attribute("open") is not None
    assert shown.locator("#claim-T9[open]").count() == 0
