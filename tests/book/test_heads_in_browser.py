"""The pages of heads, in tables that a browser searches and sorts: the head dump, and every head of two layers. Made-up numbers, on a small book."""

import re

import pandas as pd
import pytest
import torch
from playwright.sync_api import expect
from small_book import list_pages, make_book, soup, write

from transformer_circuits import build, forks
from transformer_circuits.circuits.head_map import Passage
from transformer_circuits.measures.ablation import AblationEffects
from transformer_circuits.pages import dump_pages, every_head

ODD = ["</td>", "<script>alert(1)</script>", "\n", '"', "!=", "$x$", "\\(", " two", "two", "Two"]
MORE = ["cities", "city", "```", "|", "{{models}}", "{%if", "&lt;", "\u2028", "\t\r", "\x00", "�"]
TOKENS = [*ODD, *MORE, *(f" w{i}" for i in range(120))]
SHOWN = 130  # sources on a page
LISTED = pd.DataFrame([
    {"paper": "for ... in → range", "pieces": [], "in_text": True, "hit": True, "tokens": [" for", "in", "range"], "head": "0.1", "above d (%)": 0.02,
     "above s (%)": 7.25, "above o (%)": 0.5},
    {"paper": "'</ ... (any) → >'", "pieces": ["'|</"], "in_text": False, "hit": False, "tokens": float("nan"), "head": float("nan")},
])  # fmt: skip
HEADS = [f"0.{head}" for head in range(11)]
WORDS = ["<|start|>", "</td>", "<script>alert(1)</script>", "$x$", '"', " two", "\n", "</details>"]  # of the passages


def dump() -> pd.DataFrame:
    """Return scores that sort differently as numbers and as text (9 and 10, −1); lists of the three tokens that follow by id."""
    n, rows = len(TOKENS), []
    for head in (0, 1):
        for i in range(n):
            after, numbers = [(i + j) % n for j in (1, 2, 3)], [float((i * 37) % 110), 0.5, -0.5]
            row = {"layer": 0, "head": head, "rank": i + 1, "source": i, "score": 60.00004 - i}
            rows.append(row | dict.fromkeys(("destinations", "outs"), after))
            rows[-1] |= dict.fromkeys(("destination_scores", "out_boosts"), numbers) | {"in_row": [True, False, False]}
    return pd.DataFrame(rows)


