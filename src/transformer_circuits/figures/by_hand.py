"""Figures of the chapter on heads written by hand: matrices, positions by distance, patterns, scores along a parameter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Bool, Float
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from torch import Tensor

from transformer_circuits.figures.tokens import show_token

Line = tuple[Sequence[float], Sequence[float]]  # x and y


def copies(matrices: Mapping[str, Float[Tensor, "source out"]], colors: Sequence[str], edges: Sequence[int]) -> Figure:
    """Small matrices of which few entries differ from zero, two to a row, each with a color; `edges` are where blocks begin.

    Raises ValueError unless there is a color for each.
    """
    if len(colors) != len(matrices):
        raise ValueError(f"{len(colors)} colors for {len(matrices)} matrices: give one for each")
    rows = -(-len(matrices) // 2)
    fig, axes = plt.subplots(rows, 2, figsize=(7.2, 3.6 * rows), squeeze=False)
    plt.close(fig)
    for ax in axes.flat[len(matrices) :]:
        ax.set_axis_off()
    for ax, (title, matrix), color in zip(axes.flat, matrices.items(), colors):
        values = np.abs(matrix.numpy(force=True))
        n = len(values)
        scale = LinearSegmentedColormap.from_list("one color", ["white", color])
        ax.imshow(values, cmap=scale, vmin=0, vmax=max(1.0, values.max()))
        for edge in edges:
            ax.axhline(edge - 0.5, color="0.75", lw=0.8, ls="-")
            ax.axvline(edge - 0.5, color="0.75", lw=0.8, ls="-")
        for row, column in np.argwhere(values > 0):
            ax.plot([column, column], [row, n - 0.5], color=color, lw=0.6, ls=":", zorder=0)
            ax.plot([-0.5, column], [row, row], color=color, lw=0.6, ls=":", zorder=0)
        ax.set_title(title, fontsize=12)
        ax.set_xticks(range(n), range(n), fontsize=9)
        ax.set_yticks(range(n), range(n), fontsize=9)
        ax.tick_params(length=0)
    fig.supxlabel("dimension written, of this token", fontsize=12)
    fig.supylabel("dimension read, of an earlier token", fontsize=12)
    return fig


def rivals(kernels: Mapping[str, Float[Tensor, " distance"]]) -> Figure:
    """How like a position the one some tokens away looks, a panel a line; ringed: the nearest rival, the most like it."""
    fig, axes = plt.subplots(len(kernels), 1, figsize=(6.4, 1.5 * len(kernels) + 0.7), sharex=True, squeeze=False)
    plt.close(fig)
    for ax, (name, values) in zip(axes[:, 0], kernels.items()):
        y = values.numpy(force=True)
        rival = 1 + int(y[1:].argmax())
        ax.plot(y, color="C0", ls="-", lw=1.0)
        ax.axhline(y[0], color="0.6", ls="--", lw=0.8)
        ax.plot(rival, y[rival], "o", mfc="none", mec="C2", ms=10, mew=1.8, clip_on=False)
        ax.text(1.0, 1.08, f"{name}: rival at distance {rival}, {y[0] - y[rival]:.2g} below", transform=ax.transAxes,
                ha="right", va="bottom", fontsize=12)  # fmt: skip
        ax.set(ylim=(min(0, y.min()) - 0.5, y[0] * 1.12), xlim=(-0.01 * len(y), len(y)))
    fig.supylabel("match", fontsize=12)
    axes[-1, 0].set_xlabel("distance (tokens)")
    return fig


def patterns(
    maps: Mapping[str, Float[Tensor, "destination source"]],
    tokens: Sequence[str],
    marked: Mapping[str, Bool[Tensor, "destination source"]] | None = None,
) -> Figure:
    """Attention patterns on a short text, two to a row, with the text on both axes; marked cells have rings.

    Raises ValueError if a map is not of the text's length.
    """
    for name, values in maps.items():
        if values.shape != (len(tokens), len(tokens)):
            raise ValueError(f"the pattern {name!r} is {tuple(values.shape)}, the text has {len(tokens)} tokens")
    labels = [show_token(token).replace("$", r"\$") for token in tokens]
    rows = -(-len(maps) // 2)
    fig, axes = plt.subplots(rows, 2, figsize=(7.2, 3.2 * rows + 0.9), sharex=True, sharey=True, squeeze=False)
    plt.close(fig)
    for ax in axes.flat[len(maps) :]:
        ax.set_axis_off()
    for ax, (name, values) in zip(axes.flat, maps.items()):
        image = ax.imshow(values.numpy(force=True), cmap="Blues", vmin=0, vmax=1)
        if marked and name in marked:
            y, x = np.nonzero(marked[name].numpy(force=True))
            ax.plot(x, y, "o", mfc="none", mec="C1", ms=11, mew=2.0, ls="none")
        ax.set_title(name, fontsize=12)
        ax.set_xticks(range(len(labels)), labels, rotation=90, fontsize=10)
        ax.set_yticks(range(len(labels)), labels, fontsize=10)
    fig.supxlabel("source token", fontsize=12)
    fig.supylabel("destination token", fontsize=12)
    fig.colorbar(image, ax=axes, shrink=0.5, label="attention")
    return fig


def sweeps(panels: Mapping[str, Mapping[str, Line]], guides: Mapping[str, float] | None = None) -> Figure:
    """Induction scores along a parameter, two panels to a row, named on their axes; `guides`: where a vertical line stands."""
    rows = -(-len(panels) // 2)
    fig, axes = plt.subplots(rows, 2, figsize=(7.2, 3.0 * rows), sharey=True, squeeze=False)
    plt.close(fig)
    for ax in axes.flat[len(panels) :]:
        ax.set_axis_off()
    for ax, (name, lines) in zip(axes.flat, panels.items()):
        if guides and name in guides:
            ax.axvline(guides[name], color="0.6", lw=1.0, ls="-", zorder=0)
        for i, (label, (x, y)) in enumerate(lines.items()):
            ax.plot(x, y, marker="os^D"[i % 4], ms=5, label=label)
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}" if value >= 1 else f"1/{1 / value:g}")
        ax.set(xlabel=name, ylim=(-0.04, 1.06))
        ax.legend(fontsize=10)
    fig.supylabel("induction score", fontsize=12)
    return fig
