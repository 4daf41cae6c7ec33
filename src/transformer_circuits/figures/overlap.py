"""Overlaps of the subspaces that heads read and write: all pairs as maps, and by kind of pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

PANELS = {"read": "what they read", "write": "where they write"}


def overlap_maps(
    overlaps: Mapping[str, Float[Tensor, "head head"]],
    chance: float,
    names: Sequence[str],
    framed: int,
    faint: Sequence[int] = (),
) -> Figure:
    """One map for each of "read" and "write", as multiples of chance; a frame around the first `framed` heads of the order given.

    Names of `faint` heads are put in brackets. Raises ValueError if there are not as many names as heads.
    """
    if wrong := [side for side, values in overlaps.items() if values.shape != (len(names), len(names))]:
        raise ValueError(f"{len(names)} names for overlaps of shape {tuple(overlaps[wrong[0]].shape)}")
    labels = [f"({name})" if i in faint else name for i, name in enumerate(names)]
    fig, axes = plt.subplots(len(overlaps), 1, figsize=(5.4, 4.6 * len(overlaps)), squeeze=False)
    plt.close(fig)
    maps = {}
    for side, values in overlaps.items():
        values = values.numpy(force=True) / chance
        maps[side] = np.where(np.eye(len(names), dtype=bool), np.nan, values)
    top = max(2.0, *(np.nanmax(values) for values in maps.values()))
    for ax, (side, values) in zip(axes[:, 0], maps.items()):
        image = ax.imshow(values, vmin=1, vmax=top)
        ax.set_title(PANELS.get(side, side), loc="left", fontsize=11)
        ax.set_xticks(range(len(names)), labels, rotation=90, fontsize=10)
        ax.set_yticks(range(len(names)), labels, fontsize=10)
        if framed:
            ax.add_patch(plt.Rectangle((-0.5, -0.5), framed, framed, fill=False, ec="#bd1f01", lw=2.5, clip_on=False))
    fig.colorbar(image, ax=axes, location="bottom", shrink=0.8, aspect=40, label="overlap, multiple of chance", extend="min")
    return fig


def overlap_pairs(
    groups: Mapping[str, Mapping[str, Float[Tensor, " pair"]]],
    chance: float,
    scatter: float,
    embedded: Mapping[str, Float[Tensor, " pair"]],
    levels: Mapping[str, float],
) -> Figure:
    """A dot for each pair of heads and a bar at the mean of its group, for reading and for writing.

    The band is chance with two standard deviations; `embedded` holds, for each side, pairs of random mixtures of embeddings,
    a dashed line at their mean. `levels`: others to mark, by name, dotted. Raises ValueError if there are no groups.
    """
    if not groups:
        raise ValueError("there are no pairs to draw: give at least one group of two heads")
    sides = list(next(iter(groups.values())))
    height = 1.0 + (0.42 * len(groups) + 0.8) * len(sides)
    fig, axes = plt.subplots(len(sides), 1, figsize=(6.4, height), sharex=True, squeeze=False)
    plt.close(fig)
    shake = np.random.default_rng(0)
    for ax, side in zip(axes[:, 0], sides):
        ax.axvspan(chance - 2 * scatter, chance + 2 * scatter, color="0.82", lw=0, label="random subspaces")
        ax.axvline(float(embedded[side].mean()), color="0.35", lw=1.6, ls="--", label="random mixtures of tokens")
        for name, level in levels.items():
            ax.axvline(level, color="C2", lw=1.2, ls=":", label=name)
        for row, (name, values) in enumerate(groups.items()):
            found = values[side].numpy(force=True)
            ax.plot(found, row + shake.uniform(-0.22, 0.22, len(found)), "o", ms=3.5, color="C0", alpha=0.6, ls="")
            ax.plot([found.mean()] * 2, [row - 0.36, row + 0.36], color="0.1", lw=2.4, ls="-")
        ax.set_yticks(range(len(groups)), list(groups), fontsize=10)
        ax.set_ylim(len(groups) - 0.5, -0.5)
        ax.set_title(PANELS.get(side, side), loc="left", fontsize=11)
    axes[-1, 0].set_xlabel("overlap: mean squared cosine")
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper left", ncols=2, fontsize=10)
    return fig
