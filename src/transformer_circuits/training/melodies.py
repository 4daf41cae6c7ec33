"""Melodies: sequences that are not text, in which phrases come back at random places (claim W8).

    python -m transformer_circuits.training.melodies --out melodies
    python -m transformer_circuits.training.train --config melodies-2l --data melodies --out runs/melodies-2l

A melody is played on 88 keys that close to a circle, so that no key is special. The next note lies up to an octave away, and mostly
in the direction of the last step. And at any moment a phrase from earlier in the same melody may come back, note for note; which one is
chance, so that nothing but the melody itself tells how it goes on. `ideal_losses` is what an observer who knows these rules loses.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

KEYS = 88  # notes are 1 ... 88; token 0 is the start of a melody
OCTAVE = 12
KEEPS_DIRECTION, COMES_BACK, SHORTEST, LONGEST = 0.95, 0.1, 8, 24


class Melodies(NamedTuple):
    notes: Int[np.ndarray, "melody note"]  # 1 to 88
    source: Int[np.ndarray, "melody note"]  # the place in its melody that a note is copied from; -1 where it is new
    place: Int[np.ndarray, "melody note"]  # how far into its phrase a note is that comes back, from 0 on; -1 where it is new


def draw(n: int, length: int, seed: int, keeps_direction: float = KEEPS_DIRECTION, comes_back: float = COMES_BACK) -> Melodies:
    """`n` melodies of `length` notes; the same seed gives the same ones.

    `keeps_direction`: chance that a step goes on up after up, and down after down; at 0.5 only the last note matters. `comes_back`:
    chance, at each note that is not part of one, that a phrase of 8 to 24 notes begins to come back.
    Raises ValueError if a chance is not one, for no melodies, or if no phrase fits into a melody twice.
    """
    if not (0 <= keeps_direction <= 1 and 0 <= comes_back <= 1):
        raise ValueError(f"chances lie between 0 and 1, not at {keeps_direction} and {comes_back}")
    if n < 1 or length < 2 * SHORTEST:
        raise ValueError(f"{n} melodies of {length} notes cannot be drawn: take one or more, of {2 * SHORTEST} notes at least")
    random = np.random.default_rng(seed)
    rows = np.arange(n)
    notes, copied, place = np.empty((n, length), dtype=np.int64), np.full((n, length), -1), np.full((n, length), -1)
    notes[:, 0] = random.integers(1, KEYS + 1, n)
    direction = random.choice([-1, 1], n)
    source, left = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)  # what is being repeated, and how much of it is left
    for t in range(1, length):
        if t > 1:  # a returning phrase sets the direction, too
            step = steps(notes[:, t - 2 : t])[:, 0]
            direction = np.where(step == 0, direction, np.sign(step))
        turned = np.where(random.random(n) < keeps_direction, direction, -direction)
        new = (notes[:, t - 1] - 1 + turned * random.integers(1, OCTAVE + 1, n)) % KEYS + 1
        begins = (left == 0) & (t >= 2 * SHORTEST) & (random.random(n) < comes_back)
        source = np.where(begins, random.integers(0, max(t - SHORTEST, 1), n), source)
        left = np.where(begins, np.minimum(random.integers(SHORTEST, LONGEST + 1, n), t - source), left)
        again = left > 0
        copied[:, t] = np.where(again, source, -1)
        place[:, t] = np.where(begins, 0, np.where(again, place[:, t - 1] + 1, -1))
        notes[:, t] = np.where(again, notes[rows, source], new)
        source += again
        left -= again
    return Melodies(notes, copied, place)


def steps(notes: Int[np.ndarray, "melody note"]) -> Int[np.ndarray, "melody note-1"]:
    """From each note to the next, in keys, by the shorter way around: -44 to 43."""
    return (np.diff(notes, axis=1) + KEYS // 2) % KEYS - KEYS // 2


def ideal_losses(
    notes: Int[np.ndarray, "melody note"], keeps_direction: float = KEEPS_DIRECTION, comes_back: float = COMES_BACK
) -> Float[np.ndarray, "melody note"]:
    """Nats at each note for an observer who knows how melodies are drawn, and nothing else: on average nobody loses less.

    It keeps the chance of every hidden state (the melody is free, or a phrase is coming back, from which place and with how many
    notes left) and weighs these by each note: the forward algorithm. Settings are those of `draw`.
    """
    (n, length), losses = notes.shape, np.empty(notes.shape)
    new = chances_of_new_notes(notes, keeps_direction)
    free, copying = np.ones(n), np.zeros((n, length + 1, LONGEST + 1))  # copying [melody, place that is copied next, notes left]
    for t in range(length):
        if t >= 2 * SHORTEST:
            for left in range(SHORTEST, LONGEST + 1):
                sources = np.arange(t - SHORTEST)
                each = comes_back / len(sources) / (LONGEST + 1 - SHORTEST)
                copying[:, sources, np.minimum(left, t - sources)] += free[:, None] * each
            free = free * (1 - comes_back)
        copying[:, :t] *= (notes[:, :t] == notes[:, t : t + 1])[:, :, None]  # a place with another note is not it
        free = free * new[:, t]
        chance = copying.sum(axis=(1, 2)) + free
        losses[:, t] = -np.log(chance)
        free = (free + copying[:, :, 1].sum(axis=1)) / chance
        copying[:, 1:, :-1] = copying[:, :-1, 1:] / chance[:, None, None]  # one place on, one note less
        copying[:, 0] = copying[:, :, 0] = copying[:, :, -1] = 0
    return losses


def chances_of_new_notes(notes: Int[np.ndarray, "melody note"], keeps_direction: float) -> Float[np.ndarray, "melody note"]:
    """The chance of each note, given those before it, if it is not part of a phrase that comes back."""
    moved, chances = steps(notes), np.full(notes.shape, 1 / KEYS)
    near = (np.abs(moved) <= OCTAVE) & (moved != 0)
    chances[:, 1] = near[:, 0] / (2 * OCTAVE)  # either way
    direction = np.sign(moved[:, 0])
    for t in range(2, notes.shape[1]):
        kept = np.where(np.sign(moved[:, t - 1]) == direction, keeps_direction, 1 - keeps_direction)
        chances[:, t] = kept * near[:, t - 1] / OCTAVE
        direction = np.where(moved[:, t - 1] == 0, direction, np.sign(moved[:, t - 1]))
    return chances


def write(folder: Path, n_train: int = 40_000, n_held_out: int = 500, length: int = 128, keeps_direction: float = KEEPS_DIRECTION) -> None:
    """`train.npy` and `held_out.npy`: melodies end to end, of the length of the models' context, so that a window is one melody.

    With the defaults, the melodies that the shipped models learned from (seed 0) and are tested on (seed 1).
    """
    folder.mkdir(parents=True, exist_ok=True)
    for side, n, seed in [("train", n_train, 0), ("held_out", n_held_out, 1)]:
        np.save(folder / f"{side}.npy", draw(n, length, seed, keeps_direction).notes.astype(np.uint16).ravel())


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write the melodies to")
    direction = "chance that a step goes on in the last one's direction"
    parser.add_argument("--keeps-direction", type=float, default=KEEPS_DIRECTION, help=direction)
    args = parser.parse_args(argv)
    try:
        write(args.out, keeps_direction=args.keeps_direction)
    except ValueError as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()
