"""Tables and widgets show any token literally, whatever it means in HTML or JavaScript."""

from __future__ import annotations

import json

import pytest
import torch
from bs4 import BeautifulSoup

from transformer_circuits.figures import widgets
from transformer_circuits.figures.tokens import show_token, token_table

MARKUP = ["</script>", "<td", "<!--", "&amp;", '"', "'", "\\", "$\\\\", "\\(x\\)", "{{x}}", "\u2028", " the"]
HOSTILE = [*MARKUP, "é", "日"]
SEEN = ["日本", "e\u0301", "¶", "😀", "—", "�", "ﬁ", "±½", "<td", "é", ""]
SHOWN = {" the": "·the", "\n": "↵", "\t\t": "⇥⇥", "\r\n": "␍↵", "\x00": "␀", "\x7f": "␡"}
# C1 control, soft hyphen, zero width, em space, separator, right-to-left, filler, private use, variation selector.
UNSEEN = [0x85, 0xAD, 0x200B, 0x200D, 0x2003, 0x2028, 0x202E, 0x3164, 0xE000, 0xFE0F, 0xFEFF, 0xE0101]


def test_what_cannot_be_seen_is_made_visible_and_the_rest_stays():
    assert {token: show_token(token) for token in SHOWN} == SHOWN
    assert [show_token(token) for token in SEEN] == SEEN
    assert [show_token(f"a{chr(code)} b") for code in UNSEEN] == [f"a<U+{code:04X}>·b" for code in UNSEEN]


def cells(table) -> list[list[str]]:
    soup = BeautifulSoup(table._repr_html_(), "html.parser")
    return [[td.get_text() for td in row.find_all("td")] for row in soup.tbody.find_all("tr")]


def test_tokens_appear_literally_in_tables():
    table = token_table([{"token": token, "logit": i / 3} for i, token in enumerate(HOSTILE)])
    assert cells(table) == [[show_token(token), f"{i / 3:.2f}"] for i, token in enumerate(HOSTILE)]
    assert all(show_token(token) in repr(table) for token in HOSTILE)
    assert "&lt;U+200B&gt;" in token_table([{"token": "\u200b"}])._repr_html_()


def test_tables_take_lists_missing_values_and_chosen_columns():
    nan = float("nan")
    rows = [
        {"source": " a b", "read as": "a <b> c", "outs": [" x", "\n"], "n": 3},
        {"source": nan, "read as": "d", "outs": [], "n": nan},
    ]
    table = token_table(rows, tokens=["source", "outs"], caption="<Heads>")
    assert cells(table) == [["·a·b", "a <b> c", "·x ↵", "3.00"], ["", "d", "", ""]]
    assert "&lt;Heads&gt;" in table._repr_html_()


def two_widgets(tokens: list[str]) -> list[widgets.Widget]:
    n = len(tokens)
    log_probs = torch.randn(n, n, generator=torch.Generator().manual_seed(1)).log_softmax(-1)
    return [
        widgets.attention_heads(torch.ones(2, n, n) / n, tokens, label="Two heads", names=["0.0", "0.1"]),
        widgets.token_log_probs(torch.arange(n), log_probs, tokens, label="Predictions", top_k=3),
    ]


@pytest.mark.parametrize("widget", two_widgets(HOSTILE), ids=lambda widget: widget.component)
def test_properties_survive_the_page(widget, monkeypatch):
    """In a book: one element and one JSON script, which reads back as what was put in, and nothing else."""
    monkeypatch.setenv("TRANSFORMER_CIRCUITS_BOOK", "1")
    soup = BeautifulSoup(widget._repr_html_(), "html.parser")
    div, script = soup.find_all(recursive=False)
    assert (div.name, script.name, script["type"]) == ("div", "script", "application/json")
    assert script["data-for"] == div["id"] and div["aria-label"] == widget.label
    properties = json.loads(script.string)
    shown = properties.get("tokens", properties.get("prompt"))
    assert [text.replace("·", " ") for text in shown] == [show_token(t).replace("·", " ") for t in HOSTILE]
    assert "<" not in script.string and "\u2028" not in script.string


def test_outside_the_book_the_script_comes_along_and_nothing_is_fetched(monkeypatch):
    monkeypatch.delenv("TRANSFORMER_CIRCUITS_BOOK", raising=False)
    html = two_widgets(HOSTILE)[0]._repr_html_()
    assert html.count("</script") == 1 and html.rstrip().endswith("</script>")
    assert "unpkg" not in html and len(html) > 1_000_000


def test_predictions_are_ranked():
    log_probs = torch.tensor([[0.1, 0.2, 0.7], [0.6, 0.3, 0.1], [0.2, 0.2, 0.6]]).log()
    tokens, names = torch.tensor([0, 1, 1]), ["<|start|>", "a", "b"]
    properties = json.loads(widgets.token_log_probs(tokens, log_probs, names, label="x", top_k=2).json)
    assert properties["correctTokenRank"] == [1, 1]
    assert properties["topKTokens"] == [["b", "a"], ["<|start|>", "a"]]
    assert properties["correctTokenLogProb"] == [-1.609, -1.204]  # rounded logarithms of 0.2 and 0.3
