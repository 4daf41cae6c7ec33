"""A page that a script draws, such as Play: as its module makes it, without the theme around it; and what each such page must do."""

import re
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from transformer_circuits.paths import ROOT

HEAD = '<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width">'


def copy_static(root: Path, *names: str) -> None:
    """Copy files and folders of book/_static to their places in `root`."""
    for name in names:
        source, copied = ROOT / "book" / "_static" / name, root / "_static" / name
        copied.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, copied)


def make_site(root: Path, name: str, *more: str) -> Path:
    """Copy a page that the build has made to `root`, with its scripts and data and `more` files; return the page."""
    copy_static(root, name, "dom.js", "heads.js", *more)
    markdown = (ROOT / "book" / f"{name}.md").read_text()
    markup = re.search(r"^```\{raw\} html\n(.*?)\n```$", markdown, re.DOTALL | re.MULTILINE)[1]
    page = root / "book" / f"{name}.html"
    page.parent.mkdir()
    page.write_text(f"{HEAD}<body>{markup}")
    return page


def opened(page: Page, address: str) -> Page:
    """Open a page, and wait until its script has drawn it."""
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_selector("[data-ready]")
    return page


def percent(share: float) -> str:
    """Return a share as dom.js writes it."""
    return "<0.1%" if share < 0.001 else f"{share:.1%}" if share > 0.99 or share < 0.0995 else f"{share:.0%}"


def forbidding_workers(site: Path) -> Path:
    """Return the page as a server sends it whose content policy forbids workers."""
    policy = '<meta http-equiv="Content-Security-Policy" content="worker-src \'none\'">'
    page = site.with_name(f"{site.stem}_without_workers.html")
    page.write_text(site.read_text().replace(HEAD, HEAD + policy))
    return page


def follow(page: Page, fragment: str) -> None:
    """Go to another address of the page, as a link in it does, and wait until its script has heard of it."""
    heard = "addEventListener('hashchange', heard, { once: true })"
    page.evaluate(f"to => new Promise(heard => {{ {heard}; location.hash = to; }})", fragment)


class OnAPhone:
    """The test that all share; the fixture `site` is a page as `make_site` returns it."""

    def test_on_a_phone_nothing_is_wider_than_the_screen_or_too_small_for_a_finger(self, page):
        page.set_viewport_size({"width": 400, "height": 800})
        self.use(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        small = page.evaluate(  # in one go: a page may draw them anew between two calls
            """() => [...document.querySelectorAll(':is([class$=-app], .tc-page) :is(button, input, select)')].filter(b => b.checkVisibility()
                && Math.max(b.offsetHeight, b.closest('label')?.offsetHeight ?? 0) < 22).map(b => b.outerHTML)"""
        )
        assert not small, small

    def use(self, page: Page) -> None:
        """Bring the page to where it needs most room."""


class LivePage(OnAPhone):
    """The tests of pages that load a file."""

    data = ""  # the file
    says = ""  # without it, or if it is damaged

    @pytest.mark.parametrize("harm", ["missing", "one letter changed"])
    def test_data_that_is_missing_or_damaged_is_said_to_be(self, harm, site, tmp_path, watched):
        shutil.copytree(site.parents[1], tmp_path, dirs_exist_ok=True)
        file = tmp_path / "_static" / self.data
        text = file.read_text()
        middle = 3 * len(text) // 4
        other = "B" if text[middle] == "A" else "A"
        file.write_text(text[:middle] + other + text[middle + 1 :])
        if harm == "missing":
            file.unlink()
        watched.page.goto((tmp_path / "book" / site.name).as_uri())
        self.ask(watched.page)
        expect(watched.page.locator("[role=status]").first).to_have_text(re.compile(self.says))
        watched.complaints.clear()

    def test_a_browser_that_cannot_unpack_the_data_is_told_so(self, site, watched):
        watched.page.add_init_script("delete window.DecompressionStream")
        watched.page.goto(site.as_uri())
        self.ask(watched.page)
        expect(watched.page.locator("[role=status]").first).to_contain_text("needs a newer browser")

    def ask(self, page: Page) -> None:
        """Make the page load the file."""
