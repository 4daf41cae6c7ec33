"""Each chapter keeps the conventions."""

from __future__ import annotations

import importlib.util

import nbformat
import pytest
from conventions import claims, figure_labels, notebooks, problems, stubs

from transformer_circuits.build import Book, is_generated
from transformer_circuits.exercises import EXERCISES
from transformer_circuits.paths import ROOT


@pytest.fixture(scope="module")
def stamp():
    spec = importlib.util.spec_from_file_location("stamp", ROOT / ".ci" / "stamp.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", notebooks(ROOT), ids=lambda p: p.stem)
def test_conventions(path, stamp):
    notebook = nbformat.read(path, as_version=4)
    assert problems(notebook) + claims(path, notebook) == []
    first = next(cell for cell in notebook.cells if cell.cell_type == "code")
    assert (first.source, first.metadata) == (stamp.first_cell(), stamp.FOLDED), "run `make stamp`"


def test_every_figure_of_the_book_has_a_label_of_its_own():
    labels = [name for path in notebooks(ROOT) for name in figure_labels(nbformat.read(path, as_version=4))]
    assert {name for name in labels if labels.count(name) > 1} == set()


def test_every_exercise_has_one_stub():
    found = [stub.name for path in notebooks(ROOT) for _, stub in stubs(nbformat.read(path, as_version=4))]
    assert found == list(EXERCISES)


def test_table_of_contents_lists_every_notebook():
    book = Book(ROOT)
    assert sorted(book.notebooks()) == notebooks(ROOT)
    assert [f for f in book.files() if not is_generated(f) and not list(ROOT.glob(f"{f}.*"))] == []
