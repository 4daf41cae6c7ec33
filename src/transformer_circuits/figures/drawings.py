"""The residual stream as a drawing (after the paper's figure of the high-level architecture)."""

from __future__ import annotations

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

BOX = {"boxstyle": "round,pad=0.3", "facecolor": "white", "edgecolor": "0.3"}


def residual_stream(n_layers: int, n_heads: int) -> Axes:
    """A vertical channel: the embedding below, layers of heads that read from it and add to it, the unembedding above."""
    top = 1.6 * n_layers + 1.4
    _, ax = plt.subplots(figsize=(6.4, 0.6 * top + 0.7))
    ax.set(xlim=(-2.6, 6.4), ylim=(-0.6, top + 0.4))
    ax.axis("off")
    ax.annotate("", (0, top), (0, 0), arrowprops={"arrowstyle": "-|>,head_width=0.6,head_length=0.9", "lw": 5, "color": "C0"})
    ax.text(0, -0.2, "$W_E$: token embedding", ha="center", va="center", bbox=BOX)
    ax.text(0, top + 0.2, "$W_U$: logits", ha="center", va="center", bbox=BOX)
    shown = [f"head {head}" for head in range(n_heads)] if n_heads <= 4 else ["head 0", "head 1", "…", f"head {n_heads - 1}"]
    for layer in range(n_layers):
        low = 0.7 + 1.6 * layer
        for y, color, says in ((low, "C2", "heads read"), (low + 1.1, "C1", "heads add")):
            ax.plot([0, 1.4 * len(shown)], [y, y], color=color, ls="-", lw=1.5)
            ax.text(-0.3, y, says, ha="right", va="center")
        ax.text(-0.3, low + 0.55, f"layer {layer}", ha="right", va="center", weight="bold")
        for i, name in enumerate(shown):
            x = 1.4 * (i + 1) - 0.2
            ax.text(x, low + 0.55, name, ha="center", va="center", fontsize=11, bbox=None if name == "…" else BOX)
            if name != "…":
                ax.annotate("", (x, low + 0.33), (x, low), arrowprops={"arrowstyle": "-|>", "color": "C2"})
                ax.annotate("", (x, low + 1.1), (x, low + 0.77), arrowprops={"arrowstyle": "-|>", "color": "C1"})
    return ax
