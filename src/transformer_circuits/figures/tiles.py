"""A head, wherever one is shown: a tile with its pattern, a bar for what it is worth, and a word for its role."""

import html
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from IPython.display import SVG
from numpy.typing import ArrayLike

from transformer_circuits.figures.plots import SHADES, WORD_OF, Number, color_of_layer, title_lines
from transformer_circuits.figures.style import COLORS, LABEL, WIDTH, WORDS

SIDE, GAP, TALL = 74, 14.4, 132  # of a tile's square, between tiles, and of a whole tile: pixels, as are all sizes here
PIXELS = 96 / 72  # of a point
COLUMNS = 6  # more would be too small on a phone
NATS = "{:.3f}"
MARKED = f"stroke: {COLORS['frame']}; stroke-width: 2.5"


class Tile(NamedTuple):
    """A head to draw. `attention`: [destination, source], of the same text for all tiles. `worth`: of the bar, such as
    nats per token lost without it. `role`: a word. `marked`: those that the picture is about."""

    name: str  # "1.2"
    attention: ArrayLike
    worth: float
    role: str = ""
    marked: bool = False

    @property
    def color(self) -> str:
        """The color of the head's layer."""
        return color_of_layer(int(self.name.split(".")[0]))


def _text(
    x: Number, y: Number, words: str, color: str = "soft", size: int = LABEL, bold: bool = False, end: bool = False
) -> str:
    look = f"font: {'bold ' * bold}{size * PIXELS:.4g}px 'DejaVu Sans', sans-serif; fill: {COLORS[color]}"
    anchor = ' text-anchor="end"' * end
    return f'<text x="{x:g}" y="{y:g}"{anchor} style="{look}">{html.escape(words)}</text>'


def _rectangle(x: Number, y: Number, width: Number, height: Number, look: str) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:.4g}" height="{height:g}" style="{look}"/>'


def _shades(attention: np.ndarray, color: str) -> str:
    """Return the cells of a pattern, a path for each shade."""
    shade, paths = np.round(SHADES * attention.clip(0, 1)).astype(int), ""
    for level in np.unique(shade[shade > 0]):
        squares = "".join(f"M{x} {y}h1v1h-1z" for y, x in np.argwhere(shade == level))
        paths += f'<path d="{squares}" style="fill: {color}; fill-opacity: {level / SHADES:.2g}"/>'
    return paths


def tile(head: Tile, worth_of_most: float, form: str = NATS) -> str:
    """Return a tile as the inside of an SVG, SIDE wide and TALL."""
    attention = np.asarray(head.attention, dtype=float)
    n = len(attention)
    future = "".join(f"V{row + 1}H{row + 2}" for row in range(n - 1))
    words, bar, edge = "soft", "soft", f"stroke: {COLORS['faint']}"
    if head.marked:
        words, bar, edge = WORD_OF.get(head.color, head.color), head.color, MARKED
    number = re.sub(r"(?<!\d)0\.", ".", form.format(head.worth)).replace("-", "\N{MINUS SIGN}")
    length = SIDE * head.worth / worth_of_most if head.worth > 0 else 0.0
    parts = [
        _text(0, 15, head.name, "ink", bold=head.marked),
        _text(SIDE, 15, number, "ink" if head.marked else "soft", end=True),
        f'<g transform="translate(0 21) scale({SIDE / n:.5g})" shape-rendering="crispEdges">',
        f'<path d="M1 0{future}V{n - 1}H{n}V0z" style="fill: {COLORS["band"]}"/>',
        f"{_shades(attention, COLORS[head.color])}</g>",
        _rectangle(0, 21, SIDE, SIDE, f"fill: none; {edge}"),
        _rectangle(0, 100, SIDE, 9, f"fill: {COLORS['band']}"),
        _rectangle(0, 100, length, 9, f"fill: {COLORS[bar]}"),
        _text(0, 126, head.role, words),
    ]
    return "".join(parts)


def tiles(rows: Mapping[str, Sequence[Tile]], *, title: str, note: str, form: str = NATS) -> SVG:
    """Return tiles of heads in rows of COLUMNS, each group below its name ("second layer"), to show as the last value
    of a cell. `note`: a line that says what square, bar, and word are. `form`: of the numbers."""
    most, wide = max(head.worth for heads in rows.values() for head in heads), WIDTH * 96
    parts, y = [], 0.0
    tall = TALL if any(head.role for heads in rows.values() for head in heads) else TALL - 20
    for words, look in ((title, {"size": WORDS, "color": "ink", "bold": True}), (note, {})):
        for line in title_lines(words, WIDTH if words == title else 1.15 * WIDTH):
            y += 22
            parts.append(_text(0, y, line, **look))
    y += 10
    for group, heads in rows.items():
        y += 16
        parts.append(_text(0, y, group, WORD_OF.get(heads[0].color, heads[0].color), bold=True))
        y += 8
        for place, head in enumerate(heads):
            x, down = (SIDE + GAP) * (place % COLUMNS), y + tall * (place // COLUMNS)
            parts.append(f'<g transform="translate({x + 1:g} {down:g})">{tile(head, most, form)}</g>')
        y += tall * -(-len(heads) // COLUMNS) + 6
    size = f'width="{wide:g}" height="{y:g}" viewBox="0 0 {wide:g} {y:g}"'
    return SVG(f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join(parts)}</svg>')
