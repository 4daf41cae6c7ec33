"""The page of the paper's figures, each with ours: from book/figures.yml, the executed notebooks, and the records."""

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import yaml
from nbformat import NotebookNode

from book_build.pages import render
from book_build.pages.scoreboard import Results, number_of
from transformer_circuits.claims import ledger
from transformer_circuits.claims.ledger import Strict
from transformer_circuits.figures.style import themed


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
    paper: list[Section]
    also: dict[str, str] = {}

    @property
    def figures(self) -> list[Figure]:
        return [figure for section in self.paper for figure in section.figures]

    def places(self) -> dict[str, str]:
        """Return for each claim the cell that shows it, the first one if there are several."""
        ours = [figure for figure in self.figures if figure.cell and not figure.none]
        return {id: figure.cell[0] for figure in reversed(ours) for id in figure.claims} | self.also


def load(path: Path) -> Listed:
    """Read the list of figures. Raises pydantic's ValueError if an entry is incomplete."""
    return Listed.model_validate(yaml.safe_load(path.read_text(encoding="utf8")))


class Cells:
    """The code cells of the executed notebooks, by notebook/cell. `titles`: those of the chapters, by notebook."""

    def __init__(self, notebooks: Mapping[str, NotebookNode], titles: Mapping[str, str]) -> None:
        self.titles = titles
        self.once: set[str] = set()  # places whose picture the page has shown
        self.found = {f"{name}/{cell.id}": cell for name, notebook in notebooks.items() for cell in notebook.cells}

    def outputs(self, place: str, kind: str) -> list[str]:
        """Return what a cell shows in a format, such as text/html."""
        data = [output.get("data", {}) for output in self.found[place].get("outputs", [])]
        return [formats[kind] for formats in data if kind in formats]

    def link(self, place: str) -> str:
        """Return where the cell is, seen from a page in book/. book/_ext/pages.py sets the anchor."""
        notebook, cell = place.split("/")
        return f"../notebooks/{quote(notebook)}.html#cell-{cell}"

    def links(self, figure: Figure) -> dict[str, str]:
        """Return where the figure's cells are, by the chapter as the sidebar shows it, and its page if it has one."""
        found: dict[str, str] = {}
        for place in figure.cell:
            notebook = place.split("/")[0]
            found.setdefault(f"{number_of(notebook)} {self.titles[notebook]}".strip(), self.link(place))
        return found | ({figure.page.replace("_", " "): f"{figure.page}.html"} if figure.page else {})

    def what(self, place: str) -> str:
        """Return what the cell shows, in a word."""
        widget = "tc-attend" in "".join(self.outputs(place, "text/html"))
        return "figure" if widget or self.outputs(place, "image/svg+xml") else "numbers"

    def shown(self, place: str) -> str:
        """Return HTML of the cell's picture, its table, or a link to its widget, once: a link the next time. Raises
        ValueError if it has none."""
        if place in self.once:
            return f'<p><a href="{self.link(place)}">The picture that is shown above</a></p>'
        self.once.add(place)
        for drawn in self.outputs(place, "image/svg+xml"):
            alt = self.found[place].metadata.get("mystnb", {}).get("image", {}).get("alt") or "our figure"
            return f'<a href="{self.link(place)}">{themed(drawn, alt, place.replace("/", "-"))}</a>'
        for output in self.outputs(place, "text/html"):
            if "tc-attend" in output:
                return f'<p><a href="{self.link(place)}">An interactive figure</a></p>'
            if "<table" in output:
                return f'<div class="tc-figure-table">{output}</div>'
        raise ValueError(f"figures.yml names the cell {place}, which shows no picture and no table")


def page(listed: Listed, cells: Cells, results: Results) -> str:
    with_ours = sum(not figure.none for figure in listed.figures)
    facts = {"listed": listed, "with_ours": with_ours, "cells": cells, "results": results}
    return render("figures.md", claims=ledger.load_claims(), **facts)
