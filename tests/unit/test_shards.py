"""Writing models to disk and reading them back: exactly, or not at all."""

import dataclasses
import hashlib
import json
import shutil
import subprocess
import sys

import pytest
import safetensors.torch
import torch

from transformer_circuits.models import shards
from transformer_circuits.models.architecture import ModelConfig, Transformer
from transformer_circuits.models.shards import MANIFEST, WeightsError, read_manifest, read_model, save_model

CONFIG = ModelConfig(2, d_model=32, n_heads=4, d_head=8, d_vocab=100, n_ctx=24)


def make(config: ModelConfig = CONFIG, seed: int = 0) -> Transformer:
    torch.manual_seed(seed)
    return Transformer(config)


@pytest.fixture
def saved(tmp_path):
    save_model(make(), tmp_path / "m", "m", {"tokens": 123}, shard_bytes=10_000)
    return tmp_path / "m"


def edit_manifest(folder, change):
    manifest = json.loads((folder / MANIFEST).read_text())
    change(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest))


CONFIGS = [{}, {"n_layers": 0}, {"normalization": "LN", "d_mlp": 48}]


@pytest.mark.parametrize("config", [dataclasses.replace(CONFIG, **change) for change in CONFIGS])
def test_what_is_read_is_what_was_written_in_half_precision(tmp_path, config):
    model = make(config)
    save_model(model, tmp_path / "m", "m", {}, shard_bytes=10_000)
    before = torch.random.get_rng_state()
    read, manifest = read_model(tmp_path / "m")
    assert torch.equal(torch.random.get_rng_state(), before), "reading draws no random numbers"
    assert read.config == config and manifest["name"] == "m"
    weights = read.state_dict()
    for key, tensor in model.state_dict().items():
        assert torch.equal(weights[key], tensor if key == "pos.weight" else tensor.half().float()), key
    trained = {name for name, parameter in read.named_parameters() if parameter.requires_grad}
    assert trained == weights.keys() - {"pos.weight"}


def test_manifest_describes_every_shard(saved):
    manifest = read_manifest(saved)
    assert len(manifest["shards"]) > 1 and manifest["dtype"] == "float16"
    assert manifest["training"] == {"tokens": 123} and manifest["config"] == dataclasses.asdict(CONFIG)
    for i, shard in enumerate(manifest["shards"], start=1):
        assert shard["file"] == f"weights-{i:05}-of-{len(manifest['shards']):05}.safetensors"
        content = (saved / shard["file"]).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (shard["bytes"], shard["sha256"])
        assert len(content) < 11_000 and sorted(safetensors.torch.load(content)) == sorted(shard["tensors"])
    files = {shard["file"] for shard in manifest["shards"]}
    assert {path.name for path in saved.iterdir()} == {MANIFEST, *files}


def test_the_same_weights_give_the_same_bytes(saved, tmp_path):
    save_model(make(), tmp_path / "again", "m", {"tokens": 123}, shard_bytes=10_000)
    for path in saved.iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes(), path.name


def test_saving_again_replaces_the_model_and_keeps_the_training_log(saved):
    (saved / "training.jsonl").write_text("{}\n")
    before = len(list(saved.glob("*.safetensors")))
    newer = make(seed=1)
    save_model(newer, saved, "m", {}, shard_bytes=1_000_000)
    assert len(list(saved.glob("*.safetensors"))) == 1 < before
    assert (saved / "training.jsonl").read_text() == "{}\n"
    assert torch.equal(read_model(saved)[0].head.weight, newer.head.weight.half().float())
    assert [path.name for path in saved.parent.iterdir()] == ["m"]  # no temporary folder left


def test_a_kill_while_saving_leaves_no_mixture(saved, monkeypatch):
    """Interrupted at each file that is moved in turn, the folder is either not loadable or the complete new model."""
    newer = make(seed=1)
    for allowed in range(len(read_manifest(saved)["shards"]) + 1):
        done = []

        def replace(self, target, done=done, allowed=allowed, real=shards.Path.rename):
            if len(done) == allowed:
                raise KeyboardInterrupt
            done.append(target)
            return real(self, target)

        with monkeypatch.context() as patched:
            patched.setattr(shards.Path, "replace", replace)
            with pytest.raises(KeyboardInterrupt):
                save_model(newer, saved, "m", {}, shard_bytes=10_000)
        with pytest.raises(WeightsError, match=f"has no {MANIFEST}"):
            read_model(saved)
        assert [path.name for path in saved.parent.iterdir()] == ["m"]
    save_model(newer, saved, "m", {}, shard_bytes=10_000)
    assert torch.equal(read_model(saved)[0].head.weight, newer.head.weight.half().float())


def infinite(model):
    model.head.weight.data[3, 4] = 1e6


def learned(model):
    model.pos.weight.data.normal_()


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (infinite, {}, "head.weight has values that float16 cannot hold"),
        (learned, {}, "must be the sinusoids"),
        (None, {"shard_bytes": 5_000}, "tok_embed.weight takes 6,400 bytes"),
        (None, {"training": {"loss": float("nan")}}, "not JSON compliant"),
    ],
)
def test_what_cannot_be_stored_leaves_the_old_model(saved, change, options, message):
    model = make(seed=1)
    if change:
        change(model)
    with pytest.raises(ValueError, match=message):
        save_model(model, saved, "m", **({"training": {}} | options))
    assert torch.equal(read_model(saved)[0].head.weight, make().head.weight.half().float())
    assert [path.name for path in saved.parent.iterdir()] == ["m"]


