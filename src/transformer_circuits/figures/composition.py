"""Heads of two layers joined by lines, as in the paper's figure of composition scores, and the three ways to compose, drawn."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

MARKS = (("s", "C1"), ("D", "C4"), ("^", "C2"), ("v", "C5"), ("P", "C9"))  # kinds of heads: a mark and a colour each


def network(
    panels: Mapping[str, Float[Tensor, "reader writer"]],
    layers: tuple[int, int] = (0, 1),
    kinds: Mapping[tuple[int, int], str] | None = None,
    threshold: float = 2.0,
    one_scale: bool = True,
) -> Figure:
    """Writers below, readers above, joined by lines as wide as their ratio is above chance, which is 1; blue from `threshold` on.

    `kinds`: heads to mark, (layer, head) to a word; five kinds at most. `one_scale`: widths compare between panels.
    """
    kinds = kinds or {}
    looks = dict(zip(dict.fromkeys(kinds.values()), MARKS, strict=False))
    arrays = {title: panel.numpy(force=True) for title, panel in panels.items()}
    fig, axes = plt.subplots(len(panels), 1, figsize=(6.6, 0.5 + 2.3 * len(panels)), squeeze=False)
    for ax, (title, ratios) in zip(axes[:, 0], arrays.items()):
        widest = max(other.max() for other in (arrays.values() if one_scale else [ratios])) - 1
        for reader, writer in sorted(np.ndindex(ratios.shape), key=lambda pair: ratios[pair]):
            excess, strong = ratios[reader, writer] - 1, ratios[reader, writer] >= threshold
            if excess > max(0.02 * widest, 0):  # thinner lines could not be seen; at chance or below there is none
                ax.plot([writer, reader], [0, 1], ls="-", color="C0" if strong else "0.7", lw=9 * excess / widest,
                        alpha=0.9 if strong else 0.5, zorder=1 + strong, solid_capstyle="butt")  # fmt: skip
        for y, layer, count in ((0, layers[0], ratios.shape[1]), (1, layers[1], ratios.shape[0])):
            for head in range(count):
                kind = kinds.get((layer, head))
                mark, color = looks.get(kind, ("o", "0.55"))
                ax.plot(head, y, mark, color=color, ms=9 if kind else 6, zorder=3)
                ax.annotate(f"{layer}.{head}", (head, y), xytext=(0, 9 if y else -9), textcoords="offset points", ha="center",
                            va="bottom" if y else "top", fontsize=11, weight="bold" if kind else "normal")  # fmt: skip
        ax.set_title(title, pad=18)
        ax.set(xlim=(-0.5, max(ratios.shape) - 0.5), ylim=(-0.25, 1.2))
        ax.axis("off")
    if looks:
        handles = [Line2D([], [], marker=mark, color=color, ls="", ms=9, label=kind) for kind, (mark, color) in looks.items()]
        fig.legend(handles=handles, loc="outside lower center", ncols=len(looks))
    return fig


def three_ways() -> Figure:
    """What the first head moves (orange), and where the second head (blue) takes it in: query, key or value."""
    fig, axes = plt.subplots(3, 1, figsize=(6.4, 5.6))
    ways = {  # from where to where the first head moves something, and what the second head makes of it
        "Q": (3.4, 5.4, "what the first head moved\nchanges what is looked for"),
        "K": (0.0, 2.0, "what the first head moved\nchanges where it is found"),
        "V": (0.0, 2.0, "what the first head moved\nis itself moved on"),
    }
    for ax, (side, (start, end, effect)) in zip(axes, ways.items()):
        ax.set(xlim=(-0.4, 9.6), ylim=(-0.75, 2.5))
        ax.axis("off")
        ax.text(6.2, 1.95, f"{side}-composition", fontsize=13, weight="bold", va="center")
        ax.text(6.2, 0.5, effect, va="center")
        for token in (0.0, 2.0, 3.4, 5.4):
            heights = [0, 1.1, 2.2] if token == 5.4 else [0, 1.1]
            ax.plot([token] * len(heights), heights, "o-", color="0.6", lw=1, ms=6)
        for color, tail, head in (("C1", (start, 0), (end, 1.1)), ("C0", (2, 1.1), (5.4, 2.2))):
            ax.annotate("", head, tail, arrowprops={"arrowstyle": "-|>", "color": color, "lw": 2, "shrinkA": 4, "shrinkB": 4})
        if side == "V":  # what the first head brought travels along
            ax.plot([2.3, 4.9], [1.06, 1.9], "-", color="C1", lw=2)
        ax.text(2, -0.2, "source", ha="center", va="top", fontsize=11)
        ax.text(5.4, -0.2, "destination", ha="center", va="top", fontsize=11)
    handles = [Line2D([], [], color=color, ls="-") for color in ("C1", "C0")]
    fig.legend(handles, ["first-layer head", "second-layer head"], loc="outside lower center", ncols=2)
    return fig
