"""Build the book: run the notebooks, judge the claims, write the pages.

    python -m transformer_circuits.build                     (what `make book` runs)
    python -m transformer_circuits.build --store-outputs     also put the outputs that nbval compares into the notebooks, and remove all others
    python -m transformer_circuits.build --run [NOTEBOOK …]  run what has not run yet, write no pages

`store` keeps what each notebook and each maker of pages gave, so that a change runs again what it touches and nothing else. Records of claims
are outputs of the notebooks. jupyter-book always writes all pages, with every warning an error, into a folder that replaces the old one when it
is complete. A lock makes builds and tests of one folder wait for each other. The next build repeats whatever was interrupted.
"""

import argparse
import base64
import concurrent.futures
import contextlib
import importlib.resources
import json
import multiprocessing
import os
import shutil
import signal
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
from transformer_circuits.build.store import PACKAGE, BuildError, Store, digest, own_folder, write_whole
from transformer_circuits.claims import ledger, show
from transformer_circuits.pages import paper_figures, scoreboard
from transformer_circuits.paths import ROOT

PAGES = ("book", "notebooks", "_config.yml")  # what the pages depend on, besides results
GENERATED = {  # pages that are made from watched files, and the modules whose `main` makes them
    "book/models": "transformer_circuits.pages.model_cards",
    "book/head_dump": "transformer_circuits.pages.dump_pages",
    "book/every_head": "transformer_circuits.pages.every_head",
    "book/play": "transformer_circuits.pages.play",
    "book/watch": "transformer_circuits.pages.watch",
    "book/grow": "transformer_circuits.pages.grow",
}
# Begun before the others, which take less: no long one is left over at the end, while the second worker has nothing to do.
LONGEST = (
    "models 15_grow_one 16_every_head 10_in_context_learning 08_term_importance 13_seeds_and_public_models 07_induction_heads "
    "04_skip_trigrams 12_other_architectures e5_more_measures head_dump"
).split()
SCOREBOARD = "book/scoreboard"  # made from the records, as is what the front page includes
HEADLINES = "book/headlines"
FIGURES = "book/figures"  # made from the executed notebooks, the records and book/figures.yml
CONTENTS = "book/_toc.yml"
FAILED = "_build/failed"  # notebooks in which a cell failed in the last run, with outputs up to there
COMPLETE = "_build/toc.yml"  # the table of contents, with the pages that generated pages added
TIMEOUT = 1800  # seconds per cell: a chapter takes a minute on two free cores, but machines are shared
WORKERS = 2  # notebooks and pages that are made at the same time: more would need more than 6 GB
WORKING = threading.Semaphore(WORKERS)  # a third kernel starts, which is mostly waiting, while two work
CHECKED = "nbval-check-output"  # tag of cells whose outputs are kept in git, for nbval to compare
JUPYTER_BOOK = "from jupyter_book.cli.main import main; main()"


