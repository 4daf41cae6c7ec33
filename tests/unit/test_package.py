"""The package as a whole: what it depends on, and its form."""

import ast
import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest
import stamp
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from transformer_circuits import paths
from transformer_circuits.paths import ROOT

SRC = ROOT / "src"
FILES = sorted((SRC / "transformer_circuits").rglob("*.py"))  # the library
BESIDE = sorted(path for folder in ("book_build", "book_tools", "workbooks") for path in (SRC / folder).rglob("*.py"))
# Rooms of the library, lowest first: no module imports one of a later room.
ROOMS = ["paths", "models", "data", "measures", "circuits", "claims", "training", "real", "figures", "notebook"]


def room_of(path: Path) -> str:
    return path.relative_to(SRC / "transformer_circuits").parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Return the modules of others that a file of `src` imports, inside functions too."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(node.module)
    return names


# Parts of IPython, of torch, and of transformers.
PARTS = {"matplotlib-inline", "jinja2", "markupsafe", "huggingface-hub", "tokenizers"}


def test_every_import_is_a_direct_dependency():
    """Which extra needs it: the workflow `test` imports each module with its extra alone."""
    about, providers = stamp.project(), importlib.metadata.packages_distributions()
    requirements = [*about["dependencies"], *sum(about["optional-dependencies"].values(), [])]
    direct = {canonicalize_name(Requirement(requirement).name) for requirement in requirements} | PARTS
    names = {name.partition(".")[0] for path in [*FILES, *BESIDE] for name in imports(path)}
    third = names - sys.stdlib_module_names - {"transformer_circuits", "book_build", "book_tools", "workbooks"}
    assert [name for name in third if not direct & set(map(canonicalize_name, providers.get(name, [name])))] == []
    assert len(about["dependencies"]) <= 14


def test_the_library_and_the_chapters_import_nothing_that_stands_beside_the_library():
    beside = r"(from|import) (book_build|book_tools|workbooks)"
    for path in [*FILES, *(ROOT / "notebooks").glob("[!e]*.ipynb")]:  # workbooks (e1 …) import their judge
        assert not re.search(beside, path.read_text(encoding="utf-8")), path


def test_no_module_imports_one_of_a_later_room():
    assert {room_of(path) for path in FILES} - {"__init__"} == set(ROOMS)
    for path in FILES:
        rooms = {name.split(".")[1] for name in imports(path) if name.startswith("transformer_circuits.")}
        later = rooms - set(ROOMS[: ROOMS.index(room_of(path)) + 1]) if path.name != "__init__.py" else set()
        assert not later, f"{path} imports {later}"


@pytest.mark.parametrize("command", ["check", "format --check"])
def test_ruff_finds_nothing(command):
    arguments = [*command.split(), "src", "tests", ".ci", "notebooks", "benchmarks", "book/_ext", "conftest.py"]
    ruff = [sys.executable, "-m", "ruff", *arguments]
    done = subprocess.run(ruff, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_root_is_the_clone_or_what_the_environment_says_or_the_users_cache(tmp_path, monkeypatch):
    assert ROOT / "src" / "transformer_circuits" / "paths.py" in FILES
    monkeypatch.setenv("TRANSFORMER_CIRCUITS_ROOT", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="TRANSFORMER_CIRCUITS_ROOT"):
        paths.find_clone()
    (tmp_path / "pyproject.toml").touch()  # of any project, in which the package may be installed
    assert paths.find_clone() == tmp_path
    monkeypatch.delenv("TRANSFORMER_CIRCUITS_ROOT")
    monkeypatch.setattr(paths, "__file__", str(tmp_path / "lib" / "transformer_circuits" / "paths.py"))
    assert paths.find_clone() is None


def test_chapters_are_numbered_by_their_files():
    files = ("00_how_to_read", "18_real_models", "a1_notation", "intro")
    assert [paths.chapter_number(file) for file in files] == ["0", "18", "A1", ""]
