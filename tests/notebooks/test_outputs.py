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
def results(request) -> build.Store:
    """The build's results, when it has run the chapters that are tested."""
    parameters = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    chosen = sorted({found["chapter"] for found in parameters if "chapter" in found})
    subprocess.run([sys.executable, "-m", "book_build", "--run", *chosen], cwd=ROOT)
    return build.Store(ROOT)


@pytest.mark.parametrize("chapter", build.notebooks(ROOT), ids=lambda path: path.stem)
def test_a_chapter_prints_what_it_stores(chapter, results, request):
    if (notebook := build.executed(results, chapter)) is None:
        failure = trouble(ROOT / build.FAILED / chapter.name)
        pytest.fail(f"{chapter.name} did not run to its end.\n{failure}", pytrace=False)
    assert differences(request, chapter, notebook) == [], "`make outputs` stores what chapters print"


def trouble(failed: Path) -> str:
    """Return the traceback in a notebook with a failed cell."""
    cells = build.code_cells(nbformat.read(failed, as_version=4)) if failed.is_file() else []
    errors = [output for cell in cells for output in cell.outputs if output.output_type == "error"]
    return "\n".join(line for error in errors for line in error.traceback)


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


def test_nbval_alone_runs_a_notebook_and_compares_it(tmp_path):
    write(tmp_path / "a.ipynb", "1.26")
    options = ["--nbval", "-p", "no:xdist", "--rootdir", ROOT, "--config-file", ROOT / "pyproject.toml"]
    command = [sys.executable, "-m", "pytest", *options, tmp_path / "a.ipynb"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
