"""Each chapter keeps the conventions."""

import runpy

import nbformat
import pytest
from conventions import notebooks, problems, stubs

from transformer_circuits.build import Book, is_generated
from transformer_circuits.exercises import EXERCISES
from transformer_circuits.paths import ROOT

NOTEBOOKS = {path: nbformat.read(path, as_version=4) for path in notebooks(ROOT)}
STAMP = runpy.run_path(str(ROOT / ".ci" / "stamp.py"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_conventions(path):
    assert problems(NOTEBOOKS[path]) == []
    first = next(cell for cell in NOTEBOOKS[path].cells if cell.cell_type == "code")
    assert (first.source, first.metadata) == (STAMP["first_cell"](), STAMP["FOLDED"]), "run `make stamp`"


def test_every_figure_of_the_book_has_a_label_of_its_own():
    cells = [cell for notebook in NOTEBOOKS.values() for cell in notebook.cells]
    labels = [cell.metadata.get("mystnb", {}).get("figure", {}).get("name") for cell in cells]
    assert {name for name in labels if name and labels.count(name) > 1} == set()


def test_every_exercise_has_one_stub():
    assert [stub.name for notebook in NOTEBOOKS.values() for _, stub in stubs(notebook)] == list(EXERCISES)


def test_table_of_contents_lists_every_notebook():
    book = Book(ROOT)
    assert sorted(book.notebooks()) == list(NOTEBOOKS)
    assert [f for f in book.files() if not is_generated(f) and not list(ROOT.glob(f"{f}.*"))] == []
