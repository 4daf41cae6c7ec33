"""Measures against a published table, and rotations drawn one by one."""

import pytest
import torch
from transformer_lens import FactoredMatrix

from transformer_circuits.measures import estimates
from transformer_circuits.measures.weights import turned


# Zar, Biostatistical Analysis, table B.20, one-sided.
@pytest.mark.parametrize(("n", "at_5", "at_1"), [(6, 0.829, 0.943), (11, 0.536, 0.709), (12, 0.503, 0.671)])
def test_critical_values_of_spearmans_coefficient(n, at_5, at_1):
    assert estimates.critical_spearman(n, 0.05) == pytest.approx(at_5, abs=0.015)
    assert estimates.critical_spearman(n, 0.01) == pytest.approx(at_1, abs=0.015)


def test_turning_at_random_is_a_rotation_between_the_two_heads():
    generator = torch.Generator().manual_seed(5)
    V, O, Q, K = torch.randn(4, 96, 8, dtype=torch.float64, generator=generator)
    O[:, 1:] *= 1e-3  # heads that write, and read, along one direction: their chance varies most
    K[:, 1:] *= 1e-3
    OV, QK = V @ O.T, Q @ K.T
    writers, readers = (FactoredMatrix(M.expand(20, -1, -1), N.T.expand(20, -1, -1)) for M, N in ((V, O), (Q, K)))
    found, expected = turned(writers, readers, readers)[1].flatten(), []
    for _ in range(200):  # all of the rotation, between all of the matrices
        R = torch.linalg.qr(torch.randn(96, 96, dtype=torch.float64, generator=generator)).Q
        expected.append((OV @ R @ QK.T).norm() / OV.norm() / QK.norm() * 96**0.5)
    expected = torch.stack(expected)
    assert abs(found.mean() - expected.mean()) < 4 * expected.std() * (1 / 200 + 1 / 400) ** 0.5
    assert abs(found.std() / expected.std() - 1) < 0.2 and found.std() > 0.4
