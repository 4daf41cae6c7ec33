"""Measures against rotations drawn one by one."""

import torch
from transformer_lens import FactoredMatrix

from transformer_circuits.measures.weights import turned


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
