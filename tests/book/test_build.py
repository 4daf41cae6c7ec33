"""The build fails when anything fails, runs again what has to be run again, and nothing else. On a small book in a folder of its own."""

from __future__ import annotations

import json
import shutil

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from transformer_circuits import build
from transformer_circuits.paths import ROOT

COUNT = "from pathlib import Path\nwith Path('../runs').open('a') as runs:\n    _ = runs.write('x')"
CLAIM = "import os\n_ = Path(os.environ['TRANSFORMER_CIRCUITS_CLAIMS'], '{}.json').write_text('{{}}')"


def write(path, *cells):
    notebook = new_notebook(cells=[new_markdown_cell(f"# {path.stem}"), *map(new_code_cell, cells)])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, path)


@pytest.fixture
def book(tmp_path):
    """Two notebooks and a page, with the book's own configuration."""
    shutil.copy(ROOT / "_config.yml", tmp_path)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "book" / "_static", tmp_path / "book" / "_static")
    shutil.copytree(ROOT / "book" / "_ext", tmp_path / "book" / "_ext")
    shutil.copy(ROOT / "book" / "references.bib", tmp_path / "book")
    (tmp_path / "src").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "w.safetensors").write_bytes(b"0123")
    (tmp_path / "constraints.txt").touch()
    (tmp_path / "notebooks").mkdir()
    write(tmp_path / "notebooks" / "01_one.ipynb", COUNT, CLAIM.format("O1"))
    write(tmp_path / "notebooks" / "02_two.ipynb", COUNT, CLAIM.format("P1"))
    (tmp_path / "book" / "intro.md").write_text("# A small book\n\n```{bibliography}\n:all:\n```\n")
    toc = "format: jb-book\nroot: book/intro\nchapters:\n- file: notebooks/01_one\n- file: notebooks/02_two\n"
    (tmp_path / "book" / "_toc.yml").write_text(toc)
    return tmp_path


def make(book, capfd) -> tuple[int, str]:
    code = build.main(["--root", str(book)])
    printed = capfd.readouterr()
    return code, printed.out + printed.err


def runs(book) -> int:
    """How many notebooks have been run so far."""
    return len((book / "runs").read_text()) if (book / "runs").exists() else 0


def claims(book) -> set[str]:
    return {path.stem for path in (book / "_build" / "claims").glob("*.json")}


def test_a_book_is_built_and_not_run_again_without_need(book, capfd):
    code, printed = make(book, capfd)
    assert code == 0, printed
    assert (book / "_build" / "html" / "notebooks" / "01_one.html").is_file()
    assert runs(book) == 2 and claims(book) == {"O1", "P1"}
    assert "GiB peak memory" in printed and "s wall time" in printed

    code, printed = make(book, capfd)
    assert code == 0 and runs(book) == 2 and claims(book) == {"O1", "P1"}


def test_what_has_changed_is_run_again(book):
    build.run(build.Book(book))
    assert runs(book) == 2 and claims(book) == {"O1", "P1"}

    # A notebook that has changed is run again, and a claim that it no longer records is gone.
    write(book / "notebooks" / "02_two.ipynb", COUNT, CLAIM.format("P2"))
    build.run(build.Book(book))
    assert runs(book) == 3 and claims(book) == {"O1", "P2"}

    # So is everything when one byte of the weights changes, which jupyter-cache would not notice.
    (book / "weights" / "w.safetensors").write_bytes(b"0124")
    build.run(build.Book(book))
    assert runs(book) == 5


def test_a_failed_cell_fails_the_build(book, capfd):
    write(book / "notebooks" / "02_two.ipynb", CLAIM.format("P1").replace("Path(", "__import__('pathlib').Path("), "1 / 0")
    code, printed = make(book, capfd)
    assert code == 1
    assert "ZeroDivisionError" in printed and "A cell failed in 02_two.ipynb" in printed
    assert not (book / "_build" / "html").exists() and not list((book / "_build" / "recorded" / "02_two").glob("*"))
    assert not build.is_cached(build.Book(book), book / "notebooks" / "02_two.ipynb"), "a failure must not be kept as a success"


def test_a_warning_fails_the_build_every_time(book, capfd):
    (book / "book" / "intro.md").write_text("# A small book\n\n[nowhere](nothing.md)\n\n```{bibliography}\n:all:\n```\n")
    assert make(book, capfd)[0] == 1
    code, printed = make(book, capfd)
    assert code == 1, "Sphinx warns only of the pages that it reads: a second build must not pass in silence"
    assert "nothing.md" in printed


def test_a_chapter_that_does_not_exist_fails_the_build(book, capfd):
    with (book / "book" / "_toc.yml").open("a") as toc:
        toc.write("- file: notebooks/03_three\n")
    code, printed = make(book, capfd)
    assert code == 1 and "notebooks/03_three" in printed


