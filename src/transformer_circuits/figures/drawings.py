"""Drawings: the residual stream, a head's two tables, and induction by two layers."""

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from transformer_circuits.figures.plots import COLOR_OF_LAYER, LAYERS, MONO, WORD_OF, finding, label_of
from transformer_circuits.figures.style import WIDTH, WORDS

BOX = {"boxstyle": "round,pad=0.3", "facecolor": "page", "edgecolor": "other"}
MIDDLE = {"ha": "center", "va": "center"}
Point = tuple[float | int, float | int]


def _canvas(height: float, xlim: Point, ylim: Point, title: str) -> Axes:
    _, ax = plt.subplots(figsize=(WIDTH, height))
    ax.set(xlim=xlim, ylim=ylim)
    ax.axis("off")
    finding(title, ax)
    return ax


def _arrow(ax: Axes, tail: Point, head: Point, color: str, **look: object) -> None:
    ax.annotate("", head, tail, arrowprops={"arrowstyle": "-|>", "color": color, "lw": 2, **look})


def residual_stream(n_heads: int, title: str) -> None:
    """Draw the stream of one token: from embedding to unembedding, with two layers of heads that read it and add to
    it."""
    ax = _canvas(3.5, (-2.4, 4.6), (-0.6, 5.0), title)
    _arrow(ax, (0, 0), (0, 4.6), "other", lw=5, arrowstyle="-|>,head_width=0.6,head_length=0.9")
    ax.text(0, -0.2, "token embedding", bbox=BOX, **MIDDLE)
    ax.text(0.3, 4.1, "residual stream", color="soft", va="center")
    ax.text(0, 4.8, "logits", bbox=BOX, **MIDDLE)
    for low, layer, color in zip((0.7, 2.3), LAYERS, COLOR_OF_LAYER):
        for y, action in ((low, "heads read"), (low + 1.1, "heads add")):
            ax.plot([0, 4.2], [y, y], color=color, lw=1.5)
            ax.text(-0.3, y, action, ha="right", va="center")
        _arrow(ax, (1.2, low + 1.1), (0, low + 1.1), color, lw=1.5)  # into the stream
        words = {"weight": "bold", "color": WORD_OF.get(color, color)}
        ax.text(-0.3, low + 0.55, layer, ha="right", va="center", **words)
        ax.text(2.6, low + 0.55, "…", **MIDDLE)
        for x, head in ((1.2, 0), (4.0, n_heads - 1)):
            ax.text(x, low + 0.55, f"head {head}", bbox=BOX, **MIDDLE)
            for start in (low, low + 0.77):
                _arrow(ax, (x, start), (x, start + 0.33), color, lw=1.5)


def skip_trigram(source: str, destination: str, out: str, title: str) -> Axes:
    """Draw the two tables of a head in one prediction: a destination attends to a source, which raises an out token."""
    ax = _canvas(2.6, (-0.9, 5.7), (-1.1, 2.5), title)
    token = {"family": MONO, "fontsize": WORDS, "bbox": BOX, **MIDDLE}
    source, destination, out = map(label_of, (source, destination, out))
    ax.text(0.6, 0.4, source, **token)
    ax.text(3.9, 0.4, destination, **token)
    ax.text(3.9, 2.1, out, **token | {"color": "first_text", "weight": "bold"})
    ax.text(2.2, 0.4, "…", **MIDDLE)
    ax.text(0.1, 0.4, "source", ha="right", va="center", color="soft")
    for y, name in ((0.4, "destination"), (2.1, "out token")):
        ax.text(4.4, y, name, va="center", color="soft")
    _arrow(ax, (3.7, 0.1), (0.8, 0.1), "other", connectionstyle="arc3,rad=-0.25", shrinkA=4, shrinkB=4)
    ax.text(2.2, -0.65, f"QK table: {destination} looks for {source}", ha="center", va="top", color="soft")
    _arrow(ax, (0.7, 0.75), (3.4, 2.0), "first", connectionstyle="arc3,rad=-0.15", shrinkA=4, shrinkB=4)
    ax.text(1.4, 2.1, f"OV table: {source} raises {out}", ha="center", va="bottom", color="first_text")
    return ax


def two_layers(title: str) -> None:
    """Draw induction by two layers on a made-up name: a note, and the query that finds it."""
    ax = _canvas(3.3, (-0.3, 6.9), (-0.5, 3.6), title)
    for place, token in enumerate(["·G", "ram", "le", "y", "…", "·G", "ram"]):
        ax.text(place, -0.1, token, ha="center", va="top", family=MONO, weight="bold" if place in (2, 6) else "normal")
        if token != "…":
            ax.plot([place, place], [0.1, 3], color="faint", lw=5, solid_capstyle="round", zorder=0)
    _arrow(ax, (1, 0.4), (2, 1.0), "first", shrinkA=4, shrinkB=4)
    _arrow(ax, (2, 2.1), (6, 2.9), "second", shrinkA=4, shrinkB=4)
    over_streams = {"facecolor": "page", "edgecolor": "none", "pad": 1}
    ax.text(2.1, 0.55, "first-layer head: leaves a note", color="first_text", va="center", bbox=over_streams)
    ax.text(3.4, 2.75, "second-layer head", color="second", bbox=over_streams, **MIDDLE)
    for place, says in ((2, "key: the token\nbefore me is ram"), (6, "query:\nI am at ram")):
        ax.text(place, 1.55, says, bbox=BOX, **MIDDLE)
    _arrow(ax, (3.25, 1.55), (5.2, 1.55), "other", arrowstyle="<->", ls="--")
    ax.text(4.2, 1.65, "match", ha="center", va="bottom", color="soft")
    ax.text(6, 3.1, "next: le", ha="center", va="bottom", weight="bold")
