"""A workbook in a real JupyterLab: run untouched, look for the answer, follow its links, write the function."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
from playwright.sync_api import expect

from transformer_circuits.exercises import EXERCISES
from transformer_circuits.paths import ROOT

WORKBOOK, FIRST = "e1_stream_and_paths.ipynb", "residual_parts"


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """The address of a JupyterLab whose root is a folder like the repository, with a reader's copy of the workbook, as `make exercises` starts it."""
    root = tmp_path_factory.mktemp("lab")
    for folder in ("notebooks", "book"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("_static"))
    (root / "my").mkdir()
    shutil.copy(ROOT / "notebooks" / WORKBOOK, root / "my")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = [
        f"--ServerApp.root_dir={root}",
        f"--port={port}",
        "--ServerApp.port_retries=0",
        "--no-browser",
        "--allow-root",
        "--IdentityProvider.token=",
        "--expose-app-in-browser",
    ]
    places = {
        "JUPYTER_CONFIG_DIR": root / "config",
        "JUPYTERLAB_SETTINGS_DIR": root / "settings",
        "JUPYTERLAB_WORKSPACES_DIR": root / "workspaces",
    }
    variables = (
        os.environ | {name: str(place) for name, place in places.items()} | {"TRANSFORMER_CIRCUITS_ROOT": str(ROOT)}
    )
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", *options],
        env=variables,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{port}/lab"
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen(address, timeout=5)
                break
            except OSError:
                assert server.poll() is None, "JupyterLab ended while it started"
                time.sleep(0.5)
        yield address
    finally:
        server.terminate()
        server.wait(timeout=60)


@pytest.fixture(scope="module")
def workbook(lab, browser):
    """The reader's copy, in which all cells have been run untouched."""
    with browser.new_context(viewport={"width": 1300, "height": 900}) as context:
        context.set_default_timeout(300_000)
        page = context.new_page()
        page.goto(f"{lab}/tree/my/{WORKBOOK}")
        page.locator(".jp-Notebook .jp-Cell").first.wait_for()
        run_all(page)
        yield page


def run_all(page):
    page.evaluate("jupyterapp.commands.execute('notebook:run-all-cells')")
    page.locator('.jp-Notebook-ExecutionIndicator[data-status="idle"]').first.wait_for()


def scrolled_to(page, locator):
    """Scroll down until the notebook, which draws only what is near the window, has this element."""
    page.locator(".jp-Notebook .jp-Cell").first.hover()
    for _ in range(80):
        if locator.count():
            locator.first.scroll_into_view_if_needed()
            return locator.first
        page.mouse.wheel(0, 500)
        page.wait_for_timeout(100)
    raise AssertionError("not in this notebook")


def test_an_untouched_workbook_runs_and_keeps_its_answers_closed(workbook):
    fold = scrolled_to(workbook, workbook.locator("details", has_text="What the function finds"))
    expect(fold.locator("img")).to_be_hidden()
    fold.locator("summary").click()
    expect(fold.locator("img")).to_be_visible()
    assert (
        workbook.locator(
            ".jp-RenderedText[data-mime-type='application/vnd.jupyter.stderr']", has_text="Traceback"
        ).count()
        == 0
    )


def test_links_of_a_workbook_lead_to_its_chapter_and_from_there_to_the_book(workbook):
    link = scrolled_to(workbook, workbook.locator('a[href*="notebooks/0"]'))
    link.click()
    expect(
        workbook.locator(".jp-Notebook h1", has_text=re.compile("stream|paths", re.IGNORECASE)).first
    ).to_be_visible()
    assert workbook.get_by_text("Could not find").count() == 0 and workbook.locator(".jp-Dialog").count() == 0


def test_a_function_that_a_reader_writes_is_right_and_opens_its_answer(lab, browser):
    with browser.new_context(viewport={"width": 1300, "height": 900}) as context:
        context.set_default_timeout(300_000)
        page = context.new_page()
        page.goto(f"{lab}/tree/my/{WORKBOOK}")
        page.locator(".jp-Notebook .jp-Cell").first.wait_for()
        write = """([name, code]) => {
            const cells = [...jupyterapp.shell.currentWidget.content.model.cells];
            cells.find(cell => cell.sharedModel.getSource().startsWith(`def ${name}(`)).sharedModel.setSource(code);
        }"""
        page.wait_for_function("jupyterapp.shell.currentWidget?.content?.model?.cells?.length > 10")
        page.evaluate(write, [FIRST, EXERCISES[FIRST].code])
        run_all(page)
        expect(scrolled_to(page, page.get_by_text(f"{FIRST} is right"))).to_be_visible()
        fold = scrolled_to(page, page.locator("details", has_text="What the function finds"))
        expect(fold.locator("img")).to_be_visible()
