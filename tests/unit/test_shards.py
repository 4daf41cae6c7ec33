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


@pytest.mark.parametrize(
    "config",
    [CONFIG, dataclasses.replace(CONFIG, n_layers=0), dataclasses.replace(CONFIG, normalization="LN", d_mlp=48)],
)
def test_what_is_read_is_what_was_written_in_half_precision(tmp_path, config):
    model = make(config)
    save_model(model, tmp_path / "m", "m", {}, shard_bytes=10_000)
    read, manifest = read_model(tmp_path / "m")
    assert read.config == config and manifest["name"] == "m"
    stored = {key: tensor for key, tensor in model.state_dict().items() if key != "pos.weight"}
    for key, tensor in stored.items():
        assert torch.equal(read.state_dict()[key], tensor.half().float()), key
    assert torch.equal(read.W_pos, model.W_pos)
    tokens = torch.randint(100, (2, 24))
    torch.testing.assert_close(read(tokens), model(tokens), rtol=0, atol=2e-3)
    assert all(parameter.requires_grad == (name != "pos.weight") for name, parameter in read.named_parameters())


def test_manifest_describes_every_shard(saved):
    manifest = read_manifest(saved)
    assert len(manifest["shards"]) > 1 and manifest["dtype"] == "float16" and manifest["training"] == {"tokens": 123}
    assert manifest["config"] == dataclasses.asdict(CONFIG)
    for i, shard in enumerate(manifest["shards"], start=1):
        assert shard["file"] == f"weights-{i:05}-of-{len(manifest['shards']):05}.safetensors"
        content = (saved / shard["file"]).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (shard["bytes"], shard["sha256"])
        assert sorted(safetensors.torch.load(content)) == sorted(shard["tensors"])
    assert {path.name for path in saved.iterdir()} == {MANIFEST, *(shard["file"] for shard in manifest["shards"])}


def test_shards_stay_under_the_limit_at_the_real_size(tmp_path):
    model = make(ModelConfig(1))
    manifest = save_model(model, tmp_path / "m", "m", {})
    assert all(shard["bytes"] < 16_000_000 for shard in manifest["shards"])
    assert sum(shard["bytes"] for shard in manifest["shards"]) > 29_000_000


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


def test_a_kill_while_saving_leaves_no_mixture(saved, tmp_path, monkeypatch):
    """Interrupted at each file that is moved in turn, the folder is either not loadable or the complete new model."""
    from transformer_circuits.models import shards

    newer = make(seed=1)
    moves = len(read_manifest(saved)["shards"]) + 1
    for allowed in range(moves):
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


def test_a_failure_before_the_files_are_complete_leaves_the_old_model(saved):
    broken = make(seed=1)
    broken.head.weight.data[3, 4] = 1e6
    with pytest.raises(ValueError, match="head.weight has values that float16 cannot hold"):
        save_model(broken, saved, "m", {})
    with pytest.raises(ValueError):  # json: nan is not a number that can be written
        save_model(make(seed=1), saved, "m", {"loss": float("nan")})
    assert torch.equal(read_model(saved)[0].head.weight, make().head.weight.half().float())
    assert [path.name for path in saved.parent.iterdir()] == ["m"]


def test_too_small_shards_and_foreign_positions_are_refused(tmp_path):
    with pytest.raises(ValueError, match="tok_embed.weight takes 6,400 bytes"):
        save_model(make(), tmp_path / "m", "m", {}, shard_bytes=5_000)
    learned = make()
    learned.pos.weight.data.normal_()
    with pytest.raises(ValueError, match="not the sinusoids"):
        save_model(learned, tmp_path / "m", "m", {})
    assert not list(tmp_path.iterdir())


