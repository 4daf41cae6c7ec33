#!/usr/bin/env python3
"""Run every chapter as on Google Colab, with the releases that Colab brings: `make colab`, or `.venv/bin/python .ci/colab [NOTEBOOK …]`.

They are installed in `_build/colab`. There the notebooks of the last commit run one at a time, each from its first cell on, which fetches
the book (from this repository in place of GitHub, into a folder in place of /content) and installs what is missing. Exit status 1 if a cell
fails, or if the first cell changed a release that Colab brought. Needs the package index; torch brings several GB of CUDA packages with it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / "_build" / "colab"
PYTHON = PLACE / "venv" / "bin" / "python"
RELEASES = {  # of the present runtime; the older ones have Python 3.12
    "torch": "2.11.0",
    "numpy": "2.1.3",
    "pandas": "2.2.3",
    "matplotlib": "3.10.0",
    "scipy": "1.16.3",
    "scikit-learn": "1.6.1",
    "ipython": "7.34.0",
}
READ = "import sys, json, importlib.metadata as m; print(json.dumps({n: m.version(n).partition('+')[0] for n in sys.argv[1:]}))"


def pip(*arguments: str) -> bool:
    return subprocess.run([str(PYTHON), "-m", "pip", "install", "--quiet", *arguments]).returncode == 0


def installed() -> dict[str, str]:
    return json.loads(
        subprocess.run([str(PYTHON), "-c", READ, *RELEASES], check=True, capture_output=True, text=True).stdout
    )


def set_up() -> None:
    """A Python with Colab's releases, where they can be had; says in one line what was taken instead."""
    known = [path for name in ("python3.13", "python3.12") if (path := shutil.which(name))]
    usable = [
        path for path in known if not subprocess.run([path, "-c", ""], capture_output=True).returncode
    ]  # not a mere shim
    if not PYTHON.exists():
        subprocess.run([(usable or [sys.executable])[0], "-m", "venv", str(PYTHON.parents[1])], check=True)
    rest = [f"{name}=={release}" for name, release in RELEASES.items() if name != "torch"]
    tested = next(line for line in (ROOT / "constraints.txt").read_text().split() if line.startswith("torch=="))
    if not any(pip(torch, *rest, "ipykernel") for torch in (f"torch=={RELEASES['torch']}", tested)):
        sys.exit("The releases of Colab could not be installed: see above.")
    version = subprocess.run([str(PYTHON), "-V"], capture_output=True, text=True).stdout.split()[1]
    taken = [f"{name} {found} for {RELEASES[name]}" for name, found in installed().items() if found != RELEASES[name]]
    taken += [] if version.startswith("3.13.") else [f"Python {version} for 3.13"]
    print(f"Colab's releases with Python {version}" + (f", but {', '.join(taken)}" if taken else ""), flush=True)


def run(name: str) -> str:
    """Run one notebook of the last commit. Returns the traceback of what failed, else ""."""
    text = subprocess.run(
        ["git", "show", f"HEAD:notebooks/{name}"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    notebook = nbformat.reads(text.replace("/content", str(PLACE / "content")), as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    kernel = PLACE / "jupyter" / "kernels" / "colab" / "kernel.json"
    kernel.parent.mkdir(parents=True, exist_ok=True)
    argv = [str(PYTHON), "-m", "ipykernel_launcher", "-f", "{connection_file}", "--IPKernelApp.log_level=40"]
    kernel.write_text(json.dumps({"argv": argv, "display_name": "Colab", "language": "python"}))
    os.environ["JUPYTER_PATH"] = str(PLACE / "jupyter")
    address = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Repository"]
    instead = {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{ROOT.as_uri()}.insteadOf",
        "GIT_CONFIG_VALUE_0": address,
    }
    own = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "VIRTUAL_ENV", "TRANSFORMER_CIRCUITS_ROOT")
    }
    resources = {"metadata": {"path": str(PLACE / "content")}}
    client = NotebookClient(notebook, timeout=1800, kernel_name="colab", resources=resources)
    try:
        client.execute(env=own | instead | {"COLAB_RELEASE_TAG": "release-colab-here", "TQDM_DISABLE": "1"})
    except Exception as error:  # a failed cell, one that took too long, or what nbclient makes of a kernel that died
        return str(error) or repr(error.__context__)
    finally:
        nbformat.write(notebook, PLACE / name)
    first = next(cell for cell in notebook.cells if cell.cell_type == "code")
    print("".join(output.get("text", "") for output in first.outputs).strip(), flush=True)
    return ""


def main(names: list[str]) -> int:
    PLACE.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    set_up()
    before = installed()
    shutil.rmtree(PLACE / "content", ignore_errors=True)
    (PLACE / "content").mkdir()
    listed = subprocess.run(
        ["git", "ls-files", "notebooks/*.ipynb"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    chosen = [Path(name).name for name in names or listed.split()]
    print(f"set up in {time.monotonic() - start:.0f} s", flush=True)
    failed = []
    for name in chosen:
        began = time.monotonic()
        trouble = run(name)
        print(
            f"{'FAILED' if trouble else 'ran'} {name} in {time.monotonic() - began:.0f} s{trouble and chr(10)}{trouble}",
            flush=True,
        )
        failed += [name] if trouble else []
    changed = [f"{name} {before[name]} to {found}" for name, found in installed().items() if found != before[name]]
    if changed:
        print(f"The first cell changed {', '.join(changed)}")
    print(f"{len(chosen) - len(failed)} passed, {len(failed)} failed; {time.monotonic() - start:.0f} s")
    return int(bool(failed or changed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
