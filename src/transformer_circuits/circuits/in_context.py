"""In-context learning: which tokens the text before them can tell, and from when on in training something holds.

Paper: "Where Does This Leave Us?", and its sequel, "In-context Learning and Induction Heads" (Olsson et al. 2022). Claims W1 and W2.
A training log is what `models.registry.training_log` returns: a row a snapshot, scores of heads as nested lists [layer][head].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import ArrayLike
from torch import Tensor

GROUPS = ("new token", "token seen, pair new", "pair seen")


def kind_of_next(windows: Int[Tensor, "window pos"]) -> Int[Tensor, "window pos-1"]:
    """What a window up to each token says about the next one, as an index into GROUPS.

    2: the pair (this token, next token) stood there before, which is what an induction head looks up. 1: the next token did, but not
    after this one. 0: it is new. Raises ValueError for windows without a next token.
    """
    if windows.ndim != 2 or windows.shape[1] < 2:
        raise ValueError(f"windows must be [window, pos] with at least two tokens, not {tuple(windows.shape)}")
    kinds = []
    for row in windows:  # one at a time: a table of positions by positions
        inputs, following = row[:-1], row[1:]
        seen = (inputs == following[:, None]).tril()
        pair = ((inputs == inputs[:, None]) & (following == following[:, None])).tril(-1)
        kinds.append(seen.any(dim=1).long() + pair.any(dim=1))
    return torch.stack(kinds)


# ---- reading a training log ---------------------------------------------------------------------------------------------


class Milestone(NamedTuple):
    """Tokens seen at the snapshot where something first held, and at the one before: it happened in between."""

    tokens: float
    before: float


def met_from(tokens: Sequence[float], met: ArrayLike) -> Milestone | None:
    """From when on something holds at every snapshot to the end; None if it does not hold at the end.

    Raises ValueError for a log without snapshots, or tokens that do not rise.
    """
    tokens, met = _log(tokens, met)
    failed = np.flatnonzero(met == 0)
    at = int(failed[-1]) + 1 if len(failed) else 0
    return None if at == len(met) else Milestone(float(tokens[at]), float(tokens[max(at - 1, 0)]))


def milestone(tokens: Sequence[float], score: Sequence[float], share: float) -> Milestone:
    """The first snapshot at which `score` is at least `share` of its FINAL value (claim W2).

    Raises ValueError as `met_from`, for a share outside 0 to 1, or a final score that is not above zero.
    """
    tokens, score = _log(tokens, score)
    if not 0 < share <= 1:
        raise ValueError(f"a milestone is a share of the final score, above 0 and up to 1, not {share}")
    if not score[-1] > 0:
        raise ValueError(f"the final score is {score[-1]:g}: shares of it mean nothing")
    at = int(np.argmax(score >= share * score[-1]))
    return Milestone(float(tokens[at]), float(tokens[max(at - 1, 0)]))


def share_of_fall(tokens: Sequence[float], score: Sequence[float], start: float, end: float) -> float:
    """Part of a score's fall, from its highest to its final value, that lies between two snapshots (claim W2).

    Raises ValueError if the score never falls, or `start` and `end` are not tokens of snapshots.
    """
    tokens, score = _log(tokens, score)
    if not score.max() > score[-1]:
        raise ValueError("the score ends at its highest value: it has no fall to take a share of")
    if missing := [wanted for wanted in (start, end) if wanted not in tokens]:
        raise ValueError(f"the log has no snapshot at {missing[0]:g} tokens")
    first, last = (score[tokens == wanted][0] for wanted in (start, end))
    return float((first - last) / (score.max() - score[-1]))


def best_of_heads(scores: Sequence[Sequence[Sequence[float]]]) -> np.ndarray:
    """The highest score of any head at each snapshot, whichever head that is there. Raises ValueError for a model without heads."""
    if not all(layers and all(layers) for layers in scores):
        raise ValueError("there is no best head: the model has none")
    return np.array([max(map(max, layers)) for layers in scores])


def _log(tokens: Sequence[float], values: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    tokens, values = np.asarray(tokens, dtype=float), np.asarray(values, dtype=float)
    if not len(tokens) or tokens.shape != values.shape or (np.diff(tokens) <= 0).any():
        raise ValueError("a log needs snapshots, with one value each, in the order of the tokens seen")
    return tokens, values
