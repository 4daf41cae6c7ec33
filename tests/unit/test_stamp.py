"""What repeats pyproject.toml says the same as it does, and the check notices when not. What every chapter starts with."""

import os
import shutil
import subprocess
import sys
import types

import colab
import matplotlib
import nbformat
import pytest
import stamp
import torch
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from transformer_circuits import notebook
from transformer_circuits.paths import ROOT


@pytest.fixture
def copy(tmp_path):
    """A copy of the files that the stamp reads and writes, with a notebook."""
    for name in ("pyproject.toml", "constraints.txt", "environment.yml", *stamp.WITH_ADDRESS):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "notebooks").mkdir()
    notebook = new_notebook(cells=[new_markdown_cell("# Title"), new_code_cell("1")])
    nbformat.write(notebook, tmp_path / "notebooks" / "01_try.ipynb")
    return tmp_path


def test_derived_files_are_up_to_date():
    assert [str(p.relative_to(ROOT)) for p in stamp.differing()] == [], "run `make stamp`"


@pytest.mark.parametrize("new", ["https://github.com/someone-else/{}", "https://github.com/Another.One/their-circuits"])
def test_the_public_address_is_carried_everywhere(copy, new):
    old = stamp.project(copy)["urls"]["Repository"]
    new = new.format(old.rpartition("/")[2])
    for name in stamp.WITH_ADDRESS:
        here = [place for place in stamp.places(old) if place in (copy / name).read_text()]
        assert here, f"{name} does not name the repository's address"
    (copy / "pyproject.toml").write_text((copy / "pyproject.toml").read_text().replace(old, new))
    files = stamp.differing(copy)
    assert {p.name for p in files} == {*stamp.WITH_ADDRESS, "01_try.ipynb"}
    for path, text in files.items():
        assert any(place in text for place in stamp.places(new)), path
        assert not any(place in text for place in stamp.places(old)), path
    _, colab, published = stamp.places(new)
    assert colab in files[copy / "README.md"] and published in files[copy / "README.md"]
    for path, text in files.items():
        path.write_text(text)
    assert stamp.differing(copy) == {}


@pytest.mark.parametrize(
    ("there", "version"), [("nothing", "1.0"), ("zip", "1.0"), ("release", "1.0"), ("release", "1.1.dev0")]
)
def test_colab_fetches_the_release_an_uploaded_zip_or_says_what_to_do(tmp_path, there, version):
    content, public = tmp_path / "content", tmp_path / "public"
    content.mkdir()
    (public / ".ci").mkdir(parents=True)
    git = ["git", "-C", str(public), "-c", "user.name=n", "-c", "user.email=e"]
    subprocess.run([*git, "init", "-q"], check=True)
    for text in ("the release", "the default branch"):
        (public / ".ci" / "colab.py").write_text(f"print('{text}')")
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "-qm", text], check=True)
        if text == "the release":
            subprocess.run([*git, "tag", "v1.0"], check=True)
    if there == "zip":
        shutil.make_archive(content / "book-main", "zip", tmp_path, "public")
    address = public.as_uri() if there == "release" else (tmp_path / "nowhere").as_uri()
    (tmp_path / "pyproject.toml").write_text(f"[project]\nversion = '{version}'\nurls.Repository = '{address}'")
    cell = stamp.first_cell(tmp_path).replace("/content", str(content))
    command = [sys.executable, "-m", "IPython", "--colors=NoColor", "-c", cell]
    there_too = {"COLAB_RELEASE_TAG": "1", "IPYTHONDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | there_too)
    if there == "nothing":
        assert f"SystemExit: The book could not be fetched from {address}: upload a zip" in done.stdout + done.stderr
    else:
        released = there == "release" and version == "1.0"
        assert done.stdout == f"{'the release' if released else 'the default branch'}\n", done.stderr


def test_colab_keeps_what_is_in_use_and_installs_what_is_missing(monkeypatch, capsys):
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


def test_setup_says_something_only_where_a_release_differs(capsys, monkeypatch):
    with matplotlib.rc_context(), torch.enable_grad():
        notebook.setup()
        assert capsys.readouterr().out == "" and not torch.is_grad_enabled()
        assert matplotlib.rcParams["figure.constrained_layout.use"]
        monkeypatch.setattr(notebook, "TESTED", {"torch": "1.0"})
        notebook.setup()
        assert capsys.readouterr().out.startswith("This book was tested with torch 1.0; here: torch ")


def test_constraints_are_plain_pins_and_every_exact_pin_agrees_with_them():
    lines = (ROOT / "constraints.txt").read_text().splitlines()[1:]
    pins = dict(line.split("==") for line in lines)
    assert not [pin for pin in lines if set(pin) & set("+@/: ")], "the name of a host or of a local build"
    about = stamp.project()
    for requirement in [*about["dependencies"], *sum(about["optional-dependencies"].values(), [])]:
        name, _, version = requirement.partition("==")
        if version:
            assert pins[stamp.normal(name)] == version, f"{requirement}: run `make constraints`"
