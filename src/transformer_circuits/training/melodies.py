"""Melodies: sequences that are not text, in which phrases recur at random places (claim W8).

    python -m transformer_circuits.training.melodies --out melodies
    python -m transformer_circuits.training.train --config melodies-2l --data melodies --out runs/melodies-2l

A melody is played on 88 keys in a circle, so that no key is special. The next note is up to an octave away, and mostly
in the direction of the last step. At any moment a random phrase from earlier in the same melody may recur, note for
note, so that only the melody itself predicts how it continues. `ideal_losses` are the losses of an observer who knows
these rules.
"""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

KEYS = 88  # notes are 1 ... 88; token 0 is the start of a melody
OCTAVE = 12
KEEPS_DIRECTION = 0.95  # chance that a step goes the way of the one before
COMES_BACK = 0.1  # chance, at each note outside of a recurring phrase, that a phrase begins to recur
SHORTEST, LONGEST = 8, 24  # notes of a phrase
Notes = Int[np.ndarray, "melody note"]  # 1 to 88


class Melodies(NamedTuple):
    notes: Notes
    source: Int[np.ndarray, "melody note"]  # the place that a note is copied from; -1 if it is new
    place: Int[np.ndarray, "melody note"]  # the place of a copied note in its phrase, from 0; -1 if it is new


def draw(n: int, length: int, seed: int, keeps_direction: float = KEEPS_DIRECTION) -> Melodies:
    """Return `n` melodies of `length` notes. With 0.5 for `keeps_direction` (the chance for each step) only the last
    note matters."""
    random = np.random.default_rng(seed)
    rows = np.arange(n)
    notes = np.empty((n, length), dtype=np.int64)
    copied, place = np.full((n, length), -1), np.full((n, length), -1)
    notes[:, 0] = random.integers(1, KEYS + 1, n)
    direction = random.choice([-1, 1], n)
    # For each melody, the place that is copied and how many notes of its phrase remain.
    source, left = np.zeros((2, n), dtype=np.int64)
    for t in range(1, length):
        if t > 1:  # a recurring phrase sets the direction, too
            step = steps(notes[:, t - 2 : t])[:, 0]
            direction = np.where(step == 0, direction, np.sign(step))
        turned = np.where(random.random(n) < keeps_direction, direction, -direction)
        new = (notes[:, t - 1] - 1 + turned * random.integers(1, OCTAVE + 1, n)) % KEYS + 1
        begins = (left == 0) & (t >= 2 * SHORTEST) & (random.random(n) < COMES_BACK)
        source = np.where(begins, random.integers(0, max(t - SHORTEST, 1), n), source)
        left = np.where(begins, np.minimum(random.integers(SHORTEST, LONGEST + 1, n), t - source), left)
        again = left > 0
        copied[:, t] = np.where(again, source, -1)
        place[:, t] = np.where(begins, 0, np.where(again, place[:, t - 1] + 1, -1))
        notes[:, t] = np.where(again, notes[rows, source], new)
        source += again
        left -= again
    return Melodies(notes, copied, place)


def steps(notes: Notes) -> Int[np.ndarray, "melody note-1"]:
    """Return the step from each note to the next, in keys, by the shorter way around: -44 to 43."""
    return (np.diff(notes, axis=1) + KEYS // 2) % KEYS - KEYS // 2


def ideal_losses(notes: Notes, keeps_direction: float = KEEPS_DIRECTION) -> Float[np.ndarray, "melody note"]:
    """Return the loss (nats) at each note of an observer who knows how melodies are drawn (see `draw`): on average,
    the lowest possible loss.

    The observer keeps the probability of every hidden state (a new note, or a recurring phrase: from which place, and
    with how many notes remaining) and updates them after each note: the forward algorithm.
    """
    (n, length), losses = notes.shape, np.empty(notes.shape)
    new = chances_of_new_notes(notes, keeps_direction)
    free = np.ones(n)
    copying = np.zeros((n, length + 1, LONGEST + 1))  # [melody, place that is copied next, notes that remain]
    for t in range(length):
        if t >= 2 * SHORTEST:
            for left in range(SHORTEST, LONGEST + 1):
                sources = np.arange(t - SHORTEST)
                each = COMES_BACK / len(sources) / (LONGEST + 1 - SHORTEST)
                copying[:, sources, np.minimum(left, t - sources)] += free[:, None] * each
            free = free * (1 - COMES_BACK)
        is_this_note = notes[:, :t] == notes[:, t : t + 1]
        copying[:, :t] *= is_this_note[:, :, None]
        free = free * new[:, t]
        chance = copying.sum(axis=(1, 2)) + free
        losses[:, t] = -np.log(chance)
        free = (free + copying[:, :, 1].sum(axis=1)) / chance
        copying[:, 1:, :-1] = copying[:, :-1, 1:] / chance[:, None, None]  # one place on, one note less
        copying[:, 0] = copying[:, :, 0] = copying[:, :, -1] = 0
    return losses


def chances_of_new_notes(notes: Notes, keeps_direction: float) -> Float[np.ndarray, "melody note"]:
    """Return the probability of each note, given those before it, if it is not part of a recurring phrase."""
    moved, chances = steps(notes), np.full(notes.shape, 1 / KEYS)
    near = (np.abs(moved) <= OCTAVE) & (moved != 0)
    # A step of 0, where a phrase begins to recur, leaves the direction as it was.
    direction = pd.DataFrame(np.sign(moved)).replace(0, np.nan).ffill(axis=1)
    kept = np.where(np.diff(direction) == 0, keeps_direction, 1 - keeps_direction)
    chances[:, 1:2] = near[:, :1] / (2 * OCTAVE)  # either way
    chances[:, 2:] = kept * near[:, 1:] / OCTAVE
    return chances


def main(argv: list[str] | None = None) -> None:
    """Write `train.npy` and `held_out.npy`, those of the shipped models: melodies end to end, each as long as a
    window."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder to write the melodies to")
    add("--keeps-direction", type=float, default=KEEPS_DIRECTION, help="chance of keeping the direction")
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    for side, n, seed in [("train", 40_000, 0), ("held_out", 500, 1)]:
        notes = draw(n, 128, seed, args.keeps_direction).notes
        np.save(args.out / f"{side}.npy", notes.astype(np.uint16).ravel())


if __name__ == "__main__":
    main()
