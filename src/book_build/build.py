"""Build the book: run the notebooks, judge the claims, write the pages.

    python -m book_build                     (what `make book` runs)
    python -m book_build --sources           only what jupyter-book reads
    python -m book_build --run [NOTEBOOK …]  only run notebooks
    python -m book_build --store-outputs     put the outputs that nbval compares into the notebooks

`jupyter-book build .` gives the same pages: book/_ext/pages.py runs the second of these commands before Sphinx reads
anything. The first turns warnings into errors, and replaces the old pages when the new ones are complete.

`store` keeps what each notebook and page gave. Records of claims are outputs of the notebooks. A lock makes builds and
tests of one folder wait for each other.
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
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import filelock
import nbformat
import yaml
from nbclient import NotebookClient
from nbclient.exceptions import CellControlSignal
from nbformat import NotebookNode

from book_build import forks
from book_build.pages import paper_figures, scoreboard
from book_build.store import BuildError, Store, digest, files_in, sha256, write_whole
from transformer_circuits.claims import ledger, show
from transformer_circuits.paths import ROOT

CONTENTS = "_toc.yml"
GENERATED = {  # pages that depend on code, weights and data alone, and the modules whose `main` makes them
    "book/models": "book_build.pages.model_cards",
    "book/head_dump": "book_build.pages.dump_pages",
    **{f"book/{name}": f"book_build.pages.{name}" for name in "every_head follow play watch grow".split()},
}
FAILED = "_build/failed"  # notebooks in which a cell failed in the last run, with outputs up to there
TIMEOUT = 1800  # seconds per cell: a chapter takes a minute on two free cores, but machines are shared
WORKERS = 2  # notebooks and pages that are made at the same time: more would need more than 6 GB
CHECKED = "nbval-check-output"  # tag of cells whose outputs are kept in git, for nbval to compare
IN_BUILD = {"TRANSFORMER_CIRCUITS_BOOK": "1"}  # environment of notebooks, and of Sphinx, that the build starts
JUPYTER_BOOK = "from jupyter_book.cli.main import main; main()"


def contents(root: Path) -> Iterator[dict[str, str]]:
    """Return the entries of the table of contents that name a file, in reading order."""

    def below(part: dict[str, Any]) -> Iterator[dict[str, str]]:
        if "file" in part:
            yield part
        for key in ("parts", "chapters", "sections"):
            for child in part.get(key, []):
                yield from below(child)

    listed = yaml.safe_load((root / CONTENTS).read_text(encoding="utf-8"))
    return below({"file": listed["root"], **listed})


def files(root: Path) -> list[str]:
    """Return every file that the table of contents names, without suffix, in reading order."""
    return [entry["file"] for entry in contents(root)]


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


# ---- the notebooks ---------------------------------------------------------------------------------------------------


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


def all_executed(store: Store) -> dict[Path, NotebookNode]:
    """Return every notebook as `executed` does. Raises BuildError if one changed since it ran."""
    found = {path: executed(store, path) for path in notebooks(store.root)}
    if changed := [path.name for path, notebook in found.items() if notebook is None]:
        raise BuildError(f"{changed[0]} changed while the book was built: build again.")
    return found


def variables(root: Path) -> dict[str, str]:
    """Return the environment of notebooks and makers of pages."""
    threads = max(1, (os.cpu_count() or 1) // WORKERS)
    own = {
        "TRANSFORMER_CIRCUITS_ROOT": str(root),
        # Nothing of the reader's own configuration.
        "IPYTHONDIR": str(root / "_build" / "ipython"),
        "MATPLOTLIBRC": os.devnull,
        "TQDM_DISABLE": "1",  # progress bars are for people who wait, not for pages
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        # glibc keeps freed tensors of up to 64 MB: the system would fill their pages with zeros each time.
        "MALLOC_MMAP_THRESHOLD_": str(1 << 26),
        "MALLOC_TRIM_THRESHOLD_": str(1 << 28),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # ipykernel's debugger would write a warning into each page
    }
    return os.environ | IN_BUILD | own


def execute(store: Store, path: Path) -> tuple[NotebookNode, str]:
    """Run one notebook. Returns it with outputs, and the traceback of a failure, else ""."""
    notebook = nbformat.read(path, as_version=4)
    cells = code_cells(notebook)
    for cell in cells:
        cell.outputs, cell.execution_count = [], None
    client = NotebookClient(
        notebook,
        forks.Manager(kernel_name="python3"),
        timeout=TIMEOUT,
        startup_timeout=300,  # a second, or a minute on a machine with twenty other programs
        shutdown_kernel="immediate",  # nothing that a chapter leaves needs tidying
        coalesce_streams=True,  # how printing is cut into pieces differs from run to run
        record_timing=False,  # times would differ from run to run
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
    return notebook, trouble


def make(store: Store, path: Path) -> str:
    """Run a notebook, or make a page of GENERATED with all that belongs to it, and keep the result. A notebook in which
    a cell failed is kept in FAILED; returns its name, else "". Raises BuildError for a failed page."""
    source, made, start = None, store.new(path.stem) / path.name, time.monotonic()
    if path.suffix == ".ipynb":
        notebook, trouble = execute(store, path)
        if trouble:
            (store.root / FAILED).mkdir(exist_ok=True)
            nbformat.write(notebook, store.root / FAILED / path.name)
            print(f"FAILED {path.name}\n{trouble}", flush=True)
            return path.name
        source = source_of(notebook)
        nbformat.write(notebook, made)
    else:
        module = GENERATED[f"book/{path.stem}"]
        process = forks.start(forks.make_page, module, str(made), variables(store.root), str(store.root))
        process.join()
        if process.exitcode:
            raise BuildError(f"book/{path.name} could not be made: see the message above.")
    seconds = time.monotonic() - start
    store.keep(path.stem, source, seconds)
    print(f"made {path.name} in {seconds:.1f} s", flush=True)
    return ""


def run(root: Path, chosen: Sequence[Path] = (), pages: bool = False) -> Store:
    """Run all notebooks, or the chosen ones, that have not run on the present files. Returns where the results are.
    `pages`: make the pages of GENERATED as well. BuildError names every notebook with a failed cell."""
    if missing := [str(path) for path in chosen if not path.is_file()]:
        raise BuildError(f"There is no notebook {', '.join(missing)}.")
    store, chosen = Store(root), chosen or notebooks(root)
    shutil.rmtree(root / FAILED, ignore_errors=True)
    todo = [path for path in chosen if executed(store, path) is None]
    todo.sort(key=lambda path: -path.stat().st_size)  # a guess at what takes long, until it is known
    generated = [root / f"{name}.md" for name in files(root) if pages and name in GENERATED]
    jobs = [*(page for page in generated if store.find(page.stem) is None), *todo]
    jobs.sort(key=lambda path: -store.made(path.stem).get("seconds", float("inf")))  # no long one is the last to begin
    if jobs:
        forks.start_server(variables(root))
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        futures = [pool.submit(make, store, path) for path in jobs]
        try:
            names = [future.result() for future in concurrent.futures.as_completed(futures)]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.kill()
            raise
    print(f"{len(todo)} notebooks run, {len(chosen) - len(todo)} taken from the cache", flush=True)
    if any(names):
        raise BuildError(f"A cell failed in {', '.join(sorted(filter(None, names)))}: see the traceback above.")
    return store


def store_outputs(store: Store) -> None:
    """Put what cells tagged for nbval printed into the notebooks in git, and remove all other outputs."""
    for path, notebook in all_executed(store).items():
        for number, cell in enumerate(code_cells(notebook), start=1):
            kept = CHECKED in cell.metadata.get("tags", [])
            cell.outputs, cell.execution_count = (cell.outputs, number) if kept else ([], None)
        before = path.read_text(encoding="utf-8")
        notebook.metadata = nbformat.reads(before, as_version=4).metadata
        text = nbformat.writes(notebook) + "\n"
        if text != before:
            write_whole(path, text)
            print(f"stored the outputs of {path.name}", flush=True)


# ---- what jupyter-book reads -----------------------------------------------------------------------------------------


def records(executed: Mapping[Path, NotebookNode]) -> dict[str, list[ledger.Record]]:
    """Return the records of claims by notebook. Raises BuildError if a claim is recorded twice."""
    found = {path.stem: list(show.records_in(notebook)) for path, notebook in executed.items()}
    if wrong := ledger.problems(found):
        raise BuildError(" ".join(wrong))
    return found


def write_results(root: Path, executed: Mapping[Path, NotebookNode]) -> None:
    """Write the pages made from records, and list verdicts that have changed. Raises BuildError for a missing one."""
    recorded = records(executed)
    chapters = {record.id: notebook for notebook, found in recorded.items() for record in found}
    if missing := ledger.missing(chapters):
        claims = ", ".join(f"{claim.id} (chapter {claim.chapter})" for claim in missing)
        raise BuildError(f"No notebook shows the verdict on {claims}.")
    verdicts = {record.id: record.verdict for found in recorded.values() for record in found}
    write_whole(root / "_build" / "verdicts.yml", ledger.as_file(verdicts))  # for `make accept`
    for id, old, new in ledger.changed(verdicts, root / "book" / "verdicts.yml"):
        chapter = chapters.get(id, "…")
        print(f"{id} is now '{new}', accepted was '{old}': read notebooks/{chapter}.ipynb again", flush=True)
    titles = {Path(entry["file"]).name: entry.get("title", "") for entry in contents(root)}
    cells = paper_figures.Cells({path.stem: notebook for path, notebook in executed.items()}, titles)
    listed = paper_figures.load(root / "book" / "figures.yml")
    shown = {id: (cells.link(place), cells.what(place)) for id, place in listed.places().items()}
    results = scoreboard.Results(recorded, shown)
    write_whole(root / "book" / "figures.md", paper_figures.page(listed, cells, results))
    write_whole(root / "book" / "scoreboard.md", scoreboard.page(results))
    write_whole(root / "book" / "headlines.md", scoreboard.headlines(results))


def copy_generated(store: Store) -> None:
    """Copy the pages of GENERATED, and what belongs to them, to their places among the others."""
    for name in GENERATED.keys() & set(files(store.root)):
        shutil.rmtree(store.root / name, ignore_errors=True)
        made, place = store.find(Path(name).name), (store.root / name).parent
        shutil.copytree(made, place, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*"))


def copy_scripts(root: Path) -> None:
    """Copy the scripts of DataTables from the installed package to the static files."""
    shipped = importlib.resources.files("itables") / "html"
    module = base64.b64encode((shipped / "dt_bundle.js").read_bytes()).decode()
    static = root / "book" / "_static"
    # Browsers refuse to import a module from disk, but not from an address that contains it.
    script = f'window.itables = import("data:text/javascript;base64,{module}");\n'
    write_whole(static / "datatables" / "datatables.js", script)
    write_whole(static / "datatables" / "datatables.css", (shipped / "dt_bundle.css").read_text(encoding="utf-8"))


def make_sources(root: Path) -> Store:
    """Bring up to date what jupyter-book reads besides files in git. Raises BuildError if anything is wrong."""
    store = run(root, pages=True)
    executed = all_executed(store)
    for path, notebook in executed.items():
        write_whole(root / "_build" / "executed" / path.name, nbformat.writes(notebook))
    print(f"{sum(map(len, records(executed).values()))} claims recorded", flush=True)
    if "book/scoreboard" in files(root):
        write_results(root, executed)
    copy_generated(store)
    copy_scripts(root)
    return store


# ---- the pages -------------------------------------------------------------------------------------------------------


def build(root: Path) -> Path:
    """Write the pages, unless those of the present sources are there. Returns the first page. Raises BuildError."""
    store, html = make_sources(root), root / "_build" / "html"
    sources = files_in(root, "book", "notebooks", "_build/executed", "_config.yml", CONTENTS)
    key, stamp = sha256(store.of_pages, digest(root, sources)), html / ".complete"
    if stamp.is_file() and stamp.read_text() == key:
        print("the pages are up to date", flush=True)
        return html / "index.html"
    for left in html.parent.glob("pages-*"):
        shutil.rmtree(left, ignore_errors=True)
    # A killed build may have left a jupyter-book running: this one writes to a folder of its own.
    with tempfile.TemporaryDirectory(prefix="pages-", dir=html.parent, ignore_cleanup_errors=True) as own:
        command = [sys.executable, "-c", JUPYTER_BOOK, "build", root, "--path-output", own]
        strict = ["--nitpick", "--warningiserror", "--keep-going", "--quiet"]
        done = subprocess.run([*command, *strict], cwd=root, env=os.environ | IN_BUILD, stdout=subprocess.DEVNULL)
        if done.returncode:
            raise BuildError("jupyter-book reported warnings or errors: fix each one that is listed above.")
        fresh = Path(own, "_build", "html")
        (fresh / ".complete").write_text(key)
        if html.exists():
            html.rename(Path(own, "old"))
        fresh.rename(html)
    return html / "index.html"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Build the book.")
    add = parser.add_argument
    add("--root", type=Path, default=ROOT, help="folder of the book's sources (default: this repository)")
    add("--sources", action="store_true", help="only make what jupyter-book reads")
    add("--run", nargs="*", type=Path, metavar="NOTEBOOK", help="only run these notebooks (default: all)")
    add("--store-outputs", action="store_true", help="put the outputs that nbval compares into the notebooks")
    options = parser.parse_args(arguments)
    root = options.root.resolve()
    try:
        if {"%", "?"} & set(str(root)):  # addresses of pages on disk would misread it
            raise BuildError(f"The path {root} contains % or ?: rename that folder.")
        with locked(root):
            if options.run is not None:
                run(root, [path.resolve() for path in options.run])
            elif options.store_outputs:
                store_outputs(run(root))
            elif options.sources:
                make_sources(root)
            else:
                print(f"The book: {build(root)}")
    except (BuildError, KeyboardInterrupt) as error:
        reason = str(error) or "Interrupted: the same command continues from here."
        print(f"The book was not built. {reason}", file=sys.stderr)
        return 1
    return 0
