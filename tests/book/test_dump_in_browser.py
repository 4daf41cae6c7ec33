"""The tables of the head dump in a browser without network: searched, sorted, readable without scripts. On a small book."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from playwright.sync_api import expect
from small_book import list_pages, make_book

from transformer_circuits import build
from transformer_circuits.pages import dump_pages

ODD = ["</td>", "<script>alert(1)</script>", "\n", '"', "!=", "$x$", "\\(", " two", "two", "Two"]
TOKENS = [*ODD, *(f" w{i}" for i in range(120))]


def dump() -> pd.DataFrame:
    """Return scores that sort differently as numbers and as text (9 and 10, −1); lists of the three tokens that follow by id."""
    n, rows = len(TOKENS), []
    for head in (0, 1):
        for i in range(n):
            after, numbers = [(i + j) % n for j in (1, 2, 3)], [float((i * 37) % 110), 0.5, -0.5]
            row = {"layer": 0, "head": head, "rank": i + 1, "source": i, "score": 60.0 - i}
            rows.append(row | dict.fromkeys(("destinations", "outs"), after))
            rows[-1] |= dict.fromkeys(("destination_scores", "out_boosts"), numbers)
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Return the folder of a built book that has only a head dump, put where the build keeps it."""
    root = make_book(tmp_path_factory.mktemp("built") / "book")
    list_pages(root, "book/head_dump")
    book = build.Book(root)
    folder = build.Cache(book).made / "head_dump"
    folder.mkdir(parents=True)
    rest = {"some-model": torch.tensor([0.25, 1.0])}
    dump_pages.write_pages(folder / "head_dump.md", {"some-model": dump()}, rest, TOKENS)
    return build.build(book).parent / "book"


@pytest.fixture
def table(pages, watched):
    """Open the page of the second head."""
    page = watched.open(pages / "head_dump" / "some-model" / "0_1.html")
    page.get_by_label("Search all columns", exact=True).wait_for()
    yield page
    assert watched.complaints == [] and watched.requests == []


def cells(page, column: int):
    return page.locator(f".head-dump tbody tr td:nth-child({column})")


def sources(page):
    """Return the column of source tokens. The table is drawn some time after a click or a key: check it with `expect`, which waits."""
    return cells(page, 2)


def search(page, text: str, column: str | None = None):
    name = "Search all columns" if column is None else f"Search the column {column}"
    page.get_by_label(name, exact=True).fill(text)
    return sources(page)


def test_tokens_are_literal(table):
    expect(sources(table)).to_have_count(50)
    texts = sources(table).all_inner_texts()
    assert texts[:7] == ["</td>", "<script>alert(1)</script>", "↵", '"', "!=", "$x$", "\\("]
    assert texts[7:10] == ["·two", "two", "Two"]
    expect(table.locator(".head-dump")).to_contain_text("1 to 50 of 130 source tokens")
    assert table.locator(".head-dump mjx-container").count() == 0, "a token was read as math"


def test_search_finds_tokens_with_and_without_their_space(table):
    expect(search(table, "·two", "source")).to_have_text(["·two"])
    expect(search(table, "two", "source")).to_have_text(["·two", "two", "Two"])
    for token in ("</td>", "!=", '"', "\\(", "↵"):  # the search is literal
        expect(search(table, token, "source")).to_have_text([token])
    search(table, "", "source")
    # In all columns: also the rows that have it among destinations and outs.
    expect(search(table, "·two")).to_have_text(["!=", "$x$", "\\(", "·two"])
    expect(search(table, "nothing of the kind")).to_have_count(0)


def test_columns_sort_as_numbers(table):
    scores, strengths = 5, 6  # columns
    for rising in (True, False):
        table.get_by_role("columnheader", name="score").click()
        numbers = [i - 69.0 if rising else 60.0 - i for i in range(50)]
        expect(cells(table, scores)).to_have_text([f"{x:.2f}" for x in numbers])
    table.get_by_role("columnheader", name="QK").click()
    numbers = sorted(dump()["destination_scores"][:130].str[0])[:50]
    expect(cells(table, strengths)).to_have_text([f"{x:.2f}" for x in numbers])


def test_the_table_scrolls_and_not_the_page(pages, watched):
    watched.page.set_viewport_size({"width": 320, "height": 800})
    page = watched.open(pages / "head_dump" / "some-model" / "0_0.html")
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 320
    boxes = (
        "e => e.filter(b => b.scrollWidth > b.clientWidth && getComputedStyle(b).overflowX === 'auto').length"
    )
    assert page.locator(".head-dump, .head-dump :has(table)").evaluate_all(boxes) >= 1
    assert watched.complaints == [] and watched.requests == []


def test_without_scripts_the_table_is_there(pages, unscripted):
    unscripted.goto((pages / "head_dump" / "some-model" / "0_0.html").as_uri())
    expect(sources(unscripted)).to_have_count(130)
    expect(sources(unscripted).nth(7)).to_have_text("·two")
