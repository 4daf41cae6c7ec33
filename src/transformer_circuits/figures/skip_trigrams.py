"""Skip-trigrams: where heads look by position, how much each copies, kinds of source tokens, and what bugs cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Bool, Float, Int
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox
from torch import Tensor

from transformer_circuits.circuits.skip_trigrams import Interval
from transformer_circuits.figures.tokens import show_token

# The four patterns of copying as the paper writes them, by the names that `four_patterns` gives them.
PATTERNS = {
    "exact": "[b] ... [a] → [b]",
    "akin": "[b] ... [a] → [b']",
    "split_exact": "[ab] ... [a] → [b]",
    "split_akin": "[ab] ... [a] → [b']",
}


def positional(
    measured: Float[Tensor, "head offset"], by_position: Float[Tensor, "head offset"], to_start: Float[Tensor, "2 head"]
) -> Figure:
    """Mean attention by distance in text, and what the position-position term alone would give; a row for each head.

    The last column of each panel is `to_start`: attention to the start token, measured and by position alone.
    """
    n_heads, n_offsets = measured.shape
    fig, axes = plt.subplots(1, 2, figsize=(6.4, 1.3 + 0.3 * n_heads), sharey=True)
    plt.close(fig)
    for ax, title, values, start in zip(axes, ("in text", "by position alone"), (measured, by_position), to_start):
        grid = 100 * np.concatenate([values.numpy(force=True), start.numpy(force=True)[:, None]], axis=1)
        image = ax.imshow(grid, vmin=0, vmax=100, cmap="Blues", aspect="auto")
        for (row, column), value in np.ndenumerate(grid):
            if value >= 9.5:
                color = "white" if value > 60 else "black"
                ax.text(column, row, f"{value:.0f}", ha="center", va="center", fontsize=10.5, color=color)
        ax.axvline(n_offsets - 0.5, color="0.3", lw=0.8, ls="-")
        ax.set_title(title, fontsize=11)
        ax.set_xticks(range(n_offsets + 1), [*map(str, range(n_offsets)), "start"], fontsize=10)
        ax.set_xlabel("tokens back")
    axes[0].set_yticks(range(n_heads), [f"0.{head}" for head in range(n_heads)], fontsize=10)
    axes[0].set_ylabel("head")
    fig.colorbar(image, ax=axes, location="bottom", shrink=0.6, aspect=40, label="mean attention (%)")
    return fig


def patterns_by_head(shares: Mapping[str, Float[Tensor, " head"]], resting: Bool[Tensor, " head"]) -> Figure:
    """How often each head shows each pattern of copying, bars side by side; a star marks heads that rest."""
    n_heads = len(resting)
    fig, ax = plt.subplots(figsize=(6.4, 3.4))
    plt.close(fig)
    width = 0.8 / len(shares)
    for i, (name, values) in enumerate(shares.items()):
        places = np.arange(n_heads) + (i - (len(shares) - 1) / 2) * width
        ax.bar(places, 100 * values.numpy(force=True), width, label=PATTERNS.get(name, name))
    names = [f"0.{head}*" if rest else f"0.{head}" for head, rest in enumerate(resting.tolist())]
    ax.set_xticks(range(n_heads), names, fontsize=10, rotation=45 if n_heads > 12 else 0)
    ax.set(xlabel="head", ylabel="source tokens (%)")
    ax.legend(loc="upper left")
    return fig


def kinds(
    points: Float[Tensor, "token 2"], labels: Int[Tensor, " token"], names: Sequence[str], tokens: Sequence[str]
) -> Figure:
    """Source tokens in the plane, each kind in its own color and with its own marker; written out where there is room."""
    fig, ax = plt.subplots(figsize=(6.4, 6.4))
    plt.close(fig)
    xy, labels = points.numpy(force=True), labels.numpy(force=True)
    for kind, (name, marker) in enumerate(zip(names, "osD^vP*X")):
        mine = labels == kind
        ax.scatter(*xy[mine].T, s=14, marker=marker, color=f"C{kind}", label=name)
    ax.margins(0.08)
    ax.set(xlabel="first principal component", ylabel="second principal component", xticks=[], yticks=[])
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.06), ncols=3, fontsize=10.5, markerscale=1.5)
    fig.draw_without_rendering()  # so that lengths on the page are known
    taken: list[Bbox] = []
    for (x, y), token in zip(xy, tokens):
        look = {"textcoords": "offset points", "fontsize": 9.5, "color": "0.2"}
        text = ax.annotate(show_token(token.removeprefix(" ")), (x, y), xytext=(0, 0), **look)
        for offset, side in (((3, 2), "left"), ((-3, 2), "right"), ((3, -9), "left"), ((-3, -9), "right")):
            text.set(position=offset, ha=side)
            box = text.get_window_extent()
            if not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
        else:  # no room: the point must do
            text.remove()
    return fig


def cost_by_strictness(costs: Mapping[int, Interval], chosen: int) -> Figure:
    """What bugs cost, by how many occasions a triple must have had in vain to be called wrong; `chosen` is marked."""
    fig, ax = plt.subplots(figsize=(6.4, 3.4))
    plt.close(fig)
    x = np.array(list(costs))
    mean, low, high = 1000 * np.array([tuple(costs[n]) for n in x]).T
    ax.errorbar(x, mean, yerr=(mean - low, high - mean), marker="o", ls="-", capsize=3)
    ax.axvline(chosen, color="0.5", lw=1.0, ls="--")
    ax.axhline(0, color="0.3", lw=0.8, ls="-")
    ax.set(xscale="log", xlabel="occasions without being seen, at least", ylabel="cost (nats per 1,000 tokens)")
    ax.set_xticks(x, [f"{n:,}" for n in x])
    ax.minorticks_off()
    ax.set_ylim(bottom=min(0.0, 1.1 * low.min()))
    return fig
