"""Errors of means over windows, on known data. (What the windows' losses are: tests/identities/test_terms_by_order.)"""

import math

import torch

from transformer_circuits.circuits.term_importance import estimate


def test_estimates_on_known_data():
    found = estimate(torch.tensor([1.0, 3.0, 5.0, 7.0, 9.0, 50.0]).repeat_interleave(17)[:90])
    # The rest counts into the mean only.
    assert math.isclose(found.mean, (17 * 25 + 5 * 50) / 90, rel_tol=1e-6)
    assert math.isclose(found.standard_error, math.sqrt(8 / 5), rel_tol=0.05)  # of the five groups' mean
    assert 2 < found.margins[0] < 2.8 and 2 < found.margins[1] < 2.8


def test_windows_of_one_book_count_once():
    alike = torch.randn(40, generator=torch.Generator().manual_seed(0)).repeat_interleave(10)
    assert estimate(alike, neighbors=10).standard_error > 2.5 * estimate(alike, neighbors=1).standard_error
