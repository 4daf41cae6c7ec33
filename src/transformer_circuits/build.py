"""Build the book: run the notebooks, judge the claims, write the pages.

    python -m transformer_circuits.build            (what `make book` runs)

jupyter-book alone does not do: it exits 0 when a notebook fails, its cache looks only at a notebook's own cells, and it has no moment
at which all notebooks have run but no page is written, which is when the scoreboard must be made. So:

1. Forget what was run before if the package, the weights, the data or the constraints are no longer the same (`fingerprint`).
2. Run the notebooks that the cache lacks, two at a time, each with a claims folder of its own. A failed cell ends the build.
3. Collect the claims of all notebooks, and make the pages that are generated: the scoreboard from them, the model cards and the
   head dump from the weights.
4. Run jupyter-book on the warm cache, every warning an error.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import copy
import dataclasses
import hashlib
import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
import yaml

from transformer_circuits.paths import ROOT

WATCHED = ("src", "weights", "data", "constraints.txt")  # what a notebook's results depend on, besides its own cells
GENERATED = {  # pages that are made, and the commands that make them: `python -m COMMAND PAGE.md`
    "book/scoreboard": "transformer_circuits.claims.scoreboard",
    "book/models": "transformer_circuits.models.cards",
    "book/head_dump": "transformer_circuits.figures.dump_pages",
}
EVERY_TIME = {"book/scoreboard"}  # made from claims; the others only from WATCHED files, and made again when these have changed
TIMEOUT = 1800  # seconds a cell may take; the longest takes three minutes on two free cores, and machines are shared
WORKERS = 2  # notebooks run at the same time; more would not fit 6 GB


class BuildError(Exception):
    """The book cannot be built; the message says what to mend."""


@dataclasses.dataclass(frozen=True)
class Book:
    """The folders of a book whose sources are in `root` (the repository, or a small book made by a test)."""

    root: Path

    @property
    def build(self) -> Path:
        return self.root / "_build"

    @property
    def toc(self) -> Path:
        return self.root / "book" / "_toc.yml"

    @property
    def claims(self) -> Path:
        return self.build / "claims"

    def recorded(self, notebook: Path) -> Path:
        """The folder of the claims that one notebook recorded."""
        return self.build / "recorded" / notebook.stem

    def files(self) -> list[str]:
        """Every file that the table of contents lists, without suffix, in reading order."""

        def walk(entry: object) -> Iterator[str]:
            if isinstance(entry, dict):
                for key in ("root", "file"):
                    if key in entry:
                        yield entry[key]
                for key in ("parts", "chapters", "sections"):
                    for child in entry.get(key, []):
                        yield from walk(child)

        return list(walk(yaml.safe_load(self.toc.read_text(encoding="utf-8"))))

    def notebooks(self) -> list[Path]:
        return [path for name in self.files() if (path := self.root / f"{name}.ipynb").is_file()]


def is_generated(name: str) -> bool:
    """Whether the build makes a file of the table of contents: one of GENERATED, or one in the folder of the same name."""
    return name in GENERATED or any(name.startswith(f"{page}/") for page in GENERATED)


def fingerprint(root: Path) -> str:
    """SHA-256 over the names and contents of all WATCHED files, caches and build products left out."""
    digest = hashlib.sha256()
    for name in WATCHED:
        top = root / name
        for path in sorted(top.rglob("*") if top.is_dir() else [top]):
            if path.is_file() and "__pycache__" not in path.parts and not any(p.endswith(".egg-info") for p in path.parts):
                digest.update(path.relative_to(root).as_posix().encode() + b"\0")
                digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def forget_if_changed(book: Book) -> bool:
    """Remove all results if what they were made from has changed since; True if so."""
    stamp, now = book.build / "fingerprint", fingerprint(book.root)
    if stamp.is_file() and stamp.read_text() == now:
        return False
    for name in (".jupyter_cache", ".doctrees", "html", "jupyter_execute", "recorded", "claims", "generated"):
        shutil.rmtree(book.build / name, ignore_errors=True)
    book.build.mkdir(parents=True, exist_ok=True)
    stamp.write_text(now)
    return True


def environment(book: Book, notebook: Path, workers: int = WORKERS) -> dict[str, str]:
    """The variables that a notebook runs under while the book is built, when `workers` notebooks share the processor."""
    threads = max(1, (os.cpu_count() or 1) // workers)
    return {
        "TRANSFORMER_CIRCUITS_ROOT": str(book.root),
        "TRANSFORMER_CIRCUITS_BOOK": "1",
        "TRANSFORMER_CIRCUITS_CLAIMS": str(book.recorded(notebook)),
        "TQDM_DISABLE": "1",  # progress bars are for people who wait, not for pages
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # ipykernel's debugger would write a warning into each page
    }


def run_notebook(book: Book, path: Path) -> tuple[nbformat.NotebookNode, float, str | None]:
    """Run one notebook from clean. Returns it with outputs, the seconds it took, and the traceback of a failed cell or None."""
    from jupyter_cache.executors.utils import single_nb_execution

    shutil.rmtree(book.recorded(path), ignore_errors=True)
    book.recorded(path).mkdir(parents=True)
    os.environ.update(environment(book, path))
    notebook = nbformat.read(path, as_version=4)
    quiet = ["--IPKernelApp.log_level=40"]  # each kernel would warn that it talks to this process over plain TCP
    result = single_nb_execution(
        notebook, cwd=str(path.parent), timeout=TIMEOUT, allow_errors=False, extra_arguments=quiet
    )
    return notebook, result.time, result.exc_string


def cache_of(book: Book):
    from jupyter_cache import get_cache

    return get_cache(str(book.build / ".jupyter_cache"))


def is_cached(book: Book, path: Path) -> bool:
    """Whether the notebook, as it now is, has been run and its claims are at hand."""
    if not book.recorded(path).is_dir():
        return False
    try:
        cache_of(book).match_cache_notebook(nbformat.read(path, as_version=4))
    except KeyError:
        return False
    return True


def store(book: Book, path: Path, notebook: nbformat.NotebookNode, seconds: float) -> None:
    """Put a notebook that has run into the cache, for jupyter-book to find."""
    from jupyter_cache.base import CacheBundleIn

    cache_of(book).cache_notebook_bundle(
        CacheBundleIn(copy.deepcopy(notebook), str(path), data={"execution_seconds": seconds}), check_validity=False, overwrite=True
    )


def run_notebooks(book: Book) -> None:
    """Run what the cache lacks; BuildError names every notebook with a failed cell.

    After a run all pages are read anew, since a page may quote numbers of another's notebook, and Sphinx looks only at files.
    """
    todo = [path for path in book.notebooks() if not is_cached(book, path)]
    failed = []
    if todo:
        shutil.rmtree(book.build / ".doctrees", ignore_errors=True)
    # A process for each of two notebooks: their kernels inherit its environment, with the claims folder of the notebook it runs.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(WORKERS, mp_context=context) as pool:
        futures = {pool.submit(run_notebook, book, path): path for path in todo}
        for future in concurrent.futures.as_completed(futures):
            path = futures[future]
            notebook, seconds, trouble = future.result()
            if trouble is None:
                store(book, path, notebook, seconds)
                print(f"ran {path.name} in {seconds:.1f} s", flush=True)
            else:
                shutil.rmtree(book.recorded(path), ignore_errors=True)
                failed.append(path.name)
                print(f"FAILED {path.name}\n{trouble}", flush=True)
    print(f"{len(todo)} notebooks run, {len(book.notebooks()) - len(todo)} taken from the cache", flush=True)
    if failed:
        raise BuildError(f"A cell failed in {', '.join(sorted(failed))}: see the traceback above.")


def collect_claims(book: Book) -> int:
    """Gather the claims of all notebooks in one folder; BuildError if two notebooks record the same claim. Returns their number."""
    shutil.rmtree(book.claims, ignore_errors=True)
    book.claims.mkdir(parents=True)
    owner: dict[str, str] = {}
    for path in book.notebooks():
        for file in sorted(book.recorded(path).glob("*.json")):
            if file.name in owner:
                raise BuildError(f"Claim {file.stem} is recorded by both {owner[file.name]} and {path.name}: keep one of them.")
            owner[file.name] = path.name
            shutil.copyfile(file, book.claims / file.name)
    return len(owner)


def make_generated(book: Book, name: str) -> Path:
    """Run the command of one of GENERATED, unless its page is still good. Returns the page, in `_build/generated`.

    What a command makes besides, more pages or files to download, goes to the folder of the same name; its page it writes last.
    BuildError if it fails.
    """
    draft = book.build / "generated" / f"{Path(name).name}.md"
    if draft.is_file() and name not in EVERY_TIME:
        return draft
    draft.parent.mkdir(parents=True, exist_ok=True)
    variables = {"TRANSFORMER_CIRCUITS_ROOT": str(book.root), "TRANSFORMER_CIRCUITS_CLAIMS": str(book.claims)}
    if subprocess.run([sys.executable, "-m", GENERATED[name], str(draft)], env={**os.environ, **variables}).returncode:
        draft.unlink(missing_ok=True)
        raise BuildError(f"{draft.name} could not be made: see the message above.")
    return draft


def write_generated(book: Book) -> None:
    """The pages that are made, not written, and what belongs to them. Left untouched where nothing would change.

    BuildError if one cannot be made, or if the table of contents does not list exactly the pages that came with it.
    """
    listed = set(book.files())
    for name in sorted(GENERATED.keys() & listed):
        draft, beside = make_generated(book, name), book.root / Path(name).parent
        made = {path.relative_to(draft.parent) for path in draft.with_suffix("").rglob("*") if path.is_file()}
        pages = {(Path(name).parent / path).with_suffix("").as_posix() for path in made if path.suffix == ".md"}
        if wrong := pages ^ {page for page in listed if page.startswith(f"{name}/")}:
            raise BuildError(f"Below {name} the table of contents must list just the pages that are made: see {sorted(wrong)}.")
        for path in {Path(draft.name), *made}:
            copy_changed(draft.parent / path, beside / path)
        for path in (book.root / name).rglob("*") if made else ():
            if path.is_file() and path.relative_to(beside) not in made:  # of an earlier build
                path.unlink()


def copy_changed(source: Path, target: Path) -> None:
    """Copy a file, unless it is there already: jupyter-book reads again what has a new date."""
    if not target.is_file() or target.read_bytes() != source.read_bytes():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def copy_scripts(book: Book) -> None:
    """The scripts of CircuitsVis and DataTables, from the installed packages to the static files: once for the whole book."""
    from transformer_circuits.figures import datatables, widgets

    for name, text in {"circuitsvis/iife.js": widgets.bundle(), **datatables.files()}.items():
        target = book.root / "book" / "_static" / name
        if not target.is_file() or target.read_text(encoding="utf-8") != text:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")


def write_pages(book: Book) -> None:
    """Run jupyter-book, every warning an error; after a failure the next build reads every page anew, to find it again."""
    program = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()"]
    command = [*program, "build", str(book.root), "--toc", str(book.toc), "-n", "-W", "--keep-going", "-q"]
    if subprocess.run(command, cwd=book.root, env={**os.environ, "TRANSFORMER_CIRCUITS_BOOK": "1"}).returncode:
        shutil.rmtree(book.build / ".doctrees", ignore_errors=True)
        raise BuildError("jupyter-book reported warnings or errors: see above; each must be mended.")


@contextlib.contextmanager
def measured() -> Iterator[None]:
    """Print at the end how long the block took, and the most memory that this process and all below it held together."""
    import psutil

    start, peak, done = time.monotonic(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        me = psutil.Process()
        while not done.wait(0.5):
            now = 0
            for process in [me, *me.children(recursive=True)]:
                with contextlib.suppress(psutil.Error):  # it may have just ended
                    now += process.memory_info().rss
            peak = max(peak, now)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        print(f"{time.monotonic() - start:.0f} s wall time, {peak / 2**30:.1f} GiB peak memory", flush=True)


def run(book: Book) -> None:
    """All that comes before the pages: every notebook has run, on what is there now, and the claims are in one place."""
    if missing := [f for f in book.files() if not is_generated(f) and not list(book.root.glob(f"{f}.*"))]:
        raise BuildError(f"The table of contents lists files that do not exist: {', '.join(missing)}.")
    if forget_if_changed(book):
        print("the package, the weights or the data have changed: every notebook runs anew", flush=True)
    run_notebooks(book)
    print(f"{collect_claims(book)} claims recorded", flush=True)


def build(root: Path = ROOT) -> Path:
    """Build the book whose sources are in `root`. Returns the first page; BuildError if anything is not as it should be."""
    book = Book(root.resolve())
    run(book)
    write_generated(book)
    copy_scripts(book)
    write_pages(book)
    return book.build / "html" / "index.html"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m transformer_circuits.build", description="Build the book.")
    parser.add_argument("--root", type=Path, default=ROOT, help="folder of the book's sources (default: this repository)")
    options = parser.parse_args(arguments)
    try:
        with measured():
            page = build(options.root)
    except BuildError as error:
        print(f"The book was not built. {error}", file=sys.stderr)
        return 1
    print(f"The book: {page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
