"""Figures of the chapter on in-context learning: losses along the context, and scores along training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator, ScalarFormatter
from torch import Tensor

from transformer_circuits.circuits.in_context import Interval
from transformer_circuits.circuits.term_importance import Estimate

STYLES = ("-", "--", "-.", ":")
MARKERS = "os^Dv"


def by_position(
    edges: Sequence[int],
    panels: Mapping[str, Mapping[str, Interval]],
    marked: Sequence[tuple[int, int]] = (),
    height: float = 2.9,
) -> Figure:
    """One panel below the other (by its axis label), a line with its band for each entry, against the token that is predicted.

    `edges` are those of the bins of positions; position i predicts token i + 1. `marked`: stretches of positions to shade.
    Raises ValueError for a line that has not one number a bin.
    """
    fig, axes = plt.subplots(len(panels), 1, figsize=(6.4, 0.5 + height * len(panels)), sharex=True, squeeze=False)
    plt.close(fig)
    middle = _middles(edges)
    for ax, (label, lines) in zip(axes[:, 0], panels.items()):
        for i, (name, line) in enumerate(lines.items()):
            mean, low, high = (x.numpy(force=True) for x in line)
            if mean.shape != middle.shape:
                raise ValueError(f"{name!r} has {mean.size} numbers for {len(middle)} bins of positions")
            ax.fill_between(middle, low, high, color=f"C{i}", alpha=0.2, lw=0)
            ax.plot(middle, mean, color=f"C{i}", ls=STYLES[i % 4], label=name)
        for start, end in marked:
            ax.axvspan(start + 1, end + 1, color="0.85", lw=0, zorder=0)
        if ax.get_ylim()[0] < 0 < ax.get_ylim()[1]:
            ax.axhline(0, color="0.3", lw=0.8, ls="-")
        ax.set_ylabel(label)
        ax.legend(fontsize=10)
    _token_axis(axes[-1, 0], edges)
    return fig


def kinds(scores: Mapping[str, Mapping[str, Interval]], label: str) -> Figure:
    """A row for each kind of text, a marker with its interval for each name in it; `label` is that of the axis."""
    fig, ax = plt.subplots(figsize=(6.4, 1.5 + 0.62 * len(scores)))
    plt.close(fig)
    names = list(next(iter(scores.values())))
    for i, name in enumerate(names):
        mean, low, high = (np.array([float(getattr(row[name], part)) for row in scores.values()]) for part in Interval._fields)
        at = np.arange(len(scores)) + 0.22 * (i - (len(names) - 1) / 2)
        ends, look = [mean - low, high - mean], {"fmt": MARKERS[i % 5], "ls": "none", "ms": 6, "lw": 1.4}
        ax.errorbar(mean, at, xerr=ends, color=f"C{i}", label=name, **look)
    ax.axvline(0, color="0.3", lw=0.8, ls="-")
    ax.set_yticks(range(len(scores)), list(scores))
    ax.invert_yaxis()
    ax.set_xlabel(label)
    fig.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=len(names), fontsize=10)
    return fig


def contributions(
    edges: Sequence[int],
    parts: Mapping[str, Float[Tensor, "group bin"]],
    shares: Float[Tensor, "group bin"],
    groups: Sequence[str],
) -> Figure:
    """What each group of tokens adds to a gap between two models, stacked, by position; last, the share of tokens in each group.

    Raises ValueError for other groups than names, or other bins than edges.
    """
    shape = (len(groups), len(edges) - 1)
    if wrong := [name for name, x in [*parts.items(), ("shares", shares)] if tuple(x.shape) != shape]:
        raise ValueError(f"{wrong[0]!r} must have a row for each of {shape[0]} groups and a number for each of {shape[1]} bins")
    fig, axes = plt.subplots(len(parts) + 1, 1, figsize=(6.4, 1.1 + 2.3 * (len(parts) + 1)), sharex=True)
    plt.close(fig)
    middle, colors, hatches = _middles(edges), ("C3", "C1", "C0"), ("...", "///", "")
    for ax, (title, values) in zip(axes, [*parts.items(), ("share of tokens (%)", 100 * shares)]):
        for sign in (1, -1):  # parts below zero are stacked downwards
            base = np.zeros(len(middle))
            for group, value in enumerate(values.numpy(force=True)):
                top = base + np.clip(sign * value, 0, None) * sign
                ax.fill_between(
                    middle, base, top, facecolor=colors[group], edgecolor="white", hatch=hatches[group], lw=0,
                    label=groups[group] if sign > 0 else None,
                )  # fmt: skip
                base = top
        if title in parts:
            ax.plot(middle, values.sum(0).numpy(force=True), color="0.1", ls="-", lw=1.4, label="all tokens")
            ax.axhline(0, color="0.3", lw=0.8, ls="-")
        ax.set_title(title, fontsize=11, loc="left")
    for ax in axes[:-1]:
        ax.set_ylabel("nats")
    _token_axis(axes[-1], edges)
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize=10)
    return fig


def heads_removed(
    late: Mapping[str, Estimate], early: Mapping[str, Estimate], n_heads: int, marked: Mapping[str, str]
) -> Figure:
    """Rise of the loss without each head, a panel for each layer: late in the context as a bar, early as a marker.

    Thin lines are 95 % intervals. Names are in the order of layers and heads. `marked`: what some heads are, by name; their bars
    are hatched and in other colours.
    Raises ValueError if late and early are of different heads, or do not fill whole layers.
    """
    names = list(late)
    if names != list(early) or not names or len(names) % n_heads:
        raise ValueError(f"{len(late)} and {len(early)} heads: both need the same ones, {n_heads} for each layer")
    n_layers = len(names) // n_heads
    fig, axes = plt.subplots(n_layers, 1, figsize=(6.4, 1.2 + 2.1 * n_layers), sharey=True, squeeze=False)
    plt.close(fig)
    colors = dict(zip(dict.fromkeys(marked.values()), ("C2", "C1", "C4")))
    circle = {"fmt": "o", "ls": "none", "mfc": "white", "mec": "0.1", "ms": 5, "elinewidth": 1.2, "ecolor": "0.2", "capsize": 2}
    for layer, ax in enumerate(axes[:, 0]):
        heads = names[layer * n_heads : (layer + 1) * n_heads]
        for x, name in enumerate(heads):
            what, effect, before = marked.get(name), late[name], early[name]
            ax.bar(
                x - 0.15, effect.mean, 0.5, color=colors.get(what, "C0"), hatch="///" if what else "", edgecolor="white", lw=0,
                yerr=effect.margin, error_kw={"lw": 1.2, "ecolor": "0.2", "capsize": 2}, label=f"late: {what or 'other heads'}",
            )  # fmt: skip
            ax.errorbar(x + 0.27, before.mean, before.margin, label="early", **circle)
        ax.axhline(0, color="0.3", lw=0.8, ls="-")
        ax.set_xticks(range(len(heads)), heads, fontsize=10)
    found = {text: handle for ax in axes[:, 0] for handle, text in zip(*ax.get_legend_handles_labels())}
    fig.legend(found.values(), found.keys(), loc="outside upper center", ncols=2, fontsize=10)
    fig.supylabel("rise of the loss (nats)", fontsize=11)
    return fig


BY_HEAD = {  # what the trainer notes of every head, and what a panel calls it
    "induction": "induction score",
    "previous_token": "previous-token score",
    "start_token": "attention to start",
}


def over_training(logs: Mapping[str, pd.DataFrame], control: pd.DataFrame | None = None, named: int = 1) -> Figure:
    """What the logs hold, against tokens seen: a column for each model, rows for all heads' scores, in-context score and loss.

    Every head is a thin line, first-layer heads of deeper models grey; the `named` highest at the end are thick, and the highest
    has its name. A score that no log holds gets no row. `control`: the log of a model without layers, whose in-context score is
    drawn dotted.
    Raises ValueError for a model without heads.
    """
    if headless := [name for name, log in logs.items() if "induction" not in log]:
        raise ValueError(f"{headless[0]!r} has no heads, and so no scores to draw: pass it as `control`")
    rows = [key for key in BY_HEAD if any(key in log for log in logs.values())]
    fig, axes = plt.subplots(
        len(rows) + 2, len(logs), figsize=(6.4, 0.6 + 1.75 * (len(rows) + 2)), sharex=True, sharey="row", squeeze=False
    )
    plt.close(fig)
    for column, (name, log) in enumerate(logs.items()):
        log = log[log["tokens"] > 0]
        x = log["tokens"].to_numpy() / 1e6
        axes[0, column].set_title(name, fontsize=11)
        for ax, key in zip(axes[:, column], rows):
            if key in log:
                _every_head(ax, x, np.array(log[key].tolist()), named)
            else:
                ax.text(0.5, 0.5, "not in this log", transform=ax.transAxes, ha="center", fontsize=10, color="0.4")
        axes[-2, column].plot(x, log["in_context"], color="C0", ls="-")
        if control is not None:
            seen = control[control["tokens"] > 0]
            axes[-2, column].plot(seen["tokens"] / 1e6, seen["in_context"], color="0.4", ls=":", label="no layers")
            axes[-2, column].legend(fontsize=10, loc="lower left")
        axes[-1, column].plot(x, log["held_out"], color="C0", ls="-")
        _million_axis(axes[-1, column])
    for ax, key in zip(axes[:, 0], rows):  # limits are shared by the row, so that they are set once all is drawn
        ax.set_ylim(0, 1.2 * max(np.max(log[key].tolist()) for log in logs.values() if key in log))
    for ax, label in zip(axes[:, 0], [*(BY_HEAD[key] for key in rows), "in-context\nscore (nats)", "held-out\nloss (nats)"]):
        ax.set_ylabel(label.replace(" score", "\nscore") if "\n" not in label else label, fontsize=11)
    return fig


def _every_head(ax: Axes, x: np.ndarray, scores: Float[np.ndarray, "snapshot layer head"], named: int) -> None:
    n_layers, n_heads = scores.shape[1:]
    best = scores[-1].flatten().argsort()[::-1][:named]
    for layer in range(n_layers):
        for head in range(n_heads):
            thick = layer * n_heads + head in best
            color = "0.6" if layer == 0 and n_layers > 1 else "C0"
            look = {"color": "C2", "lw": 2, "zorder": 3} if thick else {"color": color, "lw": 0.7}
            ax.plot(x, scores[:, layer, head], ls="-", **look)
    top = divmod(int(best[0]), n_heads)
    ax.annotate(
        f"{top[0]}.{top[1]}", (x[-1], scores[(-1, *top)]), (-3, 4), textcoords="offset points", ha="right", fontsize=10,
        color="C2", annotation_clip=False, in_layout=False,
    )  # fmt: skip


def race(
    tokens: Sequence[float],
    curves: Mapping[str, Sequence[float]],
    marks: Mapping[str, float],
    label: str = "share of the way to the end",
) -> Figure:
    """Scores as shares of their way, against million tokens seen, on a logarithmic and on a plain axis; marks are dashed lines.

    Between the first and the last mark the figure is shaded. Each dot is an entry of the log: nothing is known between them.
    Raises ValueError for no marks, or a curve that has not one number an entry.
    """
    if not marks:
        raise ValueError("no moments to mark: give the milestones by name, in million tokens")
    tokens = np.asarray(tokens, dtype=float)
    if wrong := [name for name, values in curves.items() if len(values) != len(tokens)]:
        raise ValueError(f"{wrong[0]!r} needs one number for each of {len(tokens)} entries of the log")
    fig, axes = plt.subplots(2, 1, figsize=(6.4, 6.2), sharey=True)
    plt.close(fig)
    for ax in axes:
        for i, (name, values) in enumerate(curves.items()):
            kept = tokens > 0
            look = {"color": f"C{i}", "ls": STYLES[i % 4], "marker": MARKERS[i % 5], "ms": 3}
            ax.plot(tokens[kept], np.asarray(values)[kept], label=name, **look)
        ax.axvspan(min(marks.values()), max(marks.values()), color="0.92", lw=0, zorder=0)
        for at in marks.values():
            ax.axvline(at, color="0.3", lw=0.9, ls="--", zorder=1)
        for level in (0, 1):
            ax.axhline(level, color="0.8", lw=0.8, ls="-", zorder=0)
        ax.set_ylabel(label)
        ax.set_ylim(-0.25, 1.3)
    _million_axis(axes[0], "million tokens seen, logarithmic")
    axes[1].set(xlabel="million tokens seen, plain", xlim=(0, None))
    for i, (name, at) in enumerate(marks.items()):  # every other one higher up: they may be close
        above = (0, 1 + 12 * (i % 2))
        axes[0].annotate(
            name, (at, 1.3), above, textcoords="offset points", ha="center", va="bottom", fontsize=10, annotation_clip=False
        )
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize=10)
    return fig


def _middles(edges: Sequence[int]) -> np.ndarray:
    """Middle of each bin on a logarithmic axis of token numbers, which are positions plus one."""
    first, last = np.asarray(edges[:-1], dtype=float) + 1, np.asarray(edges[1:], dtype=float)
    return np.sqrt(first * last)


def _token_axis(ax: Axes, edges: Sequence[int]) -> None:
    ax.set_xscale("log")
    ticks = [t for t in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000) if t <= edges[-1]]
    ax.xaxis.set_major_locator(FixedLocator(ticks))
    ax.xaxis.set_major_formatter(ScalarFormatter())
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlim(1, edges[-1])
    ax.set_xlabel("token of the window that is predicted")


def _million_axis(ax: Axes, label: str = "million tokens seen") -> None:
    ax.set_xscale("log")
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.set_xlabel(label)
