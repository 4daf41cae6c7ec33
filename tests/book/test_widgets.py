"""The widget in a real browser, offline: drawn, alive, and every token literal, in a book's page and alone."""

import pytest
import torch
from playwright.sync_api import expect

from transformer_circuits.figures import widgets
from transformer_circuits.figures.tokens import show_token, token_table
from transformer_circuits.paths import ROOT

TOKENS = ["<|start|>", " the", "</script>", "<td", "&amp;", "$$x$$", "\\(y\\)", "{{z}}", "<!--", '"', "\\", "\u2028"]


@pytest.fixture(params=["book", "alone"])
def page(request, tmp_path, monkeypatch, watched):
    """Open a page with all widgets: as in the book, with one script for all, or as in JupyterLab, each with its own."""
    monkeypatch.setenv("TRANSFORMER_CIRCUITS_BOOK", "1" if request.param == "book" else "0")
    torch.manual_seed(0)
    n = len(TOKENS)
    log_probs = torch.randn(n, n).log_softmax(-1)
    shown = [
        widgets.token_log_probs(torch.arange(n), log_probs, TOKENS, label='Its "predictions" <b>'),
        token_table([{"token": t} for t in TOKENS]),
    ]
    loader = ""
    if request.param == "book":
        (tmp_path / "circuitsvis").mkdir()
        (tmp_path / "circuitsvis" / "iife.js").write_text(widgets.bundle(), encoding="utf-8")
        (tmp_path / "widgets.js").write_text((ROOT / "book" / "_static" / "widgets.js").read_text())
        loader = '<script src="widgets.js" defer></script>'
    body = "\n".join(w._repr_html_() for w in shown)
    html = f"<!doctype html><meta charset=utf-8>{loader}<body>{body}</body>"
    (tmp_path / "page.html").write_text(html, encoding="utf-8")
    return watched.open(tmp_path / "page.html")


def test_widgets_are_drawn_literal_and_alive(page):
    assert page.locator(".token-table td").all_inner_texts() == list(map(show_token, TOKENS))
    predictions = page.get_by_role("figure", name='Its "predictions" <b>')
    expect(predictions).to_contain_text("".join(map(show_token, TOKENS[2:])))
    # When a token is hovered: the heading, the true token, the ten best.
    predictions.locator("span").filter(has_text="<td").first.hover()
    expect(predictions.locator("table tr")).to_have_count(1 + 1 + 10)
