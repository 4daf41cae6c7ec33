"""The stored trainings of chapter 15 are those of its code."""

import pytest
import torch

from transformer_circuits import data
from transformer_circuits.training import small_runs


@pytest.mark.parametrize("name", ["keys cut", "no positions", "always 16 apart", "half the rows", "seed 2"])
def test_the_first_steps_of_a_stored_training_are_those_of_the_code(name):
    model, how = small_runs.experiments()[name]
    history = small_runs.train(model, **how, steps=5)
    log, _ = data.small_run(name)
    assert history == pytest.approx(log[:5], rel=2e-3), "chapter 15's trainings changed: run `make small-runs`"


def test_a_stored_model_has_learned_what_its_log_says():
    model, _ = small_runs.experiments()["always 16 apart"]
    log, weights = data.small_run("always 16 apart")
    model.load_state_dict(weights, strict=False)
    rows, known = small_runs.draw_rows(torch.Generator().manual_seed(1), n_rows=256, distance=16)
    with torch.no_grad():
        guessed = small_runs.first_guesses(model(rows)[:, :-1], rows, known)
    assert guessed > 0.95 and log[-20:, 1].mean() > 0.95
