"""Melodies: sequences that are not text, in which phrases come back at random places (claim W8).

    python -m transformer_circuits.training.melodies --out melodies
    python -m transformer_circuits.training.train --config melodies-2l --data melodies --out runs/melodies-2l

A melody is played on 88 keys that close to a circle, so that no key is special. Two things can be learned of it. Locally, the
next note lies up to an octave away, and mostly in the direction of the last step: the two notes before say more than one.
And at any moment a phrase from earlier in the same melody may come back, note for note; which one is chance, so that nothing
but the melody itself tells how it goes on. Drawn from random numbers alone; written in the form that `training.train` reads.

What there is to know of such data can be computed: `ideal_losses` is what an observer who knows all rules, and no secrets,
loses on a melody; `counted_losses` is what the last notes alone are worth, `looked_up_losses` what looking back adds to it.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

KEYS = 88  # notes are 1 ... 88; token 0 is the start of a melody
OCTAVE = 12
KEEPS_DIRECTION, COMES_BACK, SHORTEST, LONGEST = 0.95, 0.1, 8, 24


class Melodies(NamedTuple):
    """Notes, 1 to 88, and for each the place in its melody that it is copied from, -1 where it is new."""

    notes: Int[np.ndarray, "melody note"]
    source: Int[np.ndarray, "melody note"]

    @property
    def again(self) -> Bool[np.ndarray, "melody note"]:
        """Which notes belong to a phrase that comes back."""
        return self.source >= 0

    @property
    def place(self) -> Int[np.ndarray, "melody note"]:
        """How far into its phrase a note is that comes back: 0 for the first. -1 for new notes."""
        goes_on = self.again[:, 1:] & (self.source[:, 1:] == self.source[:, :-1] + 1) & self.again[:, :-1]
        place = np.where(self.again, 0, -1)
        for t in range(1, place.shape[1]):
            place[:, t] = np.where(goes_on[:, t - 1], place[:, t - 1] + 1, place[:, t])
        return place


def draw(
    n: int,
    length: int,
    seed: int,
    keeps_direction: float = KEEPS_DIRECTION,
    comes_back: float = COMES_BACK,
    shortest: int = SHORTEST,
    longest: int = LONGEST,
) -> Melodies:
    """`n` melodies of `length` notes; the same seed gives the same ones.

    Args:
        keeps_direction: chance that a step goes on up after up, and down after down; at 0.5 only the last note matters.
        comes_back: chance, at each note that is not part of one, that a phrase begins to come back.
        shortest, longest: how many notes come back at once, evenly in between (fewer where the melody is not yet so long).
    Raises ValueError for fewer than one melody, if a chance is not one, or if no phrase fits into the melody twice.
    """
    _check_rules(keeps_direction, comes_back, shortest, longest)
    if n < 1 or 2 * shortest > length:
        raise ValueError(f"{n} melodies of {length} notes cannot be drawn: take one or more, of {2 * shortest} notes at least")
    random = np.random.default_rng(seed)
    rows = np.arange(n)
    notes = np.empty((n, length), dtype=np.int64)
    copied_from = np.full((n, length), -1)
    notes[:, 0] = random.integers(1, KEYS + 1, n)
    direction = random.choice([-1, 1], n)
    source, left = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)  # what is being repeated, and how much of it is left
    for t in range(1, length):
        if t > 1:  # a returning phrase sets the direction, too
            step = steps(notes[:, t - 2 : t])[:, 0]
            direction = np.where(step == 0, direction, np.sign(step))
        turned = np.where(random.random(n) < keeps_direction, direction, -direction)
        new = (notes[:, t - 1] - 1 + turned * random.integers(1, OCTAVE + 1, n)) % KEYS + 1
        begins = (left == 0) & (t >= 2 * shortest) & (random.random(n) < comes_back)
        source = np.where(begins, random.integers(0, max(t - shortest, 1), n), source)
        left = np.where(begins, np.minimum(random.integers(shortest, longest + 1, n), t - source), left)
        again = left > 0
        copied_from[:, t] = np.where(again, source, -1)
        notes[:, t] = np.where(again, notes[rows, source], new)
        source += again
        left -= again
    return Melodies(notes, copied_from)


def steps(notes: Int[np.ndarray, "melody note"]) -> Int[np.ndarray, "melody note-1"]:
    """From each note to the next, in keys, by the shorter way around: -44 to 43."""
    return (np.diff(notes, axis=1) + KEYS // 2) % KEYS - KEYS // 2


# ---- what can be known ---------------------------------------------------------------------------------------------------


def counted_losses(
    notes: Int[np.ndarray, "melody note"], counted: Int[np.ndarray, "melody note"], memory: int
) -> Float[np.ndarray, "melody note"]:
    """Nats at each note for a table of what follows the last `memory` notes, one or two, counted on other melodies.

    All keys are alike, so the table is of steps, not of notes: it needs 88 or 88 x 88 counts, and half a note is added to each.
    The first note is one of 88, and the second has one note before it only. Raises ValueError for another memory.
    """
    if memory not in (1, 2):
        raise ValueError(f"tables are counted for the last one or two notes, not for {memory}")
    seen, here = (steps(x) % KEYS for x in (counted, notes))
    one = np.bincount(seen.ravel(), minlength=KEYS) + 0.5
    losses = np.full(notes.shape, np.log(KEYS))
    losses[:, 1:] = -np.log(one / one.sum())[here]
    if memory == 2:
        pairs = (seen[:, :-1] * KEYS + seen[:, 1:]).ravel()
        two = np.bincount(pairs, minlength=KEYS * KEYS).reshape(KEYS, KEYS) + 0.5
        losses[:, 2:] = -np.log(two / two.sum(axis=1, keepdims=True))[here[:, :-1], here[:, 1:]]
    return losses


def looked_up_losses(
    notes: Int[np.ndarray, "melody note"], losses: Float[np.ndarray, "melody note"], weight: float
) -> Float[np.ndarray, "melody note"]:
    """Nats for a rule that also looks back: a mixture of the predictions that had `losses`, and of what followed before.

    Where the last note occurred before, it gives `weight` to the notes that followed it then, in equal parts. That is all that
    an induction head can say that matches one note. Raises ValueError for a weight outside 0 to 1, or losses of other notes.
    """
    if not 0 <= weight < 1 or losses.shape != notes.shape:
        raise ValueError(f"a weight from 0 to below 1 mixes losses of the same notes, not {weight} and {losses.shape}")
    mixed = losses.copy()
    for t in range(2, notes.shape[1]):
        before = notes[:, : t - 1] == notes[:, t - 1 : t]  # earlier occurrences of the last note
        then = before & (notes[:, 1:t] == notes[:, t : t + 1])  # after which the same note came
        found = before.sum(axis=1)
        share = then.sum(axis=1) / np.maximum(found, 1)
        mixture = -np.log((1 - weight) * np.exp(-losses[:, t]) + weight * share)
        mixed[:, t] = np.where(found > 0, mixture, losses[:, t])
    return mixed


def ideal_losses(
    notes: Int[np.ndarray, "melody note"],
    keeps_direction: float = KEEPS_DIRECTION,
    comes_back: float = COMES_BACK,
    shortest: int = SHORTEST,
    longest: int = LONGEST,
) -> Float[np.ndarray, "melody note"]:
    """Nats at each note for an observer who knows how melodies are drawn, and nothing else: on average nobody loses less.

    It keeps the chance of every hidden state: that the melody is free, or that a phrase is coming back, from which place and
    with how many notes left; and weighs these by each note that it hears (the forward algorithm of hidden Markov models).
    Settings are those of `draw`. Raises ValueError for settings that `draw` refuses, and for notes that it cannot draw.
    """
    _check_rules(keeps_direction, comes_back, shortest, longest)
    n, length = notes.shape
    new = _chances_of_new_notes(notes, keeps_direction)
    lengths = np.arange(shortest, longest + 1)
    losses = np.empty((n, length))
    free = np.ones(n)
    copying = np.zeros((n, length + 1, longest + 1))  # [melody, place that is copied next, notes left]
    for t in range(length):
        if t >= 2 * shortest:
            sources = np.arange(t - shortest)
            enter = np.zeros((len(sources), longest + 1))
            for m in lengths:
                enter[sources, np.minimum(m, t - sources)] += comes_back / len(sources) / len(lengths)
            copying[:, : len(sources)] += free[:, None, None] * enter
            free = free * (1 - comes_back)
        copying[:, :t] *= (notes[:, :t] == notes[:, t : t + 1])[:, :, None]  # a place with another note is not it
        free = free * new[:, t]
        chance = copying[:, :t].sum(axis=(1, 2)) + free
        if not chance.all():
            where = f"note {t} of melody {chance.argmin()}"
            raise ValueError(f"these are not melodies drawn with such settings: {where} cannot occur")
        losses[:, t] = -np.log(chance)
        free = (free + copying[:, :t, 1].sum(axis=1)) / chance
        copying[:, 1 : t + 1, :-1] = copying[:, :t, 1:] / chance[:, None, None]  # one place on, one note less
        copying[:, 0], copying[:, :, 0] = 0, 0
        copying[:, 1 : t + 1, -1] = 0
    return losses


def _chances_of_new_notes(notes: Int[np.ndarray, "melody note"], keeps_direction: float) -> Float[np.ndarray, "melody note"]:
    """The chance of each note, given those before it, if it is not part of a phrase that comes back."""
    moved = steps(notes)
    chances = np.full(notes.shape, 1 / KEYS)
    chances[:, 1] = (np.abs(moved[:, 0]) <= OCTAVE) * (moved[:, 0] != 0) / (2 * OCTAVE)  # either way
    direction = np.sign(moved[:, 0])
    for t in range(2, notes.shape[1]):
        step = moved[:, t - 1]
        goes_on = np.where(np.sign(step) == direction, keeps_direction, 1 - keeps_direction)
        chances[:, t] = goes_on * (np.abs(step) <= OCTAVE) * (step != 0) / OCTAVE
        direction = np.where(step == 0, direction, np.sign(step))
    return chances


def _check_rules(keeps_direction: float, comes_back: float, shortest: int, longest: int) -> None:
    for name, chance in {"keeps_direction": keeps_direction, "comes_back": comes_back}.items():
        if not 0 <= chance <= 1:
            raise ValueError(f"{name} must be a chance between 0 and 1, not {chance}")
    if not 1 < shortest <= longest:
        raise ValueError(f"phrases are of two notes or more, the shortest first, not {shortest} to {longest}")


# ---- files for the trainer -----------------------------------------------------------------------------------------------


def write(
    folder: Path, n_train: int = 40_000, n_held_out: int = 500, length: int = 128, keeps_direction: float = KEEPS_DIRECTION
) -> None:
    """`train.npy` and `held_out.npy`: melodies end to end, of the length of the models' context, so that a window is one melody.

    With the defaults, the melodies that the shipped models learned from (seed 0) and are tested on (seed 1).
    """
    folder.mkdir(parents=True, exist_ok=True)
    for side, n, seed in [("train", n_train, 0), ("held_out", n_held_out, 1)]:
        notes = draw(n, length, seed, keeps_direction).notes
        np.save(folder / f"{side}.npy", notes.astype(np.uint16).ravel())


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write the melodies to")
    parser.add_argument(
        "--keeps-direction", type=float, default=KEEPS_DIRECTION, help="chance that a step goes on in the last one's direction"
    )
    args = parser.parse_args(argv)
    try:
        write(args.out, keeps_direction=args.keeps_direction)
    except ValueError as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()
