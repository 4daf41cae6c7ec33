"""The claims of the book as it was just built: all verdicts accepted, no identity fails, and every page shows the same numbers."""

import json
import re

import pytest
from small_book import soup

from transformer_circuits.build import Store, all_executed, records
from transformer_circuits.claims import Verdict, ledger, show
from transformer_circuits.paths import ROOT


@pytest.fixture(scope="module")
def recorded(html):
    return {record.id: record for found in records(all_executed(Store(ROOT))).values() for record in found}


@pytest.fixture(scope="module")
def page(html):
    return soup(html / "book" / "scoreboard.html")


@pytest.fixture(scope="module")
def front(html):
    return soup(html / "book" / "intro.html")


def test_no_verdict_changed_unseen_and_no_identity_fails(recorded):
    now = {id: record.verdict for id, record in recorded.items()}
    words = "read these chapters again, then `make accept`"
    assert ledger.changed(now, ROOT / "book" / "verdicts.yml") == [], words
    assert [id for id, verdict in now.items() if verdict is Verdict.FAILS] == []


def test_the_front_page_shows_the_scoreboards_tallies(page, front):
    assert front.select_one(".tc-tallies").text.split() == page.select_one(".tc-tallies").text.split()
    sheets = [link["href"] for link in front.select("link[rel=stylesheet]")]
    assert any("scoreboard.css" in sheet for sheet in sheets), "_config.yml must list scoreboard.css"


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
    assert show.show_quantity(score, "share", digits=2) in front.select_one("article p strong").text
    assert any(value.text.startswith(precise) for value in page.find(id="T8").select(".tc-values dd"))
    for chapter in ("00_how_to_read", "07_induction_heads"):
        assert f"{rounded} of its attention" in words_of(html, chapter)
    script = (html / "_static" / "play" / "model.js").read_text(encoding="utf-8")
    play = json.loads(re.match(r"window\.playModel = (.*);\n", script)[1])["facts"]["scores"]
    value, layer, head = on_card(html, "attn-only-2l", "induction score")
    assert value == round(score, 3) and f"induction score {score:.2f}" in play[layer][head]
    value, layer, head = on_card(html, "attn-only-2l", "previous-token score")
    shown = re.search(r"(\d+)% of its attention on the previous token", play[layer][head])[1]
    assert f"puts {shown}% of its attention" in words_of(html, "00_how_to_read")
    assert abs(value - int(shown) / 100) < 0.0056


def test_claims_are_chosen_by_verdict_and_a_link_opens_its_card(html, reused, recorded):
    shown = reused.page
    shown.goto(f"{(html / 'book' / 'scoreboard.html').as_uri()}#T8")
    assert shown.locator("#T8").get_attribute("open") is not None and shown.locator("#T9[open]").count() == 0
    wanted = next(claim for claim in map(ledger.claim_of, recorded) if claim.group == "question")
    answer = wanted.words(recorded[wanted.id].verdict)
    shown.get_by_label("Verdict").select_option(answer)
    cards = shown.locator(".tc-scoreboard details.tc-claim:visible")
    assert set(cards.evaluate_all("cards => cards.map(card => card.dataset.verdict)")) == {answer}
