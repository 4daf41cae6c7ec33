"""Melodies: that they are drawn by their rules, that the ideal observer is ideal."""

import hashlib
import itertools
import math

import numpy as np
import pytest

from transformer_circuits.training import melodies
from transformer_circuits.training.melodies import draw, ideal_losses, steps


def test_the_shipped_models_data_can_be_had_again(tmp_path):
    melodies.main(["--out", str(tmp_path)])
    melodies.main(["--out", str(tmp_path / "no-direction"), "--keeps-direction", "0.5"])
    for name, digest in {
        "train": "e262c2c4fd6ab9f7e37de95b96a49c2d",
        "held_out": "c55af03f8b0afbf031c9dd4df0018486",
        "no-direction/held_out": "3ece449f88f6693c02b37ae648a49df8",
    }.items():
        tokens = np.load(tmp_path / f"{name}.npy")
        assert tokens.dtype == np.uint16
        assert hashlib.sha256(tokens.tobytes()).hexdigest().startswith(digest)


def test_no_model_can_beat_the_ideal_loss_which_is_summed_over_all_that_may_have_happened(monkeypatch):
    """The chance of a short melody, summed over everything that the generator might have done."""
    for rule, value in {"SHORTEST": 2, "LONGEST": 3, "COMES_BACK": 0.4}.items():
        monkeypatch.setattr(melodies, rule, value)
    notes = draw(30, 9, seed=8, keeps_direction=0.8).notes

    def chance(row, t, source, left, direction):
        if t == len(row):
            return 1.0
        if t > 1:
            step = int(steps(row[None, t - 2 : t])[0, 0])
            direction = direction if step == 0 else int(np.sign(step))
        if left:
            return chance(row, t + 1, source + 1, left - 1, direction) if row[t] == row[source] else 0.0
        step = int(steps(row[None, t - 1 : t + 1])[0, 0])
        free, back = 0.0, 0.0
        if 1 <= abs(step) <= 12:
            free = (0.8 if np.sign(step) == direction else 0.2) * chance(row, t + 1, 0, 0, direction) / 12
        if t < 4:
            return free
        for source, length in itertools.product(range(t - 2), (2, 3)):
            if row[t] == row[source]:
                remain = min(length, t - source) - 1
                back += chance(row, t + 1, source + 1, remain, direction) / (t - 2) / 2
        return 0.6 * free + 0.4 * back

    assert ideal_losses(notes[:, :1]) == pytest.approx(math.log(88)), "the first note, by itself"
    for row, loss in zip(notes, ideal_losses(notes, keeps_direction=0.8).sum(axis=1)):
        expected = sum(chance(row, 1, 0, 0, d) for d in (-1, 1)) / 2 / 88
        assert loss == pytest.approx(-math.log(expected), abs=1e-9)
