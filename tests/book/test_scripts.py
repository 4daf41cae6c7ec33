"""The scripts of the pages, read by TypeScript: each name and each property is one that exists."""

import json
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
    patterns = json.loads((HERE / "tsconfig.json").read_text())["include"]
    scripts = [path for pattern in patterns for path in HERE.glob(pattern)]
    assert len(scripts) > 10
    lines = {path: path.read_text(encoding="utf-8").split("\n") for path in scripts}
    assert [f"{path.name}:{i}" for path in lines for i, line in enumerate(lines[path], 1) if len(line) > 120] == []
