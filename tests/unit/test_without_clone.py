"""The package without a clone: a wheel loads a model from a folder, and says where the book's own files are."""

import json
import os
import shutil
import subprocess
import sys

import torch

from transformer_circuits.models import load_model
from transformer_circuits.paths import ROOT, WEIGHTS

MODEL = "small-1l"
TOKENS = torch.arange(20)[None]
SCRIPT = """
import json, sys
import torch
from transformer_circuits import data, models, paths

assert not paths.CLONE and "wheel" in models.__file__

def failure(of, name):
    try:
        of(name)
    except (models.shards.WeightsError, FileNotFoundError) as error:
        return str(error)

model = models.load_model(sys.argv[1], "cpu")
said = [failure(models.load_model, "small-1l"), failure(data.held_out_tokens, 4096)]
print(json.dumps([*said, model.tokenizer("of")["input_ids"], model(torch.arange(20)[None])[0, -1, :5].tolist()]))
"""


def wheel(tmp_path):
    """Build the package, and install it alone."""
    source, installed = tmp_path / "source", tmp_path / "wheel"
    shutil.copytree(ROOT / "src" / "transformer_circuits", source / "src" / "transformer_circuits")
    for name in ("README.md", "LICENSE", "pyproject.toml"):
        shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", source, "--no-deps", "--no-build-isolation", "-w", tmp_path], check=True)
    subprocess.run([*pip, "install", "--no-deps", "--target", installed, *tmp_path.glob("*.whl")], check=True)
    return installed


def test_a_wheel_and_a_folder_with_a_tokenizer_give_the_same_model_without_a_clone(tmp_path):
    folder = shutil.copytree(WEIGHTS / MODEL, tmp_path / MODEL)
    alone = {"PYTHONPATH": str(wheel(tmp_path)), "XDG_CACHE_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"}
    environment = {name: value for name, value in os.environ.items() if name != "TRANSFORMER_CIRCUITS_ROOT"} | alone
    (tmp_path / "elsewhere").mkdir()
    command, pipe = [sys.executable, "-c", SCRIPT, folder], subprocess.PIPE
    done = subprocess.run(command, cwd=tmp_path / "elsewhere", env=environment, stdout=pipe, check=True)
    no_model, no_data, ids, logits = json.loads(done.stdout)
    assert no_model.startswith("there is no model 'small-1l' here") and "ROOT to a clone of its repo" in no_model
    assert (
        no_data
        == "the book's data is not in the package; set TRANSFORMER_CIRCUITS_ROOT to a clone of the book's repository"
    )
    model = load_model(MODEL, "cpu")
    assert model.tokenizer("of")["input_ids"] == ids and model(TOKENS)[0, -1, :5].tolist() == logits
