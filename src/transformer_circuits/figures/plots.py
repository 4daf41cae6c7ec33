"""The plot types that more than one chapter draws, in one grammar (palette.toml). Each returns its Axes, so that a
chapter can add to it. `title`: what the picture shows, as a sentence; it is broken into lines."""

import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path
from matplotlib.ticker import LogLocator, NullLocator
from numpy.typing import ArrayLike

from transformer_circuits.figures.style import LABEL, WIDTH
from transformer_circuits.figures.tokens import show_token

LAYERS = ("first layer", "second layer")
OTHERS = "other"  # gray; what a figure is about has the color of its layer
COLOR_OF_LAYER = ("first", "second")
SHADES = 24  # of a cell: a path each
THRESHOLD = {"color": "soft", "ls": "--", "lw": 1, "zorder": 1}
MONO = "DejaVu Sans Mono"


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


def _axes(ax: Axes | None, title: str, height: float = 3.2) -> Axes:
    """Return the axes to draw on, new ones of `height` inches where there are none, with the finding above."""
    ax = ax or plt.subplots(figsize=(WIDTH, height + 0.3 * len(title_lines(title))))[1]
    finding(title, ax)
    return ax


def _name_rows(names: Sequence[str], places: Sequence[float], bold: Collection[str], ax: Axes) -> None:
    """Name rows, in lines that leave room for them, and take away the axis."""
    ax.set_yticks(places, [textwrap.fill(label_of(name), 24, break_long_words=False) for name in names], color="ink")
    for name, text in zip(names, ax.get_yticklabels()):
        text.set_weight("bold" if name in bold else "normal")
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)


def cells(values: ArrayLike, ax: Axes, *, color: str = "ink", below: str = "negative", largest: float = 1.0) -> None:
    """Draw a matrix as cells around whole coordinates, rows downwards: the page at 0, and at `largest` the color."""
    values = np.nan_to_num(np.asarray(values, dtype=float)) / largest
    shades = SHADES if values.size < 1000 else SHADES // 4  # a large matrix would be a large picture
    shade = np.round(shades * values.clip(-1, 1)).astype(int)
    for level in np.unique(shade[shade != 0]):
        corners = np.argwhere(shade == level)[:, ::-1] - 0.5
        places = [Path(Path.unit_rectangle().vertices + corner, Path.unit_rectangle().codes) for corner in corners]
        look = {"fc": color if level > 0 else below, "alpha": abs(level) / shades, "lw": 0, "antialiased": False}
        ax.add_patch(PathPatch(Path.make_compound_path(*places), **look))
    rows, columns = values.shape
    ax.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5))
    ax.spines[:].set_visible(False)


def _future(rows: int, columns: int, ax: Axes) -> None:
    """Mask what comes after the current token, in the band's gray."""
    steps = [(columns - rows + row + 0.5, row + dy) for row in range(rows) for dy in (-0.5, 0.5)]
    outline = [*steps, (columns - 0.5, rows - 0.5), (columns - 0.5, -0.5)]
    ax.add_patch(PathPatch(Path([*outline, outline[0]]), fc="band", lw=0, zorder=0))


def frame(places: Iterable[tuple[int, int]] | np.ndarray, ax: Axes) -> None:
    """Frame selected cells, each (row, column)."""
    boxes = [Rectangle((column - 0.5, row - 0.5), 1, 1) for row, column in places]
    ax.add_collection(PatchCollection(boxes, fc="none", ec="frame", lw=1.4, zorder=3))


