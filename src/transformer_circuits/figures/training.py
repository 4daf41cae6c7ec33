"""Figures about training: the text, the random start, the schedule, and what the logs hold."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from torch import Tensor

from transformer_circuits.circuits.in_context import best_of_heads

STYLES = ("-", "--", ":", "-.")
MARKERS = "os^Dv"
HATCHES = ("", "///", "...", "xx", "\\\\", "++")

Line = tuple[Sequence[float], Sequence[float]]  # x and y


def training_curves(logs: Mapping[str, pd.DataFrame]) -> Figure:
    """Held-out loss and the best head's induction score against tokens seen, a line per model.

    `logs`: what `models.cards.training_log` returns, by model name.
    """
    figure, (loss, induction) = plt.subplots(1, 2, figsize=(7.2, 3.3))
    plt.close(figure)
    for style, (name, log) in zip(itertools.cycle(STYLES), logs.items()):
        log = log[log["tokens"] > 0]
        loss.plot(log["tokens"] / 1e6, log["held_out"], style, label=name)
        if "induction" in log:
            induction.plot(log["tokens"] / 1e6, best_of_heads(log["induction"]), style, color=loss.lines[-1].get_color())
    loss.set(xscale="log", xlabel="million tokens seen", ylabel="held-out loss (nats)")
    induction.set(xscale="log", xlabel="million tokens seen", ylabel="best induction score", ylim=(0, None))
    figure.legend(*loss.get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=10)
    return figure


def sources_by_kind(sources: pd.DataFrame) -> Figure:
    """How often the copy rule is right in each source, a row for each kind of text; the area of a dot is the source's share.

    `sources`: what `models.cards.sources` returns. Raises ValueError if a column is missing.
    """
    if missing := {"kind", "source", "tokens", "copy_oracle"} - set(sources.columns):
        raise ValueError(f"the sources have no column {min(missing)!r}: give what models.cards.sources returns")
    kinds = sources.groupby("kind")["tokens"].sum().sort_values(ascending=False).index
    fig, ax = plt.subplots(figsize=(6.4, 1.2 + 0.62 * len(kinds)))
    plt.close(fig)
    for row, kind in enumerate(kinds):
        those = sources[sources["kind"] == kind].sort_values("tokens", ascending=False)
        area = 4000 * those["tokens"] / sources["tokens"].sum()
        scatter = {"color": f"C{row}", "alpha": 0.55, "edgecolors": "0.2", "linewidths": 0.6}
        ax.scatter(100 * those["copy_oracle"], np.full(len(those), row), s=area.clip(lower=6), **scatter)
        mean = 100 * np.average(those["copy_oracle"], weights=those["tokens"])
        ax.plot([mean, mean], [row - 0.36, row + 0.36], color="0.1", ls="-", lw=1.6)
    ax.set_yticks(range(len(kinds)), kinds)
    ax.set_ylim(len(kinds) - 0.4, -0.6)
    ax.set(xlabel="tokens that the copy rule predicts (%)", xlim=(0, None))
    return fig


def shares(rows: Mapping[str, Mapping[str, float]], label: str) -> Figure:
    """A bar for each row, cut into parts in proportion; parts have a color and a hatch each, and shares over 8 % their number.

    Raises ValueError if rows differ in their parts, or if a part is negative.
    """
    parts = list(next(iter(rows.values()), {}))
    for name, row in rows.items():
        if list(row) != parts or min(row.values()) < 0 or sum(row.values()) <= 0:
            raise ValueError(f"{name!r} must have the parts {', '.join(parts)}, none of them negative and not all zero")
    fig, ax = plt.subplots(figsize=(6.4, 1.5 + 0.45 * len(rows)))
    plt.close(fig)
    left = np.zeros(len(rows))
    for i, part in enumerate(parts):
        width = np.array([100 * row[part] / sum(row.values()) for row in rows.values()])
        look = {"color": f"C{i}", "alpha": 0.75, "hatch": HATCHES[i % 6], "edgecolor": "white", "lw": 0}
        ax.barh(range(len(rows)), width, 0.72, left, label=part, **look)
        for y, (start, share) in enumerate(zip(left, width)):
            if share > 8:
                box = {"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none", "alpha": 0.85}
                ax.text(start + share / 2, y, f"{share:.0f}", ha="center", va="center", fontsize=10, bbox=box)
        left += width
    ax.set_yticks(range(len(rows)), list(rows))
    ax.invert_yaxis()
    ax.set(xlabel=label, xlim=(0, 100))
    fig.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize=10)
    return fig


def schedules(lines: Mapping[str, Line], logged: Mapping[str, Line] | None = None) -> Figure:
    """Learning rates along runs, as shares of their steps; dots: what the logs of shipped models noted.

    Raises ValueError for a line without one rate for each moment.
    """
    fig, ax = plt.subplots(figsize=(6.4, 3.8))
    plt.close(fig)
    for name, (x, y) in [*lines.items(), *(logged or {}).items()]:
        if len(x) != len(y):
            raise ValueError(f"{name!r} has {len(y)} rates for {len(x)} moments")
    for i, (name, (x, y)) in enumerate(lines.items()):
        ax.plot(100 * np.asarray(x), 1e3 * np.asarray(y), color=f"C{i}", ls=STYLES[i % 4], label=name)
        if logged and name in logged:
            x, y = logged[name]
            ax.plot(100 * np.asarray(x), 1e3 * np.asarray(y), MARKERS[i % 5], ms=4, color=f"C{i}", ls="none")
    ax.set(xlabel="share of the run (%)", ylabel="learning rate (thousandths)", xlim=(-1, 101), ylim=(0, None))
    fig.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize=10)
    return fig


def resting(attention: Mapping[str, Float[Tensor, "layer head"]], bar: float = 0.9) -> Figure:
    """Mean attention to the start token, a mark for each head and a row for each model; layers have marks of their own.

    Beyond the dashed line, at `bar`, a head counts as at rest. Raises ValueError for a model without heads.
    """
    if headless := [name for name, values in attention.items() if not values.numel()]:
        raise ValueError(f"{headless[0]!r} has no heads: leave it out")
    fig, ax = plt.subplots(figsize=(6.4, 1.3 + 0.5 * len(attention)))
    plt.close(fig)
    labelled = set()
    for row, values in enumerate(attention.values()):
        for layer, heads in enumerate(values.numpy(force=True)):
            at = row + 0.3 * (layer - (len(values) - 1) / 2)
            look = {"marker": MARKERS[layer % 5], "color": f"C{layer % 10}", "alpha": 0.7, "mec": "0.2", "mew": 0.5, "ms": 7}
            label = None if layer in labelled else f"head of layer {layer}"
            ax.plot(heads, np.full(len(heads), at), ls="none", label=label, clip_on=False, **look)
            labelled.add(layer)
    ax.axvline(bar, color="0.3", ls="--", lw=1.0, zorder=0)
    ax.set_yticks(range(len(attention)), list(attention))
    ax.set_ylim(len(attention) - 0.4, -0.6)
    ax.set(xlabel="mean attention to the start token", xlim=(0, 1))
    fig.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize=10)
    return fig


def bits_by_bytes(panels: Mapping[str, Mapping[str, Sequence[Line]]]) -> Figure:
    """Held-out loss in bits per byte against millions of bytes read, a panel for each text on which it is measured.

    Several lines under one name are seeds of one setting. Both axes are logarithmic. Raises ValueError if there is nothing
    to draw, or for a line without one loss for each moment.
    """
    if not panels or not all(any(curves.values()) for curves in panels.values()):
        raise ValueError("there are no curves to draw: give at least one line for each panel")
    fig, axes = plt.subplots(len(panels), 1, figsize=(6.4, 0.4 + 3.7 * len(panels)), sharex=True, squeeze=False)
    plt.close(fig)
    for ax, (title, curves) in zip(axes[:, 0], panels.items()):
        for i, (name, lines) in enumerate(curves.items()):
            for j, (x, y) in enumerate(lines):
                if len(x) != len(y):
                    raise ValueError(f"{name!r} has {len(y)} losses for {len(x)} moments")
                x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
                kept = x > 0
                look = {"color": f"C{i % 10}", "ls": STYLES[i % 4], "marker": MARKERS[i % 5], "ms": 3, "lw": 1.4}
                ax.plot(x[kept], y[kept], label=name if j == 0 else None, **look)
        ax.set(xscale="log", yscale="log", ylabel="loss (bits per byte)")
        ax.set_title(title, fontsize=11, loc="left")
        low, high = ax.get_ylim()
        ticks = [t for t in (0.5, 0.7, 1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 4, 5, 6, 8) if low <= t <= high]
        ax.set_yticks(ticks, [f"{t:g}" for t in ticks])
        ax.yaxis.set_minor_formatter(NullFormatter())
        ax.legend(fontsize=10)
    axes[-1, 0].xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes[-1, 0].set_xlabel("million bytes of text read")
    return fig
