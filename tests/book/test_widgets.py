"""Tokens to point at, in a real browser, offline: every token literal, by mouse and by keyboard."""

import pytest
import torch
from playwright.sync_api import expect

from transformer_circuits.figures import widgets
from transformer_circuits.figures.tokens import TokenTable, show_token
from transformer_circuits.paths import ROOT

TOKENS = ["<|start|>", " the", "</script>", "<td", "&amp;", "$$x$$", "\\(y\\)", "{{z}}", "<!--", '"', "\\", "\u2028"]


@pytest.fixture
def page(tmp_path, monkeypatch, watched):
    """A page with attention of two heads, and a table."""
    monkeypatch.setenv("TRANSFORMER_CIRCUITS_BOOK", "1")
    n = len(TOKENS)
    back = torch.zeros(n, n)
    back[range(1, n), range(n - 1)] = 1
    shown = [
        widgets.explore(TOKENS, torch.stack([back, torch.eye(n)]), ["0.1", "1.2"], label='Its "attention" <b>'),
        widgets.explore([" a", " b"], torch.eye(2).repeat(2, 1, 1), ["0.1", "1.2"], label="opens", opens=(1, 0)),
        TokenTable([{"token": t} for t in TOKENS]),
    ]
    script = f"<script>{(ROOT / 'book' / '_static' / 'attend.js').read_text(encoding='utf-8')}</script>"
    body = "\n".join(w._repr_html_() for w in shown)
    (tmp_path / "page.html").write_text(f"<!doctype html><meta charset=utf-8><body>{body}{script}", encoding="utf-8")
    return watched.open(tmp_path / "page.html")


def test_a_token_says_what_it_attends_to_in_each_head(page):
    box = page.get_by_role("group", name='Its "attention" <b>')
    tokens, says = box.get_by_role("option"), box.locator(".tc-attend-says")
    expect(tokens).to_have_text(list(map(show_token, TOKENS)))
    tokens.nth(3).hover()
    expect(says).to_contain_text("<td attends to </script> 100%")
    box.get_by_role("button", name="1.2").click()
    tokens.nth(3).click()
    expect(says).to_contain_text("<td attends to <td 100%")
    box.get_by_role("listbox").press("ArrowRight")
    expect(says).to_contain_text("&amp; attends to &amp; 100%")
    other = page.get_by_role("group", name="opens")
    expect(other.get_by_role("button", name="1.2")).to_have_attribute("aria-pressed", "true")
    expect(other.locator(".tc-attend-says")).to_contain_text("·a attends to ·a")
    assert page.locator(".token-table td").all_inner_texts() == list(map(show_token, TOKENS))


def test_in_a_notebook_attention_is_circuitsvis_own_view_with_literal_tokens(monkeypatch):
    monkeypatch.delenv("TRANSFORMER_CIRCUITS_BOOK", raising=False)
    monkeypatch.setattr("circuitsvis.utils.render.internet_on", lambda: True)
    shown = widgets.explore([" a", "<td"], torch.eye(2)[None], ["1.2"], label="attention")._repr_html_()
    assert "AttentionHeads" in shown and r"\u00b7a" in shown and "&lt;td" in shown and "tc-attend" not in shown
