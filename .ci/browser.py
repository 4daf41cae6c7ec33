"""Chrome or Chromium for the tests of the pages and `make pdf`: `python .ci/browser.py` gets one if there is none."""

import os
import shutil
import subprocess
import sys

from playwright.sync_api import sync_playwright

PROGRAMS = ("google-chrome", "chromium", "chromium-browser")
ADVICE = "install Google Chrome, or Debian's packages chromium and libatomic1"
PLAYWRIGHT = [sys.executable, "-m", "playwright"]


def succeeds(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=900).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def find() -> str | None:
    """Return a browser that starts, and that Playwright can drive; None if there is none."""
    if not succeeds(*PLAYWRIGHT, "--version"):  # its Node.js needs libatomic, which a minimal Debian lacks
        return None
    for program in filter(None, map(shutil.which, PROGRAMS)):
        if succeeds(program, "--version"):  # Ubuntu's chromium-browser may only say how to get one
            return program
    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
    return own if succeeds(own, "--version") else None


def install() -> None:
    """Install a browser, Playwright's or else Debian's, as far as one is to be had."""
    print("There is no Chrome or Chromium that the tests of the pages can use: getting one.", flush=True)
    as_root = ["sudo"] if sys.stdin.isatty() else ["sudo", "-n"]  # without a terminal nobody can type a password
    as_root = as_root if os.getuid() else []
    debian = "apt-get -qq update; apt-get -y -qq --no-install-recommends install chromium libatomic1 fonts-dejavu-core"
    for command in (
        [*PLAYWRIGHT, "install", "chromium"],
        [*as_root, *PLAYWRIGHT, "install-deps", "chromium"],  # it lacks libraries of the system
        [*as_root, "sh", "-c", debian],
    ):
        succeeds(*command)
        if find():
            return
    print(f"None is to be had here. The tests of the pages need one: {ADVICE}.")


if __name__ == "__main__" and not find():
    install()
