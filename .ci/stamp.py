"""Write into other files what pyproject.toml decides: the address, and each notebook's first cell (`make stamp`)."""

import json
import re
import tomllib
from pathlib import Path

from strip_outputs import stripped

ROOT = Path(__file__).resolve().parents[1]
WITH_ADDRESS = ("CITATION.cff", "CONTRIBUTING.md", "README.md", "_config.yml", "pyproject.toml")
FOLDED = {"hide-input", "hide-cell", "remove-input", "remove-cell"}  # tags by which a page folds or leaves out code
FIRST_CELL = """\
try:
    import transformer_circuits  # the book's code
except ModuleNotFoundError:
    import os, runpy
    if "COLAB_RELEASE_TAG" not in os.environ:
        raise ModuleNotFoundError("{advice}") from None
    !test -d book || {clone}
    if not os.path.isdir("book"):
        raise FileNotFoundError("{unreached}") from None
    runpy.run_path("book/notebooks/colab.py", run_name="__main__")"""
ADVICE = "This kernel is not the book's: run `make lab` in the book's folder, or choose the Python of its .venv as the kernel."  # noqa: E501
UNREACHED = "The book could not be fetched: run this cell again, or upload a zip of the book's folder and unpack it as /content/book."  # noqa: E501


def project(root: Path = ROOT) -> dict:
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def first_cell(root: Path = ROOT) -> str:
    """Return the first code cell of every notebook; on Colab it fetches its release, else the default branch."""
    address, version = project(root)["urls"]["Repository"], project(root)["version"]
    clone = f"git clone -q --depth 1 {address} book"
    if "dev" not in version:
        clone = f"{clone} -b v{version} 2>/dev/null || {clone}"
    return FIRST_CELL.format(advice=ADVICE, clone=clone, unreached=UNREACHED)


def with_first_cell(text: str, source: str) -> str:
    """Return a notebook (JSON), as it is kept in git, with this first code cell, and folded wherever its page is."""
    notebook = json.loads(text)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    code[0] |= {"source": source.splitlines(keepends=True), "metadata": {"tags": ["remove-cell"]}}
    for cell in code:
        if FOLDED.intersection(cell["metadata"].get("tags", [])):
            cell["metadata"]["cellView"] = "form"  # on Colab
            cell["metadata"].setdefault("jupyter", {})["source_hidden"] = True  # in JupyterLab
    return stripped(json.dumps(notebook))


def places(address: str) -> list[str]:
    """Return the addresses that follow from a repository's: its own, that on Colab, that of the published book."""
    owner, name = address.removeprefix("https://github.com/").split("/")
    return [address, f"research.google.com/github/{owner}/{name}", f"https://{owner.lower()}.github.io/{name}"]


def differing(root: Path = ROOT) -> dict[Path, str]:
    """Return what each file that differs must contain."""
    address, cell = project(root)["urls"]["Repository"], first_cell(root)
    before = re.search(r"url: (https://github\.com/\S+)", (root / "_config.yml").read_text(encoding="utf-8"))[1]
    notebooks = sorted((root / "notebooks").glob("*.ipynb"))
    new = {path: with_first_cell(path.read_text(encoding="utf-8"), cell) for path in notebooks}
    for path in (root / name for name in WITH_ADDRESS):
        new[path] = path.read_text(encoding="utf-8")
        for old, place in zip(places(before), places(address)):
            new[path] = re.sub(rf"{re.escape(old)}(?![\w-])", place, new[path])
    return {path: text for path, text in new.items() if path.read_text(encoding="utf-8") != text}


if __name__ == "__main__":
    for path, text in differing().items():
        path.write_text(text, encoding="utf-8", newline="\n")
        print(f"stamped: {path.relative_to(ROOT)}")
