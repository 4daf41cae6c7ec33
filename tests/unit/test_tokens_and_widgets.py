"""Tables and widgets show any token literally, whatever it means in HTML or JavaScript."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch
from bs4 import BeautifulSoup

from transformer_circuits.figures import widgets
from transformer_circuits.figures.tokens import show_token, token_table

HOSTILE = ["</script>", "<td", "<!--", "&amp;", '"', "'", "\\", "$\\\\", "\\(x\\)", "{{x}}", "\u2028", " the", "é", "日"]


@pytest.mark.parametrize(
    "token, shown",
    [(" the", "·the"), ("\n", "↵"), ("\t\t", "⇥⇥"), ("\r\n", "␍↵"), ("\x00", "␀"), ("\x7f", "␡"), ("<td", "<td"), ("é", "é"), ("", "")],
)
def test_whitespace_is_made_visible(token, shown):
    assert show_token(token) == shown


@pytest.mark.parametrize("code", [0x85, 0xAD, 0x200B, 0x200D, 0x2003, 0x2028, 0x202E, 0x3164, 0xE000, 0xFE0F, 0xFEFF, 0xE0101])
def test_characters_that_a_page_does_not_show_are_named(code):
    """C1 control, soft hyphen, zero width, em space, separator, right-to-left, filler, private use, variation selector."""
    assert show_token(f"a{chr(code)} b") == f"a<U+{code:04X}>·b"
    assert f"&lt;U+{code:04X}&gt;" in token_table([{"token": chr(code)}])._repr_html_()


@pytest.mark.parametrize("token", ["日本", "e\u0301", "¶", "😀", "—", "�", "ﬁ", "±½"])
def test_characters_that_are_seen_stay(token):
    assert show_token(token) == token


def cells(table) -> list[list[str]]:
    soup = BeautifulSoup(table._repr_html_(), "html.parser")
    return [[td.get_text() for td in row.find_all("td")] for row in soup.tbody.find_all("tr")]


def test_tokens_appear_literally_in_tables():
    table = token_table([{"token": token, "logit": i / 3} for i, token in enumerate(HOSTILE)])
    assert cells(table) == [[show_token(token), f"{i / 3:.2f}"] for i, token in enumerate(HOSTILE)]
    assert all(show_token(token) in repr(table) for token in HOSTILE)


def test_tables_hold_lists_and_choose_token_columns():
    frame = pd.DataFrame({"source": [" a b"], "read as": ["a <b> c"], "outs": [[" x", "\n"]], "n": [3]})
    table = token_table(frame, tokens=["source", "outs"], caption="<Heads>")
    assert cells(table) == [["·a·b", "a <b> c", "·x ↵", "3"]]
    assert "&lt;Heads&gt;" in table._repr_html_()


def test_what_is_missing_in_a_table_is_left_blank():
    frame = pd.DataFrame({"token": [" a", float("nan")], "share": [0.5, float("nan")]})
    assert cells(token_table(frame, tokens=["token"])) == [["·a", "0.50"], ["", ""]]


def test_tables_decline_nothing_and_unknown_columns():
    with pytest.raises(ValueError, match="no rows"):
        token_table([])
    with pytest.raises(ValueError, match="no column named"):
        token_table([{"a": 1}], tokens=["b"])


def pattern(n: int) -> torch.Tensor:
    a = torch.rand(2, n, n, generator=torch.Generator().manual_seed(0)).tril()
    return a / a.sum(-1, keepdim=True)


def four_widgets(tokens):
    n = len(tokens)
    log_probs = torch.randn(n, n, generator=torch.Generator().manual_seed(1)).log_softmax(-1)
    return [
        widgets.attention_heads(pattern(n), tokens, label="Two heads", names=["0.0", "0.1"]),
        widgets.attention_patterns(pattern(n), tokens, label="Two heads"),
        widgets.colored_tokens(tokens, torch.linspace(-1, 1, n), label="Values"),
        widgets.token_log_probs(torch.arange(n), log_probs, tokens, label="Predictions", top_k=3),
    ]


@pytest.mark.parametrize("widget", four_widgets(HOSTILE), ids=lambda w: w.component)
def test_properties_survive_the_page(widget, monkeypatch):
    """In a book: one element and one JSON script, which reads back as what was put in, and nothing else."""
    monkeypatch.setenv("TRANSFORMER_CIRCUITS_BOOK", "1")
    soup = BeautifulSoup(widget._repr_html_(), "html.parser")
    div, script = soup.find_all(recursive=False)
    assert (div.name, script.name, script["type"], script["data-for"]) == ("div", "script", "application/json", div["id"])
    assert div["aria-label"] == widget.label
    properties = json.loads(script.string)
    shown = properties.get("tokens", properties.get("prompt"))
    literal = [t.replace("↵\n", "\n") if t == "↵\n" else t for t in shown]
    assert [t.replace("·", " ") for t in literal] == [show_token(t).replace("·", " ") for t in HOSTILE]
    assert "<" not in script.string and "\u2028" not in script.string


def test_outside_the_book_the_script_comes_along_and_nothing_is_fetched(monkeypatch):
    monkeypatch.delenv("TRANSFORMER_CIRCUITS_BOOK", raising=False)
    html = four_widgets(HOSTILE)[0]._repr_html_()
    assert html.count("</script") == 1 and html.rstrip().endswith("</script>")
    assert "unpkg" not in html and len(html) > 1_000_000


def test_numbers_are_rounded_and_unfinished_ones_become_null():
    values = [torch.tensor([1 / 3, 1.0, -0.0001]), np.array([np.nan, np.inf]), (2, "x")]
    assert widgets.rounded(values, 3) == [[0.333, 1, 0], [None, None], [2, "x"]]


def test_predictions_are_ranked():
    log_probs = torch.tensor([[0.1, 0.2, 0.7], [0.6, 0.3, 0.1], [0.2, 0.2, 0.6]]).log()
    widget = widgets.token_log_probs(torch.tensor([0, 1, 1]), log_probs, ["<|start|>", "a", "b"], label="x", top_k=2)
    properties = json.loads(widget.json)
    assert properties["correctTokenRank"] == [1, 1]
    assert properties["topKTokens"] == [["b", "a"], ["<|start|>", "a"]]
    assert np.allclose(properties["correctTokenLogProb"], np.log([0.2, 0.3]), atol=1e-3)


def test_bad_input_is_declined_in_a_sentence():
    with pytest.raises(ValueError, match="as many tokens as positions"):
        widgets.attention_heads(pattern(3), ["a", "b"], label="x")
    with pytest.raises(ValueError, match=r"\[head, dest, src\]"):
        widgets.attention_patterns(torch.ones(3, 3), ["a"] * 3, label="x")
    with pytest.raises(ValueError, match="as many tokens as positions"):
        widgets.colored_tokens(["a"], torch.ones(2), label="x")
    with pytest.raises(ValueError, match="log_probs"):
        widgets.token_log_probs(torch.arange(3), torch.zeros(2, 3), ["a"] * 3, label="x")
    with pytest.raises(ValueError, match="fewer tokens or fewer heads"):
        widgets.attention_heads(torch.rand(12, 256, 256), ["a"] * 256, label="x")


def test_a_changed_release_of_circuitsvis_is_noticed(monkeypatch):
    class Files:
        def joinpath(self, name):
            return self

        def read_text(self, encoding):
            return "var CircuitsVis = {}"

    monkeypatch.setattr(widgets.importlib.resources, "files", lambda name: Files())
    with pytest.raises(RuntimeError, match="1.43.3"):
        widgets.bundle.__wrapped__()