def pattern(
    attention: ArrayLike,
    tokens: Sequence[str],
    *,
    layer: int = 1,
    title: str = "",
    frames: ArrayLike | Iterable[tuple[int, int]] = (),
    color: str | None = None,
    name: str = "",
    sources: bool = True,
    ax: Axes | None = None,
) -> Axes:
    """An attention pattern [destination, source]: rows attend to columns, in the color of the head's layer.

    `tokens`: of all sources; where there are fewer rows, these are the last ones. `frames`: the cells that it is about,
    as [destination, source], true or false, or as pairs. `color`: another one than the layer's. `name`: of this
    panel, where there are several. `sources`: whether the columns have names.
    """
    attention = np.asarray(attention, dtype=float)
    rows, columns = attention.shape
    shown = [label_of(token).replace("<|start|>", "start") for token in tokens]
    if len(shown) != columns:
        raise ValueError(f"there must be a token for each of the {columns} sources, got {len(shown)}")
    room = 0.09 * max(map(len, shown)) + 0.1  # inches, for a name
    cell = min(0.3, (WIDTH - room) / columns)
    ax = _axes(ax, title, rows * cell + sources * room + 0.25 * bool(name) + 0.1)
    _future(rows, columns, ax)
    cells(attention, ax, color=color or COLOR_OF_LAYER[layer])
    frames = np.asarray(frames)
    frame(np.argwhere(frames) if frames.dtype == bool else frames, ax)
    every = int(np.ceil(0.15 / cell))  # names need 0.15 inches each
    for axis, n, turn in ((ax.xaxis, columns, 90), (ax.yaxis, rows, 0)):
        ticks = range((n - 1) % every, n, every)
        names = [shown[columns - n + i] for i in ticks]
        axis.set_ticks(ticks, names, rotation=turn, family=MONO, color="ink")
    ax.tick_params(length=0, pad=2, top=True, labeltop=sources, bottom=False, labelbottom=False)
    ax.set_aspect("equal", anchor="W")
    ax.set_title(name)
    return ax


def heatmap(
    values: ArrayLike,
    *,
    x: Sequence[str] | str = "",
    y: Sequence[str] | str = "",
    label: str = "",
    limits: tuple[float, float] | None = None,
    numbers: str | None = None,
    rings: ArrayLike | None = None,
    color: str = "ink",
    title: str = "",
    ax: Axes | None = None,
) -> Axes:
    """A matrix as shades, rows downwards: positive in ink, negative in red. For attention there is `pattern`.

    `x`, `y`: a name for each column and row (tokens are made visible), or one for the axis. `limits`: only the upper
    one counts, which has the full color. `numbers`: a format such as "{:.1f}" to print in each cell. `rings`:
    [row, column], which cells have a frame. `label`: what the numbers are, below the matrix.
    """
    values = np.asarray(values, dtype=float)
    rows, columns = values.shape
    if ax is None:
        _, ax = plt.subplots(figsize=(min(WIDTH, 2.2 + 0.36 * columns), min(6.5, 1.4 + 0.3 * rows)))
    largest = limits[1] if limits else float(np.nanmax(np.abs(values)))
    # Behind numbers even the strongest cell stays pale enough to read them.
    cells(values, ax, color=color, largest=2.2 * largest if numbers else largest)
    for names, axis, turn in ((x, ax.xaxis, 90), (y, ax.yaxis, 0)):
        if isinstance(names, str):
            axis.set_label_text(names)
        else:
            axis.set_ticks(range(len(names)), [label_of(name) for name in names], rotation=turn, color="ink")
    ax.tick_params(length=0)
    if numbers is not None:
        for (row, column), value in np.ndenumerate(values):
            ax.text(column, row, numbers.format(value), ha="center", va="center", fontsize=LABEL)
    if rings is not None:
        frame(np.argwhere(np.asarray(rings)), ax)
    if label:
        red = ", red below zero" if (values < 0).any() else ""
        ax.set_title(f"{label}: full color at {largest:.2g}{red}", weight="normal", color="soft")
    finding(title, ax)
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
    title: str = "",
    ax: Axes | None = None,
) -> Axes:
    """A number for each head, a column of dots for each layer of each model: {"two layers": [layer, head]}.

    `mark`: a line to compare with. Heads from `name_from` (default: `mark`) on have names, and their layer's color.
    """
    ax = _axes(ax, title)
    name_from = mark if name_from is None else name_from
    ticks, between = [], "\n" if len(scores) > 2 else " "
    for model, values in scores.items():
        values = np.atleast_2d(np.asarray(values, dtype=float))
        for layer, heads in enumerate(values):
            x = len(ticks) + spread(len(heads), 0.4)
            place = LAYERS[layer].replace(" ", between) if layer < 2 else f"layer {layer}"
            ticks.append(f"{model}\n{place}".strip() if len(values) > 1 else model)
            named = heads >= (np.inf if name_from is None else name_from)
            color = COLOR_OF_LAYER[min(layer, 1)]
            ax.scatter(x[~named], heads[~named], color=OTHERS, s=22)
            ax.scatter(x[named], heads[named], color=color, s=34)
            for head in np.flatnonzero(named):
                _name(f"{layer}.{head}", (x[head], heads[head]), (0, 5), ax, ha="center")
    if mark is not None:
        ax.axhline(mark, **THRESHOLD)
    ax.set_xticks(range(len(ticks)), ticks)
    ax.set_xlim(-0.6, len(ticks) - 0.4)
    ax.set_ylabel(label)
    return ax


