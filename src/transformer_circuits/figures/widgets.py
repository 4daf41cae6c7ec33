"""Tokens to point at: text as chips, shaded by attention or by how well each token was predicted.

On the book's pages `book/_static/attend.js` answers to the pointer and to keys. In JupyterLab and on Colab attention is
CircuitsVis' own view, and predictions are titles of tokens.
"""

from __future__ import annotations

import hashlib
import html
import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from transformer_circuits.figures.tokens import show_token

if TYPE_CHECKING:  # pages take `as_json` from here, and do without torch
    from jaxtyping import Float, Int
    from torch import Tensor

BOX = """<div class="tc-attend" role="group" aria-label="{label}" data-layer="{layer}">{choices}
<p class="tc-attend-text" role="listbox" aria-label="Text: point at a token" tabindex="0">{text}</p>
<p class="tc-attend-says" aria-live="polite"></p>
<script type="application/json">{data}</script></div>"""
BEST = 5  # predictions that a token lists


def short(number: str) -> float:
    """Return a number to three decimals, a whole one as an integer: the shortest JSON."""
    rounded = round(float(number), 3)
    return int(rounded) if rounded == int(rounded) else rounded


def as_json(properties: Mapping[str, object]) -> str:
    """Return JSON that is safe inside a <script> element: no character in it can end the element or open a comment."""
    exact = json.dumps(properties, default=lambda tensor: tensor.tolist(), allow_nan=False)
    text = json.dumps(json.loads(exact, parse_float=short), ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _box(
    tokens: Sequence[str],
    label: str,
    data: Mapping[str, object],
    heads: Sequence[str] = ("1",),
    looks: Sequence[str] = (),
) -> str:  # noqa: E501
    """Return tokens as HTML. `looks`: attributes of each. `data`: what attend.js reads."""
    numbers = as_json(data)
    name = hashlib.sha256(f"{tokens}{numbers}".encode()).hexdigest()[:8]
    chips = []
    for i, (token, look) in enumerate(zip(tokens, looks or [""] * len(tokens))):
        shown = html.escape(show_token(token)) + "<br>" * token.count("\n")
        chips.append(f'<code class="token" role="option" aria-selected="false" id="t{name}-{i}"{look}>{shown}</code>')
    layers = [head.split(".")[0] for head in heads]
    buttons = [
        f'<button type="button" data-layer="{x}" aria-pressed="false">{html.escape(head)}</button>'
        for x, head in zip(layers, heads)
    ]  # noqa: E501
    choices = f'<p class="tc-choices" role="group" aria-label="head">{"".join(buttons)}</p>' if len(heads) > 1 else ""
    return BOX.format(label=html.escape(label), layer=layers[0], choices=choices, text="".join(chips), data=numbers)


def attended(
    tokens: Sequence[str],
    patterns: Float[Tensor, "head dest src"],
    names: Sequence[str],
    label: str,
    at: int | None = None,
) -> str:
    """Return HTML of tokens shaded by what the pointed one attends to; at first the one at `at`, or the last."""
    rows = [[[round(100 * a) for a in row[: i + 1]] for i, row in enumerate(head)] for head in patterns.tolist()]
    return _box(tokens, label, {"heads": rows, "at": len(tokens) - 1 if at is None else at}, names)


class Widget:
    """What a notebook displays: HTML. `label`: for those who cannot see it."""

    def __init__(self, html: str, label: str) -> None:
        self.html, self.label = html, label

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return f"<{self.label}>"


def explore(
    tokens: Sequence[str], patterns: Float[Tensor, "head dest src"], names: Sequence[str], *, label: str = ""
) -> Widget:
    """Return the attention of heads on a text, to explore: CircuitsVis' `attention_heads` in JupyterLab and on Colab.

    `names`: of the heads, such as "1.2". `label`: for those who cannot see it.
    """
    label = label or f"attention of {', '.join(names)}: point at a token"
    if os.environ.get("TRANSFORMER_CIRCUITS_BOOK") == "1":  # set by the build for its kernels
        return Widget(attended(tokens, patterns, names, label), label)
    from circuitsvis.attention import attention_heads

    shown = [html.escape(show_token(token)) for token in tokens]  # it makes markup of tokens
    return Widget(attention_heads(patterns, shown, list(names), mask_upper_tri=True)._repr_html_(), label)


def token_log_probs(
    tokens: Int[Tensor, "pos"], log_probs: Float[Tensor, "pos d_vocab"], names: Sequence[str], *, label: str
) -> Widget:
    """Return running text, each token shaded by the probability that the model gave it; point at it for the best ones.

    `tokens`: ids, the start token first (not shown). `log_probs`: of the next token, in nats. `names`: by token id.
    """
    chances = log_probs[:-1].exp()
    own, (best, ids) = chances.gather(-1, tokens[1:, None])[:, 0].tolist(), chances.topk(min(BEST, len(names)))
    lists = [[[show_token(names[i]), round(100 * p)] for i, p in zip(*row)] for row in zip(ids.tolist(), best.tolist())]
    titles = [f"{p:.0%}; best: " + ", ".join(f"{name} {x}%" for name, x in best) for p, best in zip(own, lists)]
    looks = [f' style="--a: {100 * p:.0f}%" title="{html.escape(title)}"' for p, title in zip(own, titles)]
    data = {"lists": lists, "own": [round(100 * p) for p in own], "at": 0}
    return Widget(_box([names[i] for i in tokens[1:].tolist()], label, data, looks=looks), label)
