"""The built book, and a browser that has no network."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import ADVICE, find
from live_page import opened
from playwright.sync_api import Browser, Page, expect, sync_playwright

from transformer_circuits.paths import ROOT

PATIENCE = 180_000  # milliseconds; a busy machine draws a page of widgets slowly
expect.set_options(timeout=PATIENCE)

# Beside Playwright's own flags, which leave out the sandbox (CI runs as root) and all that a browser does in the background.
FLAGS = ["--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]  # the network is cut off

NO_BROWSER = f"The tests of the pages need a browser: {ADVICE}."


@pytest.fixture(scope="session")
def html() -> Path:
    """The folder of the built pages. Notebooks that nbval has just looked at are in the cache, so that only pages are written."""
    command = [sys.executable, "-m", "book_build"]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if built.returncode:
        pytest.fail(built.stdout + built.stderr, pytrace=False)
    return ROOT / "_build" / "html"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = find()
    if not program:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(NO_BROWSER)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()


class Watched:
    """A page that keeps what its console complained of and what it asked the network for."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda m: self.complaints.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("requestfailed", lambda request: self.complaints.append(f"failed to load {request.url}"))
        page.on("request", lambda request: self.requests.append(request.url))

    def open(self, path: Path) -> Page:
        """Open a file and wait until its maths is typeset."""
        self.page.goto(path.as_uri(), wait_until="load")
        self.page.evaluate("() => window.MathJax?.startup?.promise")
        return self.page

    def check(self) -> None:
        assert self.complaints == []
        asked = [url for url in self.requests if not url.startswith(("file:", "data:", "blob:"))]
        assert asked == [], "the page asks the network for these"


WIDE = {"width": 1300, "height": 900}


@pytest.fixture
def watched(browser) -> Iterator[Watched]:
    """A page that must not complain and asks the network for nothing; a test that provokes complaints clears them."""
    with browser.new_context(viewport=WIDE, offline=True) as context:
        context.set_default_timeout(PATIENCE)
        watched = Watched(context.new_page())
        yield watched
        watched.check()


@pytest.fixture(scope="module")
def tab(browser) -> Iterator[Watched]:
    with browser.new_context(viewport=WIDE, offline=True) as context:
        context.set_default_timeout(PATIENCE)
        yield Watched(context.new_page())


@pytest.fixture
def reused(tab) -> Iterator[Watched]:
    """A page like `watched`, for tests that set nothing which outlives it: a new one each time would compile all scripts anew."""
    tab.page.goto("about:blank")  # what the page before still asked for has failed now
    tab.page.set_viewport_size(WIDE)
    tab.page.emulate_media(reduced_motion="null")
    tab.page.mouse.move(0, 0)
    tab.complaints.clear()
    tab.requests.clear()
    yield tab
    tab.check()


@pytest.fixture
def page(reused, site) -> Page:
    """A live page, whose module has the fixture `site`, ready for use."""
    return opened(reused.page, site.as_uri())
