"""The pages of the head dump: every token literal, every head and source there, a file that pandas reads."""

import re

import pandas as pd
import pytest
import torch
from bs4 import BeautifulSoup

from transformer_circuits.figures import datatables
from transformer_circuits.pages import head_dump as pages

ODD = ["</td>", "<script>alert(1)</script>", "\n", "&lt;", '"', "```", "$x$", "|", " two", "two", "Two", "cities", "city",
       "MODEL", "HEADS", "\u2028", "\t\r", "\x00", "�"]  # fmt: skip
TOKENS = [*ODD, *(f"w{i}" for i in range(20))]
REST = {"some-model": torch.tensor([0.25, 1.0])}


def dump() -> pd.DataFrame:
    """All tokens as sources of two heads; destinations and outs are the tokens that follow by id."""
    n, numbers = len(TOKENS), [9.87654, 8, 7, 6]
    rows = [{"layer": 0, "head": head, "rank": i + 1, "source": i, "score": 100.0 / (i + 1), "destinations": [(i + head + j) % n for j in range(4)],
             "destination_scores": numbers, "outs": [(i + 1 + j) % n for j in range(4)], "out_boosts": numbers}
            for head in (0, 1) for i in range(n)]  # fmt: skip
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    out = tmp_path_factory.mktemp("book") / "head_dump.md"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "N_SOURCES", 30)
        pages.write_pages(out, {"some-model": dump()}, REST, TOKENS)
    return out


def fenced(page: str) -> list[BeautifulSoup]:
    """What stands between the fences of raw HTML, in the way a Markdown parser finds them: a fence starts a line."""
    found = re.findall(r"^```\{raw\} html\n(.*?)\n```$", page, re.DOTALL | re.MULTILINE)
    return [BeautifulSoup(markup, "html.parser") for markup in found]


def test_each_head_has_its_page_with_tokens_literal_and_copies_marked(written):
    texts = [(written.with_suffix("") / "some-model" / f"0_{head}.md").read_text(encoding="utf8") for head in (0, 1)]
    assert [f"gives {rest} of its attention" in text for text, rest in zip(texts, ("25%", "100%"))] == [True, True]
    assert ["hardly ever carried out" in text for text in texts] == [False, True], "only the second head rests"
    for text in texts:
        (table,) = fenced(text)
        rows = [row.select("td") for row in table.select("tbody tr")]
        assert [int(row[0].text) for row in rows] == list(range(1, 31)), "a page stops where it should"
        assert all(len(row) == 7 and len(row[2].select("code")) == 4 for row in rows)
        assert [row[1].text for row in rows][:5] == ["</td>", "<script>alert(1)</script>", "↵", "&lt;", '"']
        assert (rows[8][1].text, rows[15][1].text, rows[16][1].text) == ("·two", "<U+2028>", "⇥␍")
        marked = {i: [code.text for code in row[3].select("code.copy")] for i, row in enumerate(rows) if row[3].select("code.copy")}
        assert marked == {8: ["two", "Two"], 9: ["Two"], 11: ["city"]}
        assert [cell.text for cell in rows[4][4:]] == ["20.00", "9.88", "9.88"]


def test_the_index_links_every_head_and_the_file(written):
    text = written.read_text(encoding="utf8")
    example, heads = fenced(text)
    assert [link["href"] for link in heads.select("a")] == ["head_dump/some-model/0_0.html", "head_dump/some-model/0_1.html"]
    assert "{download}`some-model.parquet <head_dump/some-model.parquet>`" in text and "first 30 source tokens" in text
    assert [row.select("td")[1].text for row in heads.select("tbody tr")] == ["3\u00a0of\u00a030"] * 2
    assert example.select_one("code").text == "</td>" and heads.select_one("td code").text == "</td>"


def test_the_file_holds_all_sources_as_strings_ids_and_numbers(written):
    frame, expected = pd.read_parquet(written.with_suffix("") / "some-model.parquet"), dump()
    assert list(frame.columns) == pages.SCHEMA.names and frame["source_token"].tolist() == TOKENS * 2
    for ids, strings in (("destinations", "destination_tokens"), ("outs", "out_tokens")):
        assert [list(row) for row in frame[ids]] == expected[ids].tolist()
        assert [list(row) for row in frame[strings]] == [[TOKENS[i] for i in row] for row in expected[ids]]
    assert frame["out_boosts"][0][0] == pytest.approx(9.877, abs=1e-6) and frame["score"][2] == pytest.approx(33.333, abs=1e-5)


def test_datatables_is_an_ordinary_script():
    files = datatables.files()
    script = files["datatables/datatables.js"]
    assert re.search(r"window\.itables=\{[^}]*\bdefault:\w+", script) and not re.search(r"(^|[;}])(export|import)[ {*]", script)
    assert "MIT" in script, "the licence notices go along"
    assert not re.search(r"url\((?!data:)", files["datatables/datatables.css"]), "the style fetches nothing"