def test_a_claim_recorded_twice_fails_the_build(book, capfd):
    write(book / "notebooks" / "02_two.ipynb", COUNT, CLAIM.format("O1"))
    code, printed = make(book, capfd)
    assert code == 1 and "recorded by both 01_one.ipynb and 02_two.ipynb" in printed


def test_the_fingerprint_sees_every_watched_folder(book):
    seen = {build.fingerprint(book)}
    for change in (
        lambda: (book / "src" / "a.py").write_text("x = 1"),
        lambda: (book / "src" / "a.py").write_text("x = 2"),
        lambda: (book / "src" / "a.py").rename(book / "src" / "b.py"),
        lambda: (book / "data" / "tokenizer.json").write_text(json.dumps({})),
        lambda: (book / "constraints.txt").write_text("torch==2.13.0\n"),
    ):
        change()
        seen.add(build.fingerprint(book))
    assert len(seen) == 6
    (book / "src" / "__pycache__").mkdir()
    (book / "src" / "__pycache__" / "b.pyc").touch()
    assert build.fingerprint(book) in seen


MAKER = """\
import sys
from pathlib import Path
out = Path(sys.argv[1])
with (Path(__file__).parent / "made").open("a") as made:
    made.write("x")
names = (Path(__file__).parent / "names").read_text().split()
(out.with_suffix("") / "more").mkdir(parents=True, exist_ok=True)
for name in names:
    (out.with_suffix("") / "more" / name).write_text(f"# {name}")
out.write_text("# Made")
sys.exit(not names)
"""


@pytest.fixture
def made_book(book, monkeypatch):
    """The small book with one page that a command makes, which makes two more pages and a file; no notebooks."""
    tools = book / "tools"
    tools.mkdir()
    (tools / "a_maker.py").write_text(MAKER)
    (tools / "names").write_text("a.md b.md data.bin")
    monkeypatch.setenv("PYTHONPATH", str(tools))
    monkeypatch.setattr(build, "GENERATED", {"book/made": "a_maker"})
    list_pages(book, "book/made", "book/made/more/a", "book/made/more/b")
    return book


def list_pages(book, *pages: str) -> None:
    files = "".join(f"- file: {page}\n" for page in pages)
    (book / "book" / "_toc.yml").write_text(f"format: jb-book\nroot: book/intro\nchapters:\n{files}")


def made(book) -> list[str]:
    return sorted(path.name for path in (book / "book" / "made").rglob("*") if path.is_file())


def times_made(book) -> int:
    return len((book / "tools" / "made").read_text())


def test_a_command_may_make_several_pages_and_files_and_makes_them_once(made_book):
    small = build.Book(made_book)
    build.run(small)  # a page that is to be made need not be there
    build.write_generated(small)
    assert made(made_book) == ["a.md", "b.md", "data.bin"] and (made_book / "book" / "made.md").is_file()
    before = {path: path.stat().st_mtime_ns for path in (made_book / "book").rglob("*.md")}
    build.run(small)
    build.write_generated(small)
    assert times_made(made_book) == 1
    assert {path: path.stat().st_mtime_ns for path in (made_book / "book").rglob("*.md")} == before

    # After a change of the weights it is made again, and what it no longer makes is gone.
    (made_book / "weights" / "w.safetensors").write_bytes(b"0124")
    (made_book / "tools" / "names").write_text("a.md")
    list_pages(made_book, "book/made", "book/made/more/a")
    build.run(small)
    build.write_generated(small)
    assert times_made(made_book) == 2 and made(made_book) == ["a.md"]


def test_a_page_made_from_claims_is_made_every_time(made_book, monkeypatch):
    monkeypatch.setattr(build, "EVERY_TIME", {"book/made"})
    for n in (1, 2):
        build.run(build.Book(made_book))
        build.write_generated(build.Book(made_book))
        assert times_made(made_book) == n


@pytest.mark.parametrize("listed", [["book/made/more/a"], ["book/made/more/a", "book/made/more/b", "book/made/more/c"]])
def test_the_contents_must_list_the_pages_that_are_made(made_book, listed):
    list_pages(made_book, "book/made", *listed)
    build.run(build.Book(made_book))
    with pytest.raises(build.BuildError, match=r"Below book/made .*book/made/more/[bc]"):
        build.write_generated(build.Book(made_book))


def test_a_command_that_fails_fails_the_build_every_time(made_book, capfd):
    (made_book / "tools" / "names").write_text("")
    for _ in range(2):
        code, printed = make(made_book, capfd)
        assert code == 1 and "made.md could not be made" in printed
