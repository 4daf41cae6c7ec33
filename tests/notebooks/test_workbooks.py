"""In each workbook, with its stubs replaced by the solutions, every check says that they are right."""

import ast

import matplotlib.pyplot as plt
import nbformat
import pytest
import torch
from conventions import code_cells, notebooks, stubs

from transformer_circuits.exercises import EXERCISES
from transformer_circuits.paths import ROOT

WORKBOOKS = [path for path in notebooks(ROOT) if stubs(nbformat.read(path, as_version=4))]


@pytest.fixture(autouse=True)
def nothing_stays(monkeypatch):
    """The set-up of a notebook switches gradients off and changes the style of figures; neither may last."""
    monkeypatch.setattr(plt, "show", lambda: plt.close("all"))
    with torch.set_grad_enabled(torch.is_grad_enabled()), plt.rc_context():
        yield
    plt.close("all")


@pytest.mark.parametrize("path", WORKBOOKS, ids=lambda path: path.stem)
def test_a_workbook_with_its_solutions_is_right(path, capsys):
    notebook = nbformat.read(path, as_version=4)
    written = dict(stubs(notebook))
    names, (_, *cells) = {"__name__": "__main__"}, code_cells(notebook)  # without the cell for Colab
    for i, cell in cells:
        if cell.source.startswith(("# Plot", "# Code that prints")):
            continue  # the build runs them with the same functions
        source = EXERCISES[written[i].name].code if i in written else cell.source
        exec(compile(ast.parse(source), f"cell {i}", "exec"), names)
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "is right" in line] == lines and len(lines) == len(written)
