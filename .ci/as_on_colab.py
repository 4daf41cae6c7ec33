"""Run every chapter as on Google Colab, with its releases: `make colab`, or `python .ci/as_on_colab.py [NOTEBOOK …]`.

The notebooks of the last commit run in `_build/colab`; their first cell fetches the book (from this repository in place
of GitHub) and installs what is missing. Exit status 1 if a cell fails, or if the first cell changed a release of Colab.
Needs the package index; torch brings several GB of CUDA packages with it.
"""

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
CONTENT, PYTHON = PLACE / "content", PLACE / "venv" / "bin" / "python"
RELEASES = {  # of the present runtime, which has Python 3.13; older ones have 3.12
    "torch": "2.11.0",
    "numpy": "2.1.3",
    "pandas": "2.2.3",
    "matplotlib": "3.10.0",
    "scipy": "1.16.3",
    "scikit-learn": "1.6.1",
    "ipython": "7.34.0",
}


def output(*command: str | Path) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def installed() -> dict[str, str]:
    listed = json.loads(output(PYTHON, "-m", "pip", "list", "--format=json"))
    versions = {package["name"].lower(): package["version"].partition("+")[0] for package in listed}
    return {name: versions[name] for name in RELEASES}


def set_up() -> None:
    """Make a Python with Colab's releases."""
    if not PYTHON.exists():
        for newest in filter(shutil.which, ("python3.13", "python3.12", sys.executable)):
            if subprocess.run([newest, "-m", "venv", PYTHON.parents[1]]).returncode == 0:  # no mere shim
                break
    exact = [f"{name}=={release}" for name, release in RELEASES.items()]
    if subprocess.run([PYTHON, "-m", "pip", "install", "--quiet", *exact, "ipykernel"]).returncode:
        sys.exit("The releases of Colab could not be installed: see above.")
    print(f"Colab's releases with {output(PYTHON, '-V').strip()}", flush=True)


def run(name: str) -> str:
    """Run one notebook of the last commit, print what its first cell says, and return the traceback, else ""."""
    notebook = nbformat.reads(output("git", "show", f"HEAD:notebooks/{name}"), as_version=4)
    kernel = PLACE / "jupyter" / "kernels" / "colab" / "kernel.json"
    kernel.parent.mkdir(parents=True, exist_ok=True)
    argv = [str(PYTHON), "-m", "ipykernel_launcher", "-f", "{connection_file}", "--IPKernelApp.log_level=40"]
    kernel.write_text(json.dumps({"argv": argv, "display_name": "Colab", "language": "python"}))
    os.environ["JUPYTER_PATH"] = str(PLACE / "jupyter")
    address = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Repository"]
    instead = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": f"url.{ROOT.as_uri()}.insteadOf"}
    for name_of_ours in ("PYTHONPATH", "VIRTUAL_ENV", "TRANSFORMER_CIRCUITS_ROOT"):
        os.environ.pop(name_of_ours, None)
    client = NotebookClient(notebook, timeout=1800, kernel_name="colab", resources={"metadata": {"path": str(CONTENT)}})
    try:
        client.execute(
            env=os.environ
            | instead
            | {"GIT_CONFIG_VALUE_0": address, "COLAB_RELEASE_TAG": "simulated", "TQDM_DISABLE": "1"}
        )
    except Exception as error:  # a failed cell, one that took too long, or what nbclient makes of a kernel that died
        return str(error) or repr(error.__context__)
    finally:
        nbformat.write(notebook, PLACE / name)
    first = next(cell for cell in notebook.cells if cell.cell_type == "code")
    print("".join(output.get("text", "") for output in first.outputs).strip(), flush=True)
    return ""


def main(names: list[str]) -> int:
    PLACE.mkdir(parents=True, exist_ok=True)
    set_up()
    before, failed = installed(), []
    shutil.rmtree(CONTENT, ignore_errors=True)
    CONTENT.mkdir()
    chosen = [Path(name).name for name in names or output("git", "ls-files", "notebooks/*.ipynb").split()]
    for name in chosen:
        start = time.monotonic()
        trouble = run(name)
        status = "FAILED" if trouble else "ran"
        print(f"{status} {name} in {time.monotonic() - start:.0f} s\n{trouble}".strip(), flush=True)
        failed += [name] if trouble else []
    changed = [name for name, version in installed().items() if version != before[name]]
    passed, what = len(chosen) - len(failed), ", ".join(changed) or "no release"
    print(f"{passed} passed, {len(failed)} failed; the first cell changed {what}")
    return int(bool(failed or changed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
