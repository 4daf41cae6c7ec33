"""The plot types that more than one chapter draws. Each returns its Axes, so that a chapter can add to it."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.ticker import LogLocator, NullLocator
from numpy.typing import ArrayLike

from transformer_circuits.figures.tokens import show_token

LAYERS = ("first layer", "second layer")
OTHERS = "0.6"  # gray; what a figure is about is in the first color, blue


def label_of(name: str) -> str:
    """Return a name as matplotlib draws it literally: no mathematics, and code points for what its font lacks.

    A token with a space at an end, or with characters that cannot be seen, is shown as by `show_token`.
    """
    if name != name.strip() or not name.isprintable() or not name:
        name = show_token(name)
    font = get_font(findfont(FontProperties()))
    drawn = (c if font.get_char_index(ord(c)) else f"<U+{ord(c):04X}>" for c in name)
    return "".join(drawn).replace("$", r"\$")


def heatmap(
    values: ArrayLike,
    *,
    x: Sequence[str] | str = "",
    y: Sequence[str] | str = "",
    label: str,
    limits: tuple[float, float] | None = None,
    numbers: str | None = None,
    rings: ArrayLike | None = None,
    ax: Axes | None = None,
) -> Axes:
    """A matrix as colors, rows downwards; red below zero and blue above if there are negative numbers.

    `x`, `y`: a name for each column and row (tokens are made visible), or one for the axis. `numbers`: a format such as
    "{:.1f}" to print in each cell. `rings`: [row, column], where to draw rings around cells.
    """
    values = np.asarray(values, dtype=float)
    if ax is None:
        rows, columns = values.shape
        _, ax = plt.subplots(figsize=(min(5.4, 2.2 + 0.32 * columns), min(6.5, 1.4 + 0.28 * rows)))
    signed = (values < 0).any()
    largest = np.nanmax(np.abs(values))
    colors = {"cmap": "RdBu", "vmin": -largest, "vmax": largest} if signed else {"cmap": "viridis", "vmin": 0.0}
    image = ax.imshow(values, aspect="auto", interpolation="nearest", **colors)
    if limits is not None:
        image.set_clim(*limits)
    for names, axis, turn in ((x, ax.xaxis, 90), (y, ax.yaxis, 0)):
        if isinstance(names, str):
            axis.set_label_text(names)
        else:
            axis.set_ticks(range(len(names)), [label_of(name) for name in names], rotation=turn, fontsize=9)
    if numbers is not None:
        middle = (image.norm.vmin + image.norm.vmax) / 2
        for (row, column), value in np.ndenumerate(values):
            dark = abs(value) > 0.6 * image.norm.vmax if signed else value < middle
            color, shown = "white" if dark else "black", numbers.format(value)
            ax.text(column, row, shown, ha="center", va="center", fontsize=8, color=color)
    if rings is not None:
        at, to = np.nonzero(np.asarray(rings).T)
        ax.plot(at, to, "o", markerfacecolor="none", markeredgecolor="C2", markersize=7, linestyle="none")
    ax.figure.colorbar(image, ax=ax, label=label, fraction=0.05)
    ax.grid(False)
    return ax


def spread(heads: int, half: float) -> np.ndarray:
    """Where the dots of a layer's heads are beside its tick: from -`half` to `half`; one is on it."""
    return np.linspace(-half, half, heads) if heads > 1 else np.zeros(heads)


def head_dots(
    scores: Mapping[str, ArrayLike],
    *,
    label: str,
    mark: float | None = None,
    name_from: float | None = None,
    ax: Axes | None = None,
) -> Axes:
    """A number for each head, a column of dots for each layer of each model: {"two layers": [layer, head]}.

    `mark`: a line to compare with. Heads from `name_from` (default: `mark`) on are blue and have names.
    """
    ax = ax or plt.subplots(figsize=(5.4, 3.2))[1]
    name_from = mark if name_from is None else name_from
    ticks = []
    for model, values in scores.items():
        for layer, heads in enumerate(np.atleast_2d(np.asarray(values, dtype=float))):
            x = len(ticks) + spread(len(heads), 0.4)
            place = LAYERS[layer].replace(" ", "\n") if layer < 2 else f"layer {layer}"
            ticks.append(f"{model}\n{place}")
            named = heads >= (np.inf if name_from is None else name_from)
            ax.scatter(x[~named], heads[~named], color=OTHERS, s=22)
            ax.scatter(x[named], heads[named], color="C0", s=30)
            for head in np.flatnonzero(named):
                at = x[head], heads[head]
                ax.annotate(f"{layer}.{head}", at, (0, 5), textcoords="offset points", ha="center", fontsize=10)
    if mark is not None:
        ax.axhline(mark, color="0.4", linestyle="--", linewidth=1)
    ax.set_xticks(range(len(ticks)), ticks)
    ax.set_xlim(-0.6, len(ticks) - 0.4)
    ax.set_ylabel(label)
    return ax


