"""The build fails when anything fails, runs again what has to be run again, and nothing else. On a small book in its own folder."""

import re
import shutil
import subprocess
import sys
import time

import filelock
import nbformat
import psutil
import pytest
from bs4 import BeautifulSoup
from nbclient import NotebookClient
from small_book import CLAIM, COUNT, list_pages, make_book, runs, write

from transformer_circuits import build, forks
from transformer_circuits.build import store


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Build a book whose notebooks count their runs."""
    root = make_book(tmp_path_factory.mktemp("built") / "a book")
    assert build.main(["--root", str(root)]) == 0
    return root


@pytest.fixture
def book(built, tmp_path):
    return shutil.copytree(built, tmp_path / "a book")


def make(book, capfd, *options: str) -> tuple[int, str]:
    code = build.main(["--root", str(book), *options])
    printed = capfd.readouterr()
    return code, printed.out + printed.err


SHOWN = "1.0e\N{MINUS SIGN}7"


def ids(book) -> list[str]:
    return [record.id for found in build.records(store.Store(book)).values() for record in found]


def text_of(book, name: str) -> str:
    return (book / "_build" / "html" / "notebooks" / f"{name}.html").read_text()


def test_pages_are_what_the_notebooks_computed_and_nothing_is_done_twice(book, capfd):
    assert runs(book) == 2 and ids(book) == ["O1", "P1"] and SHOWN in text_of(book, "01_one")

    # Nothing is written again unless a page was changed.
    code, printed = make(book, capfd)
    assert code == 0 and "the pages are up to date" in printed and "GiB peak memory" in printed
    html = book / "_build" / "html"
    (html / "notebooks" / "01_one.html").write_text("stale")
    (html / "removed.html").touch()
    assert make(book, capfd)[0] == 0 and SHOWN in text_of(book, "01_one") and runs(book) == 2
    assert not (html / "removed.html").exists()


def test_the_headline_moves_below_the_first_paragraph_and_folded_cells_say_what_they_contain(book, capfd):
    plot = "# Plot\nimport matplotlib.pyplot as plt\n_ = plt.plot([1, 2])"
    sentence = "# The sentence below\nfrom IPython.display import Markdown\nMarkdown('**It rises** by $x$.')"
    path = book / "notebooks" / "01_one.ipynb"
    write(path, "# Imports\nx = 1", CLAIM.format("O1", 1e-7), plot, sentence)
    notebook = nbformat.read(path, as_version=4)
    _, imports, _, figure, said = notebook.cells
    imports.metadata = {"tags": ["hide-input"]}
    said.metadata = {"tags": ["hide-input", "headline"]}
    options = {"figure": {"caption": "A *line*.", "name": "fig-line"}, "image": {"alt": "One line."}}
    figure.metadata = {"tags": ["hide-input", "headline"], "mystnb": options}
    nbformat.write(notebook, path)
    assert make(book, capfd)[0] == 0

    page = BeautifulSoup(text_of(book, "01_one"), "html.parser")
    top, cell = page.select_one(".tc-headline"), page.find(id="cell-cell-3")
    assert top.find_next_sibling()["id"] == "cell-cell-1", "before the first cell"
    assert top.select_one("figure#fig-line").img["alt"] == "One line." and len(page.select("article img")) == 1
    assert "A line." in top.get_text() and page.get_text().count("It rises by") == 1
    assert "It rises by" in top.get_text() and cell.select_one(".cell_output a")["href"] == "#fig-line"
    assert cell.select_one(".cell_output a").get_text() == "Fig. 1.1"
    folded = [summary.p.get_text() for summary in page.select("details.hide > summary")]
    assert folded == ["Imports", "Plot", "The sentence below"]


def test_a_number_that_is_edited_and_reverted_never_stays_on_a_page(book):
    for error in (0.5, 1e-7):
        write(book / "notebooks" / "02_two.ipynb", COUNT, CLAIM.format("P1", error))
        assert build.records(build.run(book))["02_two"][0].values == {"error": error}
    assert runs(book) == 3


def test_a_failed_cell_fails_the_build_and_is_not_kept(book, capfd):
    write(book / "notebooks" / "02_two.ipynb", COUNT, "1 / 0", "2")
    code, printed = make(book, capfd)
    assert code == 1 and "ZeroDivisionError" in printed and "A cell failed in 02_two.ipynb" in printed
    assert SHOWN in text_of(book, "02_two"), "the pages of the last good build stay"
    failed = nbformat.read(book / "_build" / "failed" / "02_two.ipynb", as_version=4)
    assert failed.cells[2].outputs[-1].ename == "ZeroDivisionError"
    write(book / "notebooks" / "02_two.ipynb", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    code, printed = make(book, capfd, "--run")
    assert code == 1 and "died" in printed.lower() and "1 notebooks run, 1 taken from the cache" in printed


def test_a_warning_fails_the_build_every_time(book, capfd):
    with (book / "book" / "intro.md").open("a") as intro:
        intro.write("\n[nowhere](nothing.md)\n")
    path = book / "notebooks" / "01_one.ipynb"
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[1].metadata.tags = ["headline"]
    nbformat.write(notebook, path)
    for _ in range(2):
        code, printed = make(book, capfd)
        assert code == 1 and "nothing.md" in printed
        assert "tagged `headline`, but shows no figure and no Markdown" in printed


def test_a_claim_that_is_recorded_twice_fails_the_build(book):
    write(book / "notebooks" / "02_two.ipynb", CLAIM.format("O1", 1e-7))
    with pytest.raises(build.BuildError, match="O1 is recorded by both 01_one and 02_two"):
        build.records(build.run(book))


def test_a_scoreboard_needs_every_claim_and_a_chapter_must_exist(book, capfd):
    list_pages(book, "notebooks/01_one", "book/scoreboard")
    code, printed = make(book, capfd)
    assert code == 1 and "No notebook shows the verdict on O2 (chapter 1 " in printed
    assert "O1 (" not in printed
    list_pages(book, "notebooks/01_one", "notebooks/03_three")
    code, printed = make(book, capfd)
    assert code == 1 and "files that do not exist: notebooks/03_three" in printed
    list_pages(book, "notebooks/01_one")
    code, printed = make(book, capfd, "--run", "nosuch.ipynb")
    assert code == 1 and re.search("There is no notebook .*nosuch.ipynb", printed)


@pytest.mark.parametrize("damage", ["cut", "deleted", "list"])
def test_a_damaged_result_is_made_again(book, capfd, damage):
    name = store.NEEDS if damage == "list" else "01_one.ipynb"
    file = next(book.glob(f"_build/results/01_one/*/{name}"))
    file.unlink() if damage == "deleted" else file.write_text(file.read_text()[:200])
    code, printed = make(book, capfd, "--run")
    assert code == 0 and ids(book) == ["O1", "P1"] and runs(book) == 3 and "damaged" in printed


def test_a_killed_build_leaves_nothing_that_counts_as_done_and_no_kernel(book, capfd):
    # Kernels of this book need no torch, which takes five seconds to load.
    program = "from transformer_circuits import build, forks; forks.PRELOADED = [forks.__name__]; build.main()"
    command = [sys.executable, "-c", program, "--root", str(book)]
    shutil.rmtree(book / "_build")
    (book / "runs").unlink()
    for until, seconds in (("runs", 600), ("_build/pages-*/_build/html", 0)):
        sleep = f"import time; time.sleep({seconds})"
        write(book / "notebooks" / "02_two.ipynb", COUNT, sleep, CLAIM.format("P1", 1e-7))
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not list(book.glob(until)) and process.poll() is None:
            time.sleep(0.05)
        below = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        assert below and not (book / "_build" / "html").exists()
        assert seconds == 0 or not psutil.wait_procs(below, timeout=60)[1]
    assert make(book, capfd)[0] == 0 and ids(book) == ["O1", "P1"]
    assert SHOWN in text_of(book, "02_two")


def test_two_builds_wait_for_each_other(book):
    lock = filelock.FileLock(book / "_build" / ".lock")
    command = [sys.executable, "-u", "-m", "transformer_circuits.build", "--root", str(book), "--run"]
    with lock:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert "waiting until it has ended" in process.stdout.readline()
    assert "0 notebooks run, 2 taken" in process.communicate()[0] and process.returncode == 0


def test_places_where_it_cannot_work_get_one_sentence(book, capfd, monkeypatch):
    code, printed = make(book.rename(book.with_name("a%20book")), capfd)
    assert code == 1 and "a%20book contains %" in printed
    book = book.with_name("a%20book").rename(book)
    (book / "src" / "transformer_circuits").mkdir()
    monkeypatch.chdir(book)  # a copy of the repository, with the original's .venv
    code, printed = make(book, capfd)
    assert code == 1 and "not the one in" in printed and "run `make` here" in printed


@pytest.fixture
def traced(book, monkeypatch):
    """Return a book whose first notebook uses modules, data and a list of files, and whose second uses none."""
    modules = {
        "used": "from deeper import x",
        "deeper": "def late():\n    import last\nx = 1",
        "last": "",
        "unused": "",
    }
    for name, text in modules.items():
        (book / "src" / f"{name}.py").write_text(text)
    (book / "data" / "read.txt").write_text("1")
    monkeypatch.syspath_prepend(book / "src")
    cell = "import used\n_ = Path('../data/read.txt').read_text(), [*Path('../weights').iterdir()]"
    write(book / "notebooks" / "01_one.ipynb", COUNT, cell, CLAIM.format("O1", 1e-7))
    build.run(book)
    return book


def rerun(book, capfd) -> list[str]:
    """Build; return the notebooks that ran."""
    capfd.readouterr()
    build.run(book)
    return sorted(re.findall(r"^made (\w+)\.ipynb", capfd.readouterr().out, re.MULTILINE))


READ = ["src/used.py", "src/deeper.py", "data/read.txt", "weights/new"]
NOT_READ = ["src/unused.py", "src/last.py", "data/other.txt", "src/.hidden", "src/a.py~", "src/new.py"]


def test_a_change_runs_what_reads_it_and_taken_back_runs_nothing(traced, capfd):
    for change in READ + NOT_READ:
        path = traced / change
        before = path.read_text() if path.exists() else None
        path.write_text("x = 2")
        assert rerun(traced, capfd) == ["01_one"] * (change in READ), change
        path.unlink() if before is None else path.write_text(before)
        assert change in NOT_READ or rerun(traced, capfd) == [], change


def test_other_releases_run_everything_and_only_the_latest_results_are_kept(traced, capfd, monkeypatch):
    monkeypatch.setattr(store, "KEPT", 2)
    for number in range(3):
        (traced / "data" / "read.txt").write_text(str(number))
        build.run(traced)
    assert len([*traced.glob("_build/results/01_one/*")]) == 2
    monkeypatch.setattr(store.importlib.metadata, "distributions", lambda: [])
    assert rerun(traced, capfd) == ["01_one", "02_two"]


def test_a_file_that_changes_while_it_is_in_use_fails_the_build(traced):
    change = "Path('../data/read.txt').write_text('2')"
    write(traced / "notebooks" / "01_one.ipynb", COUNT, "Path('../data/read.txt').read_text()", change)
    with pytest.raises(build.BuildError, match="data/read.txt changed while notebooks ran"):
        build.run(traced)


def test_a_notebook_that_is_saved_while_the_book_is_built_fails_the_build(book):
    results = build.run(book)
    write(book / "notebooks" / "01_one.ipynb", COUNT)
    with pytest.raises(build.BuildError, match="01_one.ipynb changed while the book was built: build again"):
        build.records(results)


def test_chapters_depend_on_modules_and_claims_that_they_use_and_not_on_what_makes_pages(book, monkeypatch, capfd):
    uses = "from transformer_circuits.figures import tokens"
    write(book / "notebooks" / "01_one.ipynb", COUNT, uses, CLAIM.format("O1", 1e-7))
    assert rerun(book, capfd) == ["01_one"]
    real = store.Store.snapshot
    for name, ran in {
        "pages/scoreboard.py": [],
        "figures/tokens.py": ["01_one"],
        "claims/claims.yml#O1": ["01_one"],
        "claims/ledger.py": ["01_one", "02_two"],
    }.items():
        change = {f"transformer_circuits/{name}": "changed"}
        monkeypatch.setattr(store.Store, "snapshot", lambda self, change=change: real(self) | change)
        assert rerun(book, capfd) == ran, name


def test_a_kernel_begins_like_a_new_interpreter(book):
    cells = (
        "import os, sys, threading, torch, numpy as np\nprint(__name__, os.getcwd())",
        "print('transformer_circuits.build' in sys.modules, torch.ones(999).sum().item())",
        "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()",
    )
    path = book / "notebooks" / "01_one.ipynb"
    write(path, *cells)
    forked = [cell.outputs for cell in build.code_cells(build.executed(build.run(book, [path]), path))]
    anew = nbformat.read(path, as_version=4)
    NotebookClient(anew, resources={"metadata": {"path": str(path.parent)}}).execute()
    for one, other in zip(forked, [cell.outputs for cell in build.code_cells(anew)]):
        texts = [[output.get("text") or sorted(output.data) for output in outputs] for outputs in (one, other)]
        assert texts[0] == texts[1]


def test_a_build_that_fails_ends_what_it_started_and_nothing_else(book, monkeypatch):
    """The browser of the tests of pages may live in the same worker of pytest-xdist."""
    started = []

    def make(store, path) -> str:
        if path.stem == "01_one":
            started.append(forks.start(time.sleep, 600))
            started[0].join()
            return "killed"
        while not started:
            time.sleep(0.01)
        raise build.BuildError("no")

    monkeypatch.setattr(build, "make", make)
    monkeypatch.setattr(build, "executed", lambda store, path: None)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        with pytest.raises(build.BuildError, match="no"):
            build.run(book)
        assert started[0].exitcode and other.poll() is None
        other.kill()


def test_outputs_are_stored_for_nbval_and_all_others_removed(book, capfd):
    path = book / "notebooks" / "01_one.ipynb"
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[1].source, notebook.cells[1].metadata.tags = "print(1.25)", [build.CHECKED]
    notebook.cells[2].outputs = [nbformat.v4.new_output("stream", text="old")]
    nbformat.write(notebook, path)
    assert "stored the outputs of 01_one" in make(book, capfd, "--store-outputs")[1]
    first, second = build.code_cells(nbformat.read(path, as_version=4))
    assert (first.outputs[0].text, first.execution_count) == ("1.25\n", 1)
    assert second.outputs == [] and second.execution_count is None
    before = path.read_text()
    code, printed = make(book, capfd, "--store-outputs")
    assert code == 0 and "0 notebooks run" in printed and path.read_text() == before


MAKER = """\
import os
from pathlib import Path


