"""The package as a whole: what it depends on, its form, and what GitHub runs."""

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

FILES = sorted((ROOT / "src" / "transformer_circuits").rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(ROOT / "src" / "transformer_circuits").parts[0].removesuffix(".py")


def imports(path: Path, everywhere: bool = True) -> set[str]:
    """Return the modules of others that a file of `src` imports; `everywhere`: inside functions too."""
    names = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree) if everywhere else tree.body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(node.module)
    return names


# Parts of Jupyter, and of jinja2.
PARTS = {"ipython", "matplotlib-inline", "markupsafe", "ipykernel"}


def undeclared(names: set[str], extras: list[str]) -> list[str]:
    """Return what of these imports is neither Python's, nor the package's, nor of its dependencies with these extras."""
    about, providers = stamp.project(), importlib.metadata.packages_distributions()
    requirements = [*about["dependencies"], *sum((about["optional-dependencies"][e] for e in extras), [])]
    direct = {canonicalize_name(Requirement(requirement).name) for requirement in requirements} | PARTS
    third = {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"transformer_circuits"}
    return [name for name in third if not direct & set(map(canonicalize_name, providers.get(name, [name])))]


def test_every_import_is_a_direct_dependency_and_modules_load_without_extras_but_for_those_that_make_pages():
    """The workflow `test` installs each extra in an environment of its own."""
    of_pages = {path for path in FILES if room_of(path) in ("pages", "forks", "build")}
    everything = list(stamp.project()["optional-dependencies"])
    for files, everywhere, extras in (
        (FILES, True, everything),
        (of_pages, False, ["book"]),
        ({*FILES} - of_pages, False, []),
    ):
        assert undeclared(set().union(*(imports(path, everywhere) for path in files)), extras) == []
    for path in (ROOT / "notebooks").glob("*.ipynb"):  # Google Colab installs no extras
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"from transformer_circuits.*\b(pages|forks|build)\b", text), path


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
