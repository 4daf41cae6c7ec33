"""Each chapter runs to its end, and prints what it stores, by nbval's own comparison: of what the build got, which runs only what has changed.

`pytest --nbval notebooks/05_copying.ipynb` runs a chapter anew instead.
"""

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbval.plugin import IPyNbFile
from strip_outputs import CHECKED

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


def test_an_output_that_differs_is_found(request):
    chapter = build.notebooks(ROOT)[0]
    ran = nbformat.read(chapter, as_version=4)
    assert differences(request, chapter, ran) == []
    compared = next(cell for cell in build.code_cells(ran) if CHECKED in cell.metadata.get("tags", []))
    compared.outputs = [nbformat.v4.new_output("stream", text="another number\n")]
    assert differences(request, chapter, ran)
