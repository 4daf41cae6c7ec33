"""The scripts of the pages, read by TypeScript: each name and each property is one that exists."""

import shutil
import subprocess
from pathlib import Path

import pytest

from transformer_circuits.paths import ROOT

HERE = Path(__file__).parent
TYPESCRIPT, FOLDER = "typescript@7.0.2", ROOT / "_build" / "typescript"
ADVICE = "The types of the scripts are not checked: this needs npm, which comes with Node.js, and its registry."


@pytest.fixture(scope="module")
def tsc() -> str:
    """TypeScript's compiler; npm gets it once."""
    program = FOLDER / "node_modules" / ".bin" / "tsc"
    if not program.exists() and (npm := shutil.which("npm")):
        get = [npm, "install", "--prefix", str(FOLDER), "--no-save", "--silent", TYPESCRIPT]
        subprocess.run(get, capture_output=True, timeout=300)
    if not program.exists() or subprocess.run([program, "--version"], capture_output=True).returncode:
        pytest.skip(ADVICE)
    return str(program)


def test_scripts_name_only_what_exists(tsc):
    checked = subprocess.run([tsc, "-p", HERE / "tsconfig.json"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


def test_no_line_of_a_script_is_longer_than_one_of_python():
    listed = subprocess.run(
        ["git", "ls-files", "book/_static/*.js"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    scripts = [ROOT / name for name in listed.stdout.split() if "mathjax" not in name]
    assert len(scripts) > 10
    long = [
        f"{path.name}:{i}"
        for path in scripts
        for i, line in enumerate(path.read_text().split("\n"), 1)
        if len(line) > 120
    ]
    assert long == []