def entries(contents: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield every entry of a table of contents that names a file."""
    if "root" in contents or "file" in contents:
        yield contents
    for key in ("parts", "chapters", "sections"):
        for child in contents.get(key) or []:
            yield from entries(child)


def files(root: Path, contents: str = CONTENTS) -> list[str]:
    """Return every file that a table of contents lists, without suffix, in reading order; COMPLETE lists the generated pages too."""
    listed = yaml.safe_load((root / contents).read_text(encoding="utf-8"))
    return [entry.get("root") or entry["file"] for entry in entries(listed)]


def missing_files(root: Path) -> list[str]:
    """Return what the table of contents lists though it neither exists nor is generated."""
    generated = {SCOREBOARD, FIGURES, *GENERATED}
    return [name for name in files(root) if name not in generated and not list(root.glob(f"{name}.*"))]


def notebooks(root: Path) -> list[Path]:
    return [path for name in files(root) if (path := root / f"{name}.ipynb").is_file()]


def locked(root: Path) -> contextlib.AbstractContextManager:
    """Wait while another process builds or tests the same book. Returns the lock, to be held in a `with` block."""
    lock = filelock.FileLock(root / "_build" / ".lock")
    try:
        return lock.acquire(timeout=0)
    except filelock.Timeout:
        print("another build or test of this book is running: waiting until it has ended", flush=True)
        return lock.acquire()


# ---- the notebooks ------------------------------------------------------------------------------------------------------


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def source_of(notebook: NotebookNode) -> str:
    """Return the code of a notebook's cells: what its outputs depend on in the notebook itself."""
    return json.dumps([cell.source for cell in code_cells(notebook)])


def executed(store: Store, path: Path) -> NotebookNode | None:
    """Return a notebook in its present state with outputs; None if it has not run to its end on the present files."""
    notebook = nbformat.read(path, as_version=4)
    if (folder := store.find(path.stem, source_of(notebook))) is None:
        return None
    result = nbformat.read(folder / path.name, as_version=4)
    for cell, ran in zip(code_cells(notebook), code_cells(result), strict=True):
        cell.outputs, cell.execution_count = ran.outputs, ran.execution_count
    notebook.metadata.language_info = result.metadata.language_info
    return notebook


def as_run(store: Store, path: Path) -> NotebookNode:
    """Return `executed` of a notebook that has run. Raises BuildError if it, or what it reads, changed since then."""
    if (notebook := executed(store, path)) is None:
        raise BuildError(f"{path.name} changed while the book was built: build again.")
    return notebook


def variables(root: Path) -> dict[str, str]:
    """Return the environment of notebooks and makers of pages."""
    threads = max(1, (os.cpu_count() or 1) // WORKERS)
    own = {
        "TRANSFORMER_CIRCUITS_ROOT": str(root),
        "TRANSFORMER_CIRCUITS_BOOK": "1",
        "TQDM_DISABLE": "1",  # progress bars are for people who wait, not for pages
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        # glibc keeps freed tensors of up to 64 MB: the system would fill their pages with zeros each time.
        "MALLOC_MMAP_THRESHOLD_": str(1 << 26),
        "MALLOC_TRIM_THRESHOLD_": str(1 << 28),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # ipykernel's debugger would write a warning into each page
    }
    return os.environ | own


def execute(store: Store, path: Path, log: Path) -> tuple[NotebookNode, str, float]:
    """Run one notebook. Returns it with outputs; the traceback of what failed, else ""; and the seconds that its cells took.

    `log` gets the watched files that it read.
    """
    notebook = nbformat.read(path, as_version=4)
    cells, start = code_cells(notebook), time.monotonic()
    for cell in cells:
        cell.outputs, cell.execution_count = [], None

    def begin(notebook: NotebookNode) -> None:
        nonlocal start
        WORKING.acquire()
        start = time.monotonic()

    client = NotebookClient(
        notebook,
        forks.Manager(store.watched, str(log), kernel_name="python3"),
        timeout=TIMEOUT,
        startup_timeout=300,  # a second, or a minute on a machine with twenty other programs
        shutdown_kernel="immediate",  # nothing that a chapter leaves needs tidying
        coalesce_streams=True,  # how printing is cut into pieces differs from run to run
        record_timing=False,  # times would differ from run to run
        on_notebook_start=begin,  # its kernel is ready
        on_notebook_complete=lambda notebook: WORKING.release(),  # after a failure too
        resources={"metadata": {"path": str(path.parent)}},
        extra_arguments=["--IPKernelApp.log_level=40"],  # each kernel would warn that it uses plain TCP
    )
    client.owns_km = True  # it ends the kernel that it started
    trouble = ""
    try:
        client.execute(env=variables(store.root))
    except (CellControlSignal, RuntimeError) as error:  # a failed cell, one that took too long, a dead kernel
        trouble = str(error)
        if not any(output.output_type == "error" for cell in cells for output in cell.outputs):
            said = {"ename": type(error).__name__, "evalue": trouble, "traceback": [trouble]}
            cells[-1].outputs = [nbformat.v4.new_output("error", **said)]
    return notebook, trouble, time.monotonic() - start


def make(store: Store, path: Path) -> str:
    """Run a notebook, or make a page of GENERATED with all that belongs to it, and keep the result.

    A notebook in which a cell failed is kept in FAILED; returns its name, else "". Raises BuildError if a page could not be made.
    """
    source = ""
    with own_folder(store.results / path.stem, ".new-") as own:
        made, log = own / "made", own / "log"
        made.mkdir()
        if path.suffix == ".ipynb":
            notebook, trouble, seconds = execute(store, path, log)
            if trouble:
                (store.root / FAILED).mkdir(exist_ok=True)
                nbformat.write(notebook, store.root / FAILED / path.name)
                print(f"FAILED {path.name}\n{trouble}", flush=True)
                return path.name
            source = source_of(notebook)
            nbformat.write(notebook, made / path.name)
        else:
            place = (variables(store.root), str(store.root), store.watched, str(log))
            with WORKING:
                start = time.monotonic()
                process = forks.start(forks.make_page, GENERATED[f"book/{path.stem}"], str(made / path.name), *place)
                process.join()
            if process.exitcode:
                raise BuildError(f"book/{path.name} could not be made: see the message above.")
            seconds = time.monotonic() - start
        store.keep(path.stem, source, store.needs(log, source), made)
        print(f"made {path.name} in {seconds:.1f} s", flush=True)
    return ""


def run(root: Path, chosen: Sequence[Path] = (), pages: bool = False) -> Store:
    """Run all notebooks, or the chosen ones, that have not run on the present files, two at a time. Returns where the results are.

    `pages`: make the pages of GENERATED as well. BuildError names every notebook with a failed cell.
    """
    if missing := missing_files(root):
        raise BuildError(f"The table of contents lists files that do not exist: {', '.join(missing)}.")
    if missing := [str(path) for path in chosen if not path.is_file()]:
        raise BuildError(f"There is no notebook {', '.join(missing)}.")
    store, chosen = Store(root), chosen or notebooks(root)
    shutil.rmtree(root / FAILED, ignore_errors=True)
    todo = [path for path in chosen if executed(store, path) is None]
    wanted = [root / f"{name}.md" for name in files(root) if pages and name in GENERATED]
    jobs = [*todo, *(page for page in wanted if store.find(page.stem) is None)]
    jobs.sort(key=lambda path: LONGEST.index(path.stem) if path.stem in LONGEST else len(LONGEST))
    if jobs:
        forks.start_server(variables(root))
    with concurrent.futures.ThreadPoolExecutor(WORKERS + 1) as pool:
        futures = [pool.submit(make, store, path) for path in jobs]
        try:
            names = [future.result() for future in concurrent.futures.as_completed(futures)]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            kill_forks()
            raise
    print(f"{len(todo)} notebooks run, {len(chosen) - len(todo)} taken from the cache", flush=True)
    if any(names):
        raise BuildError(f"A cell failed in {', '.join(sorted(filter(None, names)))}: see the traceback above.")
    return store


def kill_forks() -> None:
    """Kill the kernels and makers of pages that this process started, with all below them, and nothing else: a test's browser lives on."""
    for fork in multiprocessing.active_children():
        try:
            os.killpg(fork.pid, signal.SIGKILL)
        except ProcessLookupError:  # it leads no group yet, or has just ended
            fork.kill()


def store_outputs(store: Store) -> None:
    """Put what cells tagged for nbval printed into the notebooks in git, and remove all other outputs."""
    for path in notebooks(store.root):
        notebook = as_run(store, path)
        for number, cell in enumerate(code_cells(notebook), start=1):
            kept = CHECKED in cell.metadata.get("tags", [])
            cell.outputs, cell.execution_count = (cell.outputs, number) if kept else ([], None)
        notebook.metadata = nbformat.read(path, as_version=4).metadata
        text = nbformat.writes(notebook) + "\n"
        if text != path.read_text(encoding="utf-8"):
            write_whole(path, text)
            print(f"stored the outputs of {path.name}", flush=True)


# ---- records, and the pages that are generated ----------------------------------------------------------------------------


def records(store: Store) -> dict[str, list[ledger.Record]]:
    """Return the records of claims in the executed notebooks, by notebook. Raises BuildError if a claim is recorded twice."""
    found = {path.stem: list(show.records_in(as_run(store, path))) for path in notebooks(store.root)}
    if wrong := ledger.problems(found):
        raise BuildError(" ".join(wrong))
    return found


def write_results(store: Store, recorded: dict[str, list[ledger.Record]]) -> None:
    """Write the pages made from records, and list verdicts that are not the accepted ones. Raises BuildError if a claim was not recorded."""
    root = store.root
    owner = {record.id: notebook for notebook, found in recorded.items() for record in found}
    if missing := ledger.missing(owner):
        claims = ", ".join(f"{claim.id} (chapter {claim.chapter})" for claim in missing)
        raise BuildError(f"No notebook shows the verdict on {claims}.")
    now = {record.id: record.verdict for found in recorded.values() for record in found}
    write_whole(root / "_build" / "verdicts.yml", ledger.as_file(now))  # for `make accept`
    for id, old, new in ledger.changed(now, root / "book" / "verdicts.yml"):
        notebook = owner.get(id, "…")
        print(f"{id} is now '{new}', accepted was '{old}': read notebooks/{notebook}.ipynb again", flush=True)
    contents = yaml.safe_load((root / CONTENTS).read_text(encoding="utf-8"))
    titles = {Path(entry["file"]).name: entry.get("title", "") for entry in entries(contents) if "file" in entry}
    cells = paper_figures.Cells({path.stem: as_run(store, path) for path in notebooks(root)}, titles)
    listed = paper_figures.load(root / f"{FIGURES}.yml")
    shown = {id: (cells.link(place), cells.what(place)) for id, place in listed.places().items()}
    results = scoreboard.Results(recorded, shown)
    write_whole(root / f"{FIGURES}.md", paper_figures.page(listed, cells, results))
    write_whole(root / f"{SCOREBOARD}.md", scoreboard.page(results))
    write_whole(root / f"{HEADLINES}.md", scoreboard.headlines(results))


def write_generated(store: Store) -> None:
    """Write the pages of GENERATED next to the others, and COMPLETE, which lists them all."""
    root = store.root
    contents = yaml.safe_load((root / CONTENTS).read_text(encoding="utf-8"))
    for entry in list(entries(contents)):
        name = entry.get("file")
        if name in GENERATED:
            source, parent = store.find(Path(name).name), Path(name).parent
            shutil.rmtree(root / name, ignore_errors=True)
            shutil.copytree(source, root / parent, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*"))
            pages = [path.relative_to(source) for path in (source / Path(name).name).rglob("*.md")]
            if pages:
                pages.sort(key=lambda page: (page.parent, len(page.name), page))  # 0_2 comes before 0_10
                entry["sections"] = [{"file": str((parent / page).with_suffix(""))} for page in pages]
    write_whole(root / COMPLETE, yaml.safe_dump(contents, sort_keys=False))


def copy_scripts(root: Path) -> None:
    """Copy the scripts of CircuitsVis and DataTables from the installed packages to the static files, once for the whole book."""
    from transformer_circuits.figures import widgets

    shipped = importlib.resources.files("itables") / "html"
    module = base64.b64encode((shipped / "dt_bundle.js").read_bytes()).decode()
    static = root / "book" / "_static"
    write_whole(static / "circuitsvis" / "iife.js", widgets.bundle())
    # Browsers refuse to import a module from disk, but not from an address that contains it.
    script = f'window.itables = import("data:text/javascript;base64,{module}");\n'
    write_whole(static / "datatables" / "datatables.js", script)
    write_whole(static / "datatables" / "datatables.css", (shipped / "dt_bundle.css").read_text(encoding="utf-8"))


# ---- the pages ----------------------------------------------------------------------------------------------------------


def write_pages(store: Store) -> Path:
    """Write the pages, unless those of the present sources and results are there, byte for byte. Returns the first page."""
    root, build = store.root, store.build
    html, old = build / "html", build / "pages.old"
    shutil.rmtree(build / "executed", ignore_errors=True)
    for path in notebooks(root):
        # book/_ext/pages.py shows these.
        write_whole(build / "executed" / path.name, nbformat.writes(as_run(store, path)))
    sources = digest(root, PAGES) + digest(build, ["toc.yml", "executed"]) + store.environment
    stamp = html / ".complete"
    if stamp.is_file() and stamp.read_text() == f"{sources} {digest(html)}":
        print("the pages are up to date", flush=True)
        return html / "index.html"
    shutil.rmtree(old, ignore_errors=True)
    with own_folder(build, "pages-") as own:
        command = [sys.executable, "-c", JUPYTER_BOOK, "build", root, "--toc", root / COMPLETE, "--path-output", own]
        strict = ["--nitpick", "--warningiserror", "--keep-going", "--quiet"]
        environment = os.environ | {"TRANSFORMER_CIRCUITS_BOOK": "1"}
        done = subprocess.run([*command, *strict], cwd=root, env=environment, stdout=subprocess.DEVNULL)
        if done.returncode:
            raise BuildError("jupyter-book reported warnings or errors: fix each one that is listed above.")
        fresh = own / "_build" / "html"
        (fresh / ".complete").write_text(f"{sources} {digest(fresh)}")
        if html.exists():
            html.rename(old)
        fresh.rename(html)
    shutil.rmtree(old, ignore_errors=True)
    return html / "index.html"


@contextlib.contextmanager
def measured() -> Iterator[None]:
    """Print at the end how long the block took, and the peak memory of this process and all below it together, looked at now and then."""
    start, peak, done = time.monotonic(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        ended = False
        while not ended:
            with contextlib.suppress(psutil.Error):  # one may have just ended
                processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
                # Forks share most of their memory: each counts its part.
                memory = [process.memory_full_info() for process in processes]
                peak = max(peak, sum(getattr(part, "pss", part.uss) for part in memory))
            ended = done.wait(4)  # seconds: each look takes 10 ms a process, and holds it up

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        done.set()
        print(f"{time.monotonic() - start:.0f} s wall time, {peak / 2**30:.1f} GiB peak memory", flush=True)


def build(root: Path) -> Path:
    """Build the book. Returns the first page; raises BuildError if anything is wrong."""
    store = run(root, pages=True)
    recorded = records(store)
    print(f"{sum(map(len, recorded.values()))} claims recorded", flush=True)
    if SCOREBOARD in files(root):
        write_results(store, recorded)
    write_generated(store)
    copy_scripts(root)
    return write_pages(store)


def check_place(here: Path) -> None:
    """Raise BuildError if `here` is a clone of the book and the running package belongs to another one."""
    other = here.resolve() / "src" / PACKAGE.name
    if other.is_dir() and other != PACKAGE:
        raise BuildError(
            f"This .venv runs the package in {PACKAGE}, not the one in {other} (was the folder copied or moved?): "
            "run `make` here, which makes a new .venv, or `python -m pip install --editable .`."
        )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Build the book.")
    add = parser.add_argument
    add("--root", type=Path, default=ROOT, help="folder of the book's sources (default: this repository)")
    add("--run", nargs="*", type=Path, metavar="NOTEBOOK", help="only run these notebooks (default: all)")
    add("--store-outputs", action="store_true", help="put the outputs that nbval compares into the notebooks")
    options = parser.parse_args(arguments)
    root = options.root.resolve()
    try:
        check_place(Path.cwd())
        if {"%", "?"} & set(str(root)):  # addresses of pages on disk would misread it
            raise BuildError(f"The path {root} contains % or ?: rename that folder.")
        with locked(root), measured():
            if options.run is not None:
                run(root, [path.resolve() for path in options.run])
            elif options.store_outputs:
                store_outputs(run(root))
            else:
                print(f"The book: {build(root)}")
    except (BuildError, KeyboardInterrupt) as error:
        reason = str(error) or "Interrupted: the same command continues from here."
        print(f"The book was not built. {reason}", file=sys.stderr)
        return 1
    return 0
