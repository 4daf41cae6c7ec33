"""Drawings: the residual stream (after the paper's figure of the high-level architecture), and how heads of two layers compose."""

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

BOX = {"boxstyle": "round,pad=0.3", "facecolor": "white", "edgecolor": "0.3"}
THICK = {"lw": 2, "shrinkA": 4, "shrinkB": 4}  # arrows


def residual_stream(n_layers: int, n_heads: int) -> Axes:
    """A vertical channel: the embedding below, layers of heads that read from it and add to it, the unembedding above."""
    top = 1.6 * n_layers + 1.4
    _, ax = plt.subplots(figsize=(6.4, 0.6 * top + 0.7))
    ax.set(xlim=(-2.6, 6.4), ylim=(-0.6, top + 0.4))
    ax.axis("off")
    _arrow(ax, (0, 0), (0, top), color="C0", lw=5, arrowstyle="-|>,head_width=0.6,head_length=0.9")
    ax.text(0, -0.2, "$W_E$: token embedding", ha="center", va="center", bbox=BOX)
    ax.text(0, top + 0.2, "$W_U$: logits", ha="center", va="center", bbox=BOX)
    shown = [f"head {head}" for head in range(n_heads)]
    if n_heads > 3:
        shown[2:-1] = ["…"]
    for layer in range(n_layers):
        low, middle = 0.7 + 1.6 * layer, 1.25 + 1.6 * layer
        for y, color, says in ((low, "C2", "heads read"), (low + 1.1, "C1", "heads add")):
            ax.plot([0, 1.4 * len(shown)], [y, y], color=color, ls="-", lw=1.5)
            ax.text(-0.3, y, says, ha="right", va="center")
        name = ("first layer", "second layer")[layer] if layer < 2 else f"layer {layer}"
        ax.text(-0.3, middle, name, ha="right", va="center", weight="bold")
        for i, name in enumerate(shown):
            x = 1.4 * (i + 1) - 0.2
            box = None if name == "…" else BOX
            ax.text(x, middle, name, ha="center", va="center", fontsize=11, bbox=box)
            if name != "…":
                _arrow(ax, (x, low), (x, low + 0.33), color="C2")
                _arrow(ax, (x, low + 0.77), (x, low + 1.1), color="C1")
    return ax


def two_layers() -> Figure:
    """Draw induction by two layers on a made-up name (above), and the three ways in which heads compose (below)."""
    fig = plt.figure(figsize=(7.2, 6.4))
    grid = fig.add_gridspec(2, 3, height_ratios=(1.5, 1))
    _induction(fig.add_subplot(grid[0, :]))
    ways = {  # from where to where the first head moves something, and what that changes
        "Q": (1.6, 3.0, "changes what the\nsecond head looks for"),
        "K": (0.0, 1.0, "changes where the\nsecond head finds it"),
        "V": (0.0, 1.0, "is itself moved on\nby the second head"),
    }
    for column, (side, (start, end, effect)) in enumerate(ways.items()):
        ax = fig.add_subplot(grid[1, column])
        ax.set(xlim=(-0.5, 3.5), ylim=(-1.3, 2.6))
        ax.axis("off")
        ax.set_title(f"{side}-composition", weight="bold")
        for token in (0.0, 1.0, 1.6, 3.0):
            heights = [0, 1.1, 2.2] if token == 3.0 else [0, 1.1]
            ax.plot([token] * len(heights), heights, "o-", color="0.6", lw=1, ms=5)
        _arrow(ax, (start, 0), (end, 1.1), color="C1", **THICK)
        _arrow(ax, (1, 1.1), (3, 2.2), color="C0", **THICK)
        if side == "V":  # what the first head moved travels along
            ax.plot([1.15, 2.6], [1.07, 1.87], "-", color="C1", lw=2)
        ax.text(1, -0.25, "source", ha="center", va="top", fontsize=10)
        ax.text(3, -0.25, "destination", ha="center", va="top", fontsize=10)
        ax.text(1.5, -1.25, effect, ha="center", va="bottom", fontsize=10)
    handles = [Line2D([], [], color=color, ls="-") for color in ("C1", "C0")]
    fig.legend(handles, ["first-layer head", "second-layer head"], loc="outside lower center", ncols=2)
    return fig


def _induction(ax: Axes) -> None:
    ax.set(xlim=(-0.6, 7.9), ylim=(-0.5, 3.6))
    ax.axis("off")
    for place, token in enumerate(["·G", "ram", "le", "y", "…", "·G", "ram"]):
        ax.text(place, -0.1, token, ha="center", va="top", family="monospace", fontsize=12)
        if token != "…":
            ax.plot([place, place], [0.1, 3], color="0.8", lw=5, ls="-", solid_capstyle="round", zorder=0)
    _arrow(ax, (1, 0.4), (2, 1.0), color="C1", **THICK)
    _arrow(ax, (2, 2.1), (6, 2.9), color="C0", **THICK)
    for place, says in ((2, "key: the token\nbefore me is ram"), (6, "query:\nI am at ram")):
        ax.text(place, 1.55, says, ha="center", va="center", fontsize=10, bbox=BOX)
    _arrow(ax, (2.79, 1.55), (5.43, 1.55), color="0.4", arrowstyle="<->", ls="--")
    ax.text(4.15, 1.65, "match", ha="center", va="bottom", fontsize=10)
    ax.text(6, 3.1, "next: le", ha="center", va="bottom", weight="bold", fontsize=12)
    for y, name in ((0.7, "first layer"), (2.5, "second layer")):
        ax.text(7.9, y, name, ha="right", va="center", fontsize=10, color="0.3")


def _arrow(ax: Axes, tail: tuple[float, float], head: tuple[float, float], **look: object) -> None:
    ax.annotate("", head, tail, arrowprops={"arrowstyle": "-|>", **look})
