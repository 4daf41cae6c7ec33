"""Small drawings: the residual stream, and one head as a product of matrices."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle
from torch import Tensor


def residual_stream(n_layers: int, n_heads: int) -> Figure:
    """The residual stream as a vertical channel: embedding below, layers of heads beside it, unembedding above."""
    top = 1.6 * n_layers + 1.5
    fig, ax = plt.subplots(figsize=(6.4, 0.62 * top + 1.2))
    plt.close(fig)  # the caller displays it, pyplot must not do so as well
    ax.set(xlim=(-3.1, 6.2), ylim=(-1.1, top + 1.0))
    ax.axis("off")
    ax.add_patch(FancyArrowPatch((0, -0.2), (0, top), arrowstyle="-|>", mutation_scale=22, lw=5, color="C0"))
    _box(ax, 0, -0.6, "$W_E$", "token embedding")
    _box(ax, 0, top + 0.4, "$W_U$", "logits")
    shown = [f"head {head}" for head in range(n_heads)]
    if n_heads > 3:
        shown = ["head 0", "head 1", "…", f"head {n_heads - 1}"]
    for layer in range(n_layers):
        low = 0.5 + 1.6 * layer
        ax.plot([0, 5.6], [low, low], color="C3", ls="-", lw=1.5, zorder=0)
        ax.plot([0, 5.6], [low + 1.1, low + 1.1], color="C1", ls="-", lw=1.5, zorder=0)
        for i, name in enumerate(shown):
            x = 1.25 + 1.35 * i
            if name != "…":
                ax.add_patch(FancyArrowPatch((x, low), (x, low + 0.3), arrowstyle="-|>", mutation_scale=11, color="C3"))
                ax.add_patch(
                    FancyArrowPatch((x, low + 0.8), (x, low + 1.1), arrowstyle="-|>", mutation_scale=11, color="C1")
                )
                box = FancyBboxPatch((x - 0.5, low + 0.33), 1.0, 0.44, boxstyle="round,pad=0.04", fc="white", ec="0.3")
                ax.add_patch(box)
            ax.text(x, low + 0.55, name, ha="center", va="center", fontsize=11)
        ax.text(0, low + 1.1, "+", ha="center", va="center", bbox={"boxstyle": "circle,pad=0.15", "fc": "w", "ec": "C0"})
        ax.text(-0.35, low + 1.1, "heads add", ha="right", va="center")
        ax.text(-0.35, low, "heads read", ha="right", va="center")
        ax.text(-0.35, low + 0.55, f"layer {layer}", ha="right", va="center", weight="bold")
    return fig


def _box(ax: Axes, x: float, y: float, label: str, beside: str) -> None:
    box = FancyBboxPatch((x - 0.5, y - 0.3), 1.0, 0.6, boxstyle="round,pad=0.05", fc="white", ec="C0", lw=1.5, zorder=3)
    ax.add_patch(box)
    ax.text(x, y, label, ha="center", va="center", zorder=4)
    ax.text(x + 0.8, y, beside, ha="left", va="center")


def head_product(pattern: Float[Tensor, "destination source"]) -> Figure:
    """A head's output as A x W_V W_O: the pattern drawn as it is, the other matrices as outlines of their shapes."""
    fig, ax = plt.subplots(figsize=(6.4, 2.7))
    plt.close(fig)
    ax.set(xlim=(-0.3, 15.4), ylim=(-1.5, 5.0), aspect="equal")
    ax.axis("off")
    n, d, d_head = 3.0, 4.0, 0.7  # lengths on paper

    ax.imshow(np.sqrt(pattern.numpy(force=True)), extent=(0, n, 0, n), cmap="Blues", vmin=0, vmax=1, zorder=2)
    _outline(ax, 0, 0, n, n, "$A$", "mixes\npositions", face="none")
    _outline(ax, 3.5, 0, d, n, "$x$", "residual stream")
    _outline(ax, 8.0, n / 2 - d / 2, d_head, d, "$W_V$", "reads")
    _outline(ax, 9.2, n / 2 - d_head / 2, d, d_head, "$W_O$", "writes", face="#ffe9c4")
    ax.text(13.7, n / 2, "$= h(x)$", ha="left", va="center", fontsize=13)
    return fig


def _outline(ax: Axes, x: float, y: float, width: float, height: float, name: str, below: str, face: str = "#e3f0fb") -> None:
    ax.add_patch(Rectangle((x, y), width, height, fc=face, ec="0.2", lw=1.3, zorder=3))
    ax.text(x + width / 2, y + height + 0.15, name, ha="center", va="bottom", fontsize=13)
    ax.text(x + width / 2, y - 0.15, below, ha="center", va="top", fontsize=10)
