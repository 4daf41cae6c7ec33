"""The package as a whole: which room may import which, what it depends on, its form, and what GitHub runs."""

import ast
import importlib.metadata
import re
import subprocess
import sys

import pytest

from transformer_circuits import paths
from transformer_circuits.paths import ROOT

# The rooms of the package, lowest first: none imports one that comes after it.
ORDER = "paths models data measures training circuits exercises figures notebook claims pages forks build".split()
SRC = ROOT / "src"
MODULES = {".".join(path.relative_to(SRC).with_suffix("").parts): path for path in sorted(SRC.rglob("*.py"))}
# Parts of Jupyter, and of jinja2.
PARTS = {"ipython", "matplotlib-inline", "markupsafe", "ipykernel"}


def imports(module: str, everywhere: bool = True) -> set[str]:
    """Return the full name of everything that a module of the package imports; `everywhere`: inside functions too."""
    names = set()
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    for node in ast.walk(tree) if everywhere else tree.body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[: -node.level] if node.level else []
            names |= {".".join([*above, *filter(None, [node.module]), alias.name]) for alias in node.names}
    return names


def own_imports(module: str) -> list[list[str]]:
    """Return what a module imports from this package, as parts of dotted names without the package's."""
    return [name.split(".")[1:] for name in imports(module) if name.startswith("transformer_circuits.")]


def test_no_room_imports_one_above_it():
    for module in MODULES.keys() - {"transformer_circuits.__init__"}:
        room = module.split(".")[1]
        wrong = [".".join(name) for name in own_imports(module) if ORDER.index(name[0]) > ORDER.index(room)]
        assert not wrong, f"{module} imports {', '.join(wrong)}"


def test_no_module_imports_a_private_name_and_no_two_share_a_name():
    assert not [name for module in MODULES for name in own_imports(module) if name[-1].startswith("_")]
    names = [path.stem for path in MODULES.values() if not path.stem.startswith("__")]
    assert len(set(names)) == len(names)


def undeclared(stamp, names: set[str], extras: list[str]) -> list[str]:
    """Return what of these imports is neither Python's, nor the package's, nor of its dependencies with these extras."""
    about, providers = stamp.project(), importlib.metadata.packages_distributions()
    requirements = [*about["dependencies"], *sum((about["optional-dependencies"][e] for e in extras), [])]
    direct = {stamp.normal(stamp.NAME.match(r)[0]) for r in requirements} | PARTS
    third = {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"transformer_circuits"}
    return [name for name in third if not direct & set(map(stamp.normal, providers.get(name, [name])))]


def test_every_import_is_a_direct_dependency(stamp):
    names = set().union(*map(imports, MODULES))
    assert undeclared(stamp, names, list(stamp.project()["optional-dependencies"])) == []


def of_notebooks() -> set[str]:
    """Return the modules of the package that notebooks import."""
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "notebooks").glob("*.ipynb"))
    named = re.findall(r"from (transformer_circuits[\w.]*) import ([\w, ]+)", text)
    found = {f"{module}.{name.strip()}" for module, names in named for name in names.split(",")}
    return (found | {module for module, _ in named}) & MODULES.keys()


def with_all_that_they_import(modules: set[str]) -> set[str]:
    """Return the full names of everything that is imported along with modules of the package."""
    found, waiting = set(), set(modules)
    while waiting:
        name = waiting.pop()
        found.add(name)
        for module in MODULES.keys() & {name, f"{name}.__init__"}:
            named = imports(module, everywhere=False)
            waiting |= (named | {one.rpartition(".")[0] for one in named}) - found - {""}
    return found


@pytest.mark.parametrize("extra, rooms", [([], []), (["train"], ["training"]), (["book"], ["build", "pages"])])
def test_each_extra_alone_brings_what_its_modules_import(stamp, extra, rooms):
    """The workflow `test` installs each one in an environment of its own."""
    modules = {module for module in MODULES if module.split(".")[1] in rooms} or of_notebooks()
    assert modules and undeclared(stamp, with_all_that_they_import(modules), extra) == []


@pytest.mark.parametrize("command", ["check", "format --check"])
def test_ruff_finds_nothing(command):
    arguments = [*command.split(), "src", "tests", ".ci", "benchmarks", "book/_ext", "conftest.py"]
    ruff = [sys.executable, "-m", "ruff", *arguments]
    done = subprocess.run(ruff, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_workflows_fit_the_official_schema_and_run_what_exists():
    files = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows"]
    done = subprocess.run([*command, *files], capture_output=True, text=True)
    assert len(files) == 3 and done.returncode == 0, done.stdout + done.stderr
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for path in files:
        assert set(re.findall(r"run: .*?make (\w+)", path.read_text())) <= targets


def test_the_root_is_the_repository_or_what_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_CIRCUITS_ROOT", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="TRANSFORMER_CIRCUITS_ROOT"):
        paths.find_root()
    (tmp_path / "pyproject.toml").touch()
    assert paths.find_root() == tmp_path
