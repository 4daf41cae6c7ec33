"""The page of the paper's figures, each with ours beside it: from book/figures.yml, the executed notebooks and the records.

Pictures are the cells' own, with their alternative texts, made small for this page; of a table the first rows are shown, of an interactive
figure its numbers as heat maps.
"""

from __future__ import annotations

import base64
import html
import io
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

import jinja2
import yaml
from bs4 import BeautifulSoup
from matplotlib.figure import Figure as Canvas
from nbformat import NotebookNode
from PIL import Image
from pydantic import ValidationError

from transformer_circuits.claims import ledger, show
from transformer_circuits.claims.ledger import Strict
from transformer_circuits.pages import raw
from transformer_circuits.pages.scoreboard import Results

ROWS = 3  # of a table
WIDTH = 640  # pixels of a picture that is no SVG


class FiguresError(ValueError):
    """The list of figures does not fit the notebooks; the message says what to mend."""


class Figure(Strict):
    """A figure or table of the paper and what stands for it here; the fields are explained in figures.yml."""

    title: str
    kind: str
    ours: str = ""
    none: str = ""
    cell: list[str] = []
    page: str = ""
    claims: list[str] = []


class Section(Strict):
    section: str
    figures: list[Figure]


class Listed(Strict):
    """The list of figures. Raises FiguresError, on loading, where it is not as it should be."""

    paper: list[Section]
    also: dict[str, str] = {}

    def figures(self) -> Iterator[Figure]:
        for section in self.paper:
            yield from section.figures


def load(path: Path) -> Listed:
    try:
        listed = Listed.model_validate(yaml.safe_load(path.read_text(encoding="utf8")))
    except ValidationError as error:
        first = error.errors()[0]
        raise FiguresError(f"{path.name}, {'.'.join(map(str, first['loc']))}: {first['msg']}.") from error
    named = {id for figure in listed.figures() for id in figure.claims} | listed.also.keys()
    if unknown := sorted(named - ledger.load_claims().keys()):
        raise FiguresError(f"{path.name} names claims that claims.yml does not have: {', '.join(unknown)}.")
    for figure in listed.figures():
        if not (figure.cell or figure.page) or bool(figure.ours) == bool(figure.none):
            raise FiguresError(f'{path.name}: "{figure.title}" needs a cell or a page, and either `ours` or `none`.')
    return listed


class Cells:
    """The code cells of the executed notebooks, found by notebook/cell. `titles`: those of the chapters, by notebook."""

    def __init__(self, notebooks: Mapping[str, NotebookNode], titles: Mapping[str, str]) -> None:
        self.titles = titles
        self.found = {f"{name}/{cell.id}": cell for name, notebook in notebooks.items() for cell in notebook.cells if cell.cell_type == "code"}

    def __getitem__(self, place: str) -> NotebookNode:
        if place not in self.found:
            raise FiguresError(f"figures.yml names the cell {place}, and there is none of this name in notebooks/: mend the name or the list.")
        return self.found[place]

    def outputs(self, place: str, kind: str) -> list[str]:
        """What a cell shows in a format, such as text/html."""
        return [output.data[kind] for output in self[place].get("outputs", []) if kind in output.get("data", {})]

    def link(self, place: str) -> str:
        """Where the cell is, seen from a page in book/. The anchor is set by book/_ext/pages.py."""
        notebook, cell = place.split("/")
        self[place]
        return f"../notebooks/{quote(notebook)}.html#cell-{cell}"

    def label(self, place: str) -> str:
        """The chapter, as the sidebar has it."""
        notebook = place.split("/")[0]
        return f"{notebook.split('_')[0].lstrip('0').upper()} {self.titles[notebook]}".strip()

    def what(self, place: str) -> str:
        """What the cell shows, in a word."""
        pictures = [kind for kind in ("image/svg+xml", "image/png") if self.outputs(place, kind)]
        return "figure" if pictures or "circuits-widget" in "".join(self.outputs(place, "text/html")) else "numbers"


