"""What repeats pyproject.toml says the same as it does, and the check notices when not."""

import shutil
import sys
import types

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from transformer_circuits.paths import ROOT


@pytest.fixture
def copy(stamp, tmp_path):
    """A copy of the files that the stamp reads and writes, with a notebook."""
    for name in ("pyproject.toml", "constraints.txt", "environment.yml", *stamp.WITH_ADDRESS):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "notebooks").mkdir()
    notebook = new_notebook(cells=[new_markdown_cell("# Title"), new_code_cell("1")])
    nbformat.write(notebook, tmp_path / "notebooks" / "01_try.ipynb")
    return tmp_path


def test_derived_files_are_up_to_date(stamp):
    assert [str(p.relative_to(ROOT)) for p in stamp.differing()] == [], "run `make stamp`"


def test_the_public_address_is_carried_everywhere(stamp, copy):
    old = stamp.project(copy)["urls"]["Repository"]
    new = old.replace("github.com/", "github.com/someone-else-")
    for name in stamp.WITH_ADDRESS:
        assert old in (copy / name).read_text(), f"{name} does not name the repository's address"
    (copy / "pyproject.toml").write_text((copy / "pyproject.toml").read_text().replace(old, new))
    files = stamp.differing(copy)
    assert {p.name for p in files} == {*stamp.WITH_ADDRESS, "01_try.ipynb"}
    assert all(new in text and old not in text for text in files.values())
    owner = new.split("/")[-2]
    readme = files[copy / "README.md"]
    assert f"https://{owner}.github.io/" in readme and f"colab.research.google.com/github/{owner}/" in readme


def test_colab_keeps_what_is_in_use_and_installs_what_is_missing(colab, monkeypatch, capsys):
    requirements = ["torch>=2.6", "pandas>=2.2", "transformer-lens==4.3.0"]
    assert colab.missing(requirements, {"torch", "pandas"}) == ["transformer-lens==4.3.0"]
    versions = {"torch": "2.8", "Pandas": "2.2.2", "tqdm": "4.0"}
    assert colab.held(versions, {"pandas"}) == ["Pandas==2.2.2", "torch==2.8"]

    commands = []
    done = types.SimpleNamespace(returncode=0)
    monkeypatch.setattr(colab.subprocess, "run", lambda command, **_: commands.append(command) or done)
    monkeypatch.setattr(colab.sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "")
    for _ in range(2):  # everything is installed where tests run
        colab.main()
        assert capsys.readouterr().out == f"The book is in {ROOT}; nothing had to be installed.\n"
    assert commands == [] and sys.path.count(str(ROOT / "src")) == 1
    monkeypatch.setattr(colab, "missing", lambda *_: ["simpleeval==1.0.8"])
    colab.main()
    assert commands[0][-1] == "simpleeval==1.0.8"
    assert "installed simpleeval==1.0.8." in capsys.readouterr().out
    done.returncode, done.stderr = 1, "many lines\nERROR: no such release"
    with pytest.raises(SystemExit, match="could not be installed: ERROR: no such release"):
        colab.main()


def test_constraints_are_plain_pins_and_every_exact_pin_agrees_with_them(stamp):
    lines = (ROOT / "constraints.txt").read_text().splitlines()[1:]
    pins = dict(line.split("==") for line in lines)
    assert not [pin for pin in lines if set(pin) & set("+@/: ")], "the name of a host or of a local build"
    about = stamp.project()
    for requirement in [*about["dependencies"], *sum(about["optional-dependencies"].values(), [])]:
        name, _, version = requirement.partition("==")
        if version:
            assert pins[stamp.normal(name)] == version, f"{requirement}: run `make constraints`"
