"""The stored trainings of chapter 15 are those of its code."""

import pytest

from transformer_circuits import data
from transformer_circuits.training import small_runs


@pytest.mark.parametrize("name", ["keys cut", "no positions", "always 16 apart", "half the rows", "seed 2"])
def test_the_first_steps_of_a_stored_training_are_those_of_the_code(name):
    model, how = small_runs.experiments()[name]
    history = small_runs.train(model, **how, steps=5)
    log, _ = data.small_run(name)
    assert history == pytest.approx(log[:5], rel=2e-3), "chapter 15's trainings changed: run `make small-runs`"
