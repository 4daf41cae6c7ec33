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


@pytest.mark.parametrize(
    "wrong", ['dom.make("p", { textContents: "a" });', 'dom.make("p").txt;', "heads.strips(() => 0);"]
)
def test_a_wrong_name_would_be_noticed(tsc, tmp_path, wrong):
    (tmp_path / "page.js").write_text(wrong)
    scripts = [str(ROOT / "book" / "_static" / name) for name in ("dom.js", "heads.js")]
    config = {
        "extends": str(HERE / "tsconfig.json"),
        "include": ["page.js", *scripts],
        "files": [str(HERE / "globals.d.ts")],
    }
    (tmp_path / "tsconfig.json").write_text(json.dumps(config))
    checked = subprocess.run([tsc, "-p", tmp_path], capture_output=True, text=True)
    assert "page.js(1," in checked.stdout and checked.stdout.count("error TS") == 1
