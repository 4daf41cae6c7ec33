"""Build the book: run the notebooks, judge the claims, write the pages.

    python -m transformer_circuits.build                     (what `make book` runs)
    python -m transformer_circuits.build --store-outputs     also put the outputs that nbval compares into the notebooks, and remove all others
    python -m transformer_circuits.build --run [NOTEBOOK …]  run what has not run yet, write no pages

A page shows what its notebook computed:

1. `store` keeps what each notebook and each maker of pages gave, together with everything that it read: modules of the package, weights,
   data, installed releases. A result counts while all of it is the same, so that a change runs again what it touches and nothing else.
2. Records of claims are outputs of the notebooks. The scoreboard and the front page's tables are made from the records.
3. jupyter-book always writes all pages, with every warning an error, into a folder that replaces the old one when it is complete.

A lock makes builds and tests of one folder wait for each other. The next build repeats whatever was interrupted.
"""

import argparse
import base64
import concurrent.futures
import contextlib
import dataclasses
import importlib.resources
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import filelock
import nbformat
import psutil
import yaml
from nbclient import NotebookClient
from nbclient.exceptions import CellControlSignal
from nbformat import NotebookNode

from transformer_circuits import forks
from transformer_circuits.build.store import NEEDS, PACKAGE, BuildError, Store, digest, own_folder, write_whole
from transformer_circuits.claims import ledger, show
from transformer_circuits.pages import paper_figures, scoreboard
from transformer_circuits.paths import ROOT

PAGES = ("book", "notebooks", "_config.yml")  # what the pages depend on, besides results
GENERATED = {  # pages that are made from watched files, and the modules that make them: `python -m MODULE PAGE.md`
    "book/models": "transformer_circuits.pages.model_cards",
    "book/head_dump": "transformer_circuits.pages.dump_pages",
    "book/every_head": "transformer_circuits.pages.every_head",
    "book/play": "transformer_circuits.pages.play",
    "book/watch": "transformer_circuits.pages.watch",
    "book/grow": "transformer_circuits.pages.grow",
}
# Begun before the others, which take less: no long one is left over at the end, while the second worker has nothing to do.
LONGEST = "models 16_every_head 15_grow_one 08_term_importance 07_induction_heads 04_skip_trigrams 10_in_context_learning e5_more_measures".split()
SCOREBOARD = "book/scoreboard"  # made from the records, as is what the front page includes
HEADLINES = "book/headlines"
FIGURES = "book/figures"  # made from the executed notebooks, the records and book/figures.yml
COMPLETE = "_build/toc.yml"  # the table of contents, with the pages that generated pages added
TIMEOUT = 1800  # seconds per cell: a chapter takes a minute on two free cores, but machines are shared
WORKERS = 2  # notebooks and pages that are made at the same time: more would need more than 6 GB
CHECKED = "nbval-check-output"  # tag of cells whose outputs are kept in git, for nbval to compare


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


def locked(book: Book) -> contextlib.AbstractContextManager:
    """Wait while another process builds or tests the same book. Returns the lock, to be held in a `with` block."""
    lock = filelock.FileLock(book.build / ".lock")
    try:
        return lock.acquire(timeout=0)
    except filelock.Timeout:
        print("another build or test of this book is running: waiting until it has ended", flush=True)
        return lock.acquire()


class Cache:
    """What was made from the book's present files: executed notebooks, and the pages of GENERATED."""

    def __init__(self, book: Book) -> None:
        self.store = Store(book.root, book.build / "results")

    def get(self, path: Path) -> NotebookNode | None:
        """Return a notebook in its present state with outputs; None if it has not run to its end on the present files."""
        notebook = nbformat.read(path, as_version=4)
        if (folder := self.store.find(path.stem, source_of(notebook))) is None:
            return None
        executed = nbformat.read(folder / path.name, as_version=4)
        for cell, ran in zip(code_cells(notebook), code_cells(executed), strict=True):
            cell.outputs, cell.execution_count = ran.outputs, ran.execution_count
        notebook.metadata.language_info = executed.metadata.language_info
        return notebook

    def made(self, name: str) -> Path | None:
        """Return the folder with the page of one of GENERATED, and what its module made with it, in the folder of the same name or _static."""
        return self.store.find(Path(name).name, "")


def source_of(notebook: NotebookNode) -> str:
    """Return the code of a notebook's cells: what its outputs depend on in the notebook itself."""
    return json.dumps([cell.source for cell in code_cells(notebook)])


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


# ---- the notebooks ------------------------------------------------------------------------------------------------------


