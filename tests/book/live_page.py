"""A page that a script draws, such as Play: as its module makes it, without the theme around it."""

import re
import shutil
from pathlib import Path

from playwright.sync_api import Page

from transformer_circuits.paths import ROOT

HEAD = '<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
PHONE = {"width": 400, "height": 800}


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


def fits_a_phone(page: Page) -> None:
    """Check that nothing is wider than the screen of a phone, or too small for a finger."""
    page.set_viewport_size(PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    small = page.evaluate(  # in one go: a page may draw them anew between two calls
        """() => [...document.querySelectorAll(':is([class$=-app], .tc-page) :is(button, input, select)')].filter(b => b.checkVisibility()
            && Math.max(b.offsetHeight, b.closest('label')?.offsetHeight ?? 0) < 22).map(b => b.outerHTML)"""
    )
    assert not small, small
