"""Notebooks run once: the build runs them, two at a time, and nbval compares what it finds in the build's cache.

nbval's own code collects the cells, runs them one by one and compares outputs; only its kernel is replaced, by one that plays back what
the same cell gave in the build (transformer_circuits.build). `make book` after the tests, or before them, runs no notebook again.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from queue import Empty

import nbformat
import pytest
from nbval.plugin import IPyNbFile

from transformer_circuits import build
from transformer_circuits.paths import ROOT

BOOK = build.Book(ROOT)


class Playback:
    """What nbval asks of a kernel, answered from an executed notebook. Cells must come in order and be those that were run."""

    def __init__(self, notebook: nbformat.NotebookNode) -> None:
        self.cells, self.messages, self.number = iter(build.code_cells(notebook)), iter(()), 0

    def execute_cell_input(self, source: str, allow_stdin: bool) -> int:
        cell = next(self.cells)
        assert cell.source == source
        if not cell.outputs and cell.execution_count is None:
            pytest.fail("did not run, because a cell before it failed", pytrace=False)
        self.number += 1
        self.messages = self.answers(cell.outputs, self.number)
        return self.number

    @staticmethod
    def answers(outputs: list[nbformat.NotebookNode], number: int) -> Iterator[dict]:
        for kind, content in [*((o.output_type, o) for o in outputs), ("status", {"execution_state": "idle"})]:
            yield {"msg_type": kind, "content": content, "parent_header": {"msg_id": number}}

    def get_message(self, stream: str, timeout: float | None = None) -> dict:
        try:
            return next(self.messages)
        except StopIteration:
            raise Empty from None

    def await_reply(self, *_: object, **__: object) -> None: ...

    await_idle = await_reply

    def is_alive(self) -> bool:
        return True

    def stop(self) -> None: ...


def executed(path: Path) -> nbformat.NotebookNode:
    """A notebook of the book as the build ran it, or as far as it got."""
    found = build.Cache(BOOK).get(path)
    if found is None and (BOOK.failed / path.name).is_file():
        found = nbformat.read(BOOK.failed / path.name, as_version=4)
    if found is None:
        pytest.fail(f"{path.name} has not run: see what the build printed above", pytrace=False)
    return found


starts_a_kernel = IPyNbFile.setup


def setup(self: IPyNbFile) -> None:
    """In place of nbval's: before the first notebook the build runs all that are to be tested; other files get a kernel of their own."""
    if self.path not in BOOK.notebooks():
        return starts_a_kernel(self)
    session = self.session
    if not hasattr(session, "notebooks_have_run"):
        session.notebooks_have_run = True
        chosen = {str(item.path) for item in session.items if isinstance(item.parent, IPyNbFile)} & set(map(str, BOOK.notebooks()))
        with self.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            print()
            subprocess.run([sys.executable, "-m", "transformer_circuits.build", "--run", *sorted(chosen)], cwd=ROOT)
    self.kernel = Playback(executed(self.path))
    self.setup_sanitize_files()


IPyNbFile.setup = setup


def pytest_configure() -> None:
    try:
        build.check_place(Path(__file__).parent)
    except build.BuildError as error:
        pytest.exit(str(error), returncode=1)