def every() -> pd.DataFrame:
    """Return the map of HEADS, as `head_map` makes it; the costs are in another order than the heads."""
    n = len(HEADS)
    found = pd.DataFrame({name: [0.25] * n for name in every_head.NUMBERS}, HEADS)
    found["cost"] = [0.1 * ((7 * i) % n) for i in range(n)]
    found["error"], found["works"] = 0.01, [i != 3 for i in range(n)]
    found["names"] = [["induction", "copying"] if i == 2 else [] for i in range(n)]
    found["raises"] = [[1, 2, 3]] * n
    return found


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Return the folder of a built book that has both, put where the build keeps them."""
    root = make_book(tmp_path_factory.mktemp("built") / "book")
    linked = ["04_skip_trigrams", "16_every_head"]
    for name in linked:
        write(root / "notebooks" / f"{name}.ipynb", name[:2].lstrip("0"))
    list_pages(
        root,
        "book/head_dump",
        "book/head_dump/some-model/*",
        "book/every_head",
        *(f"notebooks/{name}" for name in linked),
    )
    results = build.Store(root)
    made = {name: results.new(name) for name in ("head_dump", "every_head")}
    ablated = {"some-model": AblationEffects(torch.tensor([[0.25, 0.001]]), torch.tensor([[0.01, 0.0002]]))}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dump_pages, "N_SOURCES", SHOWN)
        dump_pages.write_pages(made["head_dump"] / "head_dump.md", {"some-model": dump()}, ablated, TOKENS, LISTED)
    attention = torch.tensor([0.0, 0.1, 0.2, 0.3, 0.25, 0.1, 0.05])
    passages = [Passage(0, 6, 2.5, attention), Passage(1, 5, 1.25, attention[:6])]
    windows = torch.arange(len(WORDS)).repeat(2, 1)
    out = made["every_head"] / "every_head.md"
    every_head.write_page(out, every(), dict.fromkeys(HEADS, passages), windows, WORDS)
    for name in made:
        results.keep(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forks, "PRELOADED", [forks.__name__])  # these notebooks need no torch
        return build.build(root).parent / "book"


def test_each_head_has_its_page_with_its_first_sources_and_copies_marked(pages):
    """Also without scripts, which read this table and draw it anew."""
    page = soup(pages / "head_dump" / "some-model" / "0_1.html")
    assert "by 0.0010 ± 0.0002 nats per token" in page.text and "That is no effect" in page.text
    rows = [row.select("td") for row in page.select(".head-dump tbody tr")]
    assert [int(row[0].text) for row in rows] == list(range(1, SHOWN + 1)), "a page stops where it should"
    sources = [row[1].text for row in rows]
    assert sources[12:20] == ["```", "|", "{{models}}", "{%if", "&lt;", "<U+2028>", "⇥␍", "␀"]
    marked = {i: [code.text for code in row[3].select("code.copy")] for i, row in enumerate(rows)}
    assert {i: copies for i, copies in marked.items() if copies} == {7: ["two", "Two"], 8: ["Two"], 10: ["city"]}
    assert [code.text for code in rows[4][2].select("code.both")] == ["$x$"]  # the first of its three destinations
    assert [cell.text for cell in rows[4][4:]] == ["56.00", "38.00", "38.00"]


def test_the_index_links_every_head_and_a_file_with_all_sources(pages):
    page = soup(pages / "head_dump.html")
    heads = page.select_one(".head-dump")
    assert [a["href"] for a in heads.select("a")] == [f"head_dump/some-model/0_{i}.html" for i in (0, 1)]
    assert "is the source </td>. Its first destinations are <script>alert(1)</script> ↵" in page.text
    frame = pd.read_parquet(pages / page.select_one("a.download[href$='some-model.parquet']")["href"])
    assert frame["source_token"].tolist() == TOKENS * 2 and frame["score"][0] == 60
    assert [list(row) for row in frame["out_tokens"]] == [[TOKENS[i] for i in row] for row in dump()["outs"]]


@pytest.fixture
def table(pages, reused):
    """Open the page of the second head."""
    page = reused.open(pages / "head_dump" / "some-model" / "0_1.html")
    page.get_by_label("Search all columns", exact=True).wait_for()
    return page


def sources(page):
    """Return the column of source tokens. The table is drawn some time after a click or a key: check it with `expect`, which waits."""
    return page.locator(".head-dump tbody tr td:nth-child(2)")


def test_search_finds_tokens_with_and_without_their_space(table):
    for searched, found in {"·two": ["·two"], "two": ["·two", "two", "Two"]}.items():
        table.get_by_label("Search the column source", exact=True).fill(searched)
        expect(sources(table)).to_have_text(found)
    for token in ("</td>", "!=", '"', "\\(", "↵"):  # the search is literal
        table.get_by_label("Search the column source", exact=True).fill(token)
        expect(sources(table)).to_have_text([token])
    table.get_by_label("Search the column source", exact=True).fill("")
    table.get_by_label("Search all columns", exact=True).fill("·two")  # also among destinations and outs
    expect(sources(table)).to_have_text(["!=", "$x$", "\\(", "·two"])


def test_a_row_has_a_heads_names_and_its_passages_with_literal_tokens(pages):
    rows = soup(pages / "every_head.html").select(".head-dump tbody tr")
    assert [row.select("td")[1].text for row in rows][1:4] == ["no name", "induction, copying", "no effect"]
    first = rows[2].select_one("details .passage")
    assert first.text.startswith('<|start|></td><script>alert(1)</script>$x$"·two↵ → </details>')
    assert "rises by 2.50 nats. It attends to $x$ (30%, 3 back)" in first.text
    assert [span["style"] for span in first.select("span")][2:4] == ["--attention: 0.20", "--attention: 0.30"]


def test_the_table_sorts_searches_and_opens(pages, reused):
    page = reused.open(pages / "every_head.html")
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
