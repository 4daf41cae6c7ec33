"""The page of every head: sorted and opened in a browser, tokens literal, on a small book."""

import re

import pandas as pd
import pytest
import torch
from playwright.sync_api import expect
from small_book import list_pages, make_book, soup, write

from transformer_circuits import build
from transformer_circuits.circuits.head_map import Passage
from transformer_circuits.pages import every_head

TOKENS = ["<|start|>", "</td>", "<script>alert(1)</script>", "$x$", '"', " two", "\n", "</details>"]
HEADS = [f"0.{head}" for head in range(11)]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Return the folder of a built book that has the page, put where the build keeps it."""
    root = make_book(tmp_path_factory.mktemp("built") / "book")
    write(root / "notebooks" / "16_every_head.ipynb", "16")  # the page links to both
    list_pages(root, "book/every_head", "book/head_dump", "notebooks/16_every_head")
    folder, dump = (root / "_build" / name for name in ("made", "dump"))
    for each in (folder, dump):
        each.mkdir(parents=True)
    (dump / "head_dump.md").write_text("# Head dump\n")
    n = len(HEADS)
    every = pd.DataFrame({name: [0.25] * n for name in every_head.NUMBERS}, HEADS)
    every["cost"] = [0.1 * ((7 * i) % n) for i in range(n)]
    every["error"], every["works"] = 0.01, [i != 3 for i in range(n)]
    every["names"] = [["induction", "copying"] if i == 2 else [] for i in range(n)]
    every["raises"] = [[1, 2, 3]] * n
    attention = torch.tensor([0.0, 0.1, 0.2, 0.3, 0.25, 0.1, 0.05])
    found = [Passage(0, 6, 2.5, attention), Passage(1, 5, 1.25, attention[:6])]
    windows = torch.arange(len(TOKENS)).repeat(2, 1)
    every_head.write_page(folder / "every_head.md", every, dict.fromkeys(HEADS, found), windows, TOKENS)
    book = build.Book(root)
    for name, made in (("every_head", folder), ("head_dump", dump)):
        build.Cache(book).store.keep(name, "", {}, made, 0)
    return build.build(book).parent / "book"


def test_a_row_has_a_heads_names_and_its_passages_with_literal_tokens(pages):
    rows = soup(pages / "every_head.html").select(".head-dump tbody tr")
    assert [row.select("td")[0].text for row in rows] == HEADS
    assert [row.select("td")[1].text for row in rows][1:4] == ["unexplained", "induction, copying", "no effect"]
    first, second = rows[2].select("details .passage")
    assert first.text.startswith('<|start|></td><script>alert(1)</script>$x$"·two↵ → </details>')
    assert "rises by 2.50 nats. It attends to $x$ (30%, 3 back)" in first.text
    assert second.text.startswith('<|start|></td><script>alert(1)</script>$x$"·two → ↵')
    assert [span["style"] for span in first.select("span")][2:4] == ["--attention: 0.20", "--attention: 0.30"]


def test_the_table_sorts_searches_and_opens(pages, watched):
    page = watched.open(pages / "every_head.html")
    names = page.locator(".head-dump tbody tr td:nth-child(1)")
    expect(names).to_have_text(HEADS)
    page.get_by_role("columnheader", name="cost").click()
    expect(names).to_have_text(sorted(HEADS, key=lambda name: (7 * HEADS.index(name)) % len(HEADS)))
    page.get_by_role("columnheader", name=re.compile("^head")).click()
    expect(names).to_have_text(HEADS)  # 0.2 before 0.10
    page.get_by_label("Search the column names", exact=True).fill("induction")
    expect(names).to_have_text(["0.2"])
    passage = page.locator(".head-dump .passage").first
    expect(passage).to_be_hidden()
    page.locator(".head-dump summary").click()
    expect(passage).to_be_visible()
    assert page.locator(".head-dump mjx-container").count() == 0, "a token was read as math"
