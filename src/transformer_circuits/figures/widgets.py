"""Interactive figures: CircuitsVis components, each a small element with its numbers.

CircuitsVis asks the network on each display where its script is. Here the script comes from the installed package.
While the book is built, a figure is only a `<div>` and its properties as JSON, and `book/_static/widgets.js` loads
the script once for a page. In JupyterLab and on Colab the script is a part of each figure, since an output must work
alone there. Show the same numbers next to a widget, as a figure or table.
"""

from __future__ import annotations

import functools
import hashlib
import html
import importlib.metadata
import json
import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from transformer_circuits.figures.tokens import show_token

if TYPE_CHECKING:  # the build takes the script from here, and does without torch
    from jaxtyping import Float, Int
    from torch import Tensor


PATCH = Path(__file__).with_name("circuitsvis.yml")  # what is changed in CircuitsVis's script, and why


@functools.cache
def bundle() -> str:
    """Return CircuitsVis's script as patched. Raises ValueError if the installed one is another."""
    # Not by `importlib.resources`, which would import the package, and torch with it.
    file = importlib.metadata.distribution("circuitsvis").locate_file("circuitsvis/dist/cdn/iife.js")
    return patched(Path(file).read_text(encoding="utf-8"))


def patched(script: str) -> str:
    patch = yaml.safe_load(PATCH.read_text(encoding="utf-8"))
    if hashlib.sha256(script.encode()).hexdigest() != patch["sha256"]:
        raise ValueError(f"CircuitsVis's script has changed: check the replacements in {PATCH.name}, then its sha256")
    for change in patch["changes"]:
        for part in change["replace"]:
            script = script.replace(part["old"], part["new"])
    return script


def short(number: str) -> float:
    """Return a number to three decimals, a whole one as an integer: the shortest JSON."""
    rounded = round(float(number), 3)
    return int(rounded) if rounded == int(rounded) else rounded


def as_json(properties: dict[str, object]) -> str:
    """Return JSON that is safe inside a <script> element: no character in it can end the element or open a comment."""
    exact = json.dumps(properties, default=lambda tensor: tensor.tolist(), allow_nan=False)
    text = json.dumps(json.loads(exact, parse_float=short), ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


# CircuitsVis makes a box of each token, and lines would break inside words: as running text they break at spaces.
WRAPS = '<style>[data-component="TokenLogProbs"] span { display: inline !important; white-space: pre-wrap; }</style>'


class Widget:
    """A CircuitsVis component with its properties; a notebook displays it. `label`: for those who cannot see it."""

    def __init__(self, component: str, properties: dict[str, object], label: str) -> None:
        self.component, self.label, self.json = component, label, as_json(properties)

    def _repr_html_(self) -> str:
        name = f"circuits-{uuid.uuid4().hex[:12]}"
        div = (
            f'<div class="circuits-widget" id="{name}" data-component="{self.component}" role="figure" '
            f'aria-label="{html.escape(self.label)}">This figure is interactive and needs JavaScript.</div>{WRAPS}'
        )
        if os.environ.get("TRANSFORMER_CIRCUITS_BOOK") == "1":  # set by the build for its kernels
            return f'{div}\n<script type="application/json" data-for="{name}">{self.json}</script>'
        call = f'CircuitsVis.render("{name}", CircuitsVis.{self.component}, {self.json});'
        return f"{div}\n<script>{bundle()}\n{call}</script>"

    def __repr__(self) -> str:
        return f"<{self.component}: {self.label}>"


ATTEND = """<div class="tc-attend" role="group" aria-label="{label}">{choices}
<p class="tc-attend-text" role="listbox" aria-label="The text: point at a token" tabindex="0">{text}</p>
<p class="tc-attend-says" aria-live="polite"></p>
<script type="application/json" data-at="{at}">{rows}</script></div>"""


class Explore(Widget):
    """CircuitsVis' view of the attention of heads; on the book's page the same tokens, to point at."""

    def __init__(
        self, tokens: Sequence[str], patterns: Sequence[Sequence[Sequence[float]]], names: Sequence[str], label: str
    ) -> None:
        self.tokens, self.patterns, self.names = list(map(show_token, tokens)), patterns, names
        shown = {"attention": patterns, "tokens": self.tokens, "attentionHeadNames": names, "maskUpperTri": True}
        super().__init__("AttentionHeads", shown, label)

    def on_page(self, at: int | None = None) -> str:
        """Return the tokens to point at as HTML; at first the attention of the one at `at`, by default the last."""
        rows = [[[round(100 * float(a)) for a in row[: i + 1]] for i, row in enumerate(head)] for head in self.patterns]
        name = f"attend-{hashlib.sha256(json.dumps([self.tokens, rows]).encode()).hexdigest()[:8]}"
        text = "".join(
            f'<code class="token" role="option" aria-selected="false" id="{name}-{i}">{html.escape(token)}</code>'
            for i, token in enumerate(self.tokens)
        )
        buttons = "".join(
            f'<button type="button" data-layer="{head.split(".")[0]}" aria-pressed="false">{head}</button>'
            for head in self.names
        )
        choices = f'<p class="tc-choices" role="group" aria-label="head">{buttons}</p>'
        at = len(self.tokens) - 1 if at is None else at
        return ATTEND.format(
            label=html.escape(self.label),
            choices=choices,
            text=text,
            rows=json.dumps(rows, separators=(",", ":")),
            at=at,
        )

    def _repr_html_(self) -> str:
        return self.on_page() if os.environ.get("TRANSFORMER_CIRCUITS_BOOK") == "1" else super()._repr_html_()


def explore(
    tokens: Sequence[str], patterns: Float[Tensor, "head dest src"], names: Sequence[str], *, label: str = ""
) -> Explore:
    """Return the attention of heads on a text, to explore: CircuitsVis' `attention_heads` in JupyterLab and on Colab.

    `names`: of the heads, such as "1.2". `label`: for those who cannot see it.
    """
    return Explore(
        tokens, patterns.tolist(), list(names), label or f"attention of {', '.join(names)}; point at a token"
    )


def token_log_probs(
    tokens: Int[Tensor, "pos"], log_probs: Float[Tensor, "pos d_vocab"], names: Sequence[str], *, label: str
) -> Widget:
    """Return running text, each token colored by how well it was predicted; hover for the ten best predictions.

    `tokens`: ids, the start token first (not shown). `log_probs`: of the next token, in nats. `names`: by token id.
    """
    before, after = log_probs[:-1], tokens[1:, None]
    own = before.gather(-1, after)
    best = before.topk(min(10, before.shape[-1]), dim=-1)
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
