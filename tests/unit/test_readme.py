"""The commands of the README, in a fresh clone of the last commit, word for word.

Here `make` only says what it would do, and pytest only collects: README=real (a job of the workflow `test`) runs all.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import stamp

from transformer_circuits.paths import ROOT

REAL = os.environ.get("README") == "real"
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
DRY = ("make lab", "make exercises", "make train")  # JupyterLab waits for its reader, the trainer takes long


@pytest.fixture(scope="module")
def clone(tmp_path_factory) -> Path:
    """Run the first block of the README, whose address is answered by this repository; return the clone."""
    if not (ROOT / ".git").exists():
        pytest.skip("this folder is no clone: there is nothing to clone")
    place = tmp_path_factory.mktemp("readme")
    run(BLOCKS[0][1].partition("make")[0], place)
    (folder,) = place.iterdir()
    if not REAL:
        (folder / ".venv").symlink_to(sys.prefix)
    return folder


def run(commands: str, folder: Path) -> None:
    environment = os.environ | {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": f"url.{ROOT.as_uri()}.insteadOf"}
    environment["GIT_CONFIG_VALUE_0"] = stamp.project()["urls"]["Repository"]
    if not REAL or commands.startswith(DRY):
        environment |= {"PYTEST_ADDOPTS": "--collect-only", "MAKEFLAGS": "n"}
    for ours in ("PYTHONPATH", "TRANSFORMER_CIRCUITS_ROOT", "README"):  # its `make test` runs this file again
        environment.pop(ours, None)
    done = subprocess.run(["bash", "-e", "-c", commands], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{commands}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"


COMMANDS = [
    line for kind, block in BLOCKS if kind == "sh" for line in block.splitlines() if line.startswith(("make", ".venv"))
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_readme_works_as_written(command, clone):
    if REAL and "my_texts" in command:
        (clone / "my_texts").mkdir(exist_ok=True)
        for name in ("candide", "tree_broadcast_center"):
            text = (ROOT / "data" / "passages" / f"{name}.txt").read_text(encoding="utf8")
            (clone / "my_texts" / f"{name}.txt").write_text(text * 20, encoding="utf8")
    run(command, clone)


def test_the_python_of_the_readme_works_as_written(clone):
    (program,) = (block for kind, block in BLOCKS if kind == "python")
    environment = os.environ | {"TRANSFORMER_CIRCUITS_ROOT": str(clone), "PYTHONPATH": str(clone / "src")}
    subprocess.run([sys.executable, "-c", program], cwd=clone, env=environment, check=True)


def test_links_of_the_readme_to_files_lead_somewhere():
    links = re.findall(
        r"\]\((?!http)([^)]+)\)|(?:src|href)=\"(?!http)([^\"]+)\"", (ROOT / "README.md").read_text(encoding="utf-8")
    )
    assert len(links) >= 4
    assert [link for pair in links for link in pair if link and not (ROOT / link).exists()] == []
