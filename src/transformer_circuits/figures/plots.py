"""The plot types of the chapters, in one grammar (palette.toml). Most return their Axes, so that a chapter can add to
it. `title`: what the picture shows, as a sentence; it is broken into lines."""

import re
import textwrap
from collections.abc import Collection, Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path
from matplotlib.ticker import LogLocator, NullLocator
from matplotlib.transforms import offset_copy
from numpy.typing import ArrayLike

from transformer_circuits.figures.style import LABEL, WIDTH
from transformer_circuits.figures.tokens import show_token
from transformer_circuits.measures.weights import COMPOSES

LAYERS = ("first layer", "second layer")
OTHERS = "other"  # gray; what a figure is about has the color of its layer
COLOR_OF_LAYER = ("first", "second")  # see `color_of_layer`
WORD_OF = {"first": "first_text", OTHERS: "soft"}  # colors of words about what has these colors
SHADES = 24  # of a cell: a path each
THRESHOLD = {"color": "soft", "ls": "--", "lw": 1, "zorder": 1}
MONO = "DejaVu Sans Mono"

Number = float | int
Places = ArrayLike | Collection[tuple[int, int]]  # of cells: a matrix of truth values, or pairs of row and column


def color_of_layer(layer: int) -> str:
    """Return the color of a layer's heads: after the first layer, all have that of the second."""
    return COLOR_OF_LAYER[min(layer, 1)]


def label_of(name: str) -> str:
    """Return a name as matplotlib draws it literally: no mathematics, and code points for what its font lacks.

    A token with a space at an end, or with characters that cannot be seen, is shown as by `show_token`.
    """
    if name != name.strip() or not name.isprintable() or not name:
        name = show_token(name)
    font = get_font(findfont(FontProperties()))
    drawn = (c if font.get_char_index(ord(c)) else f"<U+{ord(c):04X}>" for c in name)
    return "".join(drawn).replace("$", r"\$")


def title_lines(text: str, width: float = WIDTH) -> list[str]:
    """Return a title broken into lines of about the same length that fit a figure of `width` inches."""
    most = int(8 * width)
    even = -(-len(text) // max(1, len(textwrap.wrap(text, most))))
    return min((textwrap.wrap(text, wide) for wide in range(max(1, even), most + 1)), key=len)


def finding(text: str, ax: Axes) -> None:
    """Write above a figure what it shows."""
    if text:
        words = "\n".join(title_lines(text, ax.figure.get_figwidth()))
        ax.figure.suptitle(words, x=0.01, ha="left", linespacing=1.25)


def _axes(title: str, height: Number = 3.2) -> Axes:
    """Return axes of `height` inches, with the finding above."""
    _, ax = plt.subplots(figsize=(WIDTH, height + 0.3 * len(title_lines(title))))
    finding(title, ax)
    return ax


def _name_rows(names: Sequence[str], places: Sequence[Number], bold: Collection[str], ax: Axes) -> None:
    """Name rows, in lines that leave room for them, and take away the axes."""
    look = {"break_long_words": False, "break_on_hyphens": False}
    ax.set_yticks(places, [textwrap.fill(label_of(name), 24, **look) for name in names], color="ink")
    for name, text in zip(names, ax.get_yticklabels()):
        text.set_weight("bold" if name in bold else "normal")
    ax.tick_params(axis="y", length=0)
    ax.spines[["left", "bottom"]].set_visible(False)


# ---- matrices --------------------------------------------------------------------------------------------------------


def cells(values: ArrayLike, ax: Axes, *, color: str = "ink", largest: Number = 1.0) -> None:
    """Draw a matrix as cells around whole coordinates, rows downwards: the page at 0, at `largest` the color; negative
    ones are red."""
    values = np.nan_to_num(np.asarray(values, dtype=float) / (largest or 1))
    shades = SHADES if values.size < 1000 else SHADES // 4  # a large matrix would be a large picture
    shade = np.round(shades * values.clip(-1, 1)).astype(int)
    for level in np.unique(shade[shade != 0]):
        corners = np.argwhere(shade == level)[:, ::-1] - 0.5
        places = [Path(Path.unit_rectangle().vertices + corner, Path.unit_rectangle().codes) for corner in corners]
        look = {"fc": color if level > 0 else "negative", "alpha": abs(level) / shades, "lw": 0, "antialiased": False}
        ax.add_patch(PathPatch(Path.make_compound_path(*places), **look))
    rows, columns = values.shape
    ax.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5))
    ax.spines[:].set_visible(False)


def frame(places: Places, ax: Axes) -> None:
    """Frame selected cells."""
    places = np.asarray(places)
    pairs = np.argwhere(places) if places.dtype == bool else places
    boxes = [Rectangle((column - 0.5, row - 0.5), 1, 1) for row, column in pairs]
    ax.add_collection(PatchCollection(boxes, fc="none", ec="frame", lw=1.4, zorder=3, clip_on=False))


