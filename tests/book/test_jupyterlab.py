"""A chapter and a workbook in JupyterLab: run them untouched, look for what their words speak of, follow their links."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from transformer_circuits.notebook import captions
from transformer_circuits.paths import ROOT

CHAPTER = "03_paths_qk_ov.ipynb"
WORKBOOK = "e1_stream_and_paths.ipynb"
OPEN = ".jp-MainAreaWidget:not(.lm-mod-hidden)"  # the tab that is seen


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def options_of_make(root: Path) -> list[str]:
    """Return the options with which the Makefile starts JupyterLab, for another root."""
    makefile = (ROOT / "Makefile").read_text()
    command = re.search(r"^exercises:.*?-m jupyterlab (.*?)$", makefile, re.DOTALL | re.MULTILINE)[1]
    options = [option for option in command.split() if option.startswith("--")]
    return [option.replace("root_dir=.", f"root_dir={root}") for option in options]


@pytest.fixture(scope="module")
def lab(browser, tmp_path_factory) -> Iterator[str]:
    """The address of a JupyterLab in a folder like the repository, with a reader's copy of the workbook."""
    root = tmp_path_factory.mktemp("lab")
    for folder in ("notebooks", "book"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("_static"))
    (root / "my").mkdir()
    shutil.copy(ROOT / "notebooks" / WORKBOOK, root / "my")
    port = free_port()
    for_tests = [f"--port={port}", "--ServerApp.port_retries=0", "--IdentityProvider.token="]
    for_tests += ["--no-browser", "--allow-root", "--LabApp.expose_app_in_browser=True"]
    places = {f"JUPYTER{name}": str(root / name) for name in ("_CONFIG_DIR", "LAB_SETTINGS_DIR", "LAB_WORKSPACES_DIR")}
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", *options_of_make(root), *for_tests],
        cwd=root,
        env=os.environ | places | {"TRANSFORMER_CIRCUITS_ROOT": str(ROOT)},
        **dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL),
    )
    address = f"http://127.0.0.1:{port}/lab"
    try:
        wait_for(address, server)
        yield address
    finally:
        server.terminate()
        try:
            server.wait(timeout=60)
        except subprocess.TimeoutExpired:  # it waits for a kernel that does not end
            server.kill()


def wait_for(address: str, server: subprocess.Popen) -> None:
    here = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for _ in range(300):
        assert server.poll() is None, "JupyterLab ended while it started"
        try:
            return here.open(address, timeout=5).close()
        except OSError:
            time.sleep(0.3)
    raise AssertionError("JupyterLab did not start")


def all_run(lab: str, browser, notebook: str) -> Iterator[Page]:
    """A notebook in which all cells have been run."""
    with browser.new_context(viewport={"width": 1300, "height": 900}) as context:
        context.set_default_timeout(180_000)
        page = context.new_page()
        page.goto(f"{lab}/tree/{notebook}")
        page.wait_for_function(
            "globalThis.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.connectionStatus === 'connected'"
        )
        page.evaluate("jupyterapp.commands.execute('notebook:run-all-cells')")
        yield page


@pytest.fixture(scope="module")
def workbook(lab, browser) -> Iterator[Page]:
    yield from all_run(lab, browser, f"my/{WORKBOOK}")


@pytest.fixture(scope="module")
def chapter(lab, browser) -> Iterator[Page]:
    yield from all_run(lab, browser, f"notebooks/{CHAPTER}")


def scrolled_to(page: Page, element: Locator) -> Locator:
    """Scroll until the notebook, which draws only what is near the window, has this element."""
    page.locator(f"{OPEN} .jp-WindowedPanel-outer").evaluate("outer => outer.scrollTo(0, 0)")
    for _ in range(100):
        page.wait_for_timeout(100)
        if element.count():
            element.first.scroll_into_view_if_needed()
            return element.first
        page.locator(f"{OPEN} .jp-WindowedPanel-outer").evaluate("outer => outer.scrollBy(0, 400)")
    raise AssertionError(f"not in this notebook: {element}")


def errors(page: Page) -> list[dict]:
    outputs = "jupyterapp.shell.currentWidget.content.widgets.flatMap(cell => cell.model.outputs?.toJSON() ?? [])"
    return [output for output in page.evaluate(outputs) if output["output_type"] == "error"]


def test_figures_of_a_chapter_have_the_number_and_the_caption_of_its_page(chapter):
    notebook = ROOT / "notebooks" / CHAPTER
    for caption in captions(notebook).values():
        words = re.sub(r"[*$`]", "", caption)[:60]
        expect(scrolled_to(chapter, chapter.locator(".jp-OutputArea-output", has_text=words))).to_be_visible()
    assert errors(chapter) == []


def test_a_chapter_folds_in_jupyterlab_what_its_page_folds(chapter):
    scrolled_to(chapter, chapter.get_by_text("Fig. 3.1."))
    expect(chapter.locator(f"{OPEN} .jp-InputArea-editor:visible", has_text="# Plot")).to_have_count(0)
    expect(scrolled_to(chapter, chapter.locator(f"{OPEN} .jp-InputArea-editor:visible"))).to_be_visible()


def test_a_link_to_a_page_that_the_build_makes_says_how_to_open_it(chapter):
    scrolled_to(chapter, chapter.locator(OPEN).get_by_role("link", name="scoreboard")).click()
    expect(chapter.locator(OPEN)).to_contain_text("open the file of this name in _build/html")


def test_an_untouched_workbook_runs_and_says_what_to_write(workbook):
    expect(scrolled_to(workbook, workbook.get_by_text("residual_parts is not written yet"))).to_be_visible()
    assert errors(workbook) == []


def test_figures_and_sentences_that_give_an_answer_away_stay_closed(workbook):
    fold = scrolled_to(workbook, workbook.locator("details", has_text="What the function finds"))
    expect(fold.locator("svg").first).to_be_hidden()
    fold.locator("summary").click()
    expect(fold.locator("svg").first).to_be_visible()
    said = scrolled_to(workbook, workbook.locator("details", has_text="Answer to Predict"))
    expect(said).not_to_have_attribute("open", "")
    expect(workbook.locator(".jp-InputArea-editor:visible", has_text="answered(")).to_have_count(0)


def test_links_lead_to_a_page_of_the_book_and_to_the_chapter(workbook):
    mine = workbook.locator(".lm-TabBar-tab", has_text=WORKBOOK[:12]).first
    for link, tab, words in (("notation", "notation.md", "Notation"), ("Chapter 1", "01_residual", "residual stream")):
        mine.click()
        scrolled_to(workbook, workbook.locator(OPEN).get_by_role("link", name=link, exact=True)).click()
        expect(workbook.locator(".jp-mod-current .lm-TabBar-tabLabel", has_text=tab)).to_be_visible()
        expect(workbook.locator(OPEN)).to_contain_text(words)
    expect(workbook.locator(".jp-Dialog")).to_have_count(0)
