"""Pictures that answer: tokens to point at, and small drawings on a chapter's page.

On the book's pages `attend.js` and `live.js` of `book/_static` draw them. In JupyterLab and on Colab attention is
CircuitsVis' own view, and a drawing is a sentence that says what it would do.
"""

import hashlib
import html
import json
import os
from collections.abc import Mapping, Sequence

from IPython.display import HTML
from jaxtyping import Float
from torch import Tensor

from transformer_circuits.figures.tokens import show_token

ATTENDED = """<div class="tc-attend" role="group" aria-label="{label}" data-layer="{layer}">{choices}
<p class="tc-attend-text" role="listbox" aria-label="Text: point at a token" tabindex="0">{text}</p>
<p class="tc-attend-says" aria-live="polite"></p>
<script type="application/json">{data}</script></div>"""
LIVE = """<div class="tc-live" data-kind="{kind}" aria-label="{label}" role="group">
<p>On the page of this chapter, this picture answers: {label}.</p>
<script type="application/json">{data}</script></div>"""


def as_json(properties: Mapping[str, object]) -> str:
    """Return JSON, in numbers of three decimals, that is safe inside a <script> element: no character in it can end the
    element or open a comment."""
    exact = json.dumps(properties, default=lambda tensor: tensor.tolist(), allow_nan=False)
    rounded = json.loads(exact, parse_float=lambda x: round(float(x), 3))
    text = json.dumps(rounded, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def live(kind: str, label: str, **numbers: object) -> HTML:
    """Return a picture of a kind that live.js draws from these numbers: the last value of a cell. `label`: what a
    reader can do, without a period."""
    return HTML(LIVE.format(kind=kind, label=html.escape(label), data=as_json(numbers)))


def attended(
    tokens: Sequence[str],
    patterns: Float[Tensor, "head dest src"],
    names: Sequence[str],
    label: str,
    *,
    opens: tuple[int, int] = (0, -1),
) -> str:
    """Return HTML of tokens shaded by what the pointed one attends to. `opens`: the head and the token of the start."""
    rows = [[[round(100 * a) for a in row[: i + 1]] for i, row in enumerate(head)] for head in patterns.tolist()]
    head, at = opens
    data = as_json({"heads": rows, "head": head, "at": at % len(tokens)})
    box = hashlib.sha256(f"{tokens}{data}".encode()).hexdigest()[:8]  # no two on a page share an id
    chips = ""
    for i, token in enumerate(tokens):
        shown = html.escape(show_token(token)) + "<br>" * token.count("\n")
        chips += f'<code class="token" role="option" aria-selected="false" id="t{box}-{i}">{shown}</code>'
    layers, buttons = [name.split(".")[0] for name in names], ""
    for layer, name in zip(layers, names):
        buttons += f'<button type="button" data-layer="{layer}" aria-pressed="false">{html.escape(name)}</button>'
    choices = f'<p class="tc-choices" role="group" aria-label="head">{buttons}</p>' if len(names) > 1 else ""
    return ATTENDED.format(label=html.escape(label), layer=layers[head], choices=choices, text=chips, data=data)


def explore(
    tokens: Sequence[str],
    patterns: Float[Tensor, "head dest src"],
    names: Sequence[str],
    *,
    label: str = "",
    opens: tuple[int, int] = (0, -1),
) -> HTML:
    """Return the attention of heads on a text, to explore: CircuitsVis' `attention_heads` in JupyterLab and on Colab.

    `names`: of the heads, such as "1.2". `label`: for those who cannot see it. `opens`: the head and the
    token that a page shows first.
    """
    label = label or f"attention of {', '.join(names)}: point at a token"
    if os.environ.get("TRANSFORMER_CIRCUITS_BOOK") == "1":  # set by the build for its kernels
        return HTML(attended(tokens, patterns, names, label, opens=opens))
    from circuitsvis.attention import attention_heads

    shown = [html.escape(show_token(token)) for token in tokens]  # it makes markup of tokens
    return HTML(attention_heads(patterns, shown, list(names), mask_upper_tri=True)._repr_html_())
