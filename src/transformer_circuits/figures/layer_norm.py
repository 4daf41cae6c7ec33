"""The scale of each token, and numbers of every head before and after something was done to the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from transformer_circuits.figures.tokens import show_token

MARKS = ("o", "D", "^", "v")  # one for each series, so that nothing hangs on colour alone


def scales(values: Float[Tensor, "reading position"], names: Sequence[str], tokens: Sequence[str]) -> Figure:
    """What each reading divides a token by, along a passage; the scale is logarithmic.

    Raises ValueError unless there is a name for each reading and a token for each position.
    """
    if values.shape != (len(names), len(tokens)):
        raise ValueError(f"{len(names)} names and {len(tokens)} tokens do not fit scales of shape {tuple(values.shape)}")
    fig, ax = plt.subplots(figsize=(6.8, 4.2))
    plt.close(fig)
    for line, name, mark in zip(values.numpy(force=True), names, MARKS * len(names)):
        ax.plot(line, marker=mark, ms=4, label=f"before the {name}")
    ax.set_xticks(range(len(tokens)), [show_token(token) for token in tokens], rotation=90, fontsize=10)
    ax.set(yscale="log", ylabel="scale s", xlim=(-0.5, len(tokens) - 0.5))
    fig.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return fig


def by_head(series: Mapping[str, Float[Tensor, "layer head"]], label: str) -> Figure:
    """One number for every head, in several series: a panel for each layer, a mark of its own for each series.

    A layer may be NaN in a series that does not have it. Raises ValueError if the series differ in shape.
    """
    shapes = {tuple(values.shape) for values in series.values()}
    if len(shapes) != 1 or len(min(shapes)) != 2 or 0 in min(shapes):
        raise ValueError(f"all series must have one shape [layer, head], these have {sorted(shapes)}")
    n_layers, n_heads = shapes.pop()
    fig, axes = plt.subplots(n_layers, 1, figsize=(6.4, 0.9 + 2.0 * n_layers), sharex=True, sharey=True, squeeze=False)
    plt.close(fig)
    offsets = np.linspace(-0.22, 0.22, len(series)) if len(series) > 1 else [0.0]
    for layer, ax in enumerate(axes[:, 0]):
        for i, (name, values) in enumerate(series.items()):
            at = np.arange(n_heads) + offsets[i]
            ax.plot(at, values[layer].numpy(force=True), ls="", color=f"C{i}", marker=MARKS[i % len(MARKS)], ms=6, label=name)
        for between in np.arange(0.5, n_heads - 1):
            ax.axvline(between, color="0.9", lw=0.8, ls="-", zorder=0)
        ax.axhline(0, color="0.3", lw=0.8, ls="-", zorder=0)
        ax.set_xlim(-0.5, n_heads - 0.5)
        ax.set_title(f"layer {layer}", fontsize=11, loc="left")
    step = max(1, n_heads // 16)
    axes[-1, 0].set_xticks(range(0, n_heads, step))
    axes[-1, 0].set_xlabel("head")
    fig.supylabel(label, fontsize=12)
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=min(3, len(series)))
    return fig


def before_and_after(
    before: Float[Tensor, "side reader writer"], after: Float[Tensor, "side reader writer"], labels: tuple[str, str]
) -> Figure:
    """Composition ratios of every pair of heads before (across) and after (up), a panel each for Q, K and V.

    On the grey line nothing changed. Raises ValueError if the shapes differ.
    """
    if before.shape != after.shape or len(before) != 3:
        raise ValueError(f"both must have one shape [3, reader, writer], not {tuple(before.shape)} and {tuple(after.shape)}")
    fig, axes = plt.subplots(1, 3, figsize=(7.2, 3.0), sharex=True, sharey=True)
    plt.close(fig)
    low, high = float(min(before.min(), after.min())), float(max(before.max(), after.max()))
    room = 0.05 * (high - low)
    for ax, side, x, y in zip(axes, "QKV", before, after):
        ax.axline((1, 1), slope=1, color="0.75", lw=1.0, ls="-", zorder=0)
        ax.plot(x.flatten().numpy(force=True), y.flatten().numpy(force=True), "o", ms=3.5, alpha=0.6, color="C0", ls="")
        ax.set_title(f"{side}-composition", fontsize=11)
        ax.set(xlim=(low - room, high + room), ylim=(low - room, high + room), aspect="equal")
    axes[0].set_ylabel(labels[1])
    axes[1].set_xlabel(labels[0])
    return fig
