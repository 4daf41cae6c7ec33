"""The build fails when anything fails, runs again what has to be run again, and nothing else. On a small book in its own folder."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import filelock
import nbformat
import psutil
import pytest
from bs4 import BeautifulSoup
from nbclient import NotebookClient
from small_book import CLAIM, COUNT, list_pages, make_book, runs, write

from transformer_circuits import build
from transformer_circuits.build import store

SHOWN = "1.0e\N{MINUS SIGN}7"


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


def ids(book) -> list[str]:
    return [record.id for found in build.records(build.all_executed(store.Store(book))).values() for record in found]


def text_of(book, name: str) -> str:
    return (book / "_build" / "html" / "notebooks" / f"{name}.html").read_text()


def test_pages_are_what_the_notebooks_computed_and_nothing_is_done_twice(book, capfd):
    assert runs(book) == 2 and ids(book) == ["O1", "P1"] and SHOWN in text_of(book, "01_one")
    code, printed = make(book, capfd)
    assert code == 0 and "2 taken from the cache" in printed and "the pages are up to date" in printed
    with (book / "book" / "intro.md").open("a") as intro:
        intro.write("\nMore.\n")
    (book / "_build" / "html" / "removed.html").touch()
    code, printed = make(book, capfd)
    assert code == 0 and "up to date" not in printed and runs(book) == 2
    assert not (book / "_build" / "html" / "removed.html").exists()


def test_jupyter_book_alone_gives_the_same_pages_also_after_a_notebook_was_changed(built, tmp_path):
    fresh, program = make_book(tmp_path / "fresh"), "from jupyter_book.cli.main import main; main()"
    environment = {name: value for name, value in os.environ.items() if name != "TRANSFORMER_CIRCUITS_BOOK"}

    def jupyter_book() -> dict[str, str]:
        subprocess.run([sys.executable, "-c", program, "build", "."], cwd=fresh, env=environment, check=True)
        return content(fresh)

    ours, theirs = content(built), jupyter_book()
    assert [name for name in ours.keys() | theirs if ours.get(name) != theirs.get(name)] == []
    write(fresh / "notebooks" / "02_two.ipynb", COUNT, CLAIM.format("P1", 0.5))
    assert SHOWN in theirs["notebooks/02_two.html"] and SHOWN not in jupyter_book()["notebooks/02_two.html"]


def content(book) -> dict[str, str]:
    """Return the pages. A page that was there before names the version of a style sheet that myst-nb adds."""
    html = book / "_build" / "html"
    pages = {str(path.relative_to(html)): path.read_text(encoding="utf-8") for path in html.rglob("*.html")}
    return {name: re.sub(r"(mystnb\.\w+\.css)\?v=\w+", r"\1", text) for name, text in pages.items()}


def test_the_headline_moves_below_the_first_paragraph_and_folded_cells_say_what_they_contain(book, capfd):
    plot = "# Plot\nimport matplotlib.pyplot as plt\n_ = plt.plot([1, 2])"
    path = book / "notebooks" / "01_one.ipynb"
    write(path, "# Imports\nx = 1", CLAIM.format("O1", 1e-7), plot)
    notebook = nbformat.read(path, as_version=4)
    _, imports, _, figure = notebook.cells
    imports.metadata = {"tags": ["hide-input"]}
    options = {"figure": {"caption": "A *line*.", "name": "fig-line"}, "image": {"alt": "One line."}}
    figure.metadata = {"tags": ["hide-input", "headline"], "mystnb": options}
    nbformat.write(notebook, path)
    assert make(book, capfd)[0] == 0

    page = BeautifulSoup(text_of(book, "01_one"), "html.parser")
    top, cell = page.select_one(".tc-headline"), page.find(id="cell-cell-3")
    assert top.find_next_sibling()["id"] == "cell-cell-1", "before the first cell"
    image = top.select_one("figure#fig-line").img
    assert image["alt"] == "One line." and len(page.select("article img")) == 1 and "A line." in top.get_text()
    assert image["src"] == "../_images/01_one-cell-3.png", "a name that other pages can know"
    link = cell.select_one(".cell_output a")
    assert (link["href"], link.get_text()) == ("#fig-line", "Fig. 1.1")
    folded = [summary.p.get_text() for summary in page.select("details.hide > summary")]
    assert folded == ["Imports", "Plot"]


def test_a_failed_cell_fails_the_build_and_is_not_kept(book, capfd):
    write(book / "notebooks" / "02_two.ipynb", COUNT, "1 / 0", "2")
    code, printed = make(book, capfd)
    assert code == 1 and "ZeroDivisionError" in printed and "A cell failed in 02_two.ipynb" in printed
    assert SHOWN in text_of(book, "02_two"), "the pages of the last good build stay"
    assert (book / "_build" / "failed" / "02_two.ipynb").is_file()
    write(book / "notebooks" / "02_two.ipynb", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    code, printed = make(book, capfd, "--run")
    assert code == 1 and "died" in printed.lower() and "1 notebooks run, 1 taken from the cache" in printed


def test_a_warning_fails_the_build_every_time(book, capfd):
    with (book / "book" / "intro.md").open("a") as intro:
        intro.write("\n[nowhere](nothing.md)\n")
    list_pages(book, "notebooks/01_one", "notebooks/03_three")
    for _ in range(2):
        code, printed = make(book, capfd)
        assert code == 1 and "nothing.md" in printed and "nonexisting document 'notebooks/03_three'" in printed


def test_a_claim_is_recorded_once(book, capfd):
    write(book / "notebooks" / "02_two.ipynb", CLAIM.format("O1", 1e-7))
    code, printed = make(book, capfd)
    assert code == 1 and "O1 is recorded by both 01_one and 02_two" in printed
    list_pages(book, "notebooks/01_one", "book/scoreboard")
    code, printed = make(book, capfd)
    assert code == 1 and "No notebook shows the verdict on O2 (chapter 1 " in printed and "O1 (" not in printed


def test_a_killed_build_leaves_nothing_that_counts_as_done_and_no_kernel(book, capfd):
    # Kernels of this book need no torch, which takes five seconds to load.
    program = "from transformer_circuits import build, forks; forks.PRELOADED = [forks.__name__]; build.main()"
    shutil.rmtree(book / "_build")
    (book / "runs").unlink()
    write(book / "notebooks" / "02_two.ipynb", COUNT, "import time; time.sleep(600)")
    process = subprocess.Popen([sys.executable, "-c", program, "--root", str(book)], stdout=subprocess.DEVNULL)
    while not (book / "runs").exists() and process.poll() is None:
        time.sleep(0.05)
    below = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    assert below and not psutil.wait_procs(below, timeout=60)[1]
    write(book / "notebooks" / "02_two.ipynb", COUNT, CLAIM.format("P1", 1e-7))
    assert make(book, capfd)[0] == 0 and ids(book) == ["O1", "P1"] and SHOWN in text_of(book, "02_two")


def test_two_builds_wait_for_each_other(book):
    command = [sys.executable, "-u", "-m", "transformer_circuits.build", "--root", str(book), "--run"]
    with filelock.FileLock(book / "_build" / ".lock"):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert "waiting until it has ended" in process.stdout.readline()
    assert "0 notebooks run, 2 taken" in process.communicate()[0] and process.returncode == 0


def test_a_file_that_changes_while_it_is_in_use_makes_no_result(book):
    results = store.Store(book)
    results.new("01_one")
    (book / "weights" / "w.safetensors").write_text("2")
    os.utime(book / "weights" / "w.safetensors", (results.opened + 1, results.opened + 1))
    with pytest.raises(build.BuildError, match="w.safetensors changed while the book was built"):
        results.keep("01_one")


def test_places_where_it_cannot_work_get_one_sentence(book, capfd, monkeypatch):
    code, printed = make(book.rename(book.with_name("a%20book")), capfd)
    assert code == 1 and "a%20book contains %" in printed


@pytest.mark.parametrize(("file", "changed"), [
    ("package/models/a.py", ["notebook", "page"]),
    ("package/models/new.py", ["notebook", "page"]),
    ("book/weights/w.safetensors", ["notebook", "page"]),
    ("book/data/new", ["notebook", "page"]),
    ("package/pages/a.md", ["page"]),
    ("package/build/a.py", []),
    ("package/.hidden", []),
])  # fmt: skip
def test_what_a_result_depends_on(tmp_path, monkeypatch, file, changed):
    for name in ("package/models/a.py", "package/pages/a.md", "package/build/a.py", "book/weights/w.safetensors"):
        write_text(tmp_path / name, "1")
    write_text(tmp_path / "package" / store.CLAIMS, (store.PACKAGE / store.CLAIMS).read_text())
    monkeypatch.setattr(store, "PACKAGE", tmp_path / "package")
    before = keys(tmp_path / "book")
    write_text(tmp_path / file, "2")
    assert [name for name, key in keys(tmp_path / "book").items() if key != before[name]] == changed


def test_a_notebook_depends_on_the_claims_that_it_names_and_on_the_installed_releases(tmp_path, monkeypatch):
    claims = tmp_path / "package" / store.CLAIMS
    text = (store.PACKAGE / store.CLAIMS).read_text()
    write_text(claims, text)
    monkeypatch.setattr(store, "PACKAGE", tmp_path / "package")
    before = keys(tmp_path)
    for id, changed in (("O1", ["notebook", "page"]), ("O2", ["page"])):
        title = re.search(rf"id: {id}\n +title: \S+", text)[0]
        write_text(claims, text.replace(title, f"{title}X"))
        assert [name for name, key in keys(tmp_path).items() if key != before[name]] == changed
    monkeypatch.setattr(store.importlib.metadata, "distributions", lambda: [])
    assert not set(before.values()) & set(keys(tmp_path).values())


def keys(book: Path) -> dict[str, str]:
    """Return the key of a notebook that names claim O1, and that of pages."""
    results = store.Store(book)
    return {"notebook": results.key("judge('O1', 0)"), "page": results.key(None)}


def write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


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


MAKER = """\
from pathlib import Path


def main(out):
    more, (names, made) = out.with_suffix(""), map(Path(__file__).with_name, ("names", "made"))
    with made.open("a") as file:
        file.write("x")
    more.mkdir()
    for name in names.read_text().split():
        (more / name).write_text(f"# {name}")
    out.write_text("# Made")
"""


def test_a_module_makes_pages_once_and_what_it_makes_no_longer_is_gone(book, tmp_path, monkeypatch):
    (tmp_path / "a_maker.py").write_text(MAKER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(build, "GENERATED", {"book/made": "a_maker"})
    list_pages(book, "book/made", "book/made/*")

    def made(names: str) -> list[str]:
        (tmp_path / "names").write_text(names)
        build.make_sources(book)
        return sorted(path.name for path in (book / "book" / "made").iterdir())

    assert made("b.md data.bin") == ["b.md", "data.bin"] == made("")
    assert (tmp_path / "made").read_text() == "x", "the second time, nothing had changed"
    (book / "weights" / "w.safetensors").write_bytes(b"0124")
    assert made("a.md") == ["a.md"]