def variables(book: Book) -> dict[str, str]:
    """Return the environment of notebooks and makers of pages."""
    threads = max(1, (os.cpu_count() or 1) // WORKERS)
    own = {
        "TRANSFORMER_CIRCUITS_ROOT": str(book.root),
        "TRANSFORMER_CIRCUITS_BOOK": "1",
        "TQDM_DISABLE": "1",  # progress bars are for people who wait, not for pages
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # ipykernel's debugger would write a warning into each page
    }
    return os.environ | own


def execute(book: Book, path: Path, watched: Sequence[str], log: Path) -> tuple[NotebookNode, str]:
    """Run one notebook without its stored outputs. Returns it with outputs, and the traceback of what failed, else "".

    `log` gets the watched files that it read.
    """
    notebook = nbformat.read(path, as_version=4)
    cells = code_cells(notebook)
    for cell in cells:
        cell.outputs, cell.execution_count = [], None
    manager = forks.Manager(watched, str(log), kernel_name="python3")
    client = NotebookClient(
        notebook,
        manager,
        timeout=TIMEOUT,
        startup_timeout=TIMEOUT
        // 6,  # a kernel takes a second to start, and a minute on a machine with twenty other programs
        shutdown_kernel="immediate",  # nothing that a chapter leaves needs tidying
        coalesce_streams=True,  # how printing is cut into pieces differs from run to run
        record_timing=False,  # times would differ from run to run
        resources={"metadata": {"path": str(path.parent)}},
        extra_arguments=["--IPKernelApp.log_level=40"],  # each kernel would warn that it uses plain TCP
    )
    client.owns_km = True  # it ends the kernel that it started
    trouble = ""
    try:
        client.execute(env=variables(book))
    except (CellControlSignal, RuntimeError) as error:  # a failed cell, one that took too long, a dead kernel
        trouble = str(error)
        if not any(output.output_type == "error" for cell in cells for output in cell.outputs):
            said = {"ename": type(error).__name__, "evalue": trouble, "traceback": [trouble]}
            cells[-1].outputs = [nbformat.v4.new_output("error", **said)]
    return notebook, trouble


def make_notebook(book: Book, store: Store, path: Path) -> str:
    """Run a notebook, and keep it if no cell failed, else in `book.failed`. Returns the traceback of what failed, else ""."""
    start = time.monotonic()
    with own_folder(store.folder / path.stem, ".new-") as own:
        notebook, trouble = execute(book, path, store.watched, own / "log")
        seconds = time.monotonic() - start
        if trouble:
            book.failed.mkdir(exist_ok=True)
            nbformat.write(notebook, book.failed / path.name)
            print(f"FAILED {path.name}\n{trouble}", flush=True)
        else:
            source, made = source_of(notebook), own / "made"
            made.mkdir()
            nbformat.write(notebook, made / path.name)
            store.keep(path.stem, source, store.needs(own / "log", source), made, seconds)
            print(f"ran {path.name} in {seconds:.1f} s", flush=True)
    return trouble


def make_page(book: Book, store: Store, name: str) -> str:
    """Make one of GENERATED with all that belongs to it, and keep it. Raises BuildError if its module fails."""
    short, start = Path(name).name, time.monotonic()
    with own_folder(store.folder / short, ".new-") as own:
        made, log = own / "made", own / "log"
        made.mkdir()
        place = (variables(book), str(book.root), store.watched, str(log))
        process = forks.start(forks.module, GENERATED[name], [str(made / f"{short}.md")], *place)
        process.join()
        if process.exitcode:
            raise BuildError(f"{name}.md could not be made: see the message above.")
        seconds = time.monotonic() - start
        store.keep(short, "", store.needs(log, ""), made, seconds)
        print(f"made {name}.md in {seconds:.1f} s", flush=True)
    return ""


def run(book: Book, chosen: Sequence[Path] | None = None, pages: bool = False) -> Cache:
    """Run all notebooks, or the chosen ones, that have not run on the present files, two at a time. Returns where the results are.

    `pages`: make the pages of GENERATED as well, in the same way. BuildError names every notebook with a failed cell; it is kept in
    `book.failed`.
    """
    if missing := [f for f in book.files() if not is_generated(f) and not list(book.root.glob(f"{f}.*"))]:
        raise BuildError(f"The table of contents lists files that do not exist: {', '.join(missing)}.")
    cache, chosen = Cache(book), chosen or book.notebooks()
    cache.store.folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(book.failed, ignore_errors=True)
    todo = [path for path in chosen if cache.get(path) is None]
    wanted = [name for name in book.files() if pages and name in GENERATED and cache.made(name) is None]
    jobs = {path.stem: (make_notebook, path) for path in todo}
    jobs |= {Path(name).name: (make_page, name) for name in wanted}
    order = dict.fromkeys([*LONGEST, *jobs])
    failed = []
    if jobs:
        forks.start_server(variables(book))
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        futures = {}
        for make, what in (jobs[name] for name in order if name in jobs):
            futures[pool.submit(make, book, cache.store, what)] = what
        try:
            for future in concurrent.futures.as_completed(futures):
                if future.result():
                    failed.append(futures[future].name)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            kill_forks()
            raise
    print(f"{len(todo)} notebooks run, {len(chosen) - len(todo)} taken from the cache", flush=True)
    if failed:
        raise BuildError(f"A cell failed in {', '.join(sorted(failed))}: see the traceback above.")
    return cache


def kill_forks() -> None:
    """Kill the kernels and makers of pages that this process started, with all below them, and nothing else: a test's browser lives on."""
    for fork in multiprocessing.active_children():
        with contextlib.suppress(psutil.NoSuchProcess):  # it may have just ended
            for process in (*psutil.Process(fork.pid).children(recursive=True), psutil.Process(fork.pid)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()


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
            source, parent = cache.made(name), Path(name).parent
            shutil.rmtree(book.root / name, ignore_errors=True)
            unneeded = shutil.ignore_patterns(NEEDS)
            shutil.copytree(source, book.root / parent, dirs_exist_ok=True, ignore=unneeded)
            pages = [path.relative_to(source) for path in (source / Path(name).name).rglob("*.md")]
            if pages:
                pages.sort(key=lambda page: (page.parent, len(page.name), page))  # 0_2 comes before 0_10
                entry["sections"] = [{"file": str((parent / page).with_suffix(""))} for page in pages]
    write_whole(book.root / COMPLETE, yaml.safe_dump(contents, sort_keys=False))


def write_figures(book: Book, cache: Cache, recorded: dict[str, list[ledger.Record]]) -> dict[str, tuple[str, str]]:
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


# ---- the pages ----------------------------------------------------------------------------------------------------------

JUPYTER_BOOK = """\
import sys
from pathlib import Path
from jupyter_book.sphinx import build_sphinx
root, toc, out = sys.argv[1:]
overrides = {"external_toc_path": toc, "nitpicky": True, "latex_individualpages": False}
sys.exit(bool(build_sphinx(root, out, noconfig=True, path_config=Path(root, "_config.yml"), confoverrides=overrides,
                           warningiserror=True, keep_going=True, quiet=True)))
"""


def write_pages(book: Book, cache: Cache) -> Path:
    """Write the pages, unless those of the present sources and results are there, byte for byte. Returns the first page.

    Raises BuildError if jupyter-book reports a warning or an error.
    """
    html, old, executed = book.build / "html", book.build / "pages.old", book.build / "executed"
    shutil.rmtree(executed, ignore_errors=True)
    for path in book.notebooks():
        # book/_ext/pages.py shows these.
        write_whole(executed / path.name, nbformat.writes(cache.get(path)))
    sources = digest(book.root, PAGES) + digest(book.build, ["toc.yml", "executed"]) + cache.store.environment

    def state(folder: Path) -> str:
        return f"{sources} {digest(folder)}"

    stamp = html / ".complete"
    if stamp.is_file() and stamp.read_text() == state(html):
        print("the pages are up to date", flush=True)
        return html / "index.html"
    shutil.rmtree(old, ignore_errors=True)
    with own_folder(book.build, "pages-") as own:
        fresh = own / "html"
        paths = [book.root, book.root / COMPLETE, fresh]
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
                # Forks share most of their memory: each counts its part.
                memory = [process.memory_full_info() for process in processes]
                peak = max(peak, sum(getattr(part, "pss", part.uss) for part in memory))

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        done.set()
        print(f"{time.monotonic() - start:.0f} s wall time, {peak / 2**30:.1f} GiB peak memory", flush=True)


def build(book: Book) -> Path:
    """Build the book. Returns the first page; raises BuildError if anything is wrong."""
    cache = run(book, pages=True)
    recorded = records(book, cache)
    print(f"{sum(map(len, recorded.values()))} claims recorded", flush=True)
    write_generated(book, cache, recorded)
    copy_scripts(book)
    return write_pages(book, cache)


def check_place(here: Path) -> None:
    """Raise BuildError if `here` is a clone of the book and the running package belongs to another one."""
    package = PACKAGE
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
        if {"%", "?"} & set(str(book.root)):  # addresses of pages on disk would misread it
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