def _name(
    text: str, at: tuple[float, float], offset: tuple[float | int, float | int], ax: Axes, **look: object
) -> None:
    ax.annotate(text, at, offset, textcoords="offset points", **look)


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

    `mark`: a dashed line; heads above it have a color, and the `named` highest carry their names. `chance`: a band.
    """
    values, faded = np.asarray(values, dtype=float), np.asarray(faded)
    layers, heads = values.shape
    x, near = np.arange(layers)[:, None] + spread(heads, 0.25), 0.06 * (values.max() - values.min())
    for (layer, head), value in np.ndenumerate(values):
        color = OTHERS if value < mark else COLOR_OF_LAYER[min(layer, 1)]
        hollow = "none" if faded[layer, head] else color
        ax.scatter(x[layer, head], value, s=24, facecolor=hollow, edgecolor=color)
    places: dict[tuple[int, float], list[str]] = {}  # names of dots at about the same place share a line
    for layer, head in sorted(np.argwhere(values >= mark), key=lambda at: -values[tuple(at)])[:named]:
        value = values[layer, head]
        place = next((at for at in places if at[0] == layer and at[1] - value < near), (layer, value))
        places.setdefault(place, []).append(f"{layer}.{head}")
    for (layer, value), names in places.items():
        # In the last quarter of the layers names are left of their dots, where there is room.
        right = layer > 0.75 * (layers - 1)
        edge = min if right else max
        at = edge(x[layer, int(name.split(".")[1])] for name in names), value
        _name(", ".join(names), at, (-6 if right else 6, 0), ax, ha="right" if right else "left", va="center")
    ax.axhline(mark, **THRESHOLD)
    ax.axhspan(*chance, color="band", zorder=0)
    ax.set(xlabel="layer", ylabel=label, xlim=(-0.6, layers - 0.4))
    ax.set_xticks(range(0, layers, -(-layers * ax.get_subplotspec().get_gridspec().ncols // 12)))
    return ax


def bars(
    names: Sequence[str],
    values: ArrayLike,
    *,
    label: str,
    errors: ArrayLike | None = None,
    accent: Sequence[int] = (),
    reference: float | None = None,
    title: str = "",
    ax: Axes | None = None,
) -> Axes:
    """Bars with their names. `errors`: half-widths; `accent`: what the figure is about; `reference`: a line."""
    ax = _axes(ax, title)
    place = np.arange(len(names))
    colors = ["second" if i in accent or not accent else OTHERS for i in place]
    ax.bar(place, np.asarray(values, dtype=float), 0.7, yerr=errors, color=colors, error_kw={"lw": 1, "ecolor": "ink"})
    if reference is not None:
        ax.axhline(reference, **THRESHOLD)
    room = ax.get_position().width * ax.figure.get_figwidth()  # inches; a character takes about 0.09 of one
    turn = 60 if 0.09 * max(map(len, names)) * len(names) > room else 0
    ax.set_xticks(place, [label_of(name) for name in names], rotation=turn, ha="right" if turn else "center")
    ax.set_ylabel(label)
    return ax


def rows(
    values: Mapping[str, float],
    *,
    label: str = "",
    form: str = "{:.2f}",
    errors: Mapping[str, float] | None = None,
    accent: Collection[str] = (),
    color: str = "second",
    reference: float | None = None,
    limit: float | None = None,
    title: str = "",
    ax: Axes | None = None,
) -> Axes:
    """Bars from left to right on a linear axis, each with its name and its number; negative ones are red.

    `form`: of the numbers. `errors`: standard errors. `accent`: names of the rows that it is about (default: all); the
    others are gray. `reference`: a dashed line. `limit`: of the axis, such as 1 for fractions.
    """
    sizes = np.array([*values.values()], dtype=float)
    ax = _axes(ax, title, 0.4 * len(sizes) + 0.35 * bool(label) + 0.2)
    full = limit or np.abs(sizes).max()
    for row, (name, size) in enumerate(values.items()):
        strong = name in accent or not accent
        ax.barh(row, size, 0.62, color="negative" if size < 0 else color if strong else OTHERS)
        error = (errors or {}).get(name, 0.0)
        ax.plot([size - error, size + error], [row, row], color="ink", lw=1.2 * bool(error))
        look = {"va": "center", "weight": "bold" if name in accent else "normal"}
        ax.text(max(size, 0) + error + 0.03 * full, row, form.format(size).replace("-", "−"), **look)
    if reference is not None:
        ax.axvline(reference, **THRESHOLD)
    ax.set(xlim=(min(0, 1.05 * sizes.min()), 1.22 * full), ylim=(len(sizes) - 0.5, -0.5), xticks=[])
    ax.set_xlabel(label, loc="right")
    _name_rows([*values], range(len(sizes)), accent, ax)
    ax.spines["bottom"].set_visible(False)
    ax.axvline(0, color="other", lw=1)
    return ax


def lines(
    curves: Mapping[str, ArrayLike],
    *,
    x: Sequence[float] | Sequence[str] | None = None,
    label: str = "",
    colors: Mapping[str, str] | None = None,
    form: str = "",
    errors: Mapping[str, ArrayLike] | None = None,
    log: bool = False,
    title: str = "",
    ax: Axes | None = None,
) -> Axes:
    """Curves with their names at their right ends, instead of a legend; with words for `x` a slope chart.

    `x`: of all points (default: the index of a Series). `colors`: by name, such as "second"; others follow the cycle.
    `form`: such as "{:.2f}", to write the last number after the name. `errors`: standard errors, as bands. `log`: of x.
    """
    ax = _axes(ax, title)
    words = x is not None and isinstance(x[0], str)
    ends = {}
    for name, curve in curves.items():
        own = curve.index if x is None and isinstance(curve, pd.Series) else x
        at, values = range(len(curve)) if words or own is None else own, np.asarray(curve, dtype=float)
        look = {"color": colors[name]} if colors and name in colors else {}
        (drawn,) = ax.plot(at, values, marker="o" if words else None, ms=5, **look)
        if errors and name in errors:
            error = np.asarray(errors[name])
            ax.fill_between(at, values - error, values + error, color=drawn.get_color(), alpha=0.2, lw=0)
        number = f"  {form.format(values[-1])}" if form else ""
        ends[f"{name}{number}"] = (float(at[-1]), values[-1], drawn.get_color())
    if log:
        ax.set_xscale("log")
        _plain_log(ax)
    if words:
        ax.set_xticks(range(len(x)), x)
        ax.set_xlim(-0.3, len(x) - 0.7)
    ax.set_ylabel(label)
    name_ends(ends, ax)
    return ax


def name_ends(ends: Mapping[str, tuple[float, float, str]], ax: Axes) -> None:
    """Write names at the right ends of lines, (x, y, color) each, none over another."""
    (low, high), (rows, *_) = ax.get_ylim(), ax.get_subplotspec().get_gridspec().get_geometry()
    height = 0.75 * 72 * ax.figure.get_figheight() / rows  # of the axes, in points
    order = sorted(ends, key=lambda name: ends[name][1])
    wanted = np.array([(ends[name][1] - low) / (high - low) * height for name in order])
    steps = 1.3 * LABEL * np.arange(len(order))
    places = np.maximum.accumulate(wanted - steps) + steps  # at least a line above the one below
    places -= min(max(places[-1] - height, 0), places[0])
    for name, place, at in zip(order, places, wanted):
        x, y, color = ends[name]
        color = {"first": "first_text", OTHERS: "soft"}.get(color, color)
        _name(name, (x, y), (8, place - at), ax, va="center", color=color, weight="bold")


def reached(
    steps: Mapping[str, Sequence[float]],
    *,
    end: float,
    never: Mapping[str, str] | None = None,
    bold: Collection[str] = (),
    label: str = "",
    title: str = "",
    ax: Axes | None = None,
) -> Axes:
    """When each row reached something: a dot for each of its runs, or "never" in red at the `end` of the axis.

    `steps`: by name, an empty list if never. `never`: what to say there instead, such as "never: 18%".
    """
    got = sorted((name for name in steps if len(steps[name])), key=lambda name: min(steps[name]))
    order = [*got, *(name for name in steps if not len(steps[name]))]
    places = {name: row + 0.5 * (row >= len(got)) for row, name in enumerate(order)}
    ax = _axes(ax, title, 0.4 * len(order) + 0.9)
    for name, place in places.items():
        runs = sorted(steps[name])
        last, color = (runs[-1], "second") if runs else (end, "negative")
        words = "–".join(f"{step:,.0f}" for step in sorted({*runs[:1], *runs[-1:]}))
        look = {"va": "center", "color": color, "weight": "bold" if name in bold else "normal"}
        ax.barh(place, last, 0.24, color="faint")
        ax.plot(runs, [place] * len(runs), "o", color=color, ms=8)
        _name(words or (never or {}).get(name, "never"), (last, place), (8, 0), ax, **look)
    ax.set(xlim=(0, 1.6 * end), ylim=(places[order[-1]] + 0.6, -0.6), xticks=[0, end / 2, end])
    ax.set_xlabel(label, loc="right")
    _name_rows(order, [*places.values()], bold, ax)
    return ax


def strips(
    scores: Mapping[str, ArrayLike],
    *,
    mark: float,
    label: str = "",
    form: str = "{:.2f}",
    title: str = "",
    ax: Axes | None = None,
) -> Axes:
    """One row a model, {"two layers": [layer, head]}: a strip of cells a layer, in its color; the number of the highest
    head if it is at least `mark`, without its leading zero. `label`: what the numbers are."""
    models = {name: np.atleast_2d(np.asarray(values, dtype=float)) for name, values in scores.items()}
    depth, top = max(map(len, models.values())), max(values.max() for values in models.values())
    ax = _axes(ax, title, 0.42 * len(models) + 0.6)
    for row, values in enumerate(models.values()):
        for (layer, head), value in np.ndenumerate(values):
            width, shade = 1 / values.shape[1], 0.75 * float(np.clip(value / top, 0, 1))
            at, color = (1.06 * layer + head * width, row - 0.34), COLOR_OF_LAYER[min(layer, 1)]
            for look in {"fc": "band", "ec": "page"}, {"fc": color, "alpha": shade}:
                ax.add_patch(Rectangle(at, width, 0.68, **look))
            if value == values[layer].max() >= mark:
                number = form.format(value).removeprefix("0")
                ax.text(at[0] + width / 2, row, number, ha="center", va="center", weight="bold")
    ax.set(xlim=(0, 1.06 * depth - 0.06), ylim=(len(models) - 0.5, -0.5), xlabel=label)
    names = [LAYERS[layer] if layer < 2 else f"layer {layer}" for layer in range(depth)]
    ax.set_xticks([1.06 * layer + 0.5 for layer in range(depth)], names)
    ax.tick_params(length=0, labeltop=True, labelbottom=False)
    _name_rows([*models], range(len(models)), (), ax)
    ax.spines["bottom"].set_visible(False)
    return ax


def over_training(
    curves: Mapping[str, pd.Series], *, mark: float | None = None, named: bool = False, title: str = "", ax: Axes
) -> Axes:
    """Numbers of a training log from the second snapshot on, over million tokens read; "one layer" is gray.

    `named`: whether lines have names at their ends, in place of a legend.
    """
    for name, curve in curves.items():
        ax.plot(curve.iloc[1:], label=name, **{"color": OTHERS} if name == "one layer" else {})
    if named:
        name_ends({line.get_label(): (*line.get_xydata()[-1], line.get_color()) for line in ax.lines}, ax)
    if mark is not None:
        ax.axhline(mark, **THRESHOLD)
    ax.set(xscale="log", xlabel="million tokens read" if ax.get_subplotspec().is_last_row() else "")
    _plain_log(ax)
    finding(title, ax)
    return ax


def _plain_log(ax: Axes) -> None:
    """Plain numbers on a logarithmic axis."""
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_locator(NullLocator())
