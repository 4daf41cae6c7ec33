"""Groups of tokens against a slow loop, milestones by hand."""

import numpy as np
import pandas as pd
import pytest
import torch

from transformer_circuits.circuits import in_context
from transformer_circuits.circuits.in_context import kind_of_next, met_from, steepest_fall
from transformer_circuits.claims import ledger


def test_groups_against_a_slow_loop() -> None:
    windows = torch.randint(0, 6, (8, 40), generator=torch.Generator().manual_seed(2))
    for row, found in zip(windows.tolist(), kind_of_next(windows).tolist()):
        for i, kind in enumerate(found):
            pairs = set(zip(row[:i], row[1 : i + 1]))  # that stood there before this one
            expected = 2 if (row[i], row[i + 1]) in pairs else 1 if row[i + 1] in row[: i + 1] else 0
            assert kind == expected


def test_met_from_is_the_start_of_the_last_stretch() -> None:
    tokens = [0, 1, 2, 4, 8]
    again = pd.Series([False, True, False, True, True], tokens)  # once met and missed again does not count
    assert met_from(again) == (4, 2)
    assert met_from(pd.Series([True] * 5, tokens)) == (0, 0)
    assert all(map(np.isnan, met_from(pd.Series([True, True, True, True, False], tokens))))


def test_the_steepest_fall_is_measured_while_tokens_double() -> None:
    score = pd.Series([0.9, 0.0, 0.1, -0.4, -0.5, -0.7], [0, 1, 2, 4, 8, 16])
    # The start, before any token was seen, does not count.
    assert steepest_fall(score) == pytest.approx((4, 2))
    assert all(map(np.isnan, steepest_fall(pd.Series([1.0, 2.0, 3.0], [1, 2, 4]))))


def test_thresholds_of_single_claims_are_those_of_the_ledger() -> None:
    written = {id: claim.reproduced for id, claim in ledger.load_claims().items()}
    assert f"{in_context.MOST * 12:.0f} / 12" in written["E1"]
    assert written["T8"].count(f">= {in_context.HALF}") == 3
    assert f"<= {in_context.VIRTUAL} * order_1" in written["T11"]
    assert f">= {in_context.HELPS}" in written["W1"]
