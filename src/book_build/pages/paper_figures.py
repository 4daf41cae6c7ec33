"""The page of the paper's figures, each with ours: from book/figures.yml, the executed notebooks, and the records."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from book_build.pages import render, scoreboard
from transformer_circuits.figures.style import themed
from transformer_circuits.paths import chapter_number

Figure = dict[str, Any]  # an entry of figures.yml, which explains the keys


def figures(listed: Mapping[str, Any]) -> list[Figure]:
    return [figure for section in listed["paper"] for figure in section["figures"]]


def places(listed: Mapping[str, Any]) -> dict[str, str]:
    """Return for each claim the address of the cell that shows it, the first one if there are several."""
    ours = [figure for figure in figures(listed) if "cell" in figure and "none" not in figure]
    cells = {id: figure["cell"][0] for figure in reversed(ours) for id in figure["claims"]} | listed["also"]
    return {id: link(cell) for id, cell in cells.items()}


def link(place: str) -> str:
    """Return the address of a cell, named as notebook/cell. book/_ext/pages.py sets the anchor."""
    notebook, cell = place.split("/")
    return scoreboard.link(notebook, f"cell-{cell}")


class Cells:
    """What the cells of the executed notebooks show. `titles`: those of the pages, by file without suffix."""

    def __init__(self, notebooks: Mapping[Path, NotebookNode], titles: Mapping[str, str]) -> None:
        self.titles = titles
        self.once: set[str] = set()  # places whose picture the page has shown
        self.found = {f"{path.stem}/{cell.id}": cell for path, notebook in notebooks.items() for cell in notebook.cells}

    def links(self, figure: Figure) -> dict[str, str]:
        """Return where the figure's cells are, by the chapter as the sidebar shows it, and its page if it has one."""
        found: dict[str, str] = {}
        for place in figure.get("cell", ()):
            notebook = place.split("/")[0]
            found.setdefault(f"{chapter_number(notebook)} {self.titles[f'notebooks/{notebook}']}".strip(), link(place))
        if own := figure.get("page"):
            found[own.replace("_", " ")] = f"{own}.html"
        return found

    def shown(self, place: str) -> str:
        """Return HTML of the cell's picture, its table, or a link to its widget, once: a link the next time. Raises
        ValueError if it has none."""
        if place in self.once:
            return f'<p><a href="{link(place)}">The picture that is shown above</a></p>'
        self.once.add(place)
        cell = self.found[place]
        for formats in (output.get("data", {}) for output in cell.outputs):
            table = formats.get("text/html", "")
            if "image/svg+xml" in formats:
                picture = themed(formats["image/svg+xml"], cell.metadata.mystnb.image.alt, place.replace("/", "-"))
                return f'<a href="{link(place)}">{picture}</a>'
            if "tc-attend" in table:
                return f'<p><a href="{link(place)}">An interactive figure</a></p>'
            if "<table" in table:
                return f'<div class="tc-figure-table">{table}</div>'
        raise ValueError(f"figures.yml names the cell {place}, which shows no picture and no table")


def page(listed: Mapping[str, Any], cells: Cells, results: scoreboard.Results) -> str:
    with_ours = sum("none" not in figure for figure in figures(listed))
    facts = {"n": len(figures(listed)), "with_ours": with_ours, "cells": cells, "results": results}
    return render("figures.md", sections=listed["paper"], **facts)
