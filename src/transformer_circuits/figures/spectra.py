"""Spectra: principal components of the embeddings, singular values of heads, eigenvalues against attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor


def cumulative_variance(spectra: Mapping[str, Float[Tensor, " component"]]) -> Figure:
    """How much of the variance the leading principal components hold, one line for each matrix."""
    fig, ax = plt.subplots()
    plt.close(fig)
    for name, shares in spectra.items():
        ax.plot(range(1, len(shares) + 1), 100 * shares.cumsum(0).numpy(force=True), label=name)
    ax.set(xlabel="principal components", ylabel="variance held (%)", ylim=(0, 101))
    ax.legend(loc="lower right")
    return fig


def joint_parts(embed_part: Float[Tensor, " component"], variance: Float[Tensor, " component"]) -> Figure:
    """For every joint principal component, how much of it is the embedding's; larger points hold more variance."""
    fig, ax = plt.subplots()
    plt.close(fig)
    part = 100 * embed_part.numpy(force=True)
    size = 4 + 400 * (variance / variance.max()).numpy(force=True)
    for low, high in ((0, 10), (90, 100)):
        ax.axhspan(low, high, color="0.9", zorder=0)
    ax.scatter(np.arange(1, len(part) + 1), part, s=size, color="C0", alpha=0.45, lw=0, rasterized=True)
    ax.set(xlabel="joint principal component", ylabel="part that is the embedding's (%)", ylim=(-3, 103))
    ax.text(len(part), 95, "embedding only", ha="right", va="center", fontsize=11)
    ax.text(len(part), 5, "unembedding only", ha="right", va="center", fontsize=11)
    return fig


def singular_values(gains: Mapping[str, Float[Tensor, "head value"]], d_head: int) -> Figure:
    """Singular values of every head's W_OV, one line a head, a panel for each layer."""
    fig, axes = plt.subplots(1, len(gains), figsize=(6.4, 3.4), sharey=True, squeeze=False)
    plt.close(fig)
    for ax, (name, values) in zip(axes[0], gains.items()):
        for line in values.numpy(force=True):
            ax.plot(range(1, len(line) + 1), line, color="C0", ls="-", lw=1.0, alpha=0.7)
        ax.axvline(d_head, color="C2", ls="--", lw=1.2)
        ax.set(yscale="log", xlabel=f"singular value, {name}")
    axes[0, 0].set_ylabel("size")
    return fig


def deletion(
    present: Float[Tensor, " head"], positivity: Float[Tensor, " head"], names: Sequence[str], layers: Sequence[int]
) -> Figure:
    """Positivity of each head's W_OV against its attention to the present token; deleting heads sit at the lower right.

    The three heads nearest to that corner are named. Raises ValueError unless there is a name and a layer a head.
    """
    if not len(present) == len(positivity) == len(names) == len(layers):
        raise ValueError(f"{len(present)} heads need as many names and layers, not {len(names)} and {len(layers)}")
    fig, ax = plt.subplots()
    plt.close(fig)
    present, positivity, layers = present.numpy(force=True), positivity.numpy(force=True), np.asarray(layers)
    ax.axhspan(-1.05, -0.5, xmin=0.5, color="0.9", zorder=0)
    ax.axhline(0, color="0.6", lw=0.8, ls="-", zorder=0)
    for layer, marker in zip(np.unique(layers), cycle("osD^v<>")):
        chosen = layers == layer
        ax.scatter(present[chosen], positivity[chosen], marker=marker, s=45, alpha=0.8, label=f"layer {layer}")
    for i in sorted(range(len(names)), key=lambda i: positivity[i] - present[i])[:3]:
        ax.annotate(names[i], (present[i], positivity[i]), xytext=(5, 6), textcoords="offset points", fontsize=10)
    ax.text(0.99, -0.99, "would delete", ha="right", va="bottom", fontsize=11)
    ax.set(xlabel="mean attention to the present token", ylabel="positivity of $W_{OV}$", xlim=(0, 1), ylim=(-1.05, 1.05))
    ax.legend(loc="upper right")
    return fig
