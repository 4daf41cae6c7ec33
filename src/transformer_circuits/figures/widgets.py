"""Interactive figures: CircuitsVis components, each a small element with its numbers.

CircuitsVis itself asks the network on each display where to take its script from, and inlines 1.3 MB a figure when there is none.
Here the script is taken from the installed package: while the book is built, a figure is only a `<div>` and its properties as JSON,
and `book/_static/widgets.js` loads the script once for a page; elsewhere (JupyterLab, Colab) the script goes along, since there an
output must stand alone. Never rely on hovering: show the same numbers beside a widget as a figure or table.
"""

from __future__ import annotations

import functools
import html
import importlib.resources
import json
import re
import uuid
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from transformer_circuits.figures.tokens import show_token
from transformer_circuits.notebook import in_book

LIMIT = 1_500_000  # characters of one widget's numbers; a page is to stay under 3 MB


@functools.cache
def bundle() -> str:
    """CircuitsVis's script (a global `CircuitsVis`), with two repairs, made at load time so that the package stays as released.

    CircuitsVis writes token strings into the page as markup, so that "<td" vanishes: here they are text. Its pointer to a source
    map, a file that does not come along, is dropped. RuntimeError if the installed release is not the one these repairs fit.
    """
    script = importlib.resources.files("circuitsvis").joinpath("dist/cdn/iife.js").read_text(encoding="utf-8")
    script = re.sub(r"\n//# sourceMappingURL=.*", "", script)
    script, as_text = re.subn(r"dangerouslySetInnerHTML:\{__html:((?:[^{}()]|\([^()]*\))+)\}", r"children:\1", script)
    script, spaces = re.subn('"&nbsp;"', r'"\\xa0"', script)
    if (as_text, spaces) != (5, 3):
        raise RuntimeError("The installed CircuitsVis is not release 1.43.3, which this book's widgets need: reinstall from constraints.txt.")
    return script.replace("</script", r"<\/script")


def rounded(values: object, digits: int) -> object:
    """Nested lists of numbers, rounded, whole numbers as integers: the shortest JSON. NaN and infinities become null."""
    if isinstance(values, (Tensor, np.ndarray)):
        values = values.tolist()
    if isinstance(values, (list, tuple)):
        return [rounded(v, digits) for v in values]
    if isinstance(values, float):
        if not np.isfinite(values):
            return None
        short = round(values, digits)
        return int(short) if short == int(short) else short
    return values