def test_any_flipped_byte_is_found_before_anything_is_built(saved, monkeypatch):
    def built(*_):
        raise AssertionError("a model was built from damaged weights")

    monkeypatch.setattr(shards, "Transformer", built)
    for shard in read_manifest(saved)["shards"]:
        path = saved / shard["file"]
        content = path.read_bytes()
        for at in (0, len(content) // 2, len(content) - 1):
            damaged = bytearray(content)
            damaged[at] ^= 1
            path.write_bytes(damaged)
            with pytest.raises(WeightsError) as error:
                read_model(saved)
            told = (shard["file"], "is damaged", shard["sha256"], hashlib.sha256(damaged).hexdigest())
            assert all(part in str(error.value) for part in told)
        path.write_bytes(content)


def test_missing_and_unreadable_files_are_named(saved, tmp_path, monkeypatch):
    def unreadable(path, *_, **__):
        raise PermissionError(13, "Permission denied", str(path))

    (tmp_path / "empty").mkdir()
    for folder, message in (("nowhere", "there is no folder .*nowhere"), ("empty", f"has no {MANIFEST}")):
        with pytest.raises(WeightsError, match=message):
            read_model(tmp_path / folder)
    for function, message in (
        ("read_bytes", r"safetensors cannot be read \(Permission denied\)"),
        ("read_text", "is not a readable manifest .*Permission denied"),
    ):
        monkeypatch.setattr(shards.Path, function, unreadable)
        with pytest.raises(WeightsError, match=message):
            read_model(saved)
        monkeypatch.undo()
    shard = saved / read_manifest(saved)["shards"][1]["file"]
    shard.unlink()
    with pytest.raises(WeightsError, match=f"{shard.name} is missing, though {MANIFEST} lists it"):
        read_model(saved)


MEMORY = """
import resource, sys
from transformer_circuits.models.shards import WeightsError, read_model
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for folder in sys.argv[1:]:
    try:
        read_model(folder)
    except WeightsError as error:
        print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def test_sizes_that_no_tensor_has_are_rejected_before_anything_is_allocated(saved, tmp_path):
    sizes = {"n_layers": 10**6, "d_vocab": 10**9, "d_model": 10**12, "n_ctx": 10**10}
    folders = []
    for name, size in sizes.items():
        folders.append(str(shutil.copytree(saved, tmp_path / name)))
        edit_manifest(tmp_path / name, lambda manifest, size={name: size}: manifest["config"].update(size))
    done = subprocess.run([sys.executable, "-c", MEMORY, *folders], capture_output=True, text=True)
    *sentences, megabytes = done.stdout.splitlines()
    assert len(sentences) == len(sizes), done.stderr
    assert all(folder in sentence for folder, sentence in zip(folders, sentences))
    assert "must be at most 131,072, got 10,000,000,000" in sentences[-1] and float(megabytes) < 200


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_rejected(saved, wrong):
    shard = read_manifest(saved)["shards"][0]
    tensors = safetensors.torch.load((saved / shard["file"]).read_bytes())
    tensors[shard["tensors"][0]][3, 4] = wrong
    content = safetensors.torch.save(tensors)
    (saved / shard["file"]).write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    edit_manifest(saved, lambda manifest: manifest["shards"][0].update(sha256=digest))
    with pytest.raises(WeightsError, match=f"{shard['tensors'][0]} in .* contains NaN or infinity"):
        read_model(saved)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"shards": [{}]}', "[" * 100_000, '{"shards": 3}'])
def test_a_malformed_manifest_is_rejected(saved, text):
    (saved / MANIFEST).write_text(text)
    with pytest.raises(WeightsError, match="is not a readable manifest"):
        read_model(saved)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["config"].update(n_layers=3), "layers.2.attn.k.weight is missing, expected"),
        (lambda m: m["config"].update(n_layers=1), "expected absent"),
        (lambda m: m["config"].update(d_vocab=99), r"head.weight is \(100, 32\), expected \(99, 32\)"),
        (lambda m: m["config"].update(color="red"), "unusable configuration"),
        (lambda m: m["config"].update(n_layers=2.0), "unusable configuration: n_layers must be"),
        (lambda m: m["shards"].append(m["shards"][0]), "has .* in two shards"),
        (lambda m: m["shards"].pop(), "do not fit its configuration"),
        (lambda m: m["shards"][0]["tensors"].append("extra"), "contains .*; its manifest lists extra"),
        (lambda m: m.update(dtype="float32"), "contains float16; its manifest lists float32"),
        (lambda m: m["shards"][0].update(file="../secret.safetensors"), "is outside the folder"),
    ],
)
def test_a_manifest_that_does_not_fit_its_tensors_is_rejected(saved, change, message):
    edit_manifest(saved, change)
    with pytest.raises(WeightsError, match=message):
        read_model(saved)
