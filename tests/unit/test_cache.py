"""Measurements that are stored: each under a key of its own measure and inputs, of the code of the library, and of releases."""

import pytest
import torch

from transformer_circuits.circuits import heads
from transformer_circuits.measures import cache
from transformer_circuits.measures.weights import random_positivities
from transformer_circuits.models import reading
from transformer_circuits.models.bridge import wrap
from transformer_circuits.models.view import without_heads
from transformer_circuits.training import small_runs

INPUTS = [torch.arange(3.0)]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "FOLDER", tmp_path)
    return tmp_path


def test_each_measure_with_each_of_its_settings_is_measured_once(folder):
    made = []
    for settings in ("n_ctx=8", "n_ctx=16", "n_ctx=8"):
        found = cache.cached(f"one {settings}", lambda: made.append(1) or INPUTS[0] + 1, INPUTS)
        other = cache.cached(f"two {settings}", lambda: made.append(1) or INPUTS[0] + 2, INPUTS)
        assert torch.equal(found + 1, other)
    assert len(made) == 4 == len(list(folder.iterdir()))
    W_E, W_U = torch.randn(20, 12), torch.randn(12, 20)
    wide, narrow = (random_positivities(W_E, W_U, d_head).std() for d_head in (2, 10))
    assert wide > 1.5 * narrow


def attends_to_the_start(model):
    model.layers[1].attn.attend = lambda q, k, v: v[:, :, :1].expand_as(v)
    return model


def test_scores_are_measured_anew_for_another_model_with_hooks_and_for_another_start_token(folder):
    def scores(model):
        return torch.stack(heads.measured_induction(model))

    model = wrap(small_runs.new_model())
    first = scores(model)
    assert torch.equal(scores(wrap(small_runs.new_model())), first) and len(list(folder.iterdir())) == 1
    new, same_weights = small_runs.new_model, small_runs.new_model(standard_positions=True)
    found = [scores(wrap(other)) for other in (new(1), small_runs.cut(new(), "k"), same_weights)]
    with model.hooks(fwd_hooks=without_heads([(0, 1)])):
        found.append(scores(model))
    reading.choose(model, start=7)
    found.append(scores(model))
    assert not any(torch.equal(other, first) for other in found)
    scores(wrap(attends_to_the_start(small_runs.new_model())))
    assert len(list(folder.iterdir())) == 4, "what hooks, or another attention, change is not stored"


@pytest.mark.parametrize("changed", [*cache.LIBRARIES, "the code"])
def test_what_was_measured_before_a_change_is_measured_again(changed, folder, monkeypatch):
    double = 2 * INPUTS[0]
    cache.cached("double", double.clone, INPUTS)
    version, code = cache.importlib.metadata.version, cache.code_of_rooms()
    monkeypatch.setattr(cache.importlib.metadata, "version", lambda name: version(name) + ".1" * (name == changed))
    monkeypatch.setattr(cache, "code_of_rooms", lambda: code + b"#" * (changed == "the code"))
    assert torch.equal(cache.cached("double", double.clone, INPUTS), double)
    assert len(list(folder.iterdir())) == 2
