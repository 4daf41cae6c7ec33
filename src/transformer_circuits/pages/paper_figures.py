"""The page of the paper's figures, each with ours beside it: from book/figures.yml, the executed notebooks, and the records.

Pictures and tables are the cells' own: the page links to the files that the chapters show.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

import yaml
from nbformat import NotebookNode

from transformer_circuits.claims import ledger
from transformer_circuits.claims.ledger import Strict
from transformer_circuits.pages.scoreboard import Results, filled


class Figure(Strict):
    """A figure or table of the paper and what stands for it here; figures.yml explains the fields."""

    title: str
    kind: str
    anchor: str = ""
    ours: str = ""
    none: str = ""
    cell: list[str] = []
    page: str = ""
    claims: list[str] = []


class Section(Strict):
    section: str
    figures: list[Figure]


class Listed(Strict):
    """The list of figures."""

    paper: list[Section]
    also: dict[str, str] = {}

    def figures(self) -> Iterator[Figure]:
        for section in self.paper:
            yield from section.figures

    def places(self) -> dict[str, str]:
        """Return for each claim the cell that shows it."""
        first = dict(self.also)
        for figure in self.figures():
            for id in figure.claims:
                if figure.cell and not figure.none:
                    first.setdefault(id, figure.cell[0])
        return first


def load(path: Path) -> Listed:
    """Read the list of figures. Raises pydantic's ValueError if an entry is incomplete."""
    return Listed.model_validate(yaml.safe_load(path.read_text(encoding="utf8")))


class Cells:
    """The code cells of the executed notebooks, found by notebook/cell. `titles`: those of the chapters, by notebook."""

    def __init__(self, notebooks: Mapping[str, NotebookNode], titles: Mapping[str, str]) -> None:
        self.titles = titles
        self.found = {
            f"{name}/{cell.id}": cell for name, notebook in notebooks.items() for cell in notebook.cells
        }

    def outputs(self, place: str, kind: str) -> list[str]:
        """Return what a cell shows in a format, such as text/html."""
        data = [output.get("data", {}) for output in self.found[place].get("outputs", [])]
        return [formats[kind] for formats in data if kind in formats]

    def link(self, place: str) -> str:
        """Return where the cell is, seen from a page in book/. book/_ext/pages.py sets the anchor."""
        notebook, cell = place.split("/")
        return f"../notebooks/{quote(notebook)}.html#cell-{cell}"

    def label(self, place: str) -> str:
        """Return the chapter as the sidebar shows it."""
        notebook = place.split("/")[0]
        return f"{notebook.split('_')[0].lstrip('0').upper()} {self.titles[notebook]}".strip()

    def picture(self, place: str) -> str | None:
        """Return the file name that myst-nb gives the cell's picture, which is its checksum; None if there is no picture."""
        for drawing in self.outputs(place, "image/svg+xml"):
            return hashlib.sha256("\n".join(drawing.splitlines()).encode()).hexdigest() + ".svg"
        for pixels in self.outputs(place, "image/png"):
            return hashlib.sha256(base64.b64decode(pixels)).hexdigest() + ".png"
        return None

    def what(self, place: str) -> str:
        """Return what the cell shows, in a word."""
        widget = "circuits-widget" in "".join(self.outputs(place, "text/html"))
        return "figure" if widget or self.picture(place) else "numbers"

    def shown(self, place: str) -> str:
        """Return HTML of what a cell shows: its picture, its table, or where its interactive figure is.

        Raises ValueError if the cell shows none of these.
        """
        if name := self.picture(place):
            alt = self.found[place].metadata.get("mystnb", {}).get("image", {}).get("alt") or "our figure"
            image = f'<img loading="lazy" src="../_images/{name}" alt="{html.escape(alt)}">'
            return f'<a href="{self.link(place)}">{image}</a>'
        for output in self.outputs(place, "text/html"):
            if "circuits-widget" in output:
                return f'<p><a href="{self.link(place)}">An interactive figure</a></p>'
            if "<table" in output:
                return f'<div class="tc-figure-table">{output}</div>'
        raise ValueError(f"figures.yml names the cell {place}, which shows no picture and no table")


PAPER = "https://transformer-circuits.pub/2021/framework/index.html"
PROSE = """\
# The paper's figures

Every figure, table, and displayed equation of *A Mathematical Framework for Transformer Circuits* {{cite:p}}`elhage2021`, in the paper's
order. Each entry describes the paper's figure in our words and links to it, with ours next to it. Of the {all} entries, {with_ours} have one
of ours. A picture leads to its chapter. A verdict leads to the [scoreboard](scoreboard.md), which has the numbers and says how each claim is
judged.

"""

FIGURES = """\
{% for figure, pictures, links, verdicts in rows %}
<div class="tc-figure{{ "" if pictures else " tc-no-figure" }}">
<div class="tc-figure-words">
<p><strong>{{ figure.title }}</strong> <span class="tc-kind">({{ figure.kind }}, <a href="{{ paper }}#{{ figure.anchor }}">in the paper</a>)</span></p>
<p>{{ "Ours: " if figure.ours else "No picture of ours. " }}{{ figure.ours or figure.none }}
{% for label, href in links %}<a href="{{ href }}">{{ label }}</a>{{ ", " if not loop.last else "" }}{% endfor %}</p>
{% if verdicts %}
<ul>
{% for claim, verdict in verdicts %}
<li><a href="scoreboard.html#{{ claim.id }}">{{ claim.id }} {{ claim.title }}</a> {% include "badge" %}</li>
{% endfor %}
</ul>
{% endif %}
</div>
{% if pictures %}
<div class="tc-figure-ours">{% for picture in pictures %}{{ picture|safe }}{% endfor %}</div>
{% endif %}
</div>
{% endfor %}
"""


def page(listed: Listed, cells: Cells, results: Results) -> str:
    """Return the page in MyST Markdown."""
    figures = list(listed.figures())
    parts = [PROSE.format(all=len(figures), with_ours=sum(not figure.none for figure in figures))]
    for section in listed.paper:
        rows = []
        for figure in section.figures:
            pictures = [] if figure.none else [cells.shown(place) for place in figure.cell]
            links: dict[str, str] = {}
            for place in figure.cell:
                links.setdefault(cells.label(place), cells.link(place))
            if figure.page:
                links[figure.page.replace("_", " ")] = f"{figure.page}.html"
            verdicts = [(ledger.claim_of(id), results.verdict(id)) for id in figure.claims]
            rows.append((figure, pictures, links.items(), verdicts))
        parts += [f"\n## {section.section}\n\n", filled(FIGURES, rows=rows, paper=PAPER)]
    return "".join(parts)
