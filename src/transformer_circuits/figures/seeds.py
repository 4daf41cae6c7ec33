"""Figures that set models beside one another which differ in their seed only (claim W6)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from jaxtyping import Bool, Float
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from torch import Tensor

from transformer_circuits.circuits.in_context import best_of_heads

SPREAD = 0.5  # of a row's height: what the heads of a model take up


def dots(
    values: Mapping[str, Float[Tensor, " head"]],
    bars: Mapping[str, float],
    label: str,
    hollow: Mapping[str, Bool[Tensor, " head"]] | None = None,
    names: Mapping[str, Sequence[str]] | None = None,
    limits: tuple[float, float] | None = None,
    apart: int | None = None,
) -> Figure:
    """A row for each model, a dot for each head; within a row head numbers rise from top to bottom.

    `bars`: for each model the value from which a head counts, a short dashed line; beside the row stands how many do. `hollow`:
    heads drawn as circles. `names`: of heads that pass the bar, written beside their dots. `apart`: so many rows, the first ones,
    belong together, and a line divides them from the rest. Raises ValueError unless every model has a bar, and as many circles
    and names as values.
    """
    hollow, names = hollow or {}, names or {}
    for model, found in values.items():
        if model not in bars:
            raise ValueError(f"{model!r} has no bar: give the value from which its heads count")
        for what, given in (("circles", hollow.get(model)), ("names", names.get(model))):
            if given is not None and len(given) != len(found):
                raise ValueError(f"{model!r} has {len(found)} heads and {len(given)} {what}: one is needed for each head")
    fig, ax = plt.subplots(figsize=(6.4, 1.2 + 0.55 * len(values)))
    plt.close(fig)
    low = min(0.0, *(float(found.min()) for found in values.values()))
    high = max(*(float(found.max()) for found in values.values()), *bars.values())
    low, high = limits or (low - 0.04 * (high - low), high + 0.08 * (high - low))
    for row, (model, found) in enumerate(values.items()):
        x = found.numpy(force=True).astype(float)
        y = row + SPREAD * (np.arange(len(x)) / max(len(x) - 1, 1) - 0.5)
        empty = np.zeros(len(x), dtype=bool) if model not in hollow else hollow[model].numpy(force=True)
        ax.plot(x[~empty], y[~empty], "o", color="C0", ls="", ms=6, alpha=0.85)
        ax.plot(x[empty], y[empty], "o", mfc="white", mec="0.45", ls="", ms=6)
        ax.plot([bars[model]] * 2, [row - 0.42, row + 0.42], color="C2", ls="--", lw=1.4)
        counted = x >= bars[model]
        ax.annotate(
            f"{counted.sum()} of {len(x)}", (1.01, row), xycoords=("axes fraction", "data"), va="center", fontsize=10,
            annotation_clip=False,
        )  # fmt: skip
        for i in np.flatnonzero(counted) if model in names else ():
            right = np.any((x > x[i]) & (x < x[i] + 0.08 * (high - low)) & (abs(y - y[i]) < 0.22))
            side = {"xytext": (-6, 0), "ha": "right"} if right else {"xytext": (6, 0), "ha": "left"}
            ax.annotate(names[model][i], (x[i], y[i]), textcoords="offset points", va="center", fontsize=10, **side)
    if apart is not None and 0 < apart < len(values):
        ax.axhline(apart - 0.5, color="0.6", lw=0.8, ls="-")
    ax.axvline(0, color="0.75", lw=0.8, ls="-", zorder=0)
    ax.set(xlim=(low, high), ylim=(len(values) - 0.5, -0.5), xlabel=label)
    ax.set_yticks(range(len(values)), list(values))
    ax.tick_params(axis="y", length=0)
    if any(bool(h.any()) for h in hollow.values()):
        handles = [
            Line2D([], [], marker="o", color="C0", ls="", label="attends to text"),
            Line2D([], [], marker="o", mfc="white", mec="0.45", ls="", label="rests on the start token"),
        ]
        fig.legend(handles=handles, loc="outside upper center", ncols=2, fontsize=10)
    return fig


def maps(
    panels: Mapping[str, Float[Tensor, "reader writer"]], marked: Mapping[str, tuple[int, int]], label: str, expected: float = 1.0
) -> Figure:
    """A heat map for each model on one scale: later heads down, earlier heads across; white is `expected`.

    `marked`: (reader, writer) of one cell of each, framed, its number in the title. Raises ValueError for a cell that does not exist.
    """
    for model, (reader, writer) in marked.items():
        rows, columns = panels[model].shape
        if not (0 <= reader < rows and 0 <= writer < columns):
            raise ValueError(f"{model!r} has no cell {reader}, {writer}: its map is {rows} by {columns}")
    n = len(panels)
    height = math.ceil(n / 2)
    fig, axes = plt.subplots(height, min(n, 2), figsize=(6.4, 0.9 + 2.9 * height), squeeze=False)
    plt.close(fig)
    top = max(float(panel.max()) for panel in panels.values())
    norm = TwoSlopeNorm(vmin=2 * expected - max(top, 1.5 * expected), vcenter=expected, vmax=max(top, 1.5 * expected))
    for ax, (model, panel) in zip(axes.flat, panels.items()):
        image = ax.imshow(panel.numpy(force=True), cmap="RdBu", norm=norm)
        title = model
        if model in marked:
            reader, writer = marked[model]
            ax.add_patch(Rectangle((writer - 0.5, reader - 0.5), 1, 1, fill=False, ec="black", lw=2.2))
            title += f"\n1.{reader} reads 0.{writer}: {float(panel[reader, writer]):.1f}"
        ax.set_title(title, fontsize=11)
        ax.set_xticks(range(panel.shape[1]), range(panel.shape[1]), fontsize=10)
        ax.set_yticks(range(panel.shape[0]), range(panel.shape[0]), fontsize=10)
    for ax in axes.flat[n:]:
        ax.axis("off")
    fig.supxlabel("first-layer head", fontsize=12)
    fig.supylabel("second-layer head", fontsize=12)
    bar = fig.colorbar(image, ax=axes, shrink=0.8, aspect=30, label=label)
    bar.ax.set_ylim(max(0.0, norm.vmin), norm.vmax)
    return fig


def over_training(logs: Mapping[str, pd.DataFrame], marks: Mapping[str, float], bar: float | None = None) -> Figure:
    """Best induction score and held-out loss against tokens seen; lines of deeper models solid, of one layer dashed.

    `marks`: by model, the million tokens at which a point is put on its curve of scores. Each color is one model of either depth.
    The axis of tokens is plain, and the fall of the loss in the first twentieth of training lies above the panel.
    """
    fig, (above, below) = plt.subplots(2, 1, figsize=(6.4, 6.6), sharex=True)
    plt.close(fig)
    seen: dict[int, int] = {}
    for model, log in logs.items():
        log = log[log["tokens"] > 0]
        depth = len(log["induction"].iloc[0])
        color = f"C{seen.setdefault(depth, 0) % 3}"
        seen[depth] += 1
        look = {"color": color, "ls": "-" if depth > 1 else "--", "lw": 1.8 if depth > 1 else 1.3, "label": model}
        x, best = log["tokens"].to_numpy() / 1e6, best_of_heads(log["induction"])
        above.plot(x, best, **look)
        below.plot(x, log["held_out"], **look)
        if model in marks:
            y = float(np.interp(marks[model], x, best))
            above.plot(marks[model], y, "o", color=color, ms=7, mec="black", zorder=4)
    if bar is not None:
        above.axhline(bar, color="0.5", lw=0.9, ls=":")
    above.set(ylabel="best induction score", ylim=(0, None), xlim=(0, None))
    early = [np.interp(0.05 * log["tokens"].iloc[-1], log["tokens"], log["held_out"]) for log in logs.values()]
    below.set(ylabel="held-out loss (nats)", xlabel="million tokens seen", ylim=(None, max(early)))  # the first fall is left out
    fig.legend(*above.get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize=10)
    return fig
