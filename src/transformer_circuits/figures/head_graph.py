"""Heads of two layers joined by lines, as in the paper's figure of composition scores."""

from collections.abc import Collection, Mapping

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from transformer_circuits.figures.plots import COLOR_OF_LAYER, OTHERS, finding
from transformer_circuits.figures.style import WIDTH
from transformer_circuits.measures.weights import COMPOSES


def network(
    panels: Mapping[str, Float[Tensor, "reader writer"]],
    kinds: Mapping[tuple[int, int], str],
    faded: Collection[tuple[int, int]],
    title: str = "",
) -> Figure:
    """Draw the writers of layer 0 and the readers of layer 1, joined by lines as wide as their ratio is above 1,
    chance; blue from COMPOSES on.

    `kinds`: (layer, head) to a word. `faded`: pale heads, without lines. Widths have one scale in all panels.
    """
    arrays = {name: panel.numpy(force=True).copy() for name, panel in panels.items()}
    for ratios in arrays.values():
        for layer, head in faded:
            ratios[(slice(None), head) if layer == 0 else head] = 1.0
    fig, axes = plt.subplots(len(panels), 1, figsize=(WIDTH, 0.7 + 2.3 * len(panels)), squeeze=False)
    for ax, (name, ratios) in zip(axes[:, 0], arrays.items()):
        widest = max(other.max() for other in arrays.values()) - 1
        for reader, writer in sorted(np.ndindex(ratios.shape), key=lambda pair: ratios[pair]):
            excess, strong = ratios[reader, writer] - 1, ratios[reader, writer] >= COMPOSES
            # Thinner lines could not be seen; at chance or below there is none.
            if excess > max(0.02 * widest, 0):
                color, alpha = ("second", 0.9) if strong else (OTHERS, 0.5)
                look = {"color": color, "alpha": alpha, "zorder": 1 + strong, "solid_capstyle": "butt"}
                ax.plot([writer, reader], [0, 1], lw=9 * excess / widest, **look)
        for layer, head in [(i, head) for i in (0, 1) for head in range(ratios.shape[1 - i])]:
            pale, named = (layer, head) in faded, (layer, head) in kinds
            color = "faint" if pale else COLOR_OF_LAYER[layer] if named else OTHERS
            words = {"color": OTHERS if pale else "ink", "weight": "bold" if named and not pale else "normal"}
            ax.plot(head, layer, "o", color=color, ms=9 if named else 6, zorder=3)
            ax.text(head, layer + (0.12 if layer else -0.12), f"{layer}.{head}", ha="center",
                    va="bottom" if layer else "top", **words)  # fmt: skip
        ax.set_title(name, loc="left", pad=18)
        ax.set(xlim=(-0.5, max(ratios.shape) - 0.5), ylim=(-0.3, 1.25))
        ax.axis("off")
    told = [f"{', '.join(f'{a}.{b}' for (a, b), k in kinds.items() if k == kind and (a, b) not in faded)}: {kind}"
            for kind in dict.fromkeys(kinds.values())]  # fmt: skip
    if told:
        fig.supxlabel("\n".join([*told, *["pale: without effect"] * bool(faded)]), color="soft", ha="left", x=0.01)
    finding(title, axes[0, 0])
    return fig
