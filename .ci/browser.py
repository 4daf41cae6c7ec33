"""Chrome or Chromium for the tests of the pages. `python .ci/browser.py` gets one where there is none: `make test` and
`make pdf` begin with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

PROGRAMS = [
    "google-chrome",
    "chromium",
    "chromium-browser",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
]
ADVICE = "install Google Chrome, or Debian's packages chromium and libatomic1"
PLAYWRIGHT = [sys.executable, "-m", "playwright"]


def starts(program: str | None) -> bool:
    """Return whether a program is there and runs: Ubuntu's chromium-browser may only say how to get one."""
    return bool(program) and succeeds([program, "--version"])


def driver_starts() -> bool:
    """Return whether Playwright runs at all: its Node.js needs libatomic, which a minimal Debian lacks."""
    return succeeds([*PLAYWRIGHT, "--version"])


def of_playwright() -> str | None:
    """Return the browser that Playwright downloaded; None if it did not."""
    if not driver_starts():
        return None
    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if Path(path).is_file() else None


def find() -> str | None:
    """Return a browser that starts, and that Playwright can drive; None if there is none."""
    for program in map(shutil.which, PROGRAMS):
        if starts(program):
            return program if driver_starts() else None
    return own if starts(own := of_playwright()) else None


def succeeds(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=900).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def install() -> str | None:
    """Install a browser, Playwright's or else Debian's, and return it; None if neither is to be had."""
    print("There is no Chrome or Chromium that the tests of the pages can use: getting one.", flush=True)
    if not driver_starts():
        install_packages("libatomic1")
        if program := find():
            return program
    succeeds([*PLAYWRIGHT, "install", "chromium"])
    if not of_playwright():
        install_packages("chromium", "fonts-dejavu-core")
    elif not find():  # it lacks libraries of the system
        succeeds(as_root(*PLAYWRIGHT, "install-deps", "chromium"))
    return find()


def install_packages(*names: str) -> None:
    succeeds(as_root("apt-get", "update", "-qq"))
    succeeds(as_root("apt-get", "install", "-y", "-qq", "--no-install-recommends", *names))


def as_root(*command: str) -> list[str]:
    if os.getuid() == 0:
        return [*command]
    ask = [] if sys.stdin.isatty() else ["-n"]  # without a terminal nobody can type a password
    return ["sudo", *ask, *command]


def main() -> None:
    if not (find() or install()):
        print(f"None is to be had here. The tests of the pages need one: {ADVICE}.")


if __name__ == "__main__":
    main()
