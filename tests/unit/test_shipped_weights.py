"""The shipped models: complete, undamaged, and trained as their names and configurations say."""

import dataclasses
import hashlib
import json

import pytest

from transformer_circuits.models import list_models
from transformer_circuits.models.architecture import ModelConfig
from transformer_circuits.models.registry import differing_settings, recipe
from transformer_circuits.models.shards import read_manifest, read_model
from transformer_circuits.paths import DATA, WEIGHTS
from transformer_circuits.training.settings import CONFIGS, read_config

FAMILY = ["attn-only-0l", "attn-only-1l", "attn-only-2l"]
SEEDS = [f"attn-only-2l-seed-{seed}" for seed in (1, 2, 3)]
PLANTED = "attn-only-2l-planted"
SMALL = ["small-1l", "small-2l", "small-2l-standard-positions", "small-2l-mlp"]
SMEARED = "attn-only-1l-smeared-keys"  # of the family's size
LANGUAGE = [*FAMILY, PLANTED, *SEEDS, "attn-only-1l-32h", SMEARED, *SMALL]
SHIPPED = [*LANGUAGE, "melodies-1l", "melodies-2l", "melodies-2l-no-direction"]


def test_all_models_are_there_and_no_other():
    assert list_models() == sorted(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_weights_are_undamaged_and_belong_to_their_tokenizer(name):
    _, manifest = read_model(WEIGHTS / name)  # checks every SHA-256, and that all weights are finite
    assert manifest["name"] == name and manifest["training"]
    on_disk = {path.name for path in (WEIGHTS / name).glob("*.safetensors")}
    assert on_disk == {shard["file"] for shard in manifest["shards"]}
    if name in LANGUAGE:
        file = WEIGHTS / name / "tokenizer.json" if name in SMALL else DATA / "tokenizer.json"
        assert manifest["tokenizer.json"]["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.parametrize(("name", "like", "apart"), [
    (PLANTED, "attn-only-2l", {"planted"}),
    *((name, "attn-only-2l", {"tokens", "warmup", "seed"}) for name in SEEDS),
    (SMEARED, "attn-only-1l", {"tokens", "warmup"}),
    *((name, "small-2l", {"tokens"}) for name in SMALL),
])  # fmt: skip
def test_models_that_are_compared_differ_in_what_their_name_says_alone(name, like, apart):
    assert differing_settings(like, name).keys() <= apart


@pytest.mark.parametrize("name", [name for name in SHIPPED if (CONFIGS / f"{name}.toml").exists()])
def test_a_configuration_has_the_settings_of_the_shipped_weights_or_says_that_it_does_not(name):
    _, shape, training = read_config(name)
    assert shape == ModelConfig(**read_manifest(WEIGHTS / name)["config"])
    before_these_were_settings = {"without_start": 0.0, "planted": 0.0, "decay_embeddings": True}
    shipped = before_these_were_settings | recipe(name)
    configured = json.loads(json.dumps(dataclasses.asdict(training)))
    same = all(shipped[key] == value for key, value in configured.items() if key in shipped)
    says_so = "shipped weights were trained before" in (CONFIGS / f"{name}.toml").read_text()
    assert same != says_so, "add the comment, or delete it now that the weights have these settings"
