"""Copy from pyproject.toml what other files must repeat.

    python .ci/stamp.py             write environment.yml, the public address and each notebook's first cell
    python .ci/stamp.py --resolve   first resolve all dependencies again into constraints.txt (needs the package index)

tests/unit/test_stamp.py says what differs. Only the standard library is used, so that this runs on any Python 3.11.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NAME = re.compile(r"[A-Za-z0-9._-]+")
# In Colab, in JupyterLab; the book leaves it out.
FOLDED = {"cellView": "form", "jupyter": {"source_hidden": True}, "tags": ["remove-cell"]}
WITH_ADDRESS = ("CITATION.cff", "README.md", "_config.yml")

ENVIRONMENT = """\
# conda env create -f environment.yml && conda activate transformer-circuits
# Made by .ci/stamp.py from pyproject.toml (where each line's reason stands) and constraints.txt.
name: transformer-circuits
channels: [conda-forge]
dependencies:
  - python>=3.11,<3.14
  - pip
  - pip:
      - -c constraints.txt
{}
      - -e .
"""


def normal(name: str) -> str:
    """Return a distribution's name as the index compares it: lower case, hyphens."""
    return re.sub(r"[-_.]+", "-", name).lower()


def project(root: Path = ROOT) -> dict:
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def resolve() -> str:
    """Return constraints.txt from a clean resolve of the package with all its extras, as pip would install it today.

    The local part of a version ("+cpu") is dropped: it names one package host's build, not a release.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        target = f"{ROOT}[{','.join(project()['optional-dependencies'])}]"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        subprocess.run([*command, "--report", str(report), target, "torch==2.13.0"], check=True)
        installs = json.loads(report.read_text(encoding="utf-8"))["install"]
    pins = {normal(i["metadata"]["name"]): i["metadata"]["version"].partition("+")[0] for i in installs}
    pins.pop(project()["name"])
    # CUDA's own wheels are pinned by torch itself, and differ between machines.
    kept = sorted(name for name in pins if not name.startswith(("nvidia-", "cuda-")))
    head = "# Every version that was tested. Made by `make constraints` from pyproject.toml; used by `make` and environment.yml.\n"
    return head + "".join(f"{name}=={pins[name]}\n" for name in kept)


def environment(root: Path = ROOT) -> str:
    """Return environment.yml: the direct dependencies of pyproject.toml, at the versions of constraints.txt."""
    pins = dict(line.split("==") for line in (root / "constraints.txt").read_text().split() if "==" in line)
    about = project(root)
    lines = []
    for group, requirements in {"the package": about["dependencies"], **about["optional-dependencies"]}.items():
        names = [normal(NAME.match(requirement)[0]) for requirement in requirements]
        lines += [f"      # {group}", *(f"      - {name}=={pins[name]}" for name in names)]
    return ENVIRONMENT.format("\n".join(lines))


def first_cell(root: Path = ROOT) -> str:
    """Return the first code cell of every notebook: on Colab it fetches the book once and installs what is missing, elsewhere it does nothing.

    It takes an uploaded zip of the repository, else the notebook's own release if there is one, else the default branch.
    """
    address, version = project(root)["urls"]["Repository"], project(root)["version"]
    clone, place = "git clone --quiet --depth 1", "/content/book"
    release = "" if "dev" in version else f"{clone} --branch v{version} {address} {place} 2>/dev/null || "
    return f"""\
import os
import runpy

if "COLAB_RELEASE_TAG" in os.environ:  # on Colab: fetch the book once, install what is missing, leave torch and numpy alone
    if not os.path.exists("{place}/.ci/colab.py"):
        !rm -rf {place} /content/unpacked && unzip -q "/content/*.zip" -d /content/unpacked 2>/dev/null
        !mv "$(find /content/unpacked -path '*/.ci/colab.py' 2>/dev/null | head -1 | sed s:/.ci/colab.py::)" {place} 2>/dev/null
        !test -d {place} || {release}{clone} {address} {place}
    if not os.path.exists("{place}/.ci/colab.py"):
        raise SystemExit("The book could not be fetched from {address}: upload a zip of the repository to /content and run this cell again.")
    runpy.run_path("{place}/.ci/colab.py", run_name="__main__")"""


def with_first_cell(text: str, cell: str) -> str:
    """Return the notebook `text` (JSON) with the source of its first code cell replaced by `cell`, folded everywhere."""
    notebook = json.loads(text)
    code = next((c for c in notebook["cells"] if c["cell_type"] == "code"), None)
    if code is None or ("".join(code["source"]) == cell and code["metadata"] == FOLDED):
        return text
    code["source"], code["metadata"] = cell.splitlines(keepends=True), FOLDED
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def stamped(root: Path = ROOT) -> dict[Path, str]:
    """Return what each derived file must contain."""
    address = project(root)["urls"]["Repository"]
    # What the files say now is what _config.yml says, which is written last.
    before = re.search(r"url: (https://github\.com/\S+)", (root / WITH_ADDRESS[-1]).read_text(encoding="utf-8"))[1]
    files = {root / "environment.yml": environment(root)}
    cell = first_cell(root)
    for path in sorted((root / "notebooks").glob("*.ipynb")):
        files[path] = with_first_cell(path.read_text(encoding="utf-8"), cell)
    for path in (root / file for file in WITH_ADDRESS):
        files[path] = path.read_text(encoding="utf-8")
        for old, new in zip(places(before), places(address)):
            files[path] = re.sub(rf"{re.escape(old)}(?![\w-])", new, files[path])
    return files


def places(address: str) -> list[str]:
    """Return the addresses that follow from a repository's: its own, that of its notebooks on Colab, that of the published book."""
    owner, name = address.removeprefix("https://github.com/").split("/")
    return [address, f"research.google.com/github/{owner}/{name}", f"https://{owner.lower()}.github.io/{name}"]


def differing(root: Path = ROOT) -> dict[Path, str]:
    found = stamped(root)
    return {path: text for path, text in found.items() if path.read_text(encoding="utf-8") != text}


def main() -> None:
    if "--resolve" in sys.argv:
        (ROOT / "constraints.txt").write_text(resolve(), encoding="utf-8")
    for path, text in differing().items():
        path.write_text(text, encoding="utf-8")
        print(f"stamped: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
