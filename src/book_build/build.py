"""Build the book: run the notebooks, judge the claims, write the pages.

    python -m book_build                     (what `make book` runs)
    python -m book_build --sources           only what jupyter-book reads
    python -m book_build --run [NOTEBOOK …]  only run notebooks

`jupyter-book build .` gives the same pages: book/_ext/pages.py runs the second of these commands before Sphinx reads
anything. The first turns warnings into errors, and replaces the old pages when the new ones are complete.

`store` keeps what each notebook and page gave. Records of claims are outputs of the notebooks. A lock makes builds and
tests of one folder wait for each other.
"""

import argparse
import base64
import concurrent.futures
import contextlib
import functools
import importlib.resources
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import filelock
import nbformat
import yaml
from nbclient import NotebookClient
from nbclient.exceptions import CellControlSignal
from nbformat import NotebookNode
from sphinx_external_toc.parsing import parse_toc_yaml

from book_build import forks
from book_build.pages import paper_figures, scoreboard
from book_build.store import RESULTS, BuildError, Store, digest, sha256, write_whole
from transformer_circuits.claims import Record, show
from transformer_circuits.claims.ledger import load_claims
from transformer_circuits.paths import ROOT

CONTENTS = "_toc.yml"
GENERATED = {  # pages that depend on code, weights and data alone, and the modules whose `main` makes them
    "book/models": "book_build.pages.model_cards",
    "book/head_dump": "book_build.pages.dump_pages",
    **{f"book/{name}": f"book_build.pages.{name}" for name in ("every_head", "follow", "grow")},
}
TIMEOUT = 1800  # seconds per cell: a chapter takes a minute on two free cores, but machines are shared
WORKERS = 2  # notebooks and pages that are made at the same time: more would need more than 6 GB
IN_BUILD = {"TRANSFORMER_CIRCUITS_BOOK": "1"}  # environment of notebooks, and of Sphinx, that the build starts
# Trees of pages live to the end: to look for garbage among them would take a third of the time.
JUPYTER_BOOK = "import gc; gc.disable(); from jupyter_book.cli.main import main; main()"


def titles(root: Path) -> dict[str, str]:
    """Return the title of each page in the table of contents, by its file without suffix; not of those that a glob
    stands for."""
    listed = parse_toc_yaml(root / CONTENTS)
    return {name: listed[name].title or "" for name in listed}


def notebooks(root: Path) -> list[Path]:
    return [path for name in titles(root) if (path := root / f"{name}.ipynb").is_file()]


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
        # glibc keeps freed tensors of up to 1 GB: the system would fill their pages with zeros each time.
        "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
        "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # ipykernel's debugger would write a warning into each page
        # Kernels are killed, and leave something to tidy up; nothing needs ipywidgets.
        "PYTHONWARNINGS": "ignore:resource_tracker:UserWarning,ignore:IProgress not found",
    }
    return os.environ | IN_BUILD | own


def execute(notebook: NotebookNode, root: Path, folder: Path) -> str:
    """Run a notebook that lies in `folder`. Returns the traceback of a failure, else ""."""
    client = NotebookClient(
        notebook,
        forks.Manager(kernel_name="python3"),
        timeout=TIMEOUT,
        startup_timeout=300,  # a second, or a minute on a machine with twenty other programs
        coalesce_streams=True,  # how printing is cut into pieces differs from run to run
        record_timing=False,  # times would differ from run to run
        resources={"metadata": {"path": str(folder)}},
        extra_arguments=["--IPKernelApp.log_level=40"],  # each kernel would warn that it uses plain TCP
    )
    client.owns_km = True  # it ends the kernel that it started
    try:
        client.execute(env=variables(root))
    except (CellControlSignal, RuntimeError) as error:  # a failed cell, one that took too long, a dead kernel
        return str(error)
    return ""


def make(store: Store, path: Path) -> bool:
    """Run a notebook, or make a page of GENERATED with all that belongs to it, and keep the result. Prints why it could
    not, and returns whether it could."""
    made, source, start = store.new(path.stem) / path.name, None, time.monotonic()
    if path.suffix == ".ipynb":
        notebook = nbformat.read(path, as_version=4)
        source, trouble = source_of(notebook), execute(notebook, store.root, path.parent)
        nbformat.write(notebook, made)
    else:
        module = GENERATED[f"book/{path.stem}"]
        process = forks.start(forks.make_page, module, str(made), variables(store.root), str(store.root))
        process.join()
        trouble = "see the message above" if process.exitcode else ""
    if not trouble:
        store.keep(path.stem, source)
    took = f"{time.monotonic() - start:.1f} s"
    print(f"FAILED {path.name}\n{trouble}" if trouble else f"made {path.name} in {took}", flush=True)
    return not trouble


