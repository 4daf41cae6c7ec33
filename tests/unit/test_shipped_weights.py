"""The shipped models: complete, undamaged, and the same function through the bridge as in plain PyTorch."""

import dataclasses
import hashlib
import json

import pytest
import torch

from transformer_circuits.models import list_models, load_model
from transformer_circuits.models.architecture import ModelConfig
from transformer_circuits.models.shards import read_manifest, read_model
from transformer_circuits.paths import DATA, WEIGHTS
from transformer_circuits.training.train import CONFIGS, read_config

FAMILY = {"attn-only-0l": 0, "attn-only-1l": 1, "attn-only-2l": 2}  # name: layers
SEEDS = [f"small-{n}l{seed}" for n in (1, 2) for seed in ("", "-seed-1", "-seed-2")]
OTHER_SHAPES = {
    "small-1l-smeared-keys": {"n_layers": 1, "smeared_keys": True},
    "small-2l-standard-positions": {"n_layers": 2, "standard_positions": True},
    "small-2l-mlp": {"n_layers": 2, "normalization": "LN", "d_mlp": 768},
}
MANY_HEADS = "attn-only-1l-32h"
PLANTED = ["small-2l-planted"]
MELODIES = ["melodies-1l", "melodies-2l", "melodies-2l-no-direction"]
SHIPPED = [*FAMILY, MANY_HEADS, *SEEDS, *OTHER_SHAPES, *PLANTED, *MELODIES]
TEXT = (
    "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a "
    "wife. def add(self, other):\n    return self.value + other.value\n\\begin{equation} x^2 \\end{equation}"
)


def test_all_models_are_there_and_no_other(monkeypatch):
    monkeypatch.delenv("TRANSFORMER_CIRCUITS_WEIGHTS", raising=False)
    assert list_models() == sorted(SHIPPED)
    assert {path.name for path in WEIGHTS.iterdir() if path.is_dir()} == set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_weights_are_undamaged_finite_and_small_enough_to_ship(name):
    model, manifest = read_model(WEIGHTS / name)  # checks every SHA-256
    assert manifest["name"] == name
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    for shard in manifest["shards"]:
        assert (WEIGHTS / name / shard["file"]).stat().st_size == shard["bytes"] < 16_000_000
    on_disk = {path.name for path in (WEIGHTS / name).glob("*.safetensors")}
    assert on_disk == {shard["file"] for shard in manifest["shards"]}
    assert manifest["training"]


@pytest.mark.parametrize("name", sorted(set(SHIPPED) - set(MELODIES)))
def test_every_manifest_of_a_language_model_has_the_checksum_of_its_tokenizer(name):
    file = DATA / "tokenizer.json" if name in (*FAMILY, MANY_HEADS) else WEIGHTS / name / "tokenizer.json"
    sums = hashlib.sha256(file.read_bytes()).hexdigest()
    assert read_manifest(WEIGHTS / name).get("tokenizer.json") == {"sha256": sums}, (
        "export it again: run its training's command once more"
    )


@pytest.mark.parametrize("name", FAMILY)
def test_the_family_has_the_papers_heads(name):
    config = ModelConfig(**read_manifest(WEIGHTS / name)["config"])
    assert config == ModelConfig(FAMILY[name], d_model=384, n_heads=12, d_head=64, d_vocab=4096, n_ctx=512)


@pytest.mark.parametrize("name", [*SEEDS, *OTHER_SHAPES, *PLANTED])
def test_small_models_differ_in_what_their_name_says_alone(name):
    manifest = read_manifest(WEIGHTS / name)
    options = OTHER_SHAPES.get(name, {"n_layers": int(name[6])})
    assert ModelConfig(**manifest["config"]) == ModelConfig(
        d_model=192, n_heads=6, d_head=64, d_vocab=512, n_ctx=256, **options
    )
    plain, own = (dict(read_manifest(WEIGHTS / n)["training"]["run"]["training"]) for n in ("small-2l", name))
    text = (
        {"without_start": 0.1, "planted": 0.25} if name in PLANTED else {"without_start": 0.0, "planted": 0.0}
    )
    own = {"without_start": 0.0, "planted": 0.0} | own  # before these were settings
    for settings in (plain, own):
        for key in ("film", "snapshots", "precision"):  # no part of how they learn
            settings.pop(key, None)
    assert own == plain | text | {"seed": int(name[-1]) if "seed" in name else 0, "tokens": own["tokens"]}
    tokenizer = load_model(name, device="cpu").tokenizer
    assert len(tokenizer) == 512 and tokenizer.decode(tokenizer.encode(TEXT)[1:]) == TEXT


@pytest.mark.parametrize("name", [name for name in SHIPPED if (CONFIGS / f"{name}.toml").exists()])
def test_a_configuration_has_the_settings_of_the_shipped_weights_or_says_that_it_does_not(name):
    run = read_manifest(WEIGHTS / name)["training"]["run"]
    _, shape, training = read_config(name)
    learning = (
        "tokens",
        "batch",
        "lr",
        "lr_end",
        "betas",
        "weight_decay",
        "decay_embeddings",
        "warmup",
        "decay_from",
    )
    learning += ("clip", "seed", "without_start", "planted")
    shipped = {"without_start": 0.0, "planted": 0.0, "decay_embeddings": True}  # before these were settings
    shipped |= run["training"]
    configured = json.loads(json.dumps(dataclasses.asdict(training)))
    same = all(shipped[key] == configured[key] for key in learning)
    assert shape == ModelConfig(**run["model"])
    says_so = "shipped weights were trained before" in (CONFIGS / f"{name}.toml").read_text()
    assert same != says_so, "add the comment, or delete it now that the weights have these settings"


@pytest.mark.parametrize("name", FAMILY)
def test_bridge_and_plain_module_agree_on_real_text(name):
    bridge = load_model(name, device="cpu")
    model, _ = read_model(WEIGHTS / name)
    tokens = bridge.to_tokens(TEXT)
    assert tokens.shape[1] > 40 and tokens[0, 0] == 0
    with torch.no_grad():
        expected = model(tokens)
        exact = model.double()(tokens)
    # Logits of trained models reach 20 and more, where one unit in the last place of float32 is 2e-6: an error is relative
    # to the largest logit, and float64 shows that nothing but rounding is left.
    assert (bridge(tokens) - expected).abs().max() < 1e-5 * expected.abs().max()
    assert (load_model(name, device="cpu", dtype=torch.float64)(tokens) - exact).abs().max() < 1e-10
    assert bridge(tokens, return_type="loss") < 6.5  # it has learned: log(4096) is 8.3


@pytest.mark.parametrize("name", [name for name, layers in FAMILY.items() if layers])
def test_zeroing_a_pattern_changes_the_logits(name):
    bridge = load_model(name, device="cpu")
    tokens = bridge.to_tokens(TEXT)
    logits = bridge(tokens)

    for layer in range(FAMILY[name]):

        def zero(pattern, hook):
            pattern[:, 3] = 0
            return pattern

        edited = bridge.run_with_hooks(tokens, fwd_hooks=[(f"blocks.{layer}.attn.hook_pattern", zero)])
        assert (edited - logits).abs().max() > 1e-2


def test_the_tokenizer_is_shipped_and_fits():
    bridge = load_model("attn-only-0l", device="cpu")
    assert (DATA / "tokenizer.json").is_file() and len(bridge.tokenizer) == 4096
    assert bridge.to_string(bridge.to_tokens(TEXT)[0, 1:]) == TEXT
    assert read_manifest(WEIGHTS / "attn-only-0l")["config"]["d_vocab"] == len(bridge.tokenizer)
