"""The conventions that every notebook keeps. Each check returns the sentences that say what is wrong, none if nothing is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from nbformat import NotebookNode

CHECKED = "nbval-check-output"
MOST_CELLS = 45  # "about 40"
MOST_LINES = 15
MYST = re.compile(r"\{[a-z][a-z:_-]*\}`|^\s*(```+|:::+|~~~+)\s*\{|^:::|^\([\w-]+\)=\s*$", re.MULTILINE)
# What draws or shows a figure: matplotlib's show, or a Figure left as a cell's last value.
FIGURE = re.compile(r"\bplt\.show\(")


def figure_labels(notebook: NotebookNode) -> list[str]:
    """Names by which pages refer to this notebook's figures; across the book each may be given once."""
    figures = (cell.metadata.get("mystnb", {}).get("figure", {}) for cell in notebook.cells)
    return [figure["name"] for figure in figures if "name" in figure]


def tags(cell: NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])


def code_cells(notebook: NotebookNode) -> list[tuple[int, NotebookNode]]:
    return [(i, cell) for i, cell in enumerate(notebook.cells) if cell.cell_type == "code"]


def outputs(notebook: NotebookNode) -> Iterator[str]:
    """Only small text in cells that nbval compares is kept in git."""
    for i, cell in code_cells(notebook):
        if CHECKED not in tags(cell):
            if cell.outputs or cell.execution_count is not None:
                yield f"cell {i} has outputs or an execution count: clear them, or tag it {CHECKED} if nbval is to compare them"
            continue
        if not cell.outputs or cell.execution_count is None:
            yield f"cell {i} is tagged {CHECKED} but has nothing to compare: nbval needs its outputs and its execution count"
        for output in cell.outputs:
            kinds = set(output.get("data", {"text/plain": ""}))
            if output.output_type == "error" or kinds - {"text/plain"}:
                yield f"cell {i} keeps an output that is not plain text: {sorted(kinds)}"


def metadata(notebook: NotebookNode) -> Iterator[str]:
    if "widgets" in notebook.metadata:
        yield "the notebook keeps widget state, which breaks it on GitHub: clear it"
    if notebook.metadata.get("kernelspec", {}).get("name") != "python3":
        yield "the notebook's kernel is not python3"
    if notebook.metadata.get("language_info", {}).get("pygments_lexer") != "ipython3":
        yield "metadata.language_info.pygments_lexer is not ipython3, without which the book cannot colour lines like !pip"
    ids = [cell.get("id") for cell in notebook.cells]
    if None in ids or len(set(ids)) < len(ids):
        yield "cells lack ids, or share one: diffs need them to be stable"


def markdown(notebook: NotebookNode) -> Iterator[str]:
    """Colab and GitHub show MyST as raw text, so that notebooks do without."""
    for i, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown" and (found := MYST.search(cell.source)):
            yield f"cell {i} holds MyST, which Colab shows raw: {found[0].strip()!r}"


def headings(notebook: NotebookNode) -> Iterator[str]:
    if not notebook.cells or notebook.cells[0].cell_type != "markdown" or not notebook.cells[0].source.startswith("# "):
        yield "the first cell is not markdown that begins with the title (# ...)"
    text = [re.sub(r"^```.*?^```", "", c.source, flags=re.S | re.M) for c in notebook.cells if c.cell_type == "markdown"]
    if (n := sum(len(re.findall(r"^# ", t, re.MULTILINE)) for t in text)) != 1:
        yield f"the notebook has {n} titles (# ...) instead of one"


def figures(notebook: NotebookNode) -> Iterator[str]:
    """Every figure has a caption, which numbers it, a name to point to, and a text for those who cannot see it."""
    for i, cell in code_cells(notebook):
        mystnb = cell.metadata.get("mystnb", {})
        if FIGURE.search(cell.source) or "figure" in mystnb or "image" in mystnb:
            for kind, key in (("figure", "caption"), ("figure", "name"), ("image", "alt")):
                if not str(mystnb.get(kind, {}).get(key, "")).strip():
                    yield f"cell {i} draws a figure but its metadata has no mystnb.{kind}.{key}"
            alt = str(mystnb.get("image", {}).get("alt", ""))
            if alt and len(alt.split()) < 4:
                yield f"cell {i}: the alt text {alt!r} is a label; say in a sentence what the figure shows"


def length(notebook: NotebookNode) -> Iterator[str]:
    if len(notebook.cells) > MOST_CELLS:
        yield f"the notebook has {len(notebook.cells)} cells, more than {MOST_CELLS}"
    for i, cell in code_cells(notebook):
        lines = [line for line in cell.source.splitlines() if line.strip() and not line.lstrip().startswith("#")]
        if len(lines) > MOST_LINES and "hide-input" not in tags(cell):
            yield f"cell {i} has {len(lines)} lines of code, more than {MOST_LINES}: move plotting to the package, or split it"


def skips(notebook: NotebookNode) -> Iterator[str]:
    """No cell hides a failure from nbval or from the build."""
    for i, cell in code_cells(notebook):
        if found := {"nbval-skip", "nbval-ignore-output", "skip-execution", "raises-exception"} & set(tags(cell)):
            yield f"cell {i} is tagged {', '.join(sorted(found))}: every cell is run and none may fail"
        if re.search(r"NBVAL_(SKIP|IGNORE|RAISES)|sys\.path", cell.source):
            yield f"cell {i} holds an NBVAL marker or touches sys.path: neither belongs in a chapter"


CHECKS = (outputs, metadata, markdown, headings, figures, length, skips)


def problems(notebook: NotebookNode) -> list[str]:
    return [f"{check.__name__}: {problem}" for check in CHECKS for problem in check(notebook)]


def notebooks(root: Path) -> list[Path]:
    return sorted((root / "notebooks").glob("*.ipynb"))