def main(out):
    Path(os.environ["TRANSFORMER_CIRCUITS_ROOT"], "weights", "w.safetensors").read_bytes()
    here = Path(__file__).parent
    with (here / "made").open("a") as made:
        made.write("x")
    names = (here / "names").read_text().split()
    (out.with_suffix("") / "more").mkdir(parents=True)
    for name in names:
        (out.with_suffix("") / "more" / name).write_text(f"# {name}")
    out.write_text("# Made")
    assert names
"""


def test_a_module_makes_pages_once_and_the_contents_list_them(book, capfd, monkeypatch):
    tools = book / "tools"
    tools.mkdir()
    (tools / "a_maker.py").write_text(MAKER)
    monkeypatch.syspath_prepend(tools)
    monkeypatch.setattr(build, "GENERATED", {"book/made": "a_maker"})
    list_pages(book, "book/made")

    def made(names: str) -> list[str]:
        (tools / "names").write_text(names)
        build.write_generated(build.run(book, pages=True))
        return sorted(path.name for path in (book / "book" / "made").rglob("*") if path.is_file())

    with pytest.raises(build.BuildError, match="book/made.md could not be made"):
        made("")
    assert made("b_10.md b_2.md data.bin") == ["b_10.md", "b_2.md", "data.bin"] == made("")
    assert build.files(book, build.COMPLETE)[2:] == ["book/made/more/b_2", "book/made/more/b_10"]
    assert len((tools / "made").read_text()) == 2
    (book / "weights" / "w.safetensors").write_bytes(b"0124")
    assert made("a.md") == ["a.md"]  # what is no longer made is gone
