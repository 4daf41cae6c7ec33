"""What repeats pyproject.toml says the same as it does; what every chapter starts with, in every kernel; what git keeps of a notebook."""

import json
import os
import re
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
from nbformat.v4 import new_code_cell, new_notebook, new_output

from transformer_circuits import notebook
from transformer_circuits.paths import ROOT


def test_files_that_repeat_pyproject_are_up_to_date_and_git_has_the_notebooks_as_its_filter_leaves_them():
    assert [str(path.relative_to(ROOT)) for path in stamp.differing()] == [], "run `make stamp`"


def run_first_cell(folder, address, version="1.0", **environment):
    """Run the first cell in an IPython that does not have the book."""
    (folder / "pyproject.toml").write_text(f"[project]\nversion = '{version}'\nurls.Repository = '{address}'")
    hidden = "import sys\nsys.modules['transformer_circuits'] = None\n"
    command = [sys.executable, "-m", "IPython", "--colors=NoColor", "-c", hidden + stamp.first_cell(folder)]
    environment = os.environ | {"IPYTHONDIR": str(folder / "ipython")} | environment
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)
    return done.stdout + done.stderr


@pytest.mark.parametrize(("environment", "says"), [
    ({}, f"ModuleNotFoundError: {stamp.ADVICE}"),
    ({"COLAB_RELEASE_TAG": "1"}, f"FileNotFoundError: {stamp.UNREACHED}"),  # without a network
])  # fmt: skip
def test_where_the_book_is_not_to_be_had_a_sentence_says_what_to_do(tmp_path, environment, says):
    said = run_first_cell(tmp_path, (tmp_path / "nowhere").as_uri(), **environment)
    assert says in said and said.count("Traceback") == 1 and not (tmp_path / "book").exists()


@pytest.mark.parametrize(("version", "taken"), [("1.0", "the release"), ("1.1.dev0", "the default branch")])
def test_colab_takes_the_release_that_a_notebook_belongs_to(tmp_path, version, taken):
    public = tmp_path / "public"
    (public / "notebooks").mkdir(parents=True)
    git = ["git", "-C", str(public), "-c", "user.name=n", "-c", "user.email=e"]
    subprocess.run([*git, "init", "-q"], check=True)
    for text in ("the release", "the default branch"):
        (public / "notebooks" / "colab.py").write_text(f"print('{text}')")
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "-qm", text], check=True)
        if text == "the release":
            subprocess.run([*git, "tag", "v1.0"], check=True)
    assert run_first_cell(tmp_path, public.as_uri(), version, COLAB_RELEASE_TAG="1") == f"{taken}\n"
    again = run_first_cell(tmp_path, (tmp_path / "nowhere").as_uri(), version, COLAB_RELEASE_TAG="1")
    assert again == f"{taken}\n", "a folder that is there is used"


def test_colab_keeps_what_is_in_use_and_installs_what_is_missing_as_tested(monkeypatch, capsys):
    requirements = ["torch>=2.6", "pandas>=2.2", "tqdm>=4.66", "transformer-lens>=4", "soupsieve<3"]
    versions = {"torch": "2.11.0+cu128", "pandas": "2.10", "tqdm": "4.9", "soupsieve": "2"}
    pins = {"transformer-lens": "4.3.0", "tqdm": "4.70.1"}
    assert colab.missing(requirements, versions, pins) == ["tqdm==4.70.1", "transformer-lens==4.3.0"], (
        "missing, too old"
    )
    versions = {"torch": "2.8", "Pandas": "2.2.2", "tqdm": "4.0"}
    assert colab.constraints(versions, {"pandas"}) == ["Pandas==2.2.2", "torch==2.8"]

    commands, result = [], types.SimpleNamespace(returncode=1, stderr="many lines\nERROR: no such release")
    monkeypatch.setattr(colab.subprocess, "run", lambda command, **_: commands.append(command) or result)
    monkeypatch.setattr(colab.sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "")
    colab.main()  # everything is installed where tests run
    assert capsys.readouterr().out == f"The book is in {ROOT}; installed: nothing, all was there.\n"
    assert commands == [] and str(ROOT / "src") in sys.path
    monkeypatch.setattr(colab, "missing", lambda *_: ["simpleeval==1.0.8"])
    with pytest.raises(SystemExit, match="could not be installed .ERROR: no such release.: choose Runtime"):
        colab.main()
    assert commands[0][-1] == "simpleeval==1.0.8"


@pytest.mark.parametrize("venv", [True, False])
def test_running_and_saving_a_notebook_is_no_change_for_git_also_where_venv_is_gone(tmp_path, venv):
    (filter,) = re.findall(r"git config filter.outputs.clean '(.*)'", (ROOT / ".ci" / "venv").read_text())
    for name in (".ci/strip_outputs.py", ".gitattributes"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    if venv:
        (tmp_path / ".venv" / "bin").mkdir(parents=True)
        (tmp_path / ".venv" / "bin" / "python3").symlink_to(sys.executable)
    git = ["git", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "config", "filter.outputs.clean", filter], check=True)

    def kept(notebook: nbformat.NotebookNode) -> str:
        (tmp_path / "a.ipynb").write_text(nbformat.writes(notebook))
        done = subprocess.run([*git, "add", "a.ipynb"], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        return subprocess.run([*git, "show", ":a.ipynb"], capture_output=True, text=True, check=True).stdout

    checked = new_code_cell("print(1)", metadata={"tags": ["nbval-check-output"]}, execution_count=1)
    checked.outputs = [new_output("stream", text="1\n")]
    before = kept(new_notebook(cells=[checked, new_code_cell("2")]))
    ran = nbformat.from_dict(json.loads(before))  # as JupyterLab saves it
    for number, cell in enumerate(ran.cells):
        cell.execution_count = number + 7
        cell.metadata["execution"] = {"iopub.execute_input": "now"}
    ran.cells[1].outputs = [new_output("execute_result", {"text/plain": "2"}, execution_count=8)]
    ran.metadata = {"kernelspec": {"display_name": "mine"}, "language_info": {"name": "python", "version": "3.12.1"}}
    assert kept(ran) == before and json.loads(before)["cells"][0]["outputs"]
    ran.cells[1].source = "3"
    assert kept(ran) != before


def test_setup_says_something_only_where_a_release_differs(capsys, monkeypatch):
    with matplotlib.rc_context(), torch.enable_grad():
        notebook.setup()
        assert capsys.readouterr().out == "" and not torch.is_grad_enabled()
        assert matplotlib.rcParams["figure.constrained_layout.use"]
        monkeypatch.setattr(notebook, "TESTED", {"torch": "1.0"})
        notebook.setup()
        assert capsys.readouterr().out.startswith("This book was tested with torch 1.0; here: torch ")


def test_a_chapter_on_another_model_says_whose_numbers_they_are(capsys):
    names = ("attn-only-1l", "small-2l")
    one, small = (types.SimpleNamespace(cfg=types.SimpleNamespace(model_name=name)) for name in names)
    notebook.describes({"attn-only-1l": one})
    assert capsys.readouterr().out == ""
    notebook.describes({"attn-only-1l": one, "attn-only-2l": small})
    said = "The text describes attn-only-1l and attn-only-2l. The numbers are those of small-2l in place of attn-only-2l.\n"
    assert capsys.readouterr().out == said
