"""The package without a clone: what a wheel has, where it gets a model from, what it says where it cannot; folders for a hub."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
import yaml

from book_tools import hub
from transformer_circuits.models import list_models, load_model, release
from transformer_circuits.models.shards import sha256
from transformer_circuits.paths import ROOT

MODEL, OTHER, DAMAGED = "small-1l", "small-2l", "melodies-1l"
TOKENS = torch.arange(20)[None]
SCRIPT = f"""
import json
import torch
from transformer_circuits import models, paths
from transformer_circuits.models.shards import WeightsError

assert not paths.CLONE and "wheel" in models.__file__

def failure(name):
    try:
        models.load_model(name, "cpu")
    except WeightsError as error:
        return str(error)

def logits():
    return models.load_model("{MODEL}", "cpu")(torch.arange(20)[None])[0, -1, :5].tolist()

print(json.dumps([failure("{DAMAGED}"), failure("{OTHER}"), models.list_models(), logits()]), flush=True)
input()
print(json.dumps([failure("{OTHER}"), logits()]))
"""


@pytest.fixture(scope="module")
def archives():
    return hub.archives()


def test_the_checksums_in_the_package_are_those_of_the_shipped_files(archives):
    assert release.checksums() == {name: sha256(content) for name, content in archives.items()}, "run `make hub`"


def wheel(tmp_path, address: str):
    """Build the package with another address, and install it alone."""
    source, installed = tmp_path / "source", tmp_path / "wheel"
    shutil.copytree(ROOT / "src" / "transformer_circuits", source / "src" / "transformer_circuits")
    for name in ("README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    project = (ROOT / "pyproject.toml").read_text()
    ours = release.address().partition("/releases/")[0]
    (source / "pyproject.toml").write_text(project.replace(f'Repository = "{ours}"', f'Repository = "{address}"'))
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", source, "--no-deps", "--no-build-isolation", "-w", tmp_path], check=True)
    subprocess.run([*pip, "install", "--no-deps", "--target", installed, *tmp_path.glob("*.whl")], check=True)
    return installed


def test_a_wheel_fetches_a_model_once_and_says_why_it_cannot(tmp_path, server, archives):
    address = f"{server.address}/book"
    environment = os.environ | {
        "PYTHONPATH": str(wheel(tmp_path, address)),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "HF_HUB_OFFLINE": "1",
    }
    environment.pop("TRANSFORMER_CIRCUITS_ROOT", None)
    place = release.address().partition("/releases/")[2]
    public = tmp_path / "public" / "book" / "releases" / place
    public.mkdir(parents=True)
    (public / f"{MODEL}.zip").write_bytes(archives[MODEL])
    (public / f"{DAMAGED}.zip").write_bytes(archives[DAMAGED][:-1])
    (tmp_path / "elsewhere").mkdir()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", SCRIPT]
    with subprocess.Popen(command, cwd=tmp_path / "elsewhere", env=environment, **pipes) as process:
        damaged, missing, names, logits = json.loads(process.stdout.readline())
        server.shutdown()
        server.server_close()
        unconnected, again = json.loads(process.communicate("\n")[0])
    start = "{0!r} is not on this machine, and could not be fetched from {1}/releases/{2}/{0}.zip: "
    assert damaged.startswith(start.format(DAMAGED, address, place)) and "must have SHA-256" in damaged
    assert missing.startswith(start.format(OTHER, address, place)) and "404" in missing
    assert unconnected.startswith(start.format(OTHER, address, place) + "no connection; try again, or set")
    assert logits == load_model(MODEL, "cpu")(TOKENS)[0, -1, :5].tolist() and names == list_models()
    assert again == logits, "what was fetched is there"


def test_a_folder_for_the_hub_gives_the_same_model_and_has_a_card(tmp_path, monkeypatch):
    monkeypatch.setattr(hub, "OUT", tmp_path)
    hub.write_folder(MODEL)
    model, loaded = load_model(MODEL, "cpu"), load_model(tmp_path / MODEL, "cpu")
    assert torch.equal(loaded(TOKENS), model(TOKENS))
    assert loaded.tokenizer.get_vocab() == model.tokenizer.get_vocab()
    _, front, text = (tmp_path / MODEL / "README.md").read_text().split("---\n", 2)
    assert yaml.safe_load(front)["license"] == "mit" and f'load_model("{MODEL}")' in text
