"""Running text with predictions and a table of tokens in a real browser: alive, and every token literal."""

import pytest
import torch
from playwright.sync_api import expect

from transformer_circuits.figures import widgets
from transformer_circuits.figures.tokens import show_token, token_table

TOKENS = ["<|start|>", " the", "</script>", "<td", "&amp;", "$$x$$", "\\(y\\)", "{{z}}", "<!--", '"', "\\", "\u2028"]


@pytest.fixture
def page(tmp_path, watched):
    torch.manual_seed(0)
    n = len(TOKENS)
    log_probs = torch.randn(n, n).log_softmax(-1)
    shown = [
        widgets.token_log_probs(torch.arange(n), log_probs, TOKENS, label='Its "predictions" <b>'),
        token_table([{"token": t} for t in TOKENS]),
    ]
    body = "\n".join(w._repr_html_() for w in shown)
    (tmp_path / "page.html").write_text(f"<!doctype html><meta charset=utf-8><body>{body}</body>", encoding="utf-8")
    return watched.open(tmp_path / "page.html")


def test_tokens_are_literal_and_one_that_is_pointed_at_shows_what_was_expected(page):
    assert page.locator(".token-table td").all_inner_texts() == list(map(show_token, TOKENS))
    predictions = page.get_by_role("figure", name='Its "predictions" <b>')
    assert predictions.inner_text() == "".join([" the", *map(show_token, TOKENS[2:])])
    token = predictions.locator("> span").filter(has_text="<td").first
    listed = token.locator("> span")
    expect(listed).to_be_hidden()
    token.hover()
    expect(listed).to_be_visible()
    expect(listed.locator("code")).to_have_count(1 + 10)  # the token itself, and the ten best
