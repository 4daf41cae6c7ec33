"""The stored trainings of chapter 15 are those of its code."""

import torch
from safetensors import safe_open

from transformer_circuits import data
from transformer_circuits.models.release import data_file
from transformer_circuits.training import small_runs


def test_the_stored_trainings_belong_to_the_code():
    with safe_open(data_file(data.SMALL_RUNS), "pt") as file:
        assert file.metadata()["code"] == small_runs.digest(), "chapter 15's trainings changed: run `make small-runs`"


def test_a_stored_model_has_learned_what_its_log_says():
    model, _ = small_runs.experiments()["always 16 apart"]
    log, weights = data.small_run("always 16 apart")
    model.load_state_dict(weights, strict=False)
    rows, known = small_runs.draw_rows(torch.Generator().manual_seed(1), n_rows=256, distance=16)
    with torch.no_grad():
        guessed = small_runs.first_guesses(model(rows)[:, :-1], rows, known)
    assert guessed > 0.95 and log[-20:, 1].mean() > 0.95
