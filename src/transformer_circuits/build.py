"""Build the book: run the notebooks, judge the claims, write the pages.

    python -m transformer_circuits.build                     (what `make book` runs)
    python -m transformer_circuits.build --store-outputs     also put the outputs that nbval compares into the notebooks, and remove all others
    python -m transformer_circuits.build --run [NOTEBOOK …]  run what has not run yet, write no pages

A page shows what its notebook computed:

1. A jupyter-cache keeps executed notebooks by their cells. Its folder is named by a fingerprint of everything else that they depend on:
   package, weights, data, installed releases. A change of any of these means another folder, so that old results cannot be read by mistake.
2. Records of claims are outputs of these notebooks. Generated pages are made from the records, or from the watched files.
3. jupyter-book always writes all pages, with every warning an error, into a folder that replaces the old one when it is complete.

A lock makes builds and tests of one folder wait for each other. The next build repeats whatever was interrupted.
"""

import argparse
import base64
import concurrent.futures
import contextlib
import copy
import dataclasses
import hashlib
import importlib.metadata
import importlib.resources
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import filelock
import nbformat
import psutil
import yaml
from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn
from nbclient import NotebookClient
from nbclient.exceptions import CellControlSignal
from nbformat import NotebookNode

from transformer_circuits.claims import ledger, show
from transformer_circuits.pages import paper_figures, scoreboard
from transformer_circuits.paths import ROOT

# What a notebook's results depend on, besides its cells and what is installed; and parts of it that no notebook imports.
WATCHED = ("src", "weights", "data", "constraints.txt")
ABOVE = ("src/transformer_circuits/pages", "src/transformer_circuits/build.py")
PAGES = ("book", "notebooks", "_config.yml")  # what the pages also depend on
GENERATED = {  # pages that are made from watched files, and the modules that make them: `python -m MODULE PAGE.md`
    "book/models": "transformer_circuits.pages.model_cards",
    "book/head_dump": "transformer_circuits.pages.dump_pages",
    "book/play": "transformer_circuits.pages.play",
    "book/watch": "transformer_circuits.pages.watch",
    "book/grow": "transformer_circuits.pages.grow",
}
SCOREBOARD = "book/scoreboard"  # made from the records, as is what the front page includes
HEADLINES = "book/headlines"
FIGURES = "book/figures"  # made from the executed notebooks, the records and book/figures.yml
COMPLETE = "_build/toc.yml"  # the table of contents, with the pages that generated pages added
TIMEOUT = 1800  # seconds per cell: a chapter takes a minute on two free cores, but machines are shared
WORKERS = 2  # notebooks that run at the same time: more would need more than 6 GB
CHECKED = "nbval-check-output"  # tag of cells whose outputs are kept in git, for nbval to compare


class BuildError(Exception):
    """The book cannot be built; the message says what to fix."""


@dataclasses.dataclass(frozen=True)
class Book:
    """The folders of a book whose sources are in `root` (the repository, or a small book made by a test)."""

    root: Path

    @property
    def build(self) -> Path:
        return self.root / "_build"

    @property
    def failed(self) -> Path:
        """Notebooks of the last run in which a cell failed, with outputs up to there."""
        return self.build / "failed"

    def contents(self, file: str = "book/_toc.yml") -> dict[str, Any]:
        return yaml.safe_load((self.root / file).read_text(encoding="utf-8"))

    def files(self, file: str = "book/_toc.yml") -> list[str]:
        """Return every file that a table of contents lists, without suffix, in reading order; COMPLETE lists the generated pages too."""
        return [entry.get("root") or entry["file"] for entry in entries(self.contents(file))]

    def notebooks(self) -> list[Path]:
        return [path for name in self.files() if (path := self.root / f"{name}.ipynb").is_file()]


