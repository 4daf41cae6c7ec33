"""Notebooks run once: what nbval has run, the book's build finds in its cache (transformer_circuits.build), claims included."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import nbformat
import pytest
from nbval.plugin import IPyNbCell

from transformer_circuits import build
from transformer_circuits.paths import ROOT

BOOK = build.Book(ROOT)
before: dict[str, str | None] = {}  # the environment as it was, while a notebook's own stands in it
passed: dict[Path, dict[int, IPyNbCell]] = {}  # the cells of each notebook that passed, by number
started: dict[Path, float] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before nbval starts a notebook's kernel: the environment of a build, and an empty folder for its claims."""
    if not isinstance(item, IPyNbCell) or item.path in passed or item.path not in BOOK.notebooks():
        return
    build.forget_if_changed(BOOK)
    shutil.rmtree(BOOK.recorded(item.path), ignore_errors=True)
    BOOK.recorded(item.path).mkdir(parents=True)
    variables = build.environment(BOOK, item.path, workers=1)
    before.update({name: os.environ.get(name) for name in variables})
    os.environ.update(variables)
    passed[item.path], started[item.path] = {}, time.monotonic()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    report = (yield).get_result()
    if item.path in passed and isinstance(item, IPyNbCell) and report.when == "call" and report.passed:
        passed[item.path][item.cell_num] = item


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After a notebook's last cell: the outputs go to the build's cache if every cell has passed."""
    if item.path not in passed or (nextitem is not None and nextitem.path == item.path):
        return
    for name, value in before.items():
        os.environ.pop(name, None) if value is None else os.environ.update({name: value})
    before.clear()
    notebook = nbformat.read(item.path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if len(passed[item.path]) < len(code):
        shutil.rmtree(BOOK.recorded(item.path), ignore_errors=True)
        return
    for number, cell in enumerate(code):
        cell.outputs, cell.execution_count = passed[item.path][number].test_outputs, number + 1
    nbformat.validate(notebook)
    build.store(BOOK, item.path, notebook, time.monotonic() - started[item.path])
