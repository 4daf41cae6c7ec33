"""What repeats pyproject.toml says the same as it does, and the check notices when not."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import json
import shutil
import sys

import pytest

from transformer_circuits.paths import ROOT


@pytest.fixture(scope="module")
def stamp():
    spec = importlib.util.spec_from_file_location("stamp", ROOT / ".ci" / "stamp.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def copy(tmp_path):
    """A copy of the files that the stamp reads and writes, with a notebook."""
    for name in ("pyproject.toml", "constraints.txt", "environment.yml", "_config.yml", "CITATION.cff", "README.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "notebooks").mkdir()
    cells = [
        {"cell_type": "markdown", "metadata": {}, "source": ["# Title"]},
        {"cell_type": "code", "metadata": {}, "source": ["1"], "outputs": [], "execution_count": None},
    ]
    (tmp_path / "notebooks" / "01_try.ipynb").write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4}))
    return tmp_path


def test_derived_files_are_up_to_date(stamp):
    assert [str(p.relative_to(ROOT)) for p in stamp.differing()] == [], "run `make stamp`"


def test_a_changed_pin_is_noticed(stamp, copy):
    text = (copy / "environment.yml").read_text()
    (copy / "environment.yml").write_text(text.replace("transformer-lens==4.3.0", "transformer-lens==4.2.0"))
    assert copy / "environment.yml" in stamp.differing(copy)


def test_a_dependency_left_out_is_noticed(stamp, copy):
    lines = [line for line in (copy / "environment.yml").read_text().splitlines() if "- pytest==" not in line]
    (copy / "environment.yml").write_text("\n".join(lines) + "\n")
    assert copy / "environment.yml" in stamp.differing(copy)


def test_the_public_address_is_carried_everywhere(stamp, copy):
    old = stamp.project(copy)["urls"]["Repository"]
    new = old.replace("github.com/", "github.com/someone-else-")
    for name in ("_config.yml", "CITATION.cff", "README.md"):
        assert old in (copy / name).read_text(), f"{name} does not name the repository's address"
    (copy / "pyproject.toml").write_text((copy / "pyproject.toml").read_text().replace(old, new))
    files = stamp.differing(copy)
    assert {p.name for p in files} == {"_config.yml", "CITATION.cff", "README.md", "01_try.ipynb"}
    assert all(new in text and old not in text for text in files.values())


def test_the_first_cell_is_written_once(stamp, copy):
    path = copy / "notebooks" / "01_try.ipynb"
    path.write_text(stamp.stamped(copy)[path])
    cell = json.loads(path.read_text())["cells"][1]
    assert "".join(cell["source"]) == stamp.first_cell(copy)
    assert path not in stamp.differing(copy)


def test_the_first_cell_leaves_torch_and_numpy_alone(stamp):
    from IPython.core.inputtransformer2 import TransformerManager

    cell = stamp.first_cell()
    ast.parse(TransformerManager().transform_cell(cell))
    assert "--constraint /content/keep.txt" in cell and '"^(torch|numpy)=="' in cell
    pins = {r.partition("==")[0] for r in stamp.project()["dependencies"] if "==" in r}
    assert not pins & {"torch", "numpy", "pandas", "matplotlib"}, "an exact pin would replace what Colab has loaded"


def test_constraints_name_no_host_and_no_local_build():
    text = (ROOT / "constraints.txt").read_text()
    pins = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert "torch==2.13.0" in pins
    for pin in pins:
        name, _, version = pin.partition("==")
        assert name and version and not set(version) & set("+@/: "), f"{pin} is not a plain pin"


def test_every_exact_pin_agrees_with_the_constraints(stamp):
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line)
    about = stamp.project()
    for requirement in [*about["dependencies"], *sum(about["optional-dependencies"].values(), [])]:
        name, _, version = requirement.partition("==")
        if version:
            assert pins[stamp.normal(name)] == version, f"{requirement} differs from constraints.txt: run `make constraints`"


def imported(folder) -> set[str]:
    """The top-level names of all modules that the Python files of a folder import."""
    names = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names.add(node.module.split(".")[0])
    return names


def test_every_import_is_a_direct_dependency(stamp):
    about = stamp.project()
    requirements = [*about["dependencies"], *sum(about["optional-dependencies"].values(), [])]
    direct = {stamp.normal(stamp.NAME.match(r)[0]) for r in requirements}
    direct |= {"ipython", "matplotlib-inline", "nbclient"}  # parts of Jupyter and matplotlib's own backend there
    providers = importlib.metadata.packages_distributions()
    for name in sorted(imported(ROOT / "src") - sys.stdlib_module_names - {"transformer_circuits"}):
        assert {stamp.normal(d) for d in providers.get(name, [name])} & direct, f"src imports {name}, which pyproject.toml does not list"