def entries(contents: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield every entry of a table of contents that names a file."""
    if "root" in contents or "file" in contents:
        yield contents
    for key in ("parts", "chapters", "sections"):
        for child in contents.get(key) or []:
            yield from entries(child)


def is_generated(name: str) -> bool:
    return name in (SCOREBOARD, FIGURES) or name in GENERATED


# ---- what depends on what -----------------------------------------------------------------------------------------------


def ignored(part: str) -> bool:
    """Return whether a file or folder of this name changes nothing: hidden, a cache, an editor's backup."""
    return part.startswith((".", "#")) or part.endswith((".egg-info", "~", ".swp")) or part == "__pycache__"


def digest(root: Path, names: Iterable[str], apart_from: Sequence[str] = ()) -> str:
    """Return the SHA-256 of the names and contents of files and folders in `root`, without those that are ignored."""
    found = hashlib.sha256()
    for name in names:
        for path in sorted([root / name, *(root / name).rglob("*")]):
            relative = path.relative_to(root)
            skipped = any(map(ignored, relative.parts)) or any(map(relative.is_relative_to, apart_from))
            if path.is_file() and not skipped:
                found.update(relative.as_posix().encode() + b"\0")
                found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


def fingerprint(root: Path, apart_from: Sequence[str] = ABOVE) -> str:
    """Return the SHA-256 of what all notebooks' results depend on: the watched files, Python, and the installed releases."""
    installed = sorted({f"{found.name}=={found.version}" for found in importlib.metadata.distributions()})
    parts = [digest(root, WATCHED, apart_from), sys.version, *installed]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def locked(book: Book) -> contextlib.AbstractContextManager:
    """Wait while another process builds or tests the same book. Returns the lock, to be held in a `with` block."""
    lock = filelock.FileLock(book.build / ".lock")
    try:
        return lock.acquire(timeout=0)
    except filelock.Timeout:
        print("another build or test of this book is running: waiting until it has ended", flush=True)
        return lock.acquire()


class Cache:
    """What was made from the watched files in their present state: executed notebooks, and in `made` pages made from these files alone."""

    def __init__(self, book: Book) -> None:
        self.fingerprint = fingerprint(book.root)
        self.folder = book.build / "cache" / self.fingerprint[:16]
        self.executed = self.folder / "executed"
        self.made = book.build / "made" / fingerprint(book.root, apart_from=())[:16]

    def open(self) -> None:
        """Remove what was made from other files, and a database that cannot be read."""
        for other in {*self.folder.parent.glob("*"), *self.made.parent.glob("*")} - {self.folder, self.made}:
            hidden = other.with_name(f".{other.name.lstrip('.')}")
            # Renamed, so that a kill leaves no folder with half of its files.
            shutil.rmtree(other.rename(hidden))
        try:
            self.database().list_cache_records()
        except Exception:  # SQLAlchemy's, SQLite's and jupyter-cache's own
            print("the cache of executed notebooks is damaged: they all run again", flush=True)
            shutil.rmtree(self.executed)

    def database(self):
        return get_cache(str(self.executed))

    def get(self, path: Path) -> NotebookNode | None:
        """Return a notebook in its present state with outputs; None if it has not run to its end on the present files."""
        try:
            notebook = self.database().merge_match_into_notebook(nbformat.read(path, as_version=4))[1]
        except KeyError:
            return None
        # A file that was cut gives errors of JSON, of the notebook format, or of too few cells.
        except Exception:
            print(f"the results of {path.name} in the cache are damaged: it runs again", flush=True)
            return None
        return notebook if all(cell.execution_count for cell in code_cells(notebook)) else None

    def put(self, path: Path, notebook: NotebookNode, seconds: float) -> None:
        bundle = CacheBundleIn(copy.deepcopy(notebook), str(path), data={"execution_seconds": seconds})
        _, key = self.database().create_hashed_notebook(notebook)
        # jupyter-cache fails on a folder of this key that lacks its notebook.
        shutil.rmtree(self.executed / "executed" / key, ignore_errors=True)
        self.database().cache_notebook_bundle(bundle, check_validity=False, overwrite=True)


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


# ---- the notebooks ------------------------------------------------------------------------------------------------------


def execute(book: Book, path: Path) -> tuple[NotebookNode, float, str]:
    """Run one notebook without its stored outputs. Returns it with outputs, the seconds it took, and the traceback of what failed, else ""."""
    notebook, start = nbformat.read(path, as_version=4), time.monotonic()
    cells = code_cells(notebook)
    for cell in cells:
        cell.outputs, cell.execution_count = [], None
    threads = max(1, (os.cpu_count() or 1) // WORKERS)
    variables = {
        "TRANSFORMER_CIRCUITS_ROOT": str(book.root),
        "TRANSFORMER_CIRCUITS_BOOK": "1",
        "TQDM_DISABLE": "1",  # progress bars are for people who wait, not for pages
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # ipykernel's debugger would write a warning into each page
    }
    client = NotebookClient(
        notebook,
        timeout=TIMEOUT,
        coalesce_streams=True,  # how printing is cut into pieces differs from run to run
        record_timing=False,  # times would become part of the cells, by which the cache finds a notebook
        resources={"metadata": {"path": str(path.parent)}},
        extra_arguments=["--IPKernelApp.log_level=40"],  # each kernel would warn that it uses plain TCP
    )
    trouble = ""
    try:
        client.execute(env=os.environ | variables)
    except (CellControlSignal, RuntimeError) as error:  # a failed cell, one that took too long, a dead kernel
        trouble = str(error)
        if not any(output.output_type == "error" for cell in cells for output in cell.outputs):
            said = {"ename": type(error).__name__, "evalue": trouble, "traceback": [trouble]}
            cells[-1].outputs = [nbformat.v4.new_output("error", **said)]
    return notebook, time.monotonic() - start, trouble


def run(book: Book, chosen: Sequence[Path] | None = None) -> Cache:
    """Run all notebooks, or the chosen ones, that have not run on the present files, two at a time. Returns where the results are.

    BuildError names every notebook with a failed cell; it is kept in `book.failed`.
    """
    if missing := [f for f in book.files() if not is_generated(f) and not list(book.root.glob(f"{f}.*"))]:
        raise BuildError(f"The table of contents lists files that do not exist: {', '.join(missing)}.")
    cache, chosen = Cache(book), chosen or book.notebooks()
    cache.open()
    shutil.rmtree(book.failed, ignore_errors=True)
    todo = [path for path in chosen if cache.get(path) is None]
    failed = []
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        futures = {pool.submit(execute, book, path): path for path in todo}
        try:
            for future in concurrent.futures.as_completed(futures):
                path, (notebook, seconds, trouble) = futures[future], future.result()
                if fingerprint(book.root) != cache.fingerprint:
                    raise BuildError(
                        "The package, the weights or the data changed while the notebooks ran: build again."
                    )
                if not trouble:
                    cache.put(path, notebook, seconds)
                    print(f"ran {path.name} in {seconds:.1f} s", flush=True)
                else:
                    failed.append(path.name)
                    book.failed.mkdir(exist_ok=True)
                    nbformat.write(notebook, book.failed / path.name)
                    print(f"FAILED {path.name}\n{trouble}", flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for kernel in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):  # it may have just ended
                    kernel.kill()
            raise
    print(f"{len(todo)} notebooks run, {len(chosen) - len(todo)} taken from the cache", flush=True)
    if failed:
        raise BuildError(f"A cell failed in {', '.join(sorted(failed))}: see the traceback above.")
    return cache


def store_outputs(book: Book, cache: Cache) -> None:
    """Put what cells tagged for nbval printed into the notebooks in git, and remove all other outputs."""
    for path in book.notebooks():
        notebook, executed = nbformat.read(path, as_version=4), cache.get(path)
        pairs = zip(code_cells(notebook), code_cells(executed), strict=True)
        for number, (cell, ran) in enumerate(pairs, start=1):
            kept = CHECKED in cell.metadata.get("tags", [])
            cell.outputs, cell.execution_count = (ran.outputs, number) if kept else ([], None)
        text = nbformat.writes(notebook) + "\n"
        if text != path.read_text(encoding="utf-8"):
            write_whole(path, text)
            print(f"stored the outputs of {path.name}", flush=True)


# ---- records, and the pages that are generated ----------------------------------------------------------------------------


def records(book: Book, cache: Cache) -> dict[str, list[ledger.Record]]:
    """Return the records of claims in the executed notebooks, by notebook. Raises BuildError if a claim is recorded twice."""
    found = {path.stem: list(show.records_in(cache.get(path))) for path in book.notebooks()}
    if wrong := ledger.problems(found):
        raise BuildError(" ".join(wrong))
    return found


def report_changes(book: Book, recorded: dict[str, list[ledger.Record]]) -> None:
    """Keep the verdicts for `python -m transformer_circuits.claims`, and list what differs from the accepted ones."""
    notebooks = {record.id: notebook for notebook, found in recorded.items() for record in found}
    now = {record.id: record.verdict for found in recorded.values() for record in found}
    write_whole(book.build / "verdicts.json", json.dumps(now))
    for id, old, new in ledger.changed(now, ledger.read_accepted(book.root / "book" / "verdicts.yml")):
        notebook = notebooks.get(id, "…")
        print(f"{id} is now '{new}', accepted was '{old}': read notebooks/{notebook}.ipynb again", flush=True)


def made(book: Book, cache: Cache, name: str) -> Path:
    """Return the folder with the page of one of GENERATED, and what its module made with it, in the folder of the same name or _static.

    Raises BuildError if the module fails.
    """
    folder = cache.made / Path(name).name
    if not folder.is_dir():
        with own_folder(folder.parent, ".made-") as own:
            partial = own / folder.name
            partial.mkdir()
            command = [sys.executable, "-m", GENERATED[name], str(partial / f"{folder.name}.md")]
            variables = os.environ | {"TRANSFORMER_CIRCUITS_ROOT": str(book.root)}
            if subprocess.run(command, env=variables).returncode:
                raise BuildError(f"{name}.md could not be made: see the message above.")
            partial.rename(folder)
    return folder


def write_generated(book: Book, cache: Cache, recorded: dict[str, list[ledger.Record]]) -> None:
    """Write the generated pages next to the others, and COMPLETE, which lists them all."""
    contents = book.contents()
    if SCOREBOARD in book.files():
        if missing := ledger.missing({record.id for found in recorded.values() for record in found}):
            claims = ", ".join(f"{claim.id} (chapter {claim.chapter})" for claim in missing)
            raise BuildError(f"No notebook shows the verdict on {claims}.")
        report_changes(book, recorded)
        results = scoreboard.Results(recorded, write_figures(book, cache, recorded))
        write_whole(book.root / f"{SCOREBOARD}.md", scoreboard.page(results))
        write_whole(book.root / f"{HEADLINES}.md", scoreboard.headlines(results))
    for entry in list(entries(contents)):
        name = entry.get("file")
        if name in GENERATED:
            source, parent = made(book, cache, name), Path(name).parent
            shutil.rmtree(book.root / name, ignore_errors=True)
            shutil.copytree(source, book.root / parent, dirs_exist_ok=True)
            pages = [path.relative_to(source) for path in (source / Path(name).name).rglob("*.md")]
            if pages:
                pages.sort(key=lambda page: (page.parent, len(page.name), page))  # 0_2 comes before 0_10
                entry["sections"] = [{"file": str((parent / page).with_suffix(""))} for page in pages]
    write_whole(book.root / COMPLETE, yaml.safe_dump(contents, sort_keys=False))


def write_figures(
    book: Book, cache: Cache, recorded: dict[str, list[ledger.Record]]
) -> dict[str, tuple[str, str]]:
    """Write the page of the paper's figures. Returns for each claim where it is shown, and what is shown there."""
    chapters = entries(book.contents())
    titles = {Path(entry["file"]).name: entry.get("title", "") for entry in chapters if "file" in entry}
    cells = paper_figures.Cells({path.stem: cache.get(path) for path in book.notebooks()}, titles)
    listed = paper_figures.load(book.root / f"{FIGURES}.yml")
    write_whole(book.root / f"{FIGURES}.md", paper_figures.page(listed, cells, scoreboard.Results(recorded)))
    return {id: (cells.link(place), cells.what(place)) for id, place in listed.places().items()}


def copy_scripts(book: Book) -> None:
    """Copy the scripts of CircuitsVis and DataTables from the installed packages to the static files, once for the whole book."""
    from transformer_circuits.figures import widgets

    shipped = importlib.resources.files("itables") / "html"
    module = base64.b64encode((shipped / "dt_bundle.js").read_bytes()).decode()
    files = {
        "circuitsvis/iife.js": widgets.bundle(),
        # Browsers refuse to import a module from disk, but not from an address that contains it.
        "datatables/datatables.js": f'window.itables = import("data:text/javascript;base64,{module}");\n',
        "datatables/datatables.css": (shipped / "dt_bundle.css").read_text(encoding="utf-8"),
    }
    for name, text in files.items():
        write_whole(book.root / "book" / "_static" / name, text)


@contextlib.contextmanager
def own_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Make a folder that no other process writes to, not even one that a killed build left running; remove folders of killed builds."""
    parent.mkdir(parents=True, exist_ok=True)
    for left in parent.glob(f"{prefix}*"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def write_whole(path: Path, text: str) -> None:
    """Replace a file such that it is the old or the new one, even after a kill."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


# ---- the pages ----------------------------------------------------------------------------------------------------------

JUPYTER_BOOK = """\
import sys
from pathlib import Path
from jupyter_book.sphinx import build_sphinx
root, toc, cache, out = sys.argv[1:]
overrides = {"external_toc_path": toc, "nitpicky": True, "latex_individualpages": False, "nb_execution_cache_path": cache}
sys.exit(bool(build_sphinx(root, out, noconfig=True, path_config=Path(root, "_config.yml"), confoverrides=overrides,
                           warningiserror=True, keep_going=True, quiet=True)))
"""


def write_pages(book: Book, cache: Cache) -> Path:
    """Write the pages, unless those of the present sources and results are there, byte for byte. Returns the first page.

    Raises BuildError if jupyter-book reports a warning or an error.
    """
    html, old = book.build / "html", book.build / "pages.old"
    results = f"cache/{cache.folder.name}/executed/executed"
    sources = digest(book.root, PAGES) + digest(book.build, ["toc.yml", results]) + cache.fingerprint

    def state(folder: Path) -> str:
        return f"{sources} {digest(folder, ['.'])}"

    stamp = html / ".complete"
    if stamp.is_file() and stamp.read_text() == state(html):
        print("the pages are up to date", flush=True)
        return html / "index.html"
    shutil.rmtree(old, ignore_errors=True)
    with own_folder(book.build, "pages-") as own:
        fresh = own / "html"
        paths = [book.root, book.root / COMPLETE, cache.executed, fresh]
        command = [sys.executable, "-c", JUPYTER_BOOK, *map(str, paths)]
        variables = os.environ | {"TRANSFORMER_CIRCUITS_BOOK": "1"}
        if subprocess.run(command, cwd=book.root, env=variables).returncode:
            raise BuildError("jupyter-book reported warnings or errors: fix each one that is listed above.")
        (fresh / ".complete").write_text(state(fresh))
        if html.exists():
            html.rename(old)
        fresh.rename(html)
    shutil.rmtree(old, ignore_errors=True)
    return html / "index.html"


@contextlib.contextmanager
def measured() -> Iterator[None]:
    """Print at the end how long the block took, and the peak memory of this process and all below it together."""
    start, peak, done = time.monotonic(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.5):
            with contextlib.suppress(psutil.Error):  # one may have just ended
                processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
                peak = max(peak, sum(process.memory_info().rss for process in processes))

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        done.set()
        print(f"{time.monotonic() - start:.0f} s wall time, {peak / 2**30:.1f} GiB peak memory", flush=True)


def build(book: Book) -> Path:
    """Build the book. Returns the first page; raises BuildError if anything is wrong."""
    cache = run(book)
    recorded = records(book, cache)
    print(f"{sum(map(len, recorded.values()))} claims recorded", flush=True)
    write_generated(book, cache, recorded)
    copy_scripts(book)
    return write_pages(book, cache)


def check_place(here: Path) -> None:
    """Raise BuildError if `here` is a clone of the book and the running package belongs to another one."""
    package = Path(__file__).resolve().parent
    other = here.resolve() / "src" / package.name
    if other.is_dir() and other != package:
        raise BuildError(
            f"This .venv runs the package in {package}, not the one in {other} (was the folder copied or moved?): "
            "run `make` here, which makes a new .venv, or `python -m pip install --editable .`."
        )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Build the book.")
    add = parser.add_argument
    add("--root", type=Path, default=ROOT, help="folder of the book's sources (default: this repository)")
    add("--run", nargs="*", type=Path, metavar="NOTEBOOK", help="only run these notebooks (default: all)")
    add("--store-outputs", action="store_true", help="put the outputs that nbval compares into the notebooks")
    options = parser.parse_args(arguments)
    book = Book(options.root.resolve())
    try:
        check_place(Path.cwd())
        if {"%", "?"} & set(str(book.root)):  # the database of jupyter-cache would misread it
            raise BuildError(f"The path {book.root} contains % or ?: rename that folder.")
        with locked(book), measured():
            if options.run is not None:
                run(book, [path.resolve() for path in options.run])
            elif options.store_outputs:
                store_outputs(book, run(book))
            else:
                print(f"The book: {build(book)}")
    except (BuildError, KeyboardInterrupt) as error:
        reason = str(error) or "Interrupted: the same command continues from here."
        print(f"The book was not built. {reason}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
