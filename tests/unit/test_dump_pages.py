"""The pages of the head dump: every token literal, every head and source there, a file that pandas reads."""

import re

import pandas as pd
import pytest
import torch
from bs4 import BeautifulSoup

from transformer_circuits.circuits.words import akin_to
from transformer_circuits.figures import datatables, dump_pages

ODD = ["</td>", "<script>alert(1)</script>", "\n", "&lt;", '"', "'", "```", "$x$", "\\(", "|", " two", "two", "Two", "cities",
       "city", "MODEL", "HEADS", "N_SOURCES", "\u2028", "!=", "\t\r", " ", "\x00", "�", "``````````"]  # fmt: skip
TOKENS = [*ODD, *(f"w{i}" for i in range(40))]
REST = {"some-model": torch.tensor([[0.25, 1.0]])}


def dump(heads: int = 2, k: int = 4) -> pd.DataFrame:
    """All tokens as sources of some heads; destinations and outs are the tokens that follow by id."""
    n = len(TOKENS)
    rows = [
        {
            "layer": 0, "head": head, "rank": i + 1, "source": i, "score": 100.0 / (i + 1),
            "destinations": [(i + head + j) % n for j in range(k)], "destination_scores": [9.87654 - j for j in range(k)],
            "outs": [(i + 1 + j) % n for j in range(k)], "out_boosts": [1.23456 - j for j in range(k)],
        }
        for head in range(heads)
        for i in range(n)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def rows_of(markup: str):
    return BeautifulSoup(markup, "html.parser").select("tbody tr")


def test_tokens_are_literal_and_their_whitespace_is_visible():
    markup = dump_pages.table(dump(1), TOKENS, akin_to(TOKENS))
    page = BeautifulSoup(markup, "html.parser")
    assert page.find("script") is None and len(page.select("tbody tr")) == len(TOKENS)
    shown = [row.select("td")[1].text for row in page.select("tbody tr")]
    assert shown[:4] == ["</td>", "<script>alert(1)</script>", "↵", "&lt;"]
    assert shown[10] == "·two" and shown[20:23] == ["⇥␍", "·", "␀"] and shown[18] == "<U+2028>"
    assert all(len(row.select("td")) == 7 for row in page.select("tbody tr"))
    assert [len(row.select("td")[2].select("code")) for row in page.select("tbody tr")] == [4] * len(TOKENS)


def test_a_row_shows_its_numbers_and_lists():
    cells = [cell.text for cell in rows_of(dump_pages.table(dump(1), TOKENS, akin_to(TOKENS)))[24].select("td")]
    assert cells == ["25", "``````````", "`````````` w0 w1 w2", "w0 w1 w2 w3", "4.00", "9.88", "1.23"]


def test_copies_are_marked():
    rows = rows_of(dump_pages.table(dump(1), TOKENS, akin_to(TOKENS)))
    marked = {i: [code.text for code in row.select("code.copy")] for i, row in enumerate(rows) if row.select("code.copy")}
    assert marked == {10: ["two", "Two"], 11: ["Two"], 13: ["city"]}  # sources: " two", "two", "cities"
    own = dump(1).assign(outs=[[i] for i in range(len(TOKENS))])
    assert all(row.select("code.copy") for row in rows_of(dump_pages.table(own, TOKENS, akin_to(TOKENS))))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    out = tmp_path_factory.mktemp("book") / "head_dump.md"
    dump_pages.write_pages(out, {"some-model": dump()}, REST, TOKENS)
    return out


def fenced(page: str) -> list[str]:
    """What stands between the fences of raw HTML, in the way a Markdown parser finds them: a fence starts a line."""
    return re.findall(r"^```\{raw\} html\n(.*?)\n```$", page, re.DOTALL | re.MULTILINE)


def test_each_head_has_its_page(written):
    pages = sorted(path.name for path in (written.with_suffix("") / "some-model").iterdir())
    assert pages == ["0_0.md", "0_1.md"]
    for head, name in enumerate(pages):
        text = (written.with_suffix("") / "some-model" / name).read_text(encoding="utf8")
        assert f"# Head 0.{head} of some-model\n" in text and f"{len(TOKENS)} source tokens" in text
        assert f"gives {('25 %', '100 %')[head]} of its attention to the start-of-text token." in text
        assert ("is never carried out" in text) == (head == 1), "only the second head rests"
        (markup,) = fenced(text)
        assert [int(row.td.text) for row in rows_of(markup)] == list(range(1, len(TOKENS) + 1))


def test_a_page_stops_where_it_should_and_the_file_does_not(tmp_path, monkeypatch):
    monkeypatch.setattr(dump_pages, "N_SOURCES", 7)
    dump_pages.write_pages(tmp_path / "head_dump.md", {"some-model": dump()}, REST, TOKENS)
    (markup,) = fenced((tmp_path / "head_dump" / "some-model" / "0_1.md").read_text(encoding="utf8"))
    assert len(rows_of(markup)) == 7
    assert len(pd.read_parquet(tmp_path / "head_dump" / "some-model.parquet")) == 2 * len(TOKENS)


def test_the_index_links_every_head_and_the_file(written):
    text = written.read_text(encoding="utf8")
    links = [link["href"] for markup in fenced(text) for link in BeautifulSoup(markup, "html.parser").select("a")]
    assert links == ["head_dump/some-model/0_0.html", "head_dump/some-model/0_1.html"]
    assert "{download}`some-model.parquet <head_dump/some-model.parquet>`" in text
    assert f"first {dump_pages.N_SOURCES} source tokens" in text and 'pd.read_parquet("some-model.parquet")' in text
    first, second = (row.select("td") for row in BeautifulSoup(fenced(text)[1], "html.parser").select("tbody tr"))
    assert first[1].text == f"3\u00a0of\u00a0{len(TOKENS)}"
    assert (first[2].text, second[2].text) == ("25%", "100%")
    assert [code.text for code in first[3].select("code")][:3] == ["</td>", "<script>alert(1)</script>", "↵"]


def test_names_of_the_pages_gaps_may_be_tokens():
    names = ["MODEL", "HEADS", "DOWNLOADS"]
    row = {"layer": 0, "head": 0, "rank": 1, "source": 0, "score": 1.0}
    lists = {"destinations": [1], "destination_scores": [1.0], "outs": [0], "out_boosts": [1.0]}
    frame = pd.DataFrame([row | lists])
    text = dump_pages.index_page({"m": frame}, {"m": torch.ones(1, 1)}, names, akin_to(names), "head_dump")
    assert "source <code class=\"token\">MODEL</code> with the destinations <code class=\"token\">HEADS</code>" in text


def test_the_file_holds_strings_ids_and_numbers(written):
    frame, expected = pd.read_parquet(written.with_suffix("") / "some-model.parquet"), dump()
    assert list(frame.columns) == dump_pages.SCHEMA.names and len(frame) == len(expected)
    assert frame["source_token"].tolist() == TOKENS * 2
    for column in ("layer", "head", "rank", "source"):
        assert frame[column].tolist() == expected[column].tolist()
    for ids, strings in (("destinations", "destination_tokens"), ("outs", "out_tokens")):
        assert [list(row) for row in frame[ids]] == expected[ids].tolist()
        assert [list(row) for row in frame[strings]] == [[TOKENS[i] for i in row] for row in expected[ids]]
    assert list(frame["out_boosts"][0]) == pytest.approx([1.235, 0.235, -0.765, -1.765], abs=1e-6)
    assert frame["score"][2] == pytest.approx(33.333, abs=1e-5)


def test_datatables_is_an_ordinary_script():
    files = datatables.files()
    assert set(files) == {"datatables/datatables.js", "datatables/datatables.css"}
    script = files["datatables/datatables.js"]
    assert re.search(r"window\.itables=\{[^}]*\bdefault:\w+", script) and not re.search(r"(^|[;}])(export|import)[ {*]", script)
    assert "MIT" in script, "the licence notices go along"
    assert not re.search(r"url\((?!data:)", files["datatables/datatables.css"]), "the style fetches nothing"
