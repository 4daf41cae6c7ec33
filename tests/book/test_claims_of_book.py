"""The claims of the book as it was just built: all accounted for, all verdicts accepted, the scoreboard says the same."""

import pytest
from bs4 import BeautifulSoup

from transformer_circuits.build import Book
from transformer_circuits.claims import Verdict, ledger, show
from transformer_circuits.paths import ROOT

BOOK = Book(ROOT)


def test_every_claim_is_recorded_or_says_why_not_and_no_verdict_changed_silently(html):
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert ledger.check_records(BOOK.claims, ROOT / "notebooks", ledger.read_accepted(), changelog) == []


def test_no_identity_fails(html):
    assert [id for id, record in ledger.read_records(BOOK.claims).items() if record.verdict is Verdict.FAILS] == []


@pytest.fixture(scope="module")
def rows(html):
    page = BeautifulSoup((html / "book" / "scoreboard.html").read_text(encoding="utf-8"), "html.parser")
    return {row["id"]: row for row in page.select(".tc-scoreboard tbody tr")}


def test_the_built_scoreboard_shows_what_was_recorded(rows):
    records = ledger.read_records(BOOK.claims)
    assert list(rows) == list(ledger.load_claims())
    for id, verdict in ledger.verdicts(records).items():
        badge = rows[id].select_one("td .tc-verdict")
        assert badge.text.split(maxsplit=1)[1].strip() == verdict
        if id in records:
            shown = [value.text for value in rows[id].select("td dd")]
            assert shown == [value for _, value in show.show_values(records[id].claim, records[id].values)]


def test_the_scoreboards_links_lead_to_the_claims_box(rows, html):
    for id, row in rows.items():
        for link in row.select("a"):
            file, _, box = link["href"].partition("#")
            page = BeautifulSoup((html / "book" / file).resolve().read_text(encoding="utf-8"), "html.parser")
            assert page.find(id=box), f"{link['href']} leads to no box of {id}"


def test_the_scoreboard_has_its_style(html):
    head = BeautifulSoup((html / "book" / "scoreboard.html").read_text(encoding="utf-8"), "html.parser").head
    assert any("scoreboard.css" in link["href"] for link in head.select("link[rel=stylesheet]")), "_config.yml must list scoreboard.css"
