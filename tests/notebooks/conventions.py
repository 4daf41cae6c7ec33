"""The conventions that every notebook keeps. Each check returns the sentences that say what is wrong, none if nothing is."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from nbformat import NotebookNode

from transformer_circuits.build import CHECKED
from transformer_circuits.exercises import EXERCISES

MOST_CELLS, MOST_LINES = 30, 18  # cells; lines of code in any cell
MOST_FOLDED = 2  # folded cells before the first section: the set-up, and one more
SKIPS = {"nbval-skip", "nbval-ignore-output", "skip-execution", "raises-exception"}
HEADLINE = "headline"  # the cells that the book also shows on top of the page
MYST = re.compile(r"\{[a-z][a-z:_-]*\}`|^\s*(```+|:::+|~~~+)\s*\{|^:::|^\([\w-]+\)=\s*$", re.MULTILINE)
FIGURE = re.compile(r"\bplt\.show\(")


def tags(cell: NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])


def code_cells(notebook: NotebookNode) -> list[tuple[int, NotebookNode]]:
    return [(i, cell) for i, cell in enumerate(notebook.cells) if cell.cell_type == "code"]


def outputs(notebook: NotebookNode) -> Iterator[str]:
    """Only small text in cells that nbval compares is kept in git, and every chapter has some."""
    for i, cell in code_cells(notebook):
        if CHECKED not in tags(cell):
            if cell.outputs or cell.execution_count is not None:
                yield f"cell {i} has outputs or an execution count: run `make outputs`, or clear them"
            continue
        if not cell.outputs or cell.execution_count is None:
            yield f"cell {i} is tagged {CHECKED} but has nothing to compare: run `make outputs`"
        for output in cell.outputs:
            if output.output_type != "stream":
                yield f"cell {i} keeps an output that was not printed: nbval compares plain text only"
    if not any(CHECKED in tags(cell) for _, cell in code_cells(notebook)):
        yield f"no cell is tagged {CHECKED}: a number could drift unseen"


def metadata(notebook: NotebookNode) -> Iterator[str]:
    if "widgets" in notebook.metadata:
        yield "the notebook keeps widget state, which breaks it on GitHub: clear it"
    if notebook.metadata.get("kernelspec", {}).get("name") != "python3":
        yield "the notebook's kernel is not python3"
    if notebook.metadata.get("language_info", {}).get("pygments_lexer") != "ipython3":
        yield "metadata.language_info.pygments_lexer is not ipython3, without which the book cannot color lines like !pip"
    ids = [cell.get("id") for cell in notebook.cells]
    if None in ids or len(set(ids)) < len(ids):
        yield "cells lack ids, or share one: diffs need them to be stable"


def markdown(notebook: NotebookNode) -> Iterator[str]:
    """Colab and GitHub show MyST as raw text, so that notebooks do without; one title, first."""
    titles = []
    for i, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown":
            if found := MYST.search(cell.source):
                yield f"cell {i} holds MyST, which Colab shows raw: {found[0].strip()!r}"
            text = re.sub(r"^```.*?^```", "", cell.source, flags=re.S | re.M)
            titles += [i] * len(re.findall(r"^# ", text, re.MULTILINE))
    if titles != [0] or not notebook.cells[0].source.startswith("# "):
        yield f"titles (# ...) in the cells {titles}: one must begin the first cell"


def figures(notebook: NotebookNode) -> Iterator[str]:
    """Every figure has a caption, which numbers it, a name to point to, and a text for those who cannot see it."""
    for i, cell in code_cells(notebook):
        if FIGURE.search(cell.source) or "mystnb" in cell.metadata:
            mystnb = cell.metadata.get("mystnb", {})
            for kind, key, words in (("figure", "caption", 1), ("figure", "name", 1), ("image", "alt", 4)):
                if len(str(mystnb.get(kind, {}).get(key, "")).split()) < words:
                    yield f"cell {i} draws a figure but has no mystnb.{kind}.{key} of at least {words} words"


def headline(notebook: NotebookNode) -> Iterator[str]:
    """One figure of a chapter is its headline; the cells tagged so are a figure and the sentence below it."""
    figures = [i for i, cell in code_cells(notebook) if HEADLINE in tags(cell) and "mystnb" in cell.metadata]
    if len(figures) > 1:
        yield f"cells {figures} are figures tagged {HEADLINE}: a page has one headline figure"


def folded(notebook: NotebookNode) -> Iterator[str]:
    """Few cells are folded before the first section, and each folded cell says in its first line what it holds."""
    sections, before = 0, []
    for i, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown":
            sections += len(re.findall(r"^## ", cell.source, re.MULTILINE))
        elif any(tag.startswith("hide") for tag in tags(cell)):
            before += [] if sections else [i]
            if not cell.source.startswith("# "):
                yield f"cell {i} is folded but its first line does not say what it holds, such as `# Plot`"
    if len(before) > MOST_FOLDED:
        yield f"cells {before} are folded before the first section: at most {MOST_FOLDED}, the set-up and one more"


def length(notebook: NotebookNode) -> Iterator[str]:
    if len(notebook.cells) > MOST_CELLS:
        yield f"the notebook has {len(notebook.cells)} cells, more than {MOST_CELLS}"
    for i, cell in code_cells(notebook):
        lines = len(re.findall(r"^ *[^\s#]", cell.source, re.MULTILINE))
        if lines > MOST_LINES:
            yield f"cell {i} has {lines} lines of code, more than {MOST_LINES}: split it, or leave something out"


def skips(notebook: NotebookNode) -> Iterator[str]:
    """No cell hides a failure from nbval or from the build."""
    for i, cell in code_cells(notebook):
        if found := SKIPS & set(tags(cell)):
            yield f"cell {i} is tagged {', '.join(sorted(found))}: every cell is run and none may fail"
        if re.search(r"NBVAL_(SKIP|IGNORE|RAISES)|sys\.path", cell.source):
            yield f"cell {i} holds an NBVAL marker or touches sys.path: neither belongs in a chapter"


def stubs(notebook: NotebookNode) -> list[tuple[int, ast.FunctionDef]]:
    """Return the cells that consist of one function that is not written yet, and that function."""
    found = []
    for i, cell in code_cells(notebook):
        if re.search(r"^    raise NotImplementedError$", cell.source, re.MULTILINE):
            found.append((i, ast.parse(cell.source).body[0]))
    return found


def workbook(notebook: NotebookNode) -> Iterator[str]:
    """A stub has the signature and the docstring of its solution; its check follows, and then its help."""
    for i, stub in stubs(notebook):
        solution = ast.parse(EXERCISES[stub.name].code).body[0]
        solution.body[1:] = ast.parse("raise NotImplementedError").body
        if ast.dump(stub) != ast.dump(solution):
            yield f"cell {i} must be the signature and the docstring of {stub.name}'s solution, and raise NotImplementedError"
        checked = notebook.cells[i + 1]
        if not checked.source.endswith(f" = check({stub.name})") or CHECKED not in tags(checked):
            yield f"cell {i + 1} must be `... = check({stub.name})`, with the tag {CHECKED}"
        helps = [cell for _, cell in code_cells(notebook) if f"helped({stub.name}" in cell.source]
        if len(helps) != 1 or "remove-input" not in tags(helps[0]):
            yield f"one cell must show helped({stub.name}), with the tag remove-input"


CHECKS = (outputs, metadata, markdown, figures, headline, folded, length, skips, workbook)


def problems(notebook: NotebookNode) -> list[str]:
    return [f"{check.__name__}: {problem}" for check in CHECKS for problem in check(notebook)]


def notebooks(root: Path) -> list[Path]:
    return sorted((root / "notebooks").glob("*.ipynb"))
