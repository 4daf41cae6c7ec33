"""Measurements that are stored: each under a key of its own measure, modules, inputs, and library releases."""

import pytest
import torch

from transformer_circuits.measures import attention, cache

INPUTS = {"x": torch.arange(3.0)}


def double() -> list[torch.Tensor]:
    return [2 * INPUTS["x"]]


def triple() -> list[torch.Tensor]:
    return [3 * INPUTS["x"]]


def test_two_measures_of_the_same_modules_and_inputs_do_not_collide(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "FOLDER", tmp_path)
    for _ in range(2):  # measured, then stored
        assert torch.equal(cache.cached_for(INPUTS, double, [attention])[0], 2 * INPUTS["x"])
        assert torch.equal(cache.cached_for(INPUTS, triple, [attention])[0], 3 * INPUTS["x"])
        assert torch.equal(cache.cached_for(INPUTS, lambda: [INPUTS["x"] + 1], [attention])[0], INPUTS["x"] + 1)
        assert torch.equal(cache.cached_for(INPUTS, lambda: [INPUTS["x"] + 2], [attention])[0], INPUTS["x"] + 2)
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize("library", cache.LIBRARIES)
def test_after_an_upgrade_of_a_library_everything_is_measured_again(library, tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "FOLDER", tmp_path)
    cache.cached_for(INPUTS, double, [attention])
    version = cache.importlib.metadata.version
    monkeypatch.setattr(cache.importlib.metadata, "version", lambda name: version(name) + ".1" * (name == library))
    cache.cached_for(INPUTS, double, [attention])
    assert len(list(tmp_path.iterdir())) == 2
