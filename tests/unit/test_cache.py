"""Measurements that are stored: each under a key of its own measure and inputs, of the code of the library, and of releases."""

import pytest
import torch

from transformer_circuits.measures import cache
from transformer_circuits.measures.weights import random_positivities
from transformer_circuits.models.bridge import wrap
from transformer_circuits.training import small_runs

INPUTS = {"x": torch.arange(3.0)}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "FOLDER", tmp_path)
    return tmp_path


def double() -> list[torch.Tensor]:
    return [2 * INPUTS["x"]]


def test_each_measure_with_each_of_its_settings_is_measured_once(folder):
    made = []
    for settings in ("n_ctx=8", "n_ctx=16", "n_ctx=8"):
        found = cache.cached_for(INPUTS, lambda: made.append(1) or [INPUTS["x"] + 1], settings)
        other = cache.cached_for(INPUTS, lambda: made.append(1) or [INPUTS["x"] + 2], settings)
        assert torch.equal(found[0] + 1, other[0])
    assert len(made) == 4 == len(list(folder.iterdir()))
    W_E, W_U = torch.randn(20, 12), torch.randn(12, 20)
    wide, narrow = (random_positivities(W_E, W_U, d_head).std() for d_head in (2, 10))
    assert wide > 1.5 * narrow


def attends_to_the_start(model):
    model.layers[1].attn.attend = lambda q, k, v: v[:, :, :1].expand_as(v)
    return model


@pytest.mark.parametrize("change", [lambda model: small_runs.cut(model, "k"), attends_to_the_start])
def test_a_changed_model_does_not_get_the_scores_of_the_intact_one(change, folder):
    intact, changed = wrap(small_runs.new_model()), wrap(change(small_runs.new_model()))
    assert not cache.changed(intact) and cache.changed(changed)
    tokens = torch.arange(20)[None]
    logits = [cache.cached(model, lambda: [model(tokens)], tokens)[0] for model in (intact, changed)]
    assert not torch.equal(*logits) and len(list(folder.iterdir())) == 1


@pytest.mark.parametrize("changed", [*cache.LIBRARIES, "the code"])
def test_what_was_measured_before_a_change_is_measured_again(changed, folder, monkeypatch):
    cache.cached_for(INPUTS, double)
    version, code = cache.importlib.metadata.version, cache.code_of_rooms()
    monkeypatch.setattr(cache.importlib.metadata, "version", lambda name: version(name) + ".1" * (name == changed))
    monkeypatch.setattr(cache, "code_of_rooms", lambda: code + b"#" * (changed == "the code"))
    assert torch.equal(cache.cached_for(INPUTS, double)[0], 2 * INPUTS["x"])
    assert len(list(folder.iterdir())) == 2
