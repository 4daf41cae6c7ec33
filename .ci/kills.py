"""Kill builds at random moments, and check that the same command then ends as if nothing had happened.

    .venv/bin/python .ci/kills.py                         20 kills while notebooks run, 20 while pages are written
    .venv/bin/python .ci/kills.py --notebooks 3 --pages 0 --seed 1

The book is a small one of three notebooks, in a temporary folder. Every second kill ends the build alone and leaves running what it started;
the others end all of it. Pages and records are compared by content with those of an undisturbed build.
Exit status 1 at the first difference. This takes nine minutes on two free cores and is therefore not part of `make test`.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "tests" / "book"))

from small_book import list_pages, make_book, write  # noqa: E402

from transformer_circuits import build  # noqa: E402

INTRO = "# A small book\n\nText {}.\n\n```{{bibliography}}\n:all:\n```\n"


def command(root: Path) -> list[str]:
    return [sys.executable, "-m", "transformer_circuits.build", "--root", str(root)]


def finish(root: Path) -> dict[str, str]:
    """Build to the end. Returns each page by its content, and the records."""
    done = subprocess.run(command(root), cwd=REPOSITORY, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"the build after a kill failed:\n{done.stdout}{done.stderr}")
    return content(root)


def content(root: Path) -> dict[str, str]:
    html = root / "_build" / "html"
    files = [path for path in html.rglob("*") if path.is_file() and path.name != ".complete"]
    found = {str(path.relative_to(html)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    return found | {"the records": repr(build.records(build.Store(root)))}


def differences(one: dict[str, str], other: dict[str, str]) -> list[str]:
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def killed(root: Path, started: Path, after: float, alone: bool) -> bool:
    """Start a build and kill it `after` seconds from when `started` is there; False if it ended before."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command(root), cwd=REPOSITORY, start_new_session=True, **quiet)
    while not started.exists() and process.poll() is None:
        time.sleep(0.01)
    time.sleep(after)
    if process.poll() is not None:
        return False
    if alone:
        process.kill()
    else:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return True


def seconds_of(root: Path, started: Path, ended: Path | None = None) -> float:
    """How long a build takes from when one file is there until another is, or to its end."""
    process, times = subprocess.Popen(command(root), cwd=REPOSITORY, stdout=subprocess.DEVNULL), {}
    while process.poll() is None:
        for path in (started, ended):
            if path and path not in times and path.exists():
                times[path] = time.monotonic()
        time.sleep(0.01)
    return times.get(ended, time.monotonic()) - times[started]


def kill_builds(root: Path, notebooks: int, pages: int, moments: random.Random) -> None:
    state, intro = root / "_build", root / "book" / "intro.md"
    intro.write_text(INTRO.format("B"))
    undisturbed = {"B": finish(root)}
    intro.write_text(INTRO.format("A"))
    undisturbed["A"] = finish(root)
    if not differences(undisturbed["A"], undisturbed["B"]):
        sys.exit("the two texts give the same pages: this would show nothing")
    shutil.rmtree(state)
    # toc.yml is written when the notebooks have all run, just before the pages are.
    while_running = seconds_of(root, state / "results", state / "toc.yml")
    if wrong := differences(content(root), undisturbed["A"]):
        sys.exit(f"two undisturbed builds differ in {', '.join(wrong)}: nothing can be compared")
    files = len(undisturbed["A"]) - 1
    print(f"an undisturbed build: {files} files; the notebooks take {while_running:.1f} s", flush=True)

    def check(what: str, number: int, text: str, start: float) -> None:
        if wrong := differences(finish(root), undisturbed[text]):
            sys.exit(f"after kill {number} while {what} the build differs in {', '.join(wrong)}")
        seconds = time.monotonic() - start
        print(f"kill {number} while {what}: same pages and records, {seconds:.0f} s", flush=True)

    number = 0
    while number < notebooks:
        start = time.monotonic()
        shutil.rmtree(state)
        if killed(root, state / "results", moments.uniform(0, while_running), alone=number % 2 == 0):
            number += 1
            check("notebooks run", number, "A", start)
        else:
            while_running *= 0.8  # the machine has become faster

    text, while_writing, number = "A", 0.0, 0
    while number < pages:
        text, start = "A" if text == "B" else "B", time.monotonic()
        intro.write_text(INTRO.format(text))
        (state / "toc.yml").unlink()
        if not while_writing:
            while_writing = seconds_of(root, state / "toc.yml")
            continue
        if killed(root, state / "toc.yml", moments.uniform(0, while_writing), alone=number % 2 == 0):
            number += 1
            check("pages are written", number, text, start)
        else:
            while_writing *= 0.8


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, count in (("notebooks", 20), ("pages", 20), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=count)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        root = make_book(Path(folder) / "a book")
        write(root / "notebooks" / "03_three.ipynb", "import time\ntime.sleep(1)\nprint(3)")
        list_pages(root, "notebooks/01_one", "notebooks/02_two", "notebooks/03_three")
        kill_builds(root, options.notebooks, options.pages, random.Random(options.seed))
    print(f"{options.notebooks + options.pages} passed, 0 failed")


if __name__ == "__main__":
    main()
