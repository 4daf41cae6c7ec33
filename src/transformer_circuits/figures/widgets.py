"""Interactive figures: CircuitsVis components, each a small element with its numbers.

CircuitsVis itself asks the network on each display where its script is, and adds 1.3 MB to each figure if there is no network. Here the
script comes from the installed package. While the book is built, a figure is only a `<div>` and its properties as JSON, and
`book/_static/widgets.js` loads the script once for a page. In JupyterLab and on Colab the script is a part of each figure, since an output
must work alone there. Never rely on hovering: show the same numbers next to a widget as a figure or table.
"""

from __future__ import annotations

import functools
import html
import importlib.resources
import json
import os
import re
import uuid
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from transformer_circuits.figures.tokens import show_token

LIMIT = 1_500_000  # characters of one widget's numbers; a page is to stay under 3 MB


def in_book() -> bool:
    """Return True while the book is being built; the build sets the variable for its kernels."""
    return os.environ.get("TRANSFORMER_CIRCUITS_BOOK") == "1"


@functools.cache
def bundle() -> str:
    """Return CircuitsVis's script (a global `CircuitsVis`), with two repairs, made at load time so that the package stays as released.

    CircuitsVis writes token strings into the page as markup, so that "<td" vanishes: here they are text. Its pointer to a source map, a
    missing file, is removed. Raises RuntimeError if the installed release is not the one that these repairs fit.
    """
    script = importlib.resources.files("circuitsvis").joinpath("dist/cdn/iife.js").read_text(encoding="utf-8")
    script = re.sub(r"\n//# sourceMappingURL=.*", "", script)
    script, as_text = re.subn(
        r"dangerouslySetInnerHTML:\{__html:((?:[^{}()]|\([^()]*\))+)\}", r"children:\1", script
    )
    script, spaces = re.subn('"&nbsp;"', r'"\\xa0"', script)
    if (as_text, spaces) != (5, 3):
        raise RuntimeError(
            "The installed CircuitsVis is not release 1.43.3, which this book's widgets need: reinstall from constraints.txt."
        )
    return script.replace("</script", r"<\/script")


def rounded(values: object, digits: int) -> object:
    """Return nested lists of numbers, rounded, whole numbers as integers: the shortest JSON. NaN and infinities become null."""
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
    """Return JSON that is safe inside a <script> element: no character in it can end the element or open a comment."""
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
                f"a widget must be at most {LIMIT / 1e6} MB, got {len(self.json) / 1e6:.1f} MB; show fewer tokens or heads"
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


def attention_heads(
    patterns: Float[Tensor, "head dest src"],
    tokens: Sequence[str],
    *,
    label: str,
    names: Sequence[str] | None = None,
    max_value: float | None = None,
) -> Widget:
    """Return heat maps of attention, one per head: hover over a head to enlarge it, click to keep it; hover over a cell for its number.

    `max_value` is the number shown in full color (default 1, for probabilities; value-weighted attention needs its own maximum).
    Raises ValueError if there are not as many tokens as positions.
    """
    if patterns.ndim != 3 or patterns.shape[1:] != (len(tokens), len(tokens)):
        raise ValueError(
            f"patterns must be [head, dest, src] for {len(tokens)} tokens, got {list(patterns.shape)}"
        )
    properties = {
        "attention": patterns,
        "tokens": [show_token(token) for token in tokens],
        "attentionHeadNames": None if names is None else list(names),
        "maxValue": max_value,
        "minValue": None if max_value is None else -max_value,
    }
    return Widget("AttentionHeads", properties, label)


def token_log_probs(
    tokens: Int[Tensor, "pos"],
    log_probs: Float[Tensor, "pos d_vocab"],
    names: Sequence[str],
    *,
    label: str,
    top_k: int = 10,
) -> Widget:
    """Return running text, each token colored by how well it was predicted; hover for the model's `top_k` predictions at that place.

    `tokens`: ids, the start token first (it is not shown, since nothing predicts it). `log_probs`: of the next token at each position, in
    nats; the last position is not used. `names`: the vocabulary's strings, by id. Raises ValueError if positions differ in number.
    """
    if len(tokens) != len(log_probs):
        raise ValueError(f"log_probs must have {len(tokens)} positions, as tokens has, got {len(log_probs)}")
    before, after = log_probs[:-1], tokens[1:, None]
    own = before.gather(-1, after)
    best = before.topk(top_k, dim=-1)
    properties = {
        "prompt": [_with_breaks(names[token]) for token in tokens.tolist()],
        "topKLogProbs": best.values,
        "topKTokens": [[show_token(names[token]) for token in row] for row in best.indices.tolist()],
        "correctTokenRank": (before > own).sum(-1),
        "correctTokenLogProb": own[:, 0],
    }
    return Widget("TokenLogProbs", properties, label)


def _with_breaks(token: str) -> str:
    """Return a token of running text: spaces stay spaces, a line break shows its sign and still breaks the line."""
    parts = [c if c == " " else show_token(c) + "\n" * (c == "\n") for c in token]
    return "".join(parts)