def places(listed: Listed) -> dict[str, str]:
    """For each claim the cell that shows it."""
    first: dict[str, str] = {}
    for figure in listed.figures():
        for id in figure.claims if not figure.none else ():
            first.update({id: figure.cell[0]} if figure.cell and id not in first else {})
    return first | listed.also


# ---- pictures made small ---------------------------------------------------------------------------------------------------


def light(svg: str) -> str:
    """A drawing with its coordinates cut to a tenth of a point, which no eye tells at this size, each style once, nothing for editors."""
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    styles = {style: f"s{i}" for i, style in enumerate(dict.fromkeys(re.findall(r' style="([^"]*)"', svg)))}
    svg = re.sub(r' style="([^"]*)"', lambda found: f' class="{styles[found[1]]}"', svg)
    rules = "".join(f".{name}{{{style}}}" for style, name in styles.items())
    svg = re.sub(r"(<svg[^>]*>)", lambda found: f"{found[1]}<style>{rules}</style>", svg, count=1)

    def cut(attribute: re.Match) -> str:
        return re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.1f}".replace(".0", ""), attribute[0])

    return re.sub(r"\s+(?=[<\n])", "", re.sub(r'\s(?:d|x|y)="[^"]*"', cut, svg))


def small_png(picture: bytes) -> bytes:
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    image.thumbnail((WIDTH, WIDTH))
    written = io.BytesIO()
    image.quantize(32).save(written, "png", optimize=True)
    return written.getvalue()


def heat_maps(widget: str) -> bytes | None:
    """The heads of an interactive figure side by side, from the numbers that the page carries; None if it is no figure of heads."""
    script = BeautifulSoup(widget, "html.parser").select_one('script[type="application/json"]')
    patterns = json.loads(script.string).get("attention") if script else None
    if not patterns:
        return None
    columns = min(4, len(patterns))
    rows = -(-len(patterns) // columns)
    canvas = Canvas(figsize=(columns, rows), dpi=120)
    for axes, pattern in zip(canvas.subplots(rows, columns, squeeze=False).flat, patterns):
        axes.imshow([[abs(x or 0) ** 0.5 for x in row] for row in pattern], cmap="Blues", vmin=0)  # the root: faint entries are to be seen
    for axes in canvas.axes:
        axes.set(xticks=[], yticks=[])
    canvas.subplots_adjust(0.01, 0.01, 0.99, 0.99, 0.05, 0.05)
    written = io.BytesIO()
    canvas.savefig(written)
    return small_png(written.getvalue())


def excerpt(table: str) -> str | None:
    """The first rows of the first table in a cell's HTML, with a line on how many there are; None if there is no table."""
    found = BeautifulSoup(table, "html.parser").find("table")
    if not found:
        return None
    body = found.select("tbody tr") or found.select("tr")[1:]
    for row in body[ROWS:]:
        row.decompose()
    for tag in found.select("[id]"):
        del tag["id"]
    more = f"<p>The first {ROWS} of {len(body)} rows.</p>" if len(body) > ROWS else ""
    return f'<div class="token-table tex2jax_ignore mathjax_ignore">{found}</div>{more}'


def shown(cells: Cells, place: str, folder: Path) -> str:
    """HTML of what a cell shows, small; pictures are written to `folder`. FiguresError if it shows nothing to look at."""
    cell = cells[place]
    name, extra = place.replace("/", "-"), cell.metadata.get("mystnb", {})
    alt = extra.get("image", {}).get("alt", "")
    written: tuple[str, bytes] | None = None
    if drawings := cells.outputs(place, "image/svg+xml"):
        written = f"{name}.svg", light(drawings[0]).encode()
    elif pictures := cells.outputs(place, "image/png"):
        written = f"{name}.png", small_png(base64.b64decode(pictures[0]))
    for output in cells.outputs(place, "text/html"):
        if (made := heat_maps(output)) is not None:
            label = BeautifulSoup(output, "html.parser").select_one(".circuits-widget")["aria-label"]
            written, alt = (f"{name}.png", made), f"{label}; small heat maps, one a head."
        elif part := excerpt(output):
            return part
    if written is None:
        raise FiguresError(f"figures.yml names the cell {place}, which shows no picture and no table: mend the cell or the list.")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / written[0]).write_bytes(written[1])
    return (
        f'<a href="{cells.link(place)}"><img src="../_static/{folder.name}/{quote(written[0])}" '
        f'alt="{html.escape(alt or "our figure")}"></a>'
    )


