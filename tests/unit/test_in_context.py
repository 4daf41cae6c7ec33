"""Groups of tokens against a slow loop, milestones by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from transformer_circuits.circuits import in_context
from transformer_circuits.circuits.in_context import kind_of_next, met_from, steepest_fall, when_true
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


def log(layers: int, **later: object) -> pd.DataFrame:
    """A log of three snapshots of two heads per layer; `later` holds from the second on."""
    start = {
        "in_context": 0.0, "previous_token": [[0.0, 0.0]] * layers, "rest": [[0.0, 0.0]] * layers, "induction": [[0.0, 0.0]] * layers,
        "copies": [9.0, 9.0], "positivity": [[0.0, 0.0]] * layers, "orders": [5.0] * (layers + 1),
    }  # fmt: skip
    if layers == 2:
        start["pair"] = {"induction": 1, "previous": 0, "k_composition": 1.0, "k_positivity": 0.0}
    rows = [{"tokens": tokens, **start, **(later if tokens else {})} for tokens in (0, 10, 20)]
    return pd.DataFrame(rows)


def test_findings_become_true_with_the_snapshot_that_meets_them() -> None:
    pair = {"induction": 1, "previous": 0, "k_composition": 2.5, "k_positivity": 0.9}
    two = log(2, previous_token=[[0.5, 0.0], [0.0, 0.0]], induction=[[0.0, 0.0], [0.0, 0.4]], pair=pair, in_context=-0.3,
              positivity=[[0.0, 0.0], [0.0, 0.9]], orders=[4.0, 1.0, 0.9], copies=[9.0, 4.0])  # fmt: skip
    one = log(1, positivity=[[0.9, -0.9]], rest=[[0.0, 1.0]])  # the head that does not copy rests
    found = when_true(two, one, d_vocab=512, copying=0.5).set_index("finding")
    not_yet = "The best head puts half of its attention on the right token"
    assert found.pop("tokens").drop(not_yet).eq(10).all()
    assert found["before"].dropna().eq(0).all() and len(found.dropna()) == len(found) - 1
    two["rest"] = [[[1.0, 0.0], [0.0, 0.0]]] * 3  # a resting head composes with no head
    resting = when_true(two, d_vocab=512, copying=0.5).set_index("claim")
    assert np.isnan(resting.loc["T3", "tokens"])
    assert list(when_true(one, d_vocab=512, copying=0.5)["claim"]) == ["E1"]
    assert when_true(log(1).drop(columns=["induction"]), d_vocab=512, copying=0.5).empty


def test_thresholds_of_single_claims_are_those_of_the_ledger() -> None:
    written = {id: claim.reproduced for id, claim in ledger.load_claims().items()}
    assert f"{in_context.MOST * 12:.0f} / 12" in written["E1"]
    assert written["T8"].count(f">= {in_context.HALF}") == 3
    assert f"<= {in_context.VIRTUAL} * order_1" in written["T11"]
    assert f">= {in_context.HELPS}" in written["W1"]
