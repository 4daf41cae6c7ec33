"""The claims of the book as it was just built: all verdicts accepted, no identity fails, and every page shows the same numbers."""

import json
import re

import pytest
import yaml
from small_book import soup

from book_build.build import records, run
from transformer_circuits.claims import Verdict, ledger
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
    findings = page.select_one(".tc-tallies tbody tr")
    counted = [int(count.text) for count in findings.select("td")]
    listed = [claim for claim in ledger.load_claims().values() if claim.kind == "finding" and not claim.weak]
    assert sum(counted) == len(listed), "results that barely test their statement are counted apart"
    line = next(li.text for li in front.select("article li") if "findings on trained models" in li.text)
    assert [int(number) for number in re.findall(r"\d+", line)][:4] == [sum(counted), *counted]


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
