"""Measurements that are stored: each under a key of its own measure, modules, inputs, and library releases."""

import pytest
import torch

from transformer_circuits.measures import attention, cache

INPUTS = {"x": torch.arange(3.0)}


def double() -> list[torch.Tensor]:
    return [2 * INPUTS["x"]]


def test_two_measures_of_the_same_modules_and_inputs_do_not_collide(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "FOLDER", tmp_path)
    for _ in range(2):  # measured, then stored
        assert torch.equal(cache.cached_for(INPUTS, double, [attention])[0], 2 * INPUTS["x"])
        assert torch.equal(cache.cached_for(INPUTS, lambda: [INPUTS["x"] + 1], [attention])[0], INPUTS["x"] + 1)
        assert torch.equal(cache.cached_for(INPUTS, lambda: [INPUTS["x"] + 2], [attention])[0], INPUTS["x"] + 2)
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("changed", [*cache.LIBRARIES, "the code"])
def test_what_was_measured_before_a_change_is_measured_again(changed, tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "FOLDER", tmp_path)
    cache.cached_for(INPUTS, double, [attention])
    version, code = cache.importlib.metadata.version, cache.inspect.getsource
    monkeypatch.setattr(cache.importlib.metadata, "version", lambda name: version(name) + ".1" * (name == changed))
    monkeypatch.setattr(cache.inspect, "getsource", lambda part: code(part) + "#" * (changed == "the code"))
    assert torch.equal(cache.cached_for(INPUTS, double, [attention])[0], 2 * INPUTS["x"])
    assert len(list(tmp_path.iterdir())) == 2