# ---- the page --------------------------------------------------------------------------------------------------------------

PROSE = """\
# The paper's figures

Every figure and table of *A Mathematical Framework for Transformer Circuits* {{cite:p}}`elhage2021`, in its order, in our words, with ours
beside it. The paper shows {all} of them; {with_ours} have one of ours. A picture leads to its chapter, a verdict to the
[scoreboard](scoreboard.md), which has the numbers and how each claim is judged.

"""

TEMPLATES = show.TEMPLATES.overlay(
    loader=jinja2.ChoiceLoader(
        [
            jinja2.DictLoader(
                {
                    "figures": """\
{% for figure, pictures, links, verdicts in rows %}
<div class="tc-figure{{ "" if pictures else " tc-no-figure" }}">
<div class="tc-figure-words">
<p><strong>{{ figure.title }}</strong> <span class="tc-kind">({{ figure.kind }})</span></p>
<p>{{ "Ours: " if figure.ours else "No picture of ours. " }}{{ figure.ours or figure.none }}
{% for href, label in links %}<a href="{{ href }}">{{ label }}</a>{{ ", " if not loop.last else "" }}{% endfor %}</p>
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
""",
                    "others": """\
<details class="tc-folded"><summary>{{ count }} figures of ours that the paper has no counterpart of</summary>
{% for chapter, figures in chapters %}
<p><strong>{{ chapter }}</strong></p>
<ul>{% for href, caption in figures %}<li><a href="{{ href }}">{{ caption }}</a></li>{% endfor %}</ul>
{% endfor %}
</details>
""",
                }
            ),
            show.TEMPLATES.loader,
        ]
    )
)


def others(listed: Listed, cells: Cells) -> dict[str, list[tuple[str, str]]]:
    """Figures of ours that the list does not name: by chapter, where they are and the first sentence of their captions."""
    named = {place for figure in listed.figures() for place in figure.cell}
    found: dict[str, list[tuple[str, str]]] = {}
    for place, cell in cells.found.items():
        if place not in named and (caption := cell.metadata.get("mystnb", {}).get("figure", {}).get("caption")):
            first = re.split(r"(?<=[.:;])\s", re.sub(r"[*`$]", "", caption))[0].rstrip(".:;")
            found.setdefault(cells.label(place), []).append((cells.link(place), first))
    return found


def page(listed: Listed, cells: Cells, results: Results, folder: Path) -> str:
    """The page in MyST Markdown; writes the small pictures to `folder`."""
    figures = list(listed.figures())
    parts = [PROSE.format(all=len(figures), with_ours=sum(not figure.none for figure in figures))]
    for section in listed.paper:
        rows = []
        for figure in section.figures:
            pictures = [] if figure.none else [shown(cells, place, folder) for place in figure.cell]
            links = [(cells.link(place), cells.label(place)) for place in figure.cell]
            if figure.page:
                links.append((f"{figure.page}.html", "on its own page"))
            links = [link for i, link in enumerate(links) if link[1] not in {label for _, label in links[:i]}]
            rows.append((figure, pictures, links, [(ledger.claim_of(id), results.verdict(id)) for id in figure.claims]))
        parts += [f"\n## {section.section}\n\n", raw(show.html(TEMPLATES.get_template("figures"), rows=rows))]
    own = others(listed, cells)
    count = sum(map(len, own.values()))
    folded = show.html(TEMPLATES.get_template("others"), count=count, chapters=list(own.items()))
    parts += ["\n## Beyond the paper\n\n", raw(folded)]
    return "".join(parts)
