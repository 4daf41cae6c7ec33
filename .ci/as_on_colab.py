"""Run every chapter as on Google Colab, with its releases: `make colab`, or `python .ci/as_on_colab.py [NOTEBOOK …]`.

The notebooks of the last commit run in `_build/colab/content`, where they stay with their outputs; their first cell
fetches the book (from this repository in place of GitHub) and installs what is missing. Exit status 1 if a cell fails,
or if the first cell changed a release of Colab.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from stamp import ROOT, project

PLACE = ROOT / "_build" / "colab"
CONTENT, PYTHON = PLACE / "content", PLACE / "venv" / "bin" / "python"
RELEASES = {  # of the runtime of August 2026, which has Python 3.13
    "torch": "2.11.0",
    "numpy": "2.1.3",
    "pandas": "2.2.3",
    "matplotlib": "3.10.0",
    "scipy": "1.16.3",
    "scikit-learn": "1.6.1",
    "transformers": "5.15.0",  # with its tokenizers and hub client
    "ipython": "7.34.0",
}


def output(*command: str | Path) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def installed() -> set[str]:
    """Return the releases of Colab that are there, as NAME==VERSION."""
    listed = output(PYTHON, "-m", "pip", "freeze").split()
    return {release for release in listed if release.partition("==")[0] in RELEASES}


def run(name: str) -> bool:
    """Run one notebook of the last commit and return whether it ran to its end; a failed cell is printed."""
    print(name, flush=True)
    (CONTENT / name).write_text(output("git", "show", f"HEAD:notebooks/{name}"), encoding="utf-8")
    ours = ("PYTHONPATH", "VIRTUAL_ENV", "TRANSFORMER_CIRCUITS_ROOT")
    environment = {variable: value for variable, value in os.environ.items() if variable not in ours}
    environment |= {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": f"url.{ROOT.as_uri()}.insteadOf"}
    environment |= {"GIT_CONFIG_VALUE_0": project()["urls"]["Repository"]}
    environment |= {"COLAB_RELEASE_TAG": "simulated", "TQDM_DISABLE": "1"}
    command = [PYTHON.with_name("jupyter-execute"), "--inplace", "--timeout=1800", "--kernel_name=python3", name]
    return subprocess.run(command, cwd=CONTENT, env=environment).returncode == 0


def main(names: list[str]) -> int:
    if not PYTHON.exists():
        subprocess.run([sys.executable, "-m", "venv", PLACE / "venv"], check=True)
    exact = [f"{name}=={release}" for name, release in RELEASES.items()]
    if subprocess.run([PYTHON, "-m", "pip", "install", "--quiet", *exact, "ipykernel", "nbclient"]).returncode:
        sys.exit("The releases of Colab could not be installed: see above.")
    before = installed()
    shutil.rmtree(CONTENT, ignore_errors=True)
    CONTENT.mkdir()
    chosen = [Path(name).name for name in names or output("git", "ls-files", "notebooks/*.ipynb").split()]
    failed = [name for name in chosen if not run(name)]
    changed = sorted(before - installed())
    print(f"failed: {', '.join(failed) or 'none'}; the first cell changed {', '.join(changed) or 'no release'}")
    return int(bool(failed or changed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