def test_reading_leaves_the_random_number_generator_alone(saved):
    before = torch.random.get_rng_state()
    read_model(saved)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_any_flipped_byte_is_found_before_anything_is_built(saved, monkeypatch):
    def built(*_):
        raise AssertionError("a model was built from damaged weights")

    monkeypatch.setattr("transformer_circuits.models.shards.Transformer", built)
    for shard in read_manifest(saved)["shards"]:
        path = saved / shard["file"]
        content = path.read_bytes()
        for at in (0, len(content) // 2, len(content) - 1):
            damaged = bytearray(content)
            damaged[at] ^= 1
            path.write_bytes(damaged)
            with pytest.raises(WeightsError) as error:
                read_model(saved)
            message = str(error.value)
            assert shard["file"] in message and "damaged" in message and "fetch that file again" in message
            assert shard["sha256"] in message and hashlib.sha256(damaged).hexdigest() in message
        path.write_bytes(content)


def test_missing_things_are_named(saved, tmp_path):
    with pytest.raises(WeightsError, match="there is no folder .*nowhere"):
        read_model(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(WeightsError, match="empty has no manifest.json"):
        read_model(tmp_path / "empty")
    shard = saved / read_manifest(saved)["shards"][1]["file"]
    shard.unlink()
    with pytest.raises(WeightsError, match=f"{shard.name} is missing, though manifest.json names it"):
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


def test_sizes_that_no_tensor_has_are_refused_before_anything_is_allocated(saved, tmp_path):
    sizes = [{"n_layers": 1_000_000}, {"d_vocab": 10**9}, {"d_model": 10**8}, {"d_model": 10**12}, {"n_ctx": 10**10}]
    folders = [shutil.copytree(saved, tmp_path / str(i)) for i in range(len(sizes))]
    for folder, size in zip(folders, sizes):
        edit_manifest(folder, lambda manifest, size=size: manifest["config"].update(size))
    done = subprocess.run([sys.executable, "-c", MEMORY, *map(str, folders)], capture_output=True, text=True)
    *sentences, megabytes = done.stdout.splitlines()
    assert len(sentences) == len(sizes) and all(str(folder) in sentence for folder, sentence in zip(folders, sentences)), done.stderr
    assert "n_ctx = 10,000,000,000; at most" in sentences[-1] and float(megabytes) < 200


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(saved, wrong):
    shard = read_manifest(saved)["shards"][0]
    tensors = safetensors.torch.load((saved / shard["file"]).read_bytes())
    tensors[shard["tensors"][0]][3, 4] = wrong
    content = safetensors.torch.save(tensors)
    (saved / shard["file"]).write_bytes(content)
    edit_manifest(saved, lambda manifest: manifest["shards"][0].update(sha256=hashlib.sha256(content).hexdigest()))
    with pytest.raises(WeightsError, match=f"{shard['tensors'][0]} in .* holds values that are not finite numbers"):
        read_model(saved)


def test_files_that_cannot_be_read_are_named(saved, monkeypatch):
    def unreadable(path, *_, **__):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("transformer_circuits.models.shards.Path.read_bytes", unreadable)
    with pytest.raises(WeightsError, match=r"safetensors cannot be read \(Permission denied\); mend its permissions"):
        read_model(saved)
    monkeypatch.setattr("transformer_circuits.models.shards.Path.read_text", unreadable)
    with pytest.raises(WeightsError, match="is not a readable manifest .*Permission denied"):
        read_model(saved)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"shards": [{}]}', "not json", "[" * 100_000, '{"shards": 3}'])
def test_a_manifest_that_is_none_is_refused(saved, text):
    (saved / MANIFEST).write_text(text)
    with pytest.raises(WeightsError, match="is not a readable manifest"):
        read_model(saved)


def test_a_manifest_cannot_reach_outside_its_folder(saved):
    edit_manifest(saved, lambda manifest: manifest["shards"][0].update(file="../secret.safetensors"))
    with pytest.raises(WeightsError, match="lies outside the folder"):
        read_model(saved)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda m: m["config"].update(n_layers=3), "layers.2.attn.k.weight is missing, expected"),
        (lambda m: m["config"].update(n_layers=1), "expected absent"),
        (lambda m: m["config"].update(d_vocab=99), r"head.weight is \(100, 32\), expected \(99, 32\)"),
        (lambda m: m["config"].update(colour="red"), "unusable configuration"),
        (lambda m: m["config"].update(normalization="RMS"), "unusable configuration"),
        (lambda m: m["config"].update(n_layers=2.0), "n_layers must be a whole number, not 2.0"),
        (lambda m: m["config"].update(d_mlp=-1), "d_mlp must be at least 0, not -1"),
        (lambda m: m["config"].update(smeared_keys="no"), "smeared_keys must be true or false"),
        (lambda m: m["shards"].append(m["shards"][0]), "has .* in two shards"),
        (lambda m: m["shards"].pop(), "do not fit its configuration"),
        (lambda m: m["shards"][0]["tensors"].append("extra"), "its manifest says"),
        (lambda m: m.update(dtype="float32"), "holds float16, its manifest says float32"),
    ],
)
def test_a_manifest_that_does_not_fit_its_tensors_is_refused(saved, change, message):
    edit_manifest(saved, change)
    with pytest.raises(WeightsError, match=message):
        read_model(saved)
