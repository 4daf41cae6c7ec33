"""Running text that answers to the pointer: each token colored by how well it was predicted, with the best predictions.

It is HTML and style alone, and so looks the same on a page, in JupyterLab, and on Colab.
"""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from transformer_circuits.figures.tokens import as_code, show_token

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

BEST = 10  # predictions of a token that are listed
STYLE = """<style>
.tc-predicted { position: relative; color: #222; background: #fff; padding: 0.3rem 0.5rem; white-space: pre-wrap; }
.tc-predicted > span { background: color-mix(in srgb, #56b4e9 calc(100% * var(--p)), transparent); cursor: pointer; }
.tc-predicted > span > span { display: none; position: absolute; left: 0.5rem; top: calc(100% - 0.3rem); z-index: 5;
  padding: 0.3rem 0.6rem; background: #fff; border: 1px solid #888; font-size: 0.85rem; }
.tc-predicted > span:is(:hover, :focus) { outline: 2px solid #d55e00; }
.tc-predicted > span:is(:hover, :focus) > span { display: block; }
</style>"""


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


class Predictions:
    """Running text with predictions; what `token_log_probs` returns. `label`: for those who cannot see it."""

    def __init__(self, words: Sequence[str], label: str) -> None:
        self.words, self.label = words, label

    def _repr_html_(self) -> str:
        words = "".join(self.words)
        return f'{STYLE}<p class="tc-predicted" role="figure" aria-label="{html.escape(self.label)}">{words}</p>'

    def __repr__(self) -> str:
        return f"<running text with predictions: {self.label}>"


def token_log_probs(
    tokens: Int[Tensor, "pos"], log_probs: Float[Tensor, "pos d_vocab"], names: Sequence[str], *, label: str
) -> Predictions:
    """Return running text, each token colored by how well it was predicted; point at one for the ten best predictions.

    `tokens`: ids, the start token first (not shown). `log_probs`: of the next token, in nats. `names`: by token id.
    """
    before, after = log_probs[:-1], tokens[1:, None]
    own = before.gather(-1, after)
    ranks = (before > own).sum(-1).tolist()
    best = before.topk(min(BEST, before.shape[-1]), dim=-1)
    words = []
    rows = zip(after[:, 0].tolist(), own[:, 0].exp().tolist(), ranks, best.indices.tolist(), best.values.exp().tolist())
    for token, share, rank, ids, shares in rows:
        listed = [f"{as_code(names[token])} {share:.1%}, guess {rank + 1:,}"]
        listed += [f"{place}. {as_code(names[i])} {p:.1%}" for place, (i, p) in enumerate(zip(ids, shares), start=1)]
        text = html.escape(_with_breaks(names[token]))
        # In the order of tabs, 120 tokens would stand before what follows.
        words.append(f'<span tabindex="-1" style="--p: {share:.2f}">{text}<span>{"<br>".join(listed)}</span></span>')
    return Predictions(words, label)


def _with_breaks(token: str) -> str:
    """Return a token of running text: spaces stay spaces, a line break shows its sign and still breaks the line."""
    parts = [c if c == " " else show_token(c) + "\n" * (c == "\n") for c in token]
    return "".join(parts)
