"""Drawings: the residual stream, kinds of paths, a head's two tables, concatenated heads, and how heads compose."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from torch import Tensor

from transformer_circuits.figures.plots import label_of

BOX = {"boxstyle": "round,pad=0.3", "facecolor": "white", "edgecolor": "0.3"}
THICK = {"lw": 2, "shrinkA": 4, "shrinkB": 4}  # arrows


def residual_stream(n_layers: int, n_heads: int) -> Axes:
    """Draw the stream of one token: from embedding to unembedding, with layers of heads that read it and add to it."""
    top = 1.6 * n_layers + 1.4
    _, ax = plt.subplots(figsize=(5.2, 0.6 * top + 0.7))  # small enough to be read on a phone
    ax.set(xlim=(-2.6, 5.0), ylim=(-0.6, top + 0.4))
    ax.axis("off")
    _arrow(ax, (0, 0), (0, top), color="0.7", lw=5, arrowstyle="-|>,head_width=0.6,head_length=0.9")
    ax.text(0, -0.2, "$W_E$: token embedding", ha="center", va="center", bbox=BOX)
    ax.text(0, top + 0.2, "$W_U$: logits", ha="center", va="center", bbox=BOX)
    names = [f"head {head}" for head in range(n_heads)]
    if n_heads > 2:
        names[1:-1] = ["…"]
    for layer in range(n_layers):
        low, color = 0.7 + 1.6 * layer, ("C1", "C0")[layer % 2]
        for y, action in ((low, "heads read"), (low + 1.1, "heads add")):
            ax.plot([0, 1.4 * len(names)], [y, y], color=color, ls="-", lw=1.5)
            ax.text(-0.3, y, action, ha="right", va="center")
        title = ("first layer", "second layer")[layer] if layer < 2 else f"layer {layer}"
        ax.text(-0.3, low + 0.55, title, ha="right", va="center", weight="bold")
        for i, name in enumerate(names):
            x = 1.4 * (i + 1) - 0.2
            ax.text(x, low + 0.55, name, ha="center", va="center", fontsize=11, bbox=None if name == "…" else BOX)
            if name != "…":
                _arrow(ax, (x, low), (x, low + 0.33), color=color)
                _arrow(ax, (x, low + 0.77), (x, low + 1.1), color=color)
    return ax


def concatenation() -> Axes:
    """Draw why concatenating the results of heads and projecting them is a sum: each has a block of W_O."""
    _, ax = plt.subplots(figsize=(5.2, 2.1))
    ax.set(xlim=(0, 12.8), ylim=(0.4, 5.0), aspect="equal")
    ax.axis("off")
    colors = ("C1", "C0", "C4")
    for i, color in enumerate(colors):
        _block(ax, (0.2 + 1.2 * i, 1.2), (1.2, 2.4), color, f"$W_O^{i}$")
        _block(ax, (4.2, 3.0 - 1.2 * i), (0.8, 1.2), color, f"$r^{i}$")
        x = 6.0 + 2.4 * i
        _block(ax, (x, 1.2), (1.2, 2.4), color, f"$W_O^{i}$")
        _block(ax, (x + 1.25, 1.8), (0.6, 1.2), color, f"$r^{i}$")
        ax.text(x - 0.3, 2.4, "+" if i else "=", ha="center", va="center", fontsize=14)
    for x, words in ((2.0, "one matrix"), (4.6, "stacked"), (9.4, "each head writes on its own")):
        ax.text(x, 4.6, words, ha="center", va="center", fontsize=11)
    return ax


def _block(ax: Axes, corner: tuple[float, float], size: tuple[float, float], color: str, label: str) -> None:
    ax.add_patch(Rectangle(corner, *size, facecolor=color, edgecolor="white", lw=2, alpha=0.35))
    ax.text(corner[0] + size[0] / 2, corner[1] + size[1] / 2, label, ha="center", va="center", fontsize=12)


def two_layers() -> Figure:
    """Draw induction by two layers on a made-up name (above), and the three ways in which heads compose (below)."""
    fig = plt.figure(figsize=(5.2, 6.0))  # small enough to be read on a phone
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
        ax.text(0.75, -0.25, "source", ha="center", va="top", fontsize=10)
        ax.text(3.05, -0.25, "destination", ha="center", va="top", fontsize=10)
        ax.text(1.5, -1.25, effect, ha="center", va="bottom", fontsize=10)
    handles = [Line2D([], [], color=color, ls="-") for color in ("C1", "C0")]
    fig.legend(handles, ["first-layer head", "second-layer head"], loc="outside lower center", ncols=2)
    return fig


def product(
    left: Float[Tensor, "row k"],
    right: Float[Tensor, "k column"],
    percent: Float[Tensor, "row column"],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
) -> Figure:
    """Draw W_E times W_U as matrices are multiplied: a few dimensions of both, and what the whole product predicts."""
    widths = {"width_ratios": (left.shape[1], 1.6 * len(columns)), "height_ratios": (len(right), 1.9 * len(rows))}
    fig, axes = plt.subplots(2, 2, figsize=(5.4, 5.4), **widths)
    for ax, part in ((axes[1, 0], left), (axes[0, 1], right), (axes[1, 1], percent)):
        largest = 1.5 * float(part.abs().max())
        ax.imshow(part.cpu(), aspect="auto", cmap="RdBu", vmin=-largest, vmax=largest)
        ax.set(xticks=[], yticks=[])
    for (row, column), chance in np.ndenumerate(percent.cpu()):
        color = "black" if chance >= 0.5 else "0.6"
        axes[1, 1].text(column, row, f"{chance:.0f}", ha="center", va="center", color=color)
    axes[0, 0].text(0.5, 0.5, "row of $W_E$ times\ncolumn of $W_U$\n= one logit", ha="center", va="center")
    axes[0, 0].axis("off")
    axes[1, 0].set(xlabel=f"{left.shape[1]} of the dimensions", title="$W_E$")
    axes[0, 1].set(ylabel=f"{len(right)} of the dimensions", title="$W_U$")
    axes[1, 1].set(title="next token (%)")
    axes[1, 0].set_yticks(range(len(rows)), map(label_of, rows))
    axes[1, 1].set_xticks(range(len(columns)), map(label_of, columns), rotation=60)
    return fig


def kinds_of_paths() -> Figure:
    """Draw the three kinds of path through two layers: direct, through one head, and through a head of each layer."""
    ways = {"direct path": [], "one head": [(1, 1)], "virtual head": [(0, 0), (1, 1)]}  # (layer, head)
    fig, axes = plt.subplots(1, 3, figsize=(5.2, 3.2), sharey=True)
    for ax, (title, heads) in zip(axes, ways.items()):
        ax.set(xlim=(-0.6, 2.6), ylim=(-0.4, 4.4), title=title)
        ax.axis("off")
        ax.plot([0, 0], [0.2, 3.8], color="0.85", ls="-", lw=9)
        for layer in (0, 1):
            for head in (0, 1):
                look = BOX | {"edgecolor": "C0" if (layer, head) in heads else "0.7"}
                place = 1 + head, 1.3 + 1.4 * layer
                ax.text(*place, f"{layer}.{head}", ha="center", va="center", fontsize=11, bbox=look, zorder=5)
        points = [(0, 0.2)]
        for layer, head in heads:
            y = 1.3 + 1.4 * layer
            points += [(0, y - 0.6), (1 + head, y - 0.6), (1 + head, y + 0.6), (0, y + 0.6)]
        ax.plot(*zip(*points, (0, 3.8)), color="C0", ls="-", lw=2.5)
        for y, name in ((0, "$W_E$"), (4, "$W_U$")):
            ax.text(0, y, name, ha="center", va="center", bbox=BOX, zorder=5)
    return fig


def skip_trigram(source: str, destination: str, out: str) -> Axes:
    """Draw the two tables of a head in one prediction: a destination attends to a source, which raises an out token."""
    _, ax = plt.subplots(figsize=(5.6, 2.6))
    ax.set(xlim=(-0.6, 5.2), ylim=(-0.9, 2.5))
    ax.axis("off")
    token = {"ha": "center", "va": "center", "family": "monospace", "fontsize": 14, "bbox": BOX}
    ax.text(0.4, 0.4, label_of(source), **token)
    ax.text(4, 0.4, label_of(destination), **token)
    ax.text(4, 2.1, label_of(out), **token | {"color": "C0", "weight": "bold"})
    ax.text(2.2, 0.4, "…", ha="center", va="center", fontsize=14)
    for x, name in ((0.4, "source"), (4, "destination")):
        ax.text(x, -0.2, name, ha="center", va="top", fontsize=11, color="0.3")
    ax.text(4.75, 2.1, "out token", ha="left", va="center", fontsize=11, color="0.3")
    _arrow(ax, (3.8, 0.1), (0.7, 0.1), color="0.4", connectionstyle="arc3,rad=-0.25", **THICK)
    ax.text(2.2, -0.55, "QK: where to look", ha="center", va="top", color="0.4")
    _arrow(ax, (0.6, 0.75), (3.5, 2.0), color="C0", connectionstyle="arc3,rad=-0.15", **THICK)
    ax.text(1.5, 1.95, "OV: what it does", ha="center", va="bottom", color="C0")
    return ax


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
    _arrow(ax, (3.14, 1.55), (5.2, 1.55), color="0.4", arrowstyle="<->", ls="--")
    ax.text(4.15, 1.65, "match", ha="center", va="bottom", fontsize=10)
    ax.text(6, 3.1, "next: le", ha="center", va="bottom", weight="bold", fontsize=12)
    for y, name in ((0.7, "first layer"), (2.5, "second layer")):
        ax.text(7.9, y, name, ha="right", va="center", fontsize=10, color="0.3")


def _arrow(ax: Axes, tail: tuple[float, float], head: tuple[float, float], **look: object) -> None:
    ax.annotate("", head, tail, arrowprops={"arrowstyle": "-|>", **look})
