"""The pages of heads: the head dump, in tables that a browser searches, and every head of two layers."""

import pytest
from playwright.sync_api import expect
from small_book import soup

from book_build.pages.dump_pages import MODELS, N_SOURCES, K
from book_build.pages.every_head import MODEL as TWO_LAYERS
from transformer_circuits.circuits.head_dump import head_dump
from transformer_circuits.data import frequencies, vocabulary
from transformer_circuits.figures.tokens import show_token
from transformer_circuits.models import load_model

MODEL, HEAD = MODELS[0], 4


@pytest.fixture(scope="module")
def sources():
    """What the page of a head lists, with the strings of its tokens."""
    dump, names = head_dump(load_model(MODEL), frequencies(), N_SOURCES, K), vocabulary()
    strings = {"source_token": dump["source"].map(lambda i: names[i])}
    for kind in ("destination", "out"):
        strings[f"{kind}_tokens"] = dump[f"{kind}s"].map(lambda ids: [names[i] for i in ids])
    return dump.assign(**strings)[dump["head"] == HEAD]


@pytest.fixture
def page(html):
    return html / "book" / "head_dump" / MODEL / f"0_{HEAD}.html"


def test_a_heads_page_has_its_first_sources_with_literal_tokens_and_copies_marked(page, sources):
    """Also without scripts, which read this table and draw it anew."""
    rows = [row.select("td") for row in soup(page).select(".head-dump tbody tr")]
    assert len(rows) == N_SOURCES, "a page stops where it should"
    for row, source in zip(rows, sources.itertuples()):
        assert row[1].text == show_token(source.source_token)
        for cell, tokens in ((row[2], source.destination_tokens), (row[3], source.out_tokens)):
            assert [code.text for code in cell.select("code")] == list(map(show_token, tokens))
        copies = {code.text for code in row[3].select("code.copy")}
        assert (source.source_token in source.out_tokens) == (show_token(source.source_token) in copies)
        both = {code.text for code in row[2].select("code.both")}
        assert both == {show_token(token) for token, mark in zip(source.destination_tokens, source.in_row) if mark}


def test_search_finds_tokens_with_and_without_their_space(page, sources, reused):
    names = list(map(show_token, sources["source_token"]))
    word = next(name.strip("·") for name in names if name.strip("·").isalpha() and name.startswith("·"))
    table = reused.open(page)
    search = table.get_by_label("Search the column source", exact=True)
    for query in (f"·{word}", word, "(", "\\", '"', "<", "."):  # the search is literal
        search.fill(query)
        expected = [name for name in names if query.lower() in name.lower()]
        listed = table.locator(".head-dump tbody tr:has(td:nth-child(2)) td:nth-child(2)")
        expect(listed).to_have_text(expected)


def test_every_head_has_a_tile_and_an_address_where_its_jobs_are(html, reused):
    page, cfg = reused.open(html / "book" / "every_head.html"), load_model(TWO_LAYERS, "cpu").cfg
    tiles, cards = page.locator(".tc-tile"), page.locator(".tc-head-card")
    expect(tiles).to_have_count(cfg.n_layers * cfg.n_heads)
    for name in ("0.1", "1.11"):
        page.locator(f".tc-tile[href='#head-{name}']").click()
        expect(cards.filter(visible=True)).to_have_count(1)
        expect(page.get_by_role("heading", name=f"Head {name}:")).to_be_visible()
    page.locator(".tc-tile[href='#head-0.1']").click()
    expect(page.locator("#head-0\\.1 tbody tr").first).to_contain_text("previous token")
    says = page.locator("#head-0\\.1 .tc-attend-says").first
    said = says.inner_text()
    page.locator("#head-0\\.1 .tc-attend-text code").nth(-3).hover()
    expect(says).not_to_have_text(said)
    assert page.locator(".tc-heads mjx-container").count() == 0, "a token was read as math"


def test_tiles_lead_to_every_head_of_the_dump(html):
    links = [a["href"] for a in soup(html / "book" / "head_dump.html").select(".tc-tile")]
    pages = {str(path.relative_to(html / "book")) for path in (html / "book" / "head_dump").glob("*/*.html")}
    assert len(links) == len(pages) and set(links) == pages
