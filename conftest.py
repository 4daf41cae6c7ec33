"""Let the build run the notebooks, two at a time, and nbval compare what they printed.

nbval collects the cells and compares outputs as it always does. Only what it runs is replaced: the outputs come from the build's executed
notebooks, so that `make book` after the tests, or before them, runs no notebook again.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import uuid
from pathlib import Path

# Before torch is imported, here and in the programs that tests start: threads that wait for one another on a busy machine take many times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import filelock
import nbformat
import pytest
from nbval.plugin import IPyNbCell, IPyNbFile

from transformer_circuits import build
from transformer_circuits.paths import ROOT

BUILD = ROOT / "_build"


@functools.cache
def results(session: pytest.Session) -> build.Store:
    """Return the build's results after every notebook that this session tests has run: once, in the first of pytest-xdist's workers that asks."""
    chosen = sorted({str(item.path) for item in session.items if isinstance(item, IPyNbCell)})
    this = getattr(session.config, "workerinput", {}).get("testrunuid", uuid.uuid4().hex)
    done = BUILD / "tested"
    done.parent.mkdir(exist_ok=True)
    with filelock.FileLock(BUILD / ".tests.lock"):
        if not (done.is_file() and done.read_text() == this):
            with session.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
                print()
                subprocess.run([sys.executable, "-m", "transformer_circuits.build", "--run", *chosen], cwd=ROOT)
            done.write_text(this)
    return build.Store(ROOT)


def setup(file: IPyNbFile) -> None:
    """Find the notebook as the build ran it, or as far as it got."""
    notebook = build.executed(results(file.session), file.path)
    failed = ROOT / build.FAILED / file.path.name
    if notebook is None and failed.is_file():
        notebook = nbformat.read(failed, as_version=4)
    if notebook is None:
        pytest.fail(f"{file.path.name} has not run: see what the build printed above", pytrace=False)
    file.ran = build.code_cells(notebook)


def runtest(item: IPyNbCell) -> None:
    """Fail if the cell raised an error, did not run, or printed something else than the notebook stores."""
    ran = item.parent.ran[item.cell_num]
    for output in ran.outputs:
        if output.output_type == "error":
            item.raise_cell_error("Cell execution caused an exception", "\n".join(output.traceback))
    if ran.execution_count is None:
        pytest.fail("did not run, because a cell before it failed", pytrace=False)
    if item.options["check"] and not item.compare_outputs(ran.outputs, item.cell.outputs):
        item.raise_cell_error("Cell outputs differ (`make outputs` stores them)", "\n".join(item.comparison_traceback))


IPyNbFile.setup, IPyNbCell.runtest = setup, runtest


def pytest_configure() -> None:
    try:
        build.check_place(Path(__file__).parent)
    except build.BuildError as error:
        pytest.exit(str(error), returncode=1)
