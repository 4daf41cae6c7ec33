"""Writing models to disk and reading them back: exactly, or not at all."""

import dataclasses
import json
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from transformer_circuits import paths
from transformer_circuits.models import shards
from transformer_circuits.models.architecture import ModelConfig, Transformer
from transformer_circuits.models.shards import MANIFEST, WeightsError, read_manifest, read_model, save_model

CONFIG = ModelConfig(2, d_model=32, n_heads=4, d_head=8, d_vocab=100, n_ctx=24)


def make(seed: int = 0, **changes) -> Transformer:
    torch.manual_seed(seed)
    return Transformer(dataclasses.replace(CONFIG, **changes))


@pytest.fixture
def saved(tmp_path):
    save_model(make(), tmp_path / "m", "m", {"tokens": 123})
    return tmp_path / "m"


@pytest.mark.parametrize("changes", [{"n_layers": 0}, {"normalization": "LN", "d_mlp": 48}])
def test_what_is_read_is_what_was_written_in_half_precision(saved, changes):
    model = make(**changes)
    save_model(model, saved, "m", {})  # in place of another
    before = torch.random.get_rng_state()
    read, manifest = read_model(saved)
    assert torch.equal(torch.random.get_rng_state(), before), "reading draws no random numbers"
    assert read.config == model.config and manifest["name"] == "m"
    weights = read.state_dict()
    for key, tensor in model.state_dict().items():
        assert torch.equal(weights[key], tensor if key == "pos.weight" else tensor.half().float()), key
    trained = {name for name, parameter in read.named_parameters() if parameter.requires_grad}
    assert trained == weights.keys() - {"pos.weight"}


def test_a_matrix_in_8_bits_has_a_step_for_each_row():
    stored = {"W": torch.tensor([[-127, 3], [0, 2]], dtype=torch.int8), "W.step": torch.tensor([[0.5], [2.0]])}
    assert shards.full_precision(stored)["W"].tolist() == [[-63.5, 1.5], [0, 4]]


def test_what_cannot_be_stored_leaves_the_old_model(saved):
    model = make(seed=1)
    model.head.weight.data[3, 4] = 1e6
    with pytest.raises(ValueError, match="head.weight has values that float16 cannot hold"):
        save_model(model, saved, "m", {})
    assert torch.equal(read_model(saved)[0].head.weight, make().head.weight.half().float())


def test_any_flipped_byte_is_found_before_anything_is_built(saved, monkeypatch):
    monkeypatch.setattr(shards, "Transformer", Mock(side_effect=AssertionError("built from damaged weights")))
    (shard,) = read_manifest(saved)["shards"]
    path = saved / shard["file"]
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(WeightsError, match=f"{shard['file']} is missing or damaged .*{shard['sha256']}.*; remove it"):
        read_model(saved)
    path.unlink()
    with pytest.raises(WeightsError, match=f"{path.name} is missing or damaged"):
        read_model(saved)


@pytest.mark.parametrize("change, message", [
    (lambda m: m["config"].update(n_layers=3), "do not fit its configuration: .*Missing.*layers.2.attn.q.weight"),
    (lambda m: m["config"].update(d_model=10**9, n_ctx=1 << 17), "do not fit its configuration"),
    *((lambda m, part=part: m.pop(part), f"not a readable manifest .it lacks '{part}'") for part in ("name", "config", "shards", "training")),
    (lambda m: m["shards"][0].pop("sha256"), "not a readable manifest .it lacks 'sha256'"),
    (lambda m: m["config"].pop("n_heads"), "not a readable manifest .it lacks 'n_heads'"),
    (lambda m: m["config"].update(n_layers=-1), "not a readable manifest .n_layers must be greater than or equal to 0, got -1"),
])  # fmt: skip
def test_a_manifest_that_does_not_fit_its_tensors_is_rejected_by_what_is_wrong(saved, change, message):
    manifest = json.loads((saved / MANIFEST).read_text())
    change(manifest)
    (saved / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(WeightsError, match=message):
        read_model(saved)


def test_a_file_that_cannot_be_written_stays_as_it_was(tmp_path, monkeypatch):
    (tmp_path / "weights").write_text("old")
    monkeypatch.setattr(paths.os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
    said = r"^[^\n]*weights could not be written \(.*No space left.*\); make room on its disk"
    with pytest.raises(OSError, match=said):
        paths.write_atomically(tmp_path / "weights", b"half")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("weights", "old")]


def test_the_manifest_leaves_first_and_arrives_last(saved, monkeypatch):
    """So that a kill at any moment leaves the old model, none, or the new one, never a mixture."""
    done, unlink, replace = [], Path.unlink, Path.replace
    monkeypatch.setattr(Path, "unlink", lambda path, **_: (done.append(f"-{path.name}"), unlink(path, missing_ok=True)))
    monkeypatch.setattr(Path, "replace", lambda path, to: (done.append(f"+{to.name}"), replace(path, to)))
    save_model(make(seed=1), saved, "m", {}, tokenizer="{}")
    left, arrived = ([step[1:] for step in done if step[0] == sign and "partial" not in step] for sign in "-+")
    assert left[0] == arrived[-1] == MANIFEST and arrived[0] != MANIFEST
    assert done.index(f"+{arrived[0]}") > max(done.index(f"-{name}") for name in left)
