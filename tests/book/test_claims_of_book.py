"""The claims of the book as it was just built: all verdicts accepted, no identity fails, the scoreboard says the same."""

import pytest
from bs4 import BeautifulSoup

from transformer_circuits.build import Book, Cache, records
from transformer_circuits.claims import Verdict, ledger, show
from transformer_circuits.paths import ROOT


@pytest.fixture(scope="module")
def recorded(html):
    book = Book(ROOT)
    return {record.id: record for found in records(book, Cache(book)).values() for record in found}


@pytest.fixture(scope="module")
def page(html):
    return BeautifulSoup((html / "book" / "scoreboard.html").read_text(encoding="utf-8"), "html.parser")


def test_no_verdict_changed_unseen_and_no_identity_fails(recorded):
    now = {id: record.verdict for id, record in recorded.items()}
    words = "read these chapters again, then `make accept`"
    assert ledger.changed(now, ledger.read_accepted()) == [], words
    assert [id for id, verdict in now.items() if verdict is Verdict.FAILS] == []


def test_the_built_scoreboard_shows_what_was_recorded_and_leads_to_it(recorded, page, html):
    rows = {row["id"]: row for row in page.select(".tc-scoreboard tbody tr")}
    assert sorted(rows) == sorted(ledger.load_claims())
    chapters = {}
    for id, record in recorded.items():
        assert rows[id].select_one("td .tc-verdict").text.split(maxsplit=1)[1].strip() == record.verdict
        assert [value.text for value in rows[id].select("td dd")] == [value for _, value in show.show_values(record.claim, record.values)]
        file, _, box = rows[id].select_one("td a")["href"].partition("#")
        if file not in chapters:
            chapters[file] = BeautifulSoup((html / "book" / file).resolve().read_text(encoding="utf-8"), "html.parser")
        assert chapters[file].find(id=box), f"{file} has no box of {id}"


def test_the_front_page_and_the_scoreboard_have_the_headlines(page, html):
    front = BeautifulSoup((html / "book" / "intro.html").read_text(encoding="utf-8"), "html.parser")
    assert len(front.select(".tc-headlines tbody tr")) == len(page.select(".tc-headlines tbody tr")) == 10
    assert any("scoreboard.css" in link["href"] for link in front.select("link[rel=stylesheet]")), "_config.yml must list scoreboard.css"
