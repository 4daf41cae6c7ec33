"""Drawings: the residual stream, a head's two tables, induction by two layers, and why concatenated heads are a sum."""

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from transformer_circuits.figures.plots import COLOR_OF_LAYER, LAYERS, MONO, finding, label_of
from transformer_circuits.figures.style import WIDTH, WORDS

BOX = {"boxstyle": "round,pad=0.3", "facecolor": "page", "edgecolor": "other"}
MIDDLE = {"ha": "center", "va": "center"}
WORD_OF_LAYER = ("first_text", "second")


def _canvas(height: float, xlim: tuple[float, float], ylim: tuple[float, float]) -> Axes:
    _, ax = plt.subplots(figsize=(WIDTH, height))
    ax.set(xlim=xlim, ylim=ylim)
    ax.axis("off")
    return ax


def _arrow(ax: Axes, tail: tuple[float, float], head: tuple[float, float], color: str, **look: object) -> None:
    ax.annotate("", head, tail, arrowprops={"arrowstyle": "-|>", "color": color, "lw": 2, **look})


def residual_stream(n_layers: int, n_heads: int) -> Axes:
    """Draw the stream of one token: from embedding to unembedding, with layers of heads that read it and add to it."""
    top = 1.6 * n_layers + 1.4
    ax = _canvas(0.6 * top + 0.7, (-2.4, 4.6), (-0.6, top + 0.4))
    _arrow(ax, (0, 0), (0, top), "other", lw=5, arrowstyle="-|>,head_width=0.6,head_length=0.9")
    ax.text(0, -0.2, "$W_E$: token embedding", bbox=BOX, **MIDDLE)
    ax.text(0, top + 0.2, "$W_U$: logits", bbox=BOX, **MIDDLE)
    names = [f"head {head}" for head in range(n_heads)]
    names[1:-1] = ["…"] if n_heads > 2 else []
    for layer in range(n_layers):
        low, color = 0.7 + 1.6 * layer, COLOR_OF_LAYER[min(layer, 1)]
        for y, action in ((low, "heads read"), (low + 1.1, "heads add")):
            ax.plot([0, 1.4 * len(names)], [y, y], color=color, lw=1.5)
            ax.text(-0.3, y, action, ha="right", va="center")
        title = LAYERS[layer] if layer < 2 else f"layer {layer}"
        ax.text(-0.3, low + 0.55, title, ha="right", va="center", weight="bold", color=WORD_OF_LAYER[min(layer, 1)])
        for i, name in enumerate(names):
            x = 1.4 * (i + 1) - 0.2
            ax.text(x, low + 0.55, name, bbox=None if name == "…" else BOX, **MIDDLE)
            for start in (low, low + 0.77) if name != "…" else ():
                _arrow(ax, (x, start), (x, start + 0.33), color, lw=1.5)
    return ax


def concatenation() -> Axes:
    """Draw why concatenating the results of heads and projecting them is a sum: each has a block of W_O."""
    ax = _canvas(2.1, (0, 12.8), (0.4, 5.0))
    for i, color in enumerate(("first", "second", "other")):
        x, blocks = 6.0 + 2.4 * i, {f"$W_O^{i}$": (1.2, 2.4), f"$r^{i}$": (0.7, 1.2)}
        corners = ((0.2 + 1.2 * i, 1.2), (x, 1.2)), ((4.2, 3.0 - 1.2 * i), (x + 1.25, 1.8))
        for (label, size), places in zip(blocks.items(), corners):
            for corner in places:
                ax.add_patch(Rectangle(corner, *size, facecolor=color, edgecolor="page", lw=2, alpha=0.35))
                ax.text(corner[0] + size[0] / 2, corner[1] + size[1] / 2, label, **MIDDLE)
        ax.text(x - 0.3, 2.4, "+" if i else "=", fontsize=WORDS, **MIDDLE)
    for x, words in ((2.0, "one matrix"), (4.6, "stacked"), (9.4, "each head writes on its own")):
        ax.text(x, 4.6, words, color="soft", **MIDDLE)
    return ax


def skip_trigram(source: str, destination: str, out: str) -> Axes:
    """Draw the two tables of a head in one prediction: a destination attends to a source, which raises an out token."""
    ax = _canvas(2.5, (-0.6, 5.4), (-0.9, 2.5))
    token = {"family": MONO, "fontsize": WORDS, "bbox": BOX, **MIDDLE}
    ax.text(0.4, 0.4, label_of(source), **token)
    ax.text(4, 0.4, label_of(destination), **token)
    ax.text(4, 2.1, label_of(out), **token | {"color": "first_text", "weight": "bold"})
    ax.text(2.2, 0.4, "…", **MIDDLE)
    for x, name in ((0.4, "source"), (4, "destination")):
        ax.text(x, -0.2, name, ha="center", va="top", color="soft")
    ax.text(4.5, 2.1, "out token", ha="left", va="center", color="soft")
    _arrow(ax, (3.8, 0.1), (0.7, 0.1), "other", connectionstyle="arc3,rad=-0.25", shrinkA=4, shrinkB=4)
    ax.text(2.2, -0.55, "QK: where to look", ha="center", va="top", color="soft")
    _arrow(ax, (0.6, 0.75), (3.5, 2.0), "first", connectionstyle="arc3,rad=-0.15", shrinkA=4, shrinkB=4)
    ax.text(1.5, 1.95, "OV: what it does", ha="center", va="bottom", color="first_text")
    return ax


def two_layers(title: str = "") -> Axes:
    """Draw induction by two layers on a made-up name: a note, and the query that finds it."""
    ax = _canvas(3.3, (-0.3, 6.9), (-0.5, 3.6))
    for place, token in enumerate(["·G", "ram", "le", "y", "…", "·G", "ram"]):
        ax.text(place, -0.1, token, ha="center", va="top", family=MONO, weight="bold" if place in (2, 6) else "normal")
        if token != "…":
            ax.plot([place, place], [0.1, 3], color="faint", lw=5, solid_capstyle="round", zorder=0)
    _arrow(ax, (1, 0.4), (2, 1.0), "first", shrinkA=4, shrinkB=4)
    _arrow(ax, (2, 2.1), (6, 2.9), "second", shrinkA=4, shrinkB=4)
    ax.text(1.9, 0.55, "first-layer head: leaves a note", color="first_text", va="center")
    ax.text(3.4, 2.75, "second-layer head", color="second", ha="center", va="center")
    for place, says in ((2, "key: the token\nbefore me is ram"), (6, "query:\nI am at ram")):
        ax.text(place, 1.55, says, bbox=BOX, **MIDDLE)
    _arrow(ax, (3.25, 1.55), (5.2, 1.55), "other", arrowstyle="<->", ls="--")
    ax.text(4.2, 1.65, "match", ha="center", va="bottom", color="soft")
    ax.text(6, 3.1, "next: le", ha="center", va="bottom", weight="bold")
    finding(title, ax)
    return ax