def run(root: Path, chosen: Sequence[Path] = (), pages: bool = False) -> dict[Path, NotebookNode]:
    """Run all notebooks, or the chosen ones, that have not run on the present files; return them with outputs, and
    write them to _build/executed. `pages`: make the pages of GENERATED as well. BuildError names every notebook with a
    failed cell."""
    if missing := [str(path) for path in chosen if not path.is_file()]:
        raise BuildError(f"There is no notebook {', '.join(missing)}.")
    store, chosen = Store(root), chosen or notebooks(root)
    todo = [path for path in chosen if executed(store, path) is None]
    todo.sort(key=lambda path: -path.stat().st_size)  # a guess at what takes long: no long one is the last to begin
    generated = [root / f"{name}.md" for name in GENERATED if pages and name in titles(root)]
    jobs = [*(page for page in generated if store.find(page.stem) is None), *todo]
    if jobs:
        forks.start_server(variables(root))
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        worked = list(pool.map(functools.partial(make, store), jobs))
    print(f"{len(todo)} notebooks run, {len(chosen) - len(todo)} taken from the cache", flush=True)
    if failed := [path.name for path, well in zip(jobs, worked) if not well]:
        raise BuildError(f"These failed: {', '.join(sorted(failed))}. The reasons stand above.")
    found = {path: executed(store, path) for path in chosen}
    if changed := [path.name for path, notebook in found.items() if notebook is None]:
        raise BuildError(f"{changed[0]} changed while the book was built: build again.")
    for path, notebook in found.items():
        write_whole(root / "_build" / "executed" / path.name, nbformat.writes(notebook))
    return found


# ---- what jupyter-book reads -----------------------------------------------------------------------------------------


def records(executed: Mapping[Path, NotebookNode]) -> dict[str, list[Record]]:
    """Return the records of claims by notebook. Raises BuildError if a claim is recorded twice."""
    found = {}
    for path, notebook in executed.items():
        outputs = [output.get("data", {}) for cell in notebook["cells"] for output in cell.get("outputs", [])]
        found[path.stem] = [Record.model_validate(record) for data in outputs for record in data.get(show.MIME, [])]
    owner: dict[str, str] = {}
    for notebook, listed in found.items():
        for record in listed:
            if record.id in owner:
                raise BuildError(f"{record.id} is recorded by both {owner[record.id]} and {notebook}; keep one.")
            owner[record.id] = notebook
    return found


def write_results(root: Path, executed: Mapping[Path, NotebookNode], recorded: Mapping[str, list[Record]]) -> None:
    """Write the pages made from records, and all verdicts. Raises BuildError for a claim without a record."""
    verdicts = {record.id: str(record.verdict) for found in recorded.values() for record in found}
    if missing := [claim for claim in load_claims().values() if claim.id not in verdicts]:
        claims = ", ".join(f"{claim.id} (chapter {claim.chapter})" for claim in missing)
        raise BuildError(f"No notebook shows the verdict on {claims}.")
    accepted = "# The verdict on every claim as last accepted: make accept\n"
    accepted += yaml.safe_dump({id: verdicts[id] for id in load_claims()}, sort_keys=False)
    write_whole(root / "_build" / "verdicts.yml", accepted)
    cells = paper_figures.Cells(executed, titles(root))
    listed = yaml.safe_load((root / "book" / "figures.yml").read_text(encoding="utf-8"))
    results = scoreboard.Results(recorded, paper_figures.places(listed))
    write_whole(root / "book" / "figures.md", paper_figures.page(listed, cells, results))
    write_whole(root / "book" / "scoreboard.md", scoreboard.page(results))
    write_whole(root / "book" / "headlines.md", scoreboard.headlines(results))


def copy_scripts(root: Path) -> None:
    """Copy the scripts of DataTables from the installed package to the static files."""
    shipped = importlib.resources.files("itables") / "html"
    module = base64.b64encode((shipped / "dt_bundle.js").read_bytes()).decode()
    static = root / "book" / "_static"
    # Browsers refuse to import a module from disk, but not from an address that contains it.
    script = f'window.itables = import("data:text/javascript;base64,{module}");\n'
    write_whole(static / "datatables" / "datatables.js", script)
    write_whole(static / "datatables" / "datatables.css", (shipped / "dt_bundle.css").read_text(encoding="utf-8"))


def make_sources(root: Path) -> None:
    """Bring up to date what jupyter-book reads besides files in git. Raises BuildError if anything is wrong."""
    executed = run(root, pages=True)
    recorded = records(executed)
    print(f"{sum(map(len, recorded.values()))} claims recorded", flush=True)
    listed = titles(root)
    if "book/scoreboard" in listed:
        write_results(root, executed, recorded)
    for name in GENERATED.keys() & listed.keys():
        shutil.rmtree(root / name, ignore_errors=True)
        made = root / RESULTS / Path(name).name
        shutil.copytree(made, root / "book", dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*"))
    copy_scripts(root)


# ---- the pages -------------------------------------------------------------------------------------------------------


def build(root: Path) -> Path:
    """Write the pages, unless those of the present sources are there. Returns the first page. Raises BuildError."""
    make_sources(root)
    html = root / "_build" / "html"
    sources = digest(root, "book", "notebooks", "_build/executed", "_config.yml", CONTENTS)
    key, stamp = sha256(Store(root).of_pages, sources), html / ".complete"
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
    options = parser.parse_args(arguments)
    root = options.root.resolve()
    try:
        if {"%", "?"} & set(str(root)):  # addresses of pages on disk would misread it
            raise BuildError(f"The path {root} contains % or ?: rename that folder.")
        with locked(root):
            if options.run is not None:
                run(root, [path.resolve() for path in options.run])
            elif options.sources:
                make_sources(root)
            else:
                print(f"The book: {build(root)}")
    except BuildError as error:
        print(f"The book was not built. {error}", file=sys.stderr)
        return 1
    return 0
