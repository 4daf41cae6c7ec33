"""In-context learning: which tokens the text before them can tell, and from when on in training something holds.

Paper: "Where Does This Leave Us?", and its sequel, "In-context Learning and Induction Heads" (Olsson et al. 2022). Claims W1 and W2.
What is read off a training log (`models.registry.training_log`) is a Series with a value a snapshot, its index the tokens seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int
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


def met_from(met: pd.Series) -> Milestone:
    """From when on something holds at every snapshot to the end; NaN, NaN if it does not hold at the end."""
    failed = np.flatnonzero(~met.to_numpy(dtype=bool))
    return _milestone(met, failed[-1] + 1 if len(failed) else 0)


def milestone(score: pd.Series, share: float) -> Milestone:
    """The first snapshot at which `score` is at least `share` of its FINAL value (claim W2).

    Raises ValueError for a share outside 0 to 1, or a final score that is not above zero.
    """
    if not 0 < share <= 1:
        raise ValueError(f"a milestone is a share of the final score, above 0 and up to 1, not {share}")
    if not score.iloc[-1] > 0:
        raise ValueError(f"the final score is {score.iloc[-1]:g}: shares of it mean nothing")
    return _milestone(score, np.argmax(score >= share * score.iloc[-1]))


def _milestone(log: pd.Series, at: int) -> Milestone:
    tokens = log.index
    if not (len(tokens) and tokens.is_monotonic_increasing and tokens.is_unique):
        raise ValueError("a log needs snapshots in the order of the tokens seen")
    return Milestone(tokens[at], tokens[max(at - 1, 0)]) if at < len(tokens) else Milestone(np.nan, np.nan)


def best_of_heads(scores: Sequence[Sequence[Sequence[float]]]) -> np.ndarray:
    """The highest score of any head at each snapshot, whichever head that is there. Raises ValueError for a model without heads."""
    if not all(layers and all(layers) for layers in scores):
        raise ValueError("there is no best head: the model has none")
    return np.array([max(map(max, layers)) for layers in scores])
