"""The build fails when anything fails, runs again what has to be run again, and nothing else. On a small book in its own folder."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from small_book import CLAIM, COUNT, list_pages, make_book, runs, write

from book_build import build, store

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


def text_of(book, name: str) -> str:
    return (book / "_build" / "html" / "notebooks" / f"{name}.html").read_text()


def test_pages_are_what_the_notebooks_computed_and_nothing_is_done_twice(book, capfd):
    assert runs(book) == 2 and SHOWN in text_of(book, "01_one")
    code, printed = make(book, capfd)
    assert code == 0 and "2 taken from the cache" in printed and "the pages are up to date" in printed
    assert "2 claims recorded" in printed
    with (book / "book" / "intro.md").open("a") as intro:
        intro.write("\nMore.\n")
    (book / "_build" / "html" / "removed.html").touch()
    code, printed = make(book, capfd)
    assert code == 0 and "up to date" not in printed and runs(book) == 2
    assert not (book / "_build" / "html" / "removed.html").exists()


def test_jupyter_book_alone_gives_the_same_pages_also_after_a_notebook_was_changed(built, book):
    program = "from jupyter_book.cli.main import main; main()"
    shutil.rmtree(book / "_build" / "html")
    environment = {name: value for name, value in os.environ.items() if name != "TRANSFORMER_CIRCUITS_BOOK"}

    def jupyter_book() -> dict[str, str]:
        subprocess.run([sys.executable, "-c", program, "build", "."], cwd=book, env=environment, check=True)
        return content(book)

    ours, theirs = content(built), jupyter_book()
    assert [name for name in ours.keys() | theirs if ours.get(name) != theirs.get(name)] == []
    write(book / "notebooks" / "02_two.ipynb", COUNT, CLAIM.format("P1", 0.5))
    assert SHOWN in theirs["notebooks/02_two.html"] and SHOWN not in jupyter_book()["notebooks/02_two.html"]


def content(book) -> dict[str, str]:
    """Return the pages. A page that was there before names the version of a style sheet that myst-nb adds."""
    html = book / "_build" / "html"
    pages = {str(path.relative_to(html)): path.read_text(encoding="utf-8") for path in html.rglob("*.html")}
    return {name: re.sub(r"(mystnb\.\w+\.css)\?v=\w+", r"\1", text) for name, text in pages.items()}


def test_a_failed_cell_fails_the_build_and_is_not_kept(book, capfd):
    write(book / "notebooks" / "02_two.ipynb", COUNT, "1 / 0", "2")
    code, printed = make(book, capfd)
    assert code == 1 and "ZeroDivisionError" in printed and "These failed: 02_two.ipynb." in printed
    assert SHOWN in text_of(book, "02_two"), "the pages of the last good build stay"
    write(book / "notebooks" / "02_two.ipynb", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    code, printed = make(book, capfd, "--run")
    assert code == 1 and "died" in printed.lower() and "1 notebooks run, 1 taken from the cache" in printed


def test_a_warning_fails_the_build(book, capfd):
    with (book / "book" / "intro.md").open("a") as intro:
        intro.write("\n[nowhere](nothing.md)\n")
    list_pages(book, "notebooks/01_one", "notebooks/03_three")
    code, printed = make(book, capfd)
    assert code == 1 and "nothing.md" in printed and "nonexisting document 'notebooks/03_three'" in printed


def test_a_claim_is_recorded_once(book, capfd):
    write(book / "notebooks" / "02_two.ipynb", CLAIM.format("O1", 1e-7))
    code, printed = make(book, capfd)
    assert code == 1 and "O1 is recorded by both 01_one and 02_two" in printed
    list_pages(book, "notebooks/01_one", "book/scoreboard")
    code, printed = make(book, capfd)
    assert code == 1 and "No notebook shows the verdict on O2 (chapter 1 " in printed and "O1 (" not in printed


def test_a_place_where_it_cannot_work_gets_one_sentence(book, capfd):
    code, printed = make(book.rename(book.with_name("a%20book")), capfd)
    assert code == 1 and "a%20book contains %" in printed


def test_an_interrupt_ends_the_build_at_once_also_while_kernels_start(book):
    for name in ("01_one", "02_two"):
        write(book / "notebooks" / f"{name}.ipynb", "import time\ntime.sleep(300)")
    process = subprocess.Popen([sys.executable, "-m", "book_build", "--run", "--root", str(book)])
    while (book / "_build" / "results" / "01_one" / ".key").exists():  # the old result
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=10) == -signal.SIGINT


@pytest.mark.parametrize(("file", "changed"), [
    ("package/transformer_circuits/new.py", ["notebook", "page"]),
    ("package/workbooks/check.py", ["notebook", "page"]),
    ("book/weights/w.safetensors", ["notebook", "page"]),
    ("book/data/tokens.npz", ["notebook", "page"]),
    ("package/book_build/pages/a.md", ["page"]),
    ("book/data/README.md", []),
    ("book/data/.tokens.npz.partial", []),
    ("package/book_tools/corpus.py", []),
    ("package/book_build/a.py", []),
])  # fmt: skip
def test_what_a_result_depends_on(tmp_path, monkeypatch, file, changed):
    monkeypatch.setattr(store, "SOURCE", tmp_path / "package")
    before = keys(tmp_path / "book")
    write_text(tmp_path / file, "2")
    assert [name for name, key in keys(tmp_path / "book").items() if key != before[name]] == changed


def test_another_release_is_a_change(tmp_path, monkeypatch):
    before = keys(tmp_path)
    monkeypatch.setattr(store.importlib.metadata, "distributions", lambda: [])
    assert not set(before.values()) & set(keys(tmp_path).values())


def keys(book: Path) -> dict[str, str]:
    """Return the key of a notebook, and that of pages."""
    results = store.Store(book)
    return {"notebook": results.key("1 + 1"), "page": results.key(None)}


def test_dates_in_the_future_are_no_change_and_a_change_in_the_meantime_is_one(tmp_path):
    weights = tmp_path / "weights" / "w.safetensors"
    write_text(weights, "1")
    results = store.Store(tmp_path)
    os.utime(weights, (4e9, 4e9))  # a clock that was wrong; the year 2096
    results.new("one")
    results.keep("one")
    write_text(weights, "2")
    results.new("two")
    with pytest.raises(store.BuildError, match="changed while the book was built: build again"):
        results.keep("two")


def write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_nothing_of_the_readers_own_configuration_changes_an_output(book, tmp_path, monkeypatch):
    write_text(tmp_path / "ipython" / "profile_default" / "startup" / "a.py", "print('mine')\ndiv = lambda x: 0")
    settings = "c.InteractiveShell.ast_node_interactivity = 'all'"
    write_text(tmp_path / "ipython" / "profile_default" / "ipython_kernel_config.py", f"c = get_config()\n{settings}")
    write_text(tmp_path / "matplotlibrc", "figure.dpi: 33")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("MATPLOTLIBRC", str(tmp_path / "matplotlibrc"))
    path, dpi = book / "notebooks" / "01_one.ipynb", "['figure.dpi']"
    write(path, f"import matplotlib as m\n1\n'div' in globals(), m.rcParams{dpi} == m.rcParamsDefault{dpi}")
    (cell,) = build.code_cells(build.run(book, [path])[path])
    assert [output.data["text/plain"] for output in cell.outputs] == ["(False, True)"]


def test_a_kernel_begins_like_a_new_interpreter(book):
    cells = (
        "import os, sys, threading, torch, numpy as np\nprint(__name__, os.getcwd())",
        "print('book_build.build' in sys.modules, torch.ones(999).sum().item())",
        "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()",
    )
    path = book / "notebooks" / "01_one.ipynb"
    write(path, *cells)
    forked = [cell.outputs for cell in build.code_cells(build.run(book, [path])[path])]
    anew = nbformat.read(path, as_version=4)
    NotebookClient(anew, resources={"metadata": {"path": str(path.parent)}}).execute()
    for one, other in zip(forked, [cell.outputs for cell in build.code_cells(anew)]):
        texts = [[output.get("text") or sorted(output.data) for output in outputs] for outputs in (one, other)]
        assert texts[0] == texts[1]
