"""The pages of the head dump: every token literal, every head and source there, a file that pandas reads."""

import re

import pandas as pd
import pytest
import torch
from bs4 import BeautifulSoup

from transformer_circuits.pages import dump_pages as pages

ODD = ["</td>", "<script>alert(1)</script>", "\n", "&lt;", '"', "```", "$x$", "|", " two", "two", "Two"]
MORE = ["cities", "city", "MODEL", "HEADS", "\u2028", "\t\r", "\x00", "�"]
TOKENS = [*ODD, *MORE, *(f"w{i}" for i in range(20))]
LISTED = pd.DataFrame([
    {"paper": "for ... in → range", "pieces": [], "hit": True, "tokens": [" for", "in", "range"], "head": "0.1", "above d (%)": 0.02,
     "above o (%)": 0.5},
    {"paper": "'</ ... (any) → >'", "pieces": ["'|</"], "hit": False, "tokens": float("nan"), "head": float("nan")},
])  # fmt: skip
REST = {"some-model": torch.tensor([0.25, 1.0])}


def dump() -> pd.DataFrame:
    """Return all tokens as sources of two heads; destinations and outs are the tokens that follow by id."""
    n, rows = len(TOKENS), []
    for head in (0, 1):
        for i in range(n):
            after = [(i + j) % n for j in range(5)]
            row = {"layer": 0, "head": head, "rank": i + 1, "source": i, "score": 100.0 / (i + 1)}
            row |= {"destinations": after[head : head + 4], "outs": after[1:]}
            rows.append(row | dict.fromkeys(("destination_scores", "out_boosts"), [9.87654, 8, 7, 6]))
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    out = tmp_path_factory.mktemp("book") / "head_dump.md"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "N_SOURCES", 30)
        pages.write_pages(out, {"some-model": dump()}, REST, TOKENS, pages.paper_table(LISTED))
    return out


def fenced(page: str) -> list[BeautifulSoup]:
    """Return what is between the fences of raw HTML, as a Markdown parser finds them: a fence starts a line."""
    found = re.findall(r"^```\{raw\} html\n(.*?)\n```$", page, re.DOTALL | re.MULTILINE)
    return [BeautifulSoup(markup, "html.parser") for markup in found]


@pytest.mark.parametrize(("head", "rest", "resting"), [(0, "25%", False), (1, "100%", True)])
def test_each_head_has_its_page_with_tokens_literal_and_copies_marked(written, head, rest, resting):
    text = (written.with_suffix("") / "some-model" / f"0_{head}.md").read_text(encoding="utf8")
    assert f"puts {rest} of its attention" in text and ("resting head" in text) == resting
    (table,) = fenced(text)
    rows = [row.select("td") for row in table.select("tbody tr")]
    assert [int(row[0].text) for row in rows] == list(range(1, 31)), "a page stops where it should"
    assert all(len(row) == 7 and len(row[2].select("code")) == 4 for row in rows)
    sources = [row[1].text for row in rows]
    assert sources[:5] == ["</td>", "<script>alert(1)</script>", "↵", "&lt;", '"']
    assert (sources[8], sources[15], sources[16]) == ("·two", "<U+2028>", "⇥␍")
    marked = {i: [code.text for code in row[3].select("code.copy")] for i, row in enumerate(rows)}
    expected = {8: ["two", "Two"], 9: ["Two"], 11: ["city"]}
    assert {i: copies for i, copies in marked.items() if copies} == expected
    assert [cell.text for cell in rows[4][4:]] == ["20.00", "9.88", "9.88"]


def test_the_index_links_every_head_and_the_file(written):
    text = written.read_text(encoding="utf8")
    example, heads, listed = fenced(text)
    links = [link["href"] for link in heads.select("a")]
    assert links == ["head_dump/some-model/0_0.html", "head_dump/some-model/0_1.html"]
    assert "{download}`some-model.parquet <head_dump/some-model.parquet>`" in text
    assert "first 30 source tokens" in text and '"some-model.parquet"' in text
    assert [row.select("td")[1].text for row in heads.select("tbody tr")] == ["3\u00a0of\u00a030"] * 2
    assert example.select_one("code").text == "</td>" and heads.select_one("td code").text == "</td>"
    found, split = ([cell.text for cell in row.select("td")] for row in listed.select("tbody tr"))
    assert found == ["for ... in → range", "·for in range", "hit", "0.1", "0.02", "0.50"]
    assert split == ["'</ ... (any) → >'", "'|</", "split", "", "", ""]


def test_the_file_holds_all_sources_as_strings_ids_and_numbers(written):
    frame, expected = pd.read_parquet(written.with_suffix("") / "some-model.parquet"), dump()
    assert frame["source_token"].tolist() == TOKENS * 2
    for ids, strings in (("destinations", "destination_tokens"), ("outs", "out_tokens")):
        assert [list(row) for row in frame[ids]] == expected[ids].tolist()
        assert [list(row) for row in frame[strings]] == [[TOKENS[i] for i in row] for row in expected[ids]]
    assert frame["out_boosts"][0][0] == pytest.approx(9.877, abs=1e-6)
    assert frame["score"][2] == pytest.approx(33.333, abs=1e-5)
