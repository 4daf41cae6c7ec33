"""Attention patterns as small heat maps, for pages without a mouse."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from transformer_circuits.figures.tokens import show_token

FEW = 14  # tokens whose names find room beside a map of four to a row, at 8 points


def pattern_grid(
    patterns: Float[Tensor, "head dest src"], tokens: Sequence[str], names: Sequence[str], columns: int = 4
) -> Figure:
    """One heat map a head, `columns` to a row: destinations downwards, sources to the right, darker for more attention.

    Tokens are named beside the first column where there are few enough to be read.
    Raises ValueError if there are not as many names as heads, or tokens as positions.
    """
    if len(names) != len(patterns) or len(tokens) != patterns.shape[-1]:
        raise ValueError(f"{len(names)} names for {len(patterns)} heads, {len(tokens)} tokens for {patterns.shape[-1]} positions")
    rows = -(-len(patterns) // columns)
    size = (7.2, 7 / columns * rows + 0.6)
    fig, axes = plt.subplots(rows, columns, figsize=size, sharex=True, sharey=True, squeeze=False)
    plt.close(fig)
    for ax in axes.flat:
        ax.set_axis_off()
    for ax, pattern, name in zip(axes.flat, patterns.numpy(force=True), names):
        ax.set_axis_on()
        image = ax.imshow(pattern, cmap="Blues", vmin=0, vmax=1)
        ax.set_title(name, fontsize=10 if columns > 3 else 12, pad=2)
        ax.set_xticks([]), ax.set_yticks([])
    if len(tokens) <= FEW:
        for ax in axes[:, 0]:  # shared axes share places and texts of their ticks, not their size
            ax.set_yticks(range(len(tokens)), [show_token(t).replace("$", r"\$") for t in tokens], fontsize=8)
    fig.supxlabel("source token", fontsize=10)
    fig.supylabel("destination token", fontsize=10)
    fig.colorbar(image, ax=axes, shrink=0.5, label="attention")
    return fig
