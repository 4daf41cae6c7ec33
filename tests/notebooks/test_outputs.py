"""Each chapter runs to its end, and prints what it stores, by nbval's own comparison: of what the build got, which runs only what has changed.

`pytest --nbval notebooks/05_copying.ipynb` runs a chapter anew instead.
"""

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbval.plugin import IPyNbFile

from book_build import build
from transformer_circuits.paths import ROOT


@pytest.fixture(scope="module")
def ran(request) -> tuple[build.Store, str]:
    """Run the chapters that are tested, as far as they have not run; return the results, and what the build says."""
    parameters = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    chosen = sorted({found["chapter"] for found in parameters if "chapter" in found})
    command = [sys.executable, "-m", "book_build", "--run", *chosen]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return build.Store(ROOT), done.stdout


@pytest.mark.parametrize("chapter", build.notebooks(ROOT), ids=lambda path: path.stem)
def test_a_chapter_prints_what_it_stores(chapter, ran, request):
    if (notebook := build.executed(ran[0], chapter)) is None:
        pytest.fail(f"{chapter.name} did not run to its end.\n{ran[1]}", pytrace=False)
    assert differences(request, chapter, notebook) == [], "`make outputs` stores what chapters print"


def differences(request, stored: Path, notebook: nbformat.NotebookNode) -> list[str]:
    """Return how a notebook's outputs differ from the stored ones, in the cells that `pytest --nbval` compares."""
    found = []
    for cell, ran in zip(IPyNbFile.from_parent(request.session, path=stored).collect(), build.code_cells(notebook)):
        compared = cell.options["check"] and cell.cell.execution_count is not None  # as nbval decides
        if compared and not cell.compare_outputs(ran.outputs, cell.cell.outputs):
            found += [f"{cell.name}:", *cell.comparison_traceback]
    return found


def write(path: Path, stored: str) -> nbformat.NotebookNode:
    """Write a notebook that prints 1.25 and stores this instead, and return it."""
    cells = [nbformat.v4.new_code_cell("x = 1.25"), nbformat.v4.new_code_cell("print(x)", execution_count=2)]
    cells[1].outputs = [nbformat.v4.new_output("stream", text=f"{stored}\n")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, path)
    return notebook


@pytest.mark.parametrize("stored", ["1.25", "1.26"])
def test_an_output_that_differs_is_found(tmp_path, request, stored):
    printed = write(tmp_path / "printed.ipynb", "1.25")
    write(tmp_path / "stored.ipynb", stored)
    assert bool(differences(request, tmp_path / "stored.ipynb", printed)) == (stored != "1.25")