def pattern(
    attention: ArrayLike,
    tokens: Sequence[str],
    *,
    layer: int = 1,
    title: str = "",
    frames: Places = (),
    ax: Axes | None = None,
) -> Axes:
    """An attention pattern [destination, source]: rows attend to columns, in the color of the head's layer.

    `tokens`: of all sources; where there are fewer rows, these are the last ones. `frames`: the cells that it is about.
    """
    attention = np.asarray(attention, dtype=float)
    rows, columns = attention.shape
    shown = [label_of(token).replace("<|start|>", "start") for token in tokens]
    if len(shown) != columns:
        raise ValueError(f"there must be a token for each of the {columns} sources, got {len(shown)}")
    room = 0.09 * max(map(len, shown)) + 0.1  # inches, for a name
    cell = min(0.3, (WIDTH - room) / columns)
    ax = ax or _axes("", rows * cell + room + 0.1 + 0.3 * len(title_lines(title)))
    finding(title, ax)
    steps = [(columns - rows + row + 0.5, row + dy) for row in range(rows) for dy in (-0.5, 0.5)]
    future = [*steps, (columns - 0.5, rows - 0.5), (columns - 0.5, -0.5), steps[0]]
    ax.add_patch(PathPatch(Path(future), fc="band", lw=0, zorder=0))
    cells(attention, ax, color=color_of_layer(layer))
    frame(frames, ax)
    every = int(np.ceil(0.15 / cell))  # names need 0.15 inches each
    for axis, n, turn in ((ax.xaxis, columns, 90), (ax.yaxis, rows, 0)):
        ticks = range((n - 1) % every, n, every)
        names = [shown[columns - n + i] for i in ticks]
        axis.set_ticks(ticks, names, rotation=turn, family=MONO, color="ink")
    ax.tick_params(length=0, pad=2, top=True, labeltop=True, bottom=False, labelbottom=False)
    ax.set_aspect("equal", anchor="W")
    return ax


def heatmap(
    values: ArrayLike,
    *,
    x: Sequence[str] = (),
    y: Sequence[str] = (),
    largest: Number | None = None,
    numbers: str = "",
    frames: Places = (),
    color: str = "ink",
    title: str = "",
    ax: Axes | None = None,
) -> Axes:
    """A matrix with names for columns and rows. `largest`: the number of full color (default: of all). `numbers`: the
    format of a number in each cell. `frames`: the cells that it is about."""
    values = np.asarray(values, dtype=float)
    rows, columns = values.shape
    if ax is None:
        _, ax = plt.subplots(figsize=(min(WIDTH, 2.2 + 0.36 * columns), min(6.5, 1.4 + 0.3 * rows)))
    largest = largest or float(np.nanmax(np.abs(values)))
    # Behind numbers even the strongest cell stays pale enough to read them.
    cells(values, ax, color=color, largest=2.2 * largest if numbers else largest)
    frame(frames, ax)
    for names, axis, most in ((x, ax.xaxis, 4), (y, ax.yaxis, np.inf)):
        shown = [label_of(name) for name in names]
        turn = 90 if max(map(len, shown), default=0) > most else 0
        axis.set_ticks(range(len(names)), shown, rotation=turn, color="ink")
    ax.tick_params(length=0)
    for (row, column), value in np.ndenumerate(values) if numbers else ():
        number = numbers.format(value).replace("-", "−")
        zero = not re.search("[1-9]", number)  # "0.0": not worth its ink
        look = {"color": "soft" if zero else "ink", "ha": "center", "va": "center"}
        ax.text(column, row, "0" if zero else number, fontsize=LABEL, **look)
    finding(title, ax)
    return ax


# ---- a number for each head ------------------------------------------------------------------------------------------


