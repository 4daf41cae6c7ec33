"""Heads of two layers joined by lines, as in the paper's figure of composition scores."""

from collections.abc import Collection, Mapping

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from transformer_circuits.measures.weights import COMPOSES

# Kinds of heads: a mark and a color each. The first two are as on the page "Watch it learn".
MARKS = {"previous token": ("D", "#2b7d4f"), "induction": ("^", "C2"), "last several tokens": ("s", "C4")}


def network(
    panels: Mapping[str, Float[Tensor, "reader writer"]],
    kinds: Mapping[tuple[int, int], str],
    faded: Collection[tuple[int, int]],
    one_scale: bool = True,
) -> Figure:
    """Draw the writers of layer 0 and the readers of layer 1, joined by lines as wide as their ratio is above 1,
    chance; blue from COMPOSES on.

    `kinds`: (layer, head) to a word of MARKS. `faded`: pale heads, without lines. `one_scale`: for all panels.
    """
    looks = {kind: MARKS[kind] for kind in dict.fromkeys(kinds.values())}
    arrays = {title: panel.numpy(force=True).copy() for title, panel in panels.items()}
    for ratios in arrays.values():
        for layer, head in faded:
            ratios[(slice(None), head) if layer == 0 else head] = 1.0
    fig, axes = plt.subplots(len(panels), 1, figsize=(5.6, 0.5 + 2.3 * len(panels)), squeeze=False)
    for ax, (title, ratios) in zip(axes[:, 0], arrays.items()):
        widest = max(other.max() for other in (arrays.values() if one_scale else [ratios])) - 1
        for reader, writer in sorted(np.ndindex(ratios.shape), key=lambda pair: ratios[pair]):
            excess, strong = ratios[reader, writer] - 1, ratios[reader, writer] >= COMPOSES
            # Thinner lines could not be seen; at chance or below there is none.
            if excess > max(0.02 * widest, 0):
                ax.plot([writer, reader], [0, 1], ls="-", color="C0" if strong else "0.7", lw=9 * excess / widest,
                        alpha=0.9 if strong else 0.5, zorder=1 + strong, solid_capstyle="butt")  # fmt: skip
        for layer, count in enumerate(reversed(ratios.shape)):
            for head in range(count):
                pale = (layer, head) in faded
                kind = None if pale else kinds.get((layer, head))
                mark, color = looks.get(kind, ("o", "0.88" if pale else "0.55"))
                ax.plot(head, layer, mark, color=color, ms=9 if kind else 6, zorder=3)
                ax.annotate(f"{layer}.{head}", (head, layer), (0, 9 if layer else -9), textcoords="offset points", ha="center",  # noqa: E501
                            va="bottom" if layer else "top", fontsize=11, weight="bold" if kind else "normal",
                            color="0.7" if pale else "black")  # fmt: skip
        ax.set_title(title, pad=18)
        ax.set(xlim=(-0.5, max(ratios.shape) - 0.5), ylim=(-0.25, 1.2))
        ax.axis("off")
    if looks:
        if faded:
            looks["without effect"] = ("o", "0.88")
        handles = [
            Line2D([], [], marker=mark, color=color, ls="", ms=6 if kind == "without effect" else 9, label=kind)
            for kind, (mark, color) in looks.items()
        ]
        fig.legend(handles=handles, loc="outside lower center", ncols=2 if len(handles) == 4 else 3)
    return fig
