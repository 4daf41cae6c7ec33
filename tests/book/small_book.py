"""A small book in its own folder, with the real one's configuration: two notebooks, a page, and nothing that takes long to run."""

import shutil
from pathlib import Path

import nbformat
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from transformer_circuits.paths import ROOT

COUNT = "from pathlib import Path\nwith Path('../runs').open('a') as runs:\n    _ = runs.write('x')"
CLAIM = "from transformer_circuits.claims import judge, verdicts\nverdicts(judge('{}', {}))"
FIRST, SECOND = ("O1", 1e-7), ("P1", 1e-7)


def write(path: Path, *cells: str) -> None:
    """Write a notebook with a title and these code cells, whose ids are cell-1, cell-2, ..."""
    notebook = new_notebook(cells=[new_markdown_cell(f"# {path.stem}"), *map(new_code_cell, cells)])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
    nbformat.write(notebook, path)


def make_book(root: Path) -> Path:
    for folder in ("src", "data", "weights", "notebooks", "book"):
        (root / folder).mkdir(parents=True)
    for name in ("_config.yml", "pyproject.toml", "book/references.bib"):
        shutil.copy(ROOT / name, root / name)
    for name in ("_static", "_ext", "_templates"):
        shutil.copytree(ROOT / "book" / name, root / "book" / name)
    (root / "weights" / "w.safetensors").write_bytes(b"0123")
    (root / "constraints.txt").touch()
    write(root / "notebooks" / "01_one.ipynb", COUNT, CLAIM.format(*FIRST))
    write(root / "notebooks" / "02_two.ipynb", COUNT, CLAIM.format(*SECOND))
    (root / "book" / "intro.md").write_text("# A small book\n\n```{bibliography}\n:all:\n```\n")
    list_pages(root, "notebooks/01_one", "notebooks/02_two")
    return root


def list_pages(root: Path, *pages: str) -> None:
    """Write the table of contents; a name with * stands for many pages."""
    files = "".join(f"- {'glob' if '*' in page else 'file'}: {page}\n" for page in pages)
    (root / "_toc.yml").write_text(f"format: jb-book\nroot: book/intro\nchapters:\n{files}")


def runs(root: Path) -> int:
    """Return how many notebooks have been run so far."""
    return len((root / "runs").read_text()) if (root / "runs").exists() else 0


def soup(path: Path) -> BeautifulSoup:
    return BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