def head_dots(
    scores: Mapping[str, ArrayLike],
    *,
    label: str,
    mark: Number | None = None,
    mark_name: str = "",
    name_from: Number | None = None,
    names: int = 99,
    title: str = "",
    ax: Axes | None = None,
) -> Axes:
    """A column of dots for each layer of each model, of any depth: {"two layers": [layer, head]}.

    `mark`: a line to compare with, `mark_name`: words above its left end. Heads from `name_from` (default: `mark`) on
    have their layer's color, and the `names` highest of each model their names.
    """
    ax = ax or _axes(title)
    name_from = mark if name_from is None else name_from
    ticks, between = [], "\n" if len(scores) > 2 else " "
    for model, values in scores.items():
        values = np.atleast_2d(np.asarray(values, dtype=float))
        colored = values >= (np.inf if name_from is None else name_from)
        named = colored & (values >= np.sort(np.append(values, np.inf))[-names - 1 :][0])
        for layer, heads in enumerate(values):
            x = len(ticks) + (np.linspace(-0.35, 0.35, len(heads)) if len(heads) > 1 else np.zeros(1))
            words = LAYERS[layer].replace(" ", between) if len(values) <= len(LAYERS) else f"{layer}"
            ticks.append(f"{model}\n{words}".strip() if len(values) > 1 else model)
            strong = colored[layer]
            ax.scatter(x[~strong], heads[~strong], color=OTHERS, s=22)
            ax.scatter(x[strong], heads[strong], color=color_of_layer(layer), s=34)
            for head in np.flatnonzero(named[layer]):
                ax.annotate(f"{layer}.{head}", (x[head], heads[head]), (0, 5), textcoords="offset points", ha="center")
    if mark is not None:
        ax.axhline(mark, **THRESHOLD)
        look = {"xycoords": ax.get_yaxis_transform(), "textcoords": "offset points", "color": "soft"}
        ax.annotate(mark_name, (0, mark), (4, 4), **look)
    ax.margins(y=0.1)  # room for the name of the highest
    every = -(-len(ticks) // 12)
    ax.set_xticks(range(0, len(ticks), every), ticks[::every])
    ax.set_xlim(-0.6, len(ticks) - 0.4)
    ax.set_ylabel(label)
    return ax


def strips(scores: Mapping[str, ArrayLike], *, mark: Number, title: str, label: str) -> Axes:
    """One row a model, {"two layers": [layer, head]}: a strip of cells a layer, in its color. At its end is the score
    of its best head. Cells with at least `mark` are framed. `label`: what the shades and the numbers are."""
    models = {name: np.atleast_2d(np.asarray(values, dtype=float)) for name, values in scores.items()}
    depth, top = max(map(len, models.values())), max(values.max() for values in models.values()) or 1.0
    ax = _axes(title, 0.42 * len(models) + 0.6)
    for row, values in enumerate(models.values()):
        reached = values.max() >= mark
        for (layer, head), value in np.ndenumerate(values):
            width = 1 / values.shape[1]
            at = (1.06 * layer + head * width, row - 0.34)
            ax.add_patch(Rectangle(at, width, 0.68, fc="band", ec="page"))
            ax.add_patch(Rectangle(at, width, 0.68, fc=color_of_layer(layer), alpha=float(np.clip(value / top, 0, 1))))
            if value >= mark:
                ax.add_patch(Rectangle(at, width, 0.68, fc="none", ec="frame", lw=1.4, zorder=3))
        ends = {"ha": "center", "va": "center", "weight": "bold" if reached else "normal"}
        ax.text(1.06 * depth + 0.16, row, f"{values.max():.2f}", color="ink" if reached else "soft", **ends)
    ax.set(xlim=(0, 1.06 * depth + 0.36), ylim=(len(models) - 0.5, -0.5))
    ax.set_xlabel(f"each cell is a head, its shade its {label}\nframed: {mark:g} or more", loc="left")
    columns = [1.06 * layer + 0.5 for layer in range(depth)] + [1.06 * depth + 0.16]
    ax.set_xticks(columns, [*(LAYERS[:depth] if depth <= len(LAYERS) else map(str, range(depth))), "best score"])
    ax.tick_params(length=0, labeltop=True, labelbottom=False)
    for tick, color in zip(ax.xaxis.get_major_ticks(), map(color_of_layer, range(depth))):
        tick.label2.set_color(WORD_OF.get(color, color))
    _name_rows([*models], range(len(models)), (), ax)
    return ax


def head_graph(ratios: ArrayLike, *, kinds: Mapping[tuple[int, int], str], title: str) -> Axes:
    """Writers of the first layer and readers of the second, joined by lines as wide as their ratio [reader, writer] is
    above 1, chance; blue from COMPOSES on, as in the paper's figure of composition scores. `kinds`: (layer, head) to a
    word."""
    ratios = np.asarray(ratios, dtype=float)
    _, ax = plt.subplots(figsize=(WIDTH, 3.6))
    widest = ratios.max() - 1
    for reader, writer in sorted(np.ndindex(ratios.shape), key=lambda pair: ratios[pair]):
        excess, strong = ratios[reader, writer] - 1, ratios[reader, writer] >= COMPOSES
        if excess > max(0.02 * widest, 0):  # thinner lines could not be seen; at chance or below there is none
            look = {"color": "second", "alpha": 0.9} if strong else {"color": OTHERS, "alpha": 0.5}
            line = {"lw": 9 * excess / widest, "zorder": 1 + strong, "solid_capstyle": "butt"}
            ax.plot([writer, reader], [0, 1], **line, **look)
    for layer, heads in enumerate(reversed(ratios.shape)):
        for head in range(heads):
            named = (layer, head) in kinds
            ax.plot(head, layer, "o", color=color_of_layer(layer) if named else OTHERS, ms=9 if named else 6, zorder=3)
            look = {"ha": "center", "va": ("top", "bottom")[layer], "textcoords": "offset points"}
            words = [f"{layer}.{head}", kinds.get((layer, head), "")][:: 1 - 2 * layer]
            ax.annotate("\n".join(words).strip(), (head, layer), (0, 18 * layer - 9), **look)
    ax.set(xlim=(-0.5, max(ratios.shape) - 0.5), ylim=(-0.3, 1.25))
    ax.axis("off")
    words = f"the wider a line, the further above chance;\nin blue: at least {COMPOSES:g} times chance"
    ax.figure.supxlabel(words, color="soft", ha="left", x=0.01)
    finding(title, ax)
    return ax


# ---- bars and curves -------------------------------------------------------------------------------------------------


def rows(
    values: Mapping[str, Number],
    *,
    label: str,
    title: str,
    form: str = "{:.2f}",
    accent: Collection[str] = (),
    color: str = "second",
    limit: Number | None = None,
) -> Axes:
    """Bars from left to right on a linear axis, each with its name and its number; negative ones are red.

    `form`: of the numbers. `accent`: names of the rows that it is about (default: all); the
    others are gray. `limit`: of the axis, such as 1 for fractions.
    """
    sizes = np.array([*values.values()], dtype=float)
    ax = _axes(title, 0.4 * len(sizes) + 0.55)
    full = limit or np.abs(sizes).max() or 1.0
    for row, (name, size) in enumerate(values.items()):
        strong = name in accent or not accent
        ax.barh(row, size, 0.62, color="negative" if size < 0 else color if strong else OTHERS)
        look = {"va": "center_baseline", "weight": "bold" if name in accent else "normal"}
        ax.text(max(size, 0) + 0.03 * full, row, form.format(size).replace("-", "−"), **look)
    ax.set(xlim=(min(0, 1.05 * sizes.min()), 1.22 * full), ylim=(len(sizes) - 0.5, -0.5), xticks=[])
    ax.set_xlabel("\n".join(title_lines(label, 5.2)), loc="left")
    ax.xaxis.set_label_position("top")
    _name_rows([*values], range(len(sizes)), accent, ax)
    ax.axvline(0, color="other", lw=1)
    return ax


def lines(
    curves: Mapping[str, pd.Series],
    *,
    colors: Mapping[str, str] | None = None,
    mark: Number | None = None,
    log: bool = False,
    label: str = "",
    title: str = "",
    ax: Axes | None = None,
) -> Axes:
    """Curves over their index, with their names at their right ends instead of a legend.

    `colors`: by name (default: the cycle). `mark`: a line to compare with. `log`: of the index.
    """
    ax = ax or _axes(title)
    finding(title, ax)
    ends = {}
    for name, curve in curves.items():
        (line,) = ax.plot(curve, color=colors[name] if colors else None)
        ends[name] = float(curve.index[-1]), float(curve.iloc[-1]), line.get_color()
    if mark is not None:
        ax.axhline(mark, **THRESHOLD)
    if log:
        ax.set_xscale("log")
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.xaxis.set_major_formatter("{x:g}")
        ax.xaxis.set_minor_locator(NullLocator())
    ax.set_ylabel(label)
    _name_ends(ends, pd.concat([*curves.values()]), ax)
    return ax


def _name_ends(ends: Mapping[str, tuple[float, float, str]], points: pd.Series, ax: Axes) -> None:
    """Write names to the right of lines that end at (x, y, color), none over another or over a longer line. `points`:
    of all lines. A name whose line ends in the open stands at that end, the others in a column."""
    (low, high), (rows, *_) = ax.get_ylim(), ax.get_subplotspec().get_gridspec().get_geometry()
    height = 0.75 * 72 * ax.figure.get_figheight() / rows  # of the axes, in points
    right = max(x for x, _, _ in ends.values())
    order = sorted(ends, key=lambda name: ends[name][1])
    wanted = np.array([(ends[name][1] - low) / (high - low) * height for name in order])
    steps = 1.3 * LABEL * np.arange(len(order))
    places = np.maximum.accumulate(wanted - steps) + steps  # at least a line above the one below
    places -= min(max(places[-1] - height, 0), places[0])
    for name, place, at in zip(order, places, wanted):
        x, y, color = ends[name]
        color = WORD_OF.get(color, color)
        beside = offset_copy(ax.transData, ax.figure, 8, place - at, units="points")
        column = x if (points[points.index > x] - y).abs().min() > 0.1 * (high - low) else right
        link = {"arrowstyle": "-", "color": "faint", "lw": 1, "shrinkA": 2} if x < column else None
        look = {"va": "center", "color": color, "weight": "bold"}
        ax.annotate(name, (x, y), (column, y), textcoords=beside, arrowprops=link, **look)
