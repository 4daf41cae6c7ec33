"""Attention patterns as small heat maps, for pages without a mouse."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from transformer_circuits.figures.tokens import show_token


def pattern_grid(patterns: Float[Tensor, "head dest src"], tokens: Sequence[str], names: Sequence[str]) -> Figure:
    """One heat map a head, four to a row: destinations downwards, sources to the right, darker for more attention.

    Raises ValueError if there are not as many names as heads, or tokens as positions.
    """
    if len(names) != len(patterns) or len(tokens) != patterns.shape[-1]:
        raise ValueError(f"{len(names)} names for {len(patterns)} heads, {len(tokens)} tokens for {patterns.shape[-1]} positions")
    rows = -(-len(patterns) // 4)
    fig, axes = plt.subplots(rows, 4, figsize=(7.2, 1.75 * rows + 0.6), sharex=True, sharey=True, squeeze=False)
    plt.close(fig)
    for ax in axes.flat:
        ax.set_axis_off()
    for ax, pattern, name in zip(axes.flat, patterns.numpy(force=True), names):
        ax.set_axis_on()
        image = ax.imshow(pattern, cmap="Blues", vmin=0, vmax=1)
        ax.set_title(name, fontsize=10, pad=2)
        ax.set_xticks([]), ax.set_yticks([])
    few = len(tokens) <= 24
    if few:
        for ax in axes[:, 0]:  # shared axes share places and texts of their ticks, not their size
            ax.set_yticks(range(len(tokens)), [show_token(t) for t in tokens], fontsize=5)
    fig.supxlabel("source token", fontsize=10)
    fig.supylabel("destination token", fontsize=10)
    fig.colorbar(image, ax=axes, shrink=0.5, label="attention")
    return fig
