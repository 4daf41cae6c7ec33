"""Groups of tokens against a slow loop, milestones by hand."""

from __future__ import annotations

import pytest
import torch

from transformer_circuits.circuits.in_context import best_of_heads, kind_of_next, met_from, milestone, share_of_fall


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
    assert met_from(tokens, [False, True, False, True, True]) == (4, 2)  # once met and missed again does not count
    assert met_from(tokens, [True] * 5) == (0, 0)
    assert met_from(tokens, [True, True, True, True, False]) is None


def test_milestones_are_first_reaches_of_shares_of_the_final_value() -> None:
    tokens, score = [0, 1, 2, 4, 8, 16], [0.0, 0.05, 0.3, 0.9, 0.7, 0.5]
    assert milestone(tokens, score, 0.1) == (1, 0)
    assert milestone(tokens, score, 0.5) == (2, 1)  # of 0.5, not of the highest value 0.9
    assert milestone(tokens, score, 0.9) == (4, 2)


def test_milestones_refuse_what_makes_no_sense() -> None:
    for share in (0, 1.1):
        with pytest.raises(ValueError, match="share of the final"):
            milestone([1, 2], [0.1, 0.2], share)
    with pytest.raises(ValueError, match="final score is 0"):
        milestone([1, 2], [0.1, 0.0], 0.5)
    for tokens, score in [([], []), ([1, 2], [1.0]), ([2, 1], [1.0, 2.0]), ([1, 1], [1.0, 2.0])]:
        with pytest.raises(ValueError, match="a log needs snapshots"):
            met_from(tokens, score)


def test_share_of_fall_counts_from_the_highest_value() -> None:
    tokens, score = [1, 2, 4, 8], [0.0, 0.1, -0.3, -0.4]
    assert share_of_fall(tokens, score, 2, 4) == pytest.approx(0.8)
    with pytest.raises(ValueError, match="no snapshot at 3"):
        share_of_fall(tokens, score, 2, 3)
    with pytest.raises(ValueError, match="no fall"):
        share_of_fall(tokens, [0.1, 0.2, 0.3, 0.4], 1, 8)


def test_best_of_heads_is_the_maximum_at_each_snapshot() -> None:
    assert best_of_heads([[[0.1, 0.2], [0.0, 0.3]], [[0.5, 0.2], [0.4, 0.1]]]).tolist() == [0.3, 0.5]  # the best head changes
    for wrong in ([[]], [[[]]]):
        with pytest.raises(ValueError, match="the model has none"):
            best_of_heads(wrong)