def as_json(properties: dict[str, object]) -> str:
    """JSON that may stand inside a <script> element: no character in it can end the element or open a comment."""
    text = json.dumps(properties, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


class Widget:
    """A CircuitsVis component with its properties; a notebook displays it. `label` says what it shows, for those who cannot see it."""

    def __init__(self, component: str, properties: dict[str, object], label: str, digits: int = 3) -> None:
        self.component, self.label = component, label
        self.json = as_json({k: rounded(v, digits) for k, v in properties.items() if v is not None})
        if len(self.json) > LIMIT:
            raise ValueError(
                f"This widget would add {len(self.json) / 1e6:.1f} MB to its page, over the limit of {LIMIT / 1e6} MB: "
                "show fewer tokens or fewer heads."
            )

    def _repr_html_(self) -> str:
        name = f"circuits-{uuid.uuid4().hex[:12]}"
        div = (
            f'<div class="circuits-widget" id="{name}" data-component="{self.component}" role="figure" '
            f'aria-label="{html.escape(self.label)}">This figure is interactive and needs JavaScript.</div>'
        )
        if in_book():
            return f'{div}\n<script type="application/json" data-for="{name}">{self.json}</script>'
        call = f'CircuitsVis.render("{name}", CircuitsVis.{self.component}, {self.json});'
        return f"{div}\n<script>{bundle()}\n{call}</script>"

    def __repr__(self) -> str:
        return f"<{self.component}: {self.label}>"


def _same_length(tokens: Sequence[str], n: int) -> None:
    if len(tokens) != n:
        raise ValueError(f"There are {len(tokens)} tokens but numbers for {n}: give as many tokens as positions.")


def attention_heads(
    patterns: Float[Tensor, "head dest src"],
    tokens: Sequence[str],
    *,
    label: str,
    names: Sequence[str] | None = None,
    max_value: float | None = None,
) -> Widget:
    """Heat maps of attention, one a head: hover over a head to enlarge it, click to keep it; hover over a cell for its number.

    `max_value` is the number shown in full colour (default 1, as suits probabilities; value-weighted attention wants its own maximum).
    """
    patterns = _three_axes(patterns, tokens)
    properties = {
        "attention": patterns,
        "tokens": [show_token(t) for t in tokens],
        "attentionHeadNames": list(names) if names is not None else None,
        "maxValue": max_value,
        "minValue": None if max_value is None else -max_value,
    }
    return Widget("AttentionHeads", properties, label)


def attention_patterns(
    patterns: Float[Tensor, "head dest src"], tokens: Sequence[str], *, label: str, names: Sequence[str] | None = None
) -> Widget:
    """The tokens in a row, coloured by attention: choose a head, then hover over a token to see where it looks (values 0 to 1)."""
    patterns = _three_axes(patterns, tokens)
    properties = {
        "attention": patterns,
        "tokens": [show_token(t) for t in tokens],
        "headLabels": list(names) if names is not None else None,
    }
    return Widget("AttentionPatterns", properties, label)


def _three_axes(patterns: Float[Tensor, "head dest src"], tokens: Sequence[str]) -> Float[Tensor, "head dest src"]:
    if patterns.ndim != 3 or patterns.shape[1] != patterns.shape[2]:
        raise ValueError(f"Attention patterns have the shape [head, dest, src], not {list(patterns.shape)}.")
    _same_length(tokens, patterns.shape[1])
    return patterns


def colored_tokens(
    tokens: Sequence[str],
    values: Float[Tensor, "pos"],
    *,
    label: str,
    min_value: float | None = None,
    max_value: float | None = None,
) -> Widget:
    """Running text, each token coloured by its number (red below zero, blue above); hover for the number."""
    _same_length(tokens, len(values))
    properties = {"tokens": _with_breaks(tokens), "values": values, "minValue": min_value, "maxValue": max_value}
    return Widget("ColoredTokens", properties, label, digits=4)


def token_log_probs(
    tokens: Int[Tensor, "pos"], log_probs: Float[Tensor, "pos d_vocab"], names: Sequence[str], *, label: str, top_k: int = 10
) -> Widget:
    """Running text, each token coloured by how well it was predicted; hover for the model's `top_k` predictions at that place.

    Args:
        tokens: token ids, the start token first (it is not shown, for nothing predicts it).
        log_probs: log-probabilities of the next token at each position, in nats; the last position is not used.
        names: the vocabulary's strings, by id.
    """
    if tokens.ndim != 1 or log_probs.ndim != 2 or len(tokens) != len(log_probs):
        raise ValueError(
            f"token_log_probs takes tokens [pos] and log_probs [pos, d_vocab], not {list(tokens.shape)} and {list(log_probs.shape)}."
        )
    before, after = log_probs[:-1], tokens[1:, None]
    own = before.gather(-1, after)
    best = before.topk(top_k, dim=-1)
    properties = {
        "prompt": _with_breaks([names[t] for t in tokens.tolist()]),
        "topKLogProbs": best.values,
        "topKTokens": [[show_token(names[t]) for t in row] for row in best.indices.tolist()],
        "correctTokenRank": (before > own).sum(-1),
        "correctTokenLogProb": own[:, 0],
    }
    return Widget("TokenLogProbs", properties, label)


def _with_breaks(tokens: Sequence[str]) -> list[str]:
    """Tokens of running text: spaces stay spaces, a line break shows its sign and still breaks the line."""
    return ["".join(c if c == " " else show_token(c) + ("\n" if c == "\n" else "") for c in t) for t in tokens]
