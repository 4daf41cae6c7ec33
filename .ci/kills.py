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

# When a build is killed, and the files that are there from the beginning and at the end of that (None: the end of the build). toc.yml is written
# when all notebooks have run, just before the pages are.
PHASES = {"notebooks": ("notebooks run", "results", "toc.yml"), "pages": ("pages are written", "toc.yml", None)}
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


def seconds_of(root: Path, begins: Path, ends: Path | None) -> float:
    """How long a build takes from when one file is there until another is, or to its end."""
    process, times = subprocess.Popen(command(root), cwd=REPOSITORY, stdout=subprocess.DEVNULL), {}
    while process.poll() is None:
        for path in (begins, ends):
            if path and path not in times and path.exists():
                times[path] = time.monotonic()
        time.sleep(0.01)
    return times.get(ends, time.monotonic()) - times[begins]


def kill_builds(root: Path, kills: dict[str, int], moments: random.Random) -> None:
    state, intro = root / "_build", root / "book" / "intro.md"
    undisturbed = {}
    for text in "BA":
        intro.write_text(INTRO.format(text))
        undisturbed[text] = finish(root)
    if not differences(undisturbed["A"], undisturbed["B"]):
        sys.exit("the two texts give the same pages: this would show nothing")

    for made, (what, begins, ends) in PHASES.items():
        seconds, number = 0.0, 0
        while number < kills[made]:
            start = time.monotonic()
            if made == "notebooks":
                shutil.rmtree(state)
            else:  # the results are kept, and the pages differ from those that are there
                text = "B" if text == "A" else "A"
                intro.write_text(INTRO.format(text))
                (state / "toc.yml").unlink()
            if not seconds:
                seconds = seconds_of(root, state / begins, ends and state / ends)
                if wrong := differences(content(root), undisturbed[text]):
                    sys.exit(f"two undisturbed builds differ in {', '.join(wrong)}: nothing can be compared")
                files = len(undisturbed[text]) - 1
                print(f"an undisturbed build: {files} files; the {made} take {seconds:.1f} s", flush=True)
            elif killed(root, state / begins, moments.uniform(0, seconds), alone=number % 2 == 0):
                number += 1
                if wrong := differences(finish(root), undisturbed[text]):
                    sys.exit(f"after kill {number} while {what} the build differs in {', '.join(wrong)}")
                took = time.monotonic() - start
                print(f"kill {number} while {what}: same pages and records, {took:.0f} s", flush=True)
            else:
                seconds *= 0.8  # the machine has become faster


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, count in (("notebooks", 20), ("pages", 20), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=count)
    options = parser.parse_args()
    kills = {made: getattr(options, made) for made in PHASES}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        root = make_book(Path(folder) / "a book")
        write(root / "notebooks" / "03_three.ipynb", "import time\ntime.sleep(1)\nprint(3)")
        list_pages(root, "notebooks/01_one", "notebooks/02_two", "notebooks/03_three")
        kill_builds(root, kills, random.Random(options.seed))
    print(f"{sum(kills.values())} passed, 0 failed")


if __name__ == "__main__":
    main()
