"""Groups of tokens against a slow loop, milestones by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from transformer_circuits.circuits.in_context import best_of_heads, kind_of_next, met_from, milestone


def test_groups_against_a_slow_loop() -> None:
    windows = torch.randint(0, 6, (8, 40), generator=torch.Generator().manual_seed(2))
    for row, found in zip(windows.tolist(), kind_of_next(windows).tolist()):
        for i, kind in enumerate(found):
            pairs = set(zip(row[:i], row[1 : i + 1]))  # that stood there before this one
            expected = 2 if (row[i], row[i + 1]) in pairs else 1 if row[i + 1] in row[: i + 1] else 0
            assert kind == expected


def test_a_token_may_complete_its_own_pair() -> None:
    """In `a a a` the last pair has been seen, and its copy overlaps it."""
    assert kind_of_next(torch.tensor([[0, 5, 5, 5]])).tolist() == [[0, 1, 2]]
    with pytest.raises(ValueError, match="at least two tokens"):
        kind_of_next(torch.tensor([[0]]))


def test_met_from_is_the_start_of_the_last_stretch() -> None:
    tokens = [0, 1, 2, 4, 8]
    assert met_from(pd.Series([False, True, False, True, True], tokens)) == (4, 2)  # once met and missed again does not count
    assert met_from(pd.Series([True] * 5, tokens)) == (0, 0)
    assert all(map(np.isnan, met_from(pd.Series([True, True, True, True, False], tokens))))


def test_milestones_are_first_reaches_of_shares_of_the_final_value() -> None:
    score = pd.Series([0.0, 0.05, 0.3, 0.9, 0.7, 0.5], [0, 1, 2, 4, 8, 16])
    assert milestone(score, 0.1) == (1, 0)
    assert milestone(score, 0.5) == (2, 1)  # of 0.5, not of the highest value 0.9
    assert milestone(score, 0.9) == (4, 2)


def test_milestones_refuse_what_makes_no_sense() -> None:
    for share in (0, 1.1):
        with pytest.raises(ValueError, match="share of the final"):
            milestone(pd.Series([0.1, 0.2]), share)
    with pytest.raises(ValueError, match="final score is 0"):
        milestone(pd.Series([0.1, 0.0]), 0.5)
    for tokens in ([], [2, 1], [1, 1]):
        with pytest.raises(ValueError, match="a log needs snapshots"):
            met_from(pd.Series(True, tokens))


def test_best_of_heads_is_the_maximum_at_each_snapshot() -> None:
    assert best_of_heads([[[0.1, 0.2], [0.0, 0.3]], [[0.5, 0.2], [0.4, 0.1]]]).tolist() == [0.3, 0.5]  # the best head changes
    for wrong in ([[]], [[[]]]):
        with pytest.raises(ValueError, match="the model has none"):
            best_of_heads(wrong)