def by_layer(
    values: ArrayLike,
    *,
    label: str,
    mark: float,
    chance: tuple[float, float],
    faded: ArrayLike,
    named: int = 3,
    ax: Axes,
) -> Axes:
    """A dot for each head over its layer, for models of any depth. `values`, `faded`: [layer, head]; faded: hollow.

    `mark`: a dashed line; heads above it are blue, and the `named` highest carry their names. `chance`: a gray band.
    """
    values, faded = np.asarray(values, dtype=float), np.asarray(faded)
    layers, heads = values.shape
    x = np.arange(layers)[:, None] + spread(heads, 0.3)
    shown = np.where(faded | np.isnan(values), -np.inf, values)
    above = shown >= mark
    with_names = above & (shown >= np.sort(shown, axis=None)[-named:][0]) & (named > 0)
    for which, face, edge in ((faded, "none", "0.75"), (~faded & ~above, OTHERS, OTHERS), (above, "C0", "C0")):
        ax.scatter(x[which], values[which], facecolors=face, edgecolors=edge, s=18)
    for layer, head in np.argwhere(with_names):
        at = x[layer, head], values[layer, head]
        left = above[layer, head + 1 : head + 3].any()  # away from the next dot
        place = {"xytext": (-4, 2), "ha": "right"} if left else {"xytext": (4, 2)}
        ax.annotate(f"{layer}.{head}", at, **place, textcoords="offset points", fontsize=10)
    ax.axhline(mark, color="0.4", linestyle="--", linewidth=1)
    ax.axhspan(*chance, color="0.92", zorder=0)
    ax.set(xlabel="layer", ylabel=label, xlim=(-0.6, layers - 0.4))
    ax.set_xticks(range(0, layers, -(-layers // 12)))
    return ax


def bars(
    names: Sequence[str],
    values: ArrayLike,
    *,
    label: str,
    errors: ArrayLike | None = None,
    accent: Sequence[int] = (),
    reference: float | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Bars with their names. `errors`: half-widths; `accent`: what the figure is about; `reference`: a line."""
    ax = ax or plt.subplots(figsize=(5.4, 3.2))[1]
    place = np.arange(len(names))
    colors = ["C0" if i in accent or not accent else OTHERS for i in place]
    ax.bar(place, np.asarray(values, dtype=float), 0.7, yerr=errors, color=colors, error_kw={"linewidth": 1})
    if reference is not None:
        ax.axhline(reference, color="0.4", linestyle="--", linewidth=1)
    room = ax.get_position().width * ax.figure.get_figwidth()  # inches; a character takes about 0.07 of one
    turn = 60 if 0.07 * max(map(len, names)) * len(names) > room else 0
    ax.set_xticks(place, [label_of(name) for name in names], rotation=turn, ha="right" if turn else "center")
    ax.set_ylabel(label)
    return ax


def name_points(x: ArrayLike, y: ArrayLike, names: Sequence[str], *, column: float, ax: Axes) -> None:
    """Write the names of points one below the other at the x position `column`, each with a thin line to its point."""
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    low, high = ax.get_ylim()
    gap = (high - low) / 17
    order, steps = np.argsort(y, kind="stable"), gap * np.arange(len(y))
    places = np.maximum.accumulate(y[order] - steps) + steps  # at least a gap above the one below
    places = np.minimum(places, high - gap / 2 - steps[::-1])  # all of them below the top
    line = {"arrowstyle": "-", "color": "0.7", "lw": 0.7, "shrinkB": 4}
    for point, place in zip(order, places):
        at, to = (x[point], y[point]), (column, place)
        ax.annotate(names[point], at, to, va="center", fontsize=10, arrowprops=line)


def over_training(curves: Mapping[str, pd.Series], *, mark: float | None = None, ax: Axes) -> Axes:
    """Numbers of a training log from the second snapshot on, over million tokens read; "one layer" is grey."""
    for name, curve in curves.items():
        grey = {"color": "0.5", "ls": "-"} if name == "one layer" else {}
        ax.plot(curve.iloc[1:], label=name, **grey)
    if mark is not None:
        ax.axhline(mark, color="0.3", ls="--", lw=0.8)
    # Plain numbers; the axis is named where it is the lowest of its column.
    ax.set(xscale="log", xlabel="million tokens read" if ax.get_subplotspec().is_last_row() else "")
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_locator(NullLocator())
    return ax
