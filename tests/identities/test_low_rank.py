"""E3, E5: low-rank shortcuts, the library's and ours, against the dense computation."""

import torch
from hypothesis import strategies as st
from random_models import EXACT, identity, random, same
from scipy.optimize import linear_sum_assignment
from transformer_lens import FactoredMatrix

sizes = st.tuples(st.integers(6, 20), st.integers(1, 5), st.integers(6, 20), st.integers(0, 2**32 - 1))


@identity(sizes)
def test_e5_nonzero_eigenvalues_of_ab_are_those_of_ba(size):
    left, inner, _, seed = size
    matrix = FactoredMatrix(random(left, inner, seed=seed), random(inner, left, seed=seed + 1))
    dense = torch.linalg.eigvals(matrix.AB)
    dense = dense[dense.abs().argsort(descending=True)[:inner]]
    distance = (matrix.eigenvalues[:, None] - dense).abs()
    assert distance[linear_sum_assignment(distance)].max() < EXACT * dense.abs().max()


@identity(sizes)
def test_e5_svd_from_the_factors_and_through_qr(size):
    left, inner, right, seed = size
    matrix = FactoredMatrix(random(left, inner, seed=seed), random(inner, right, seed=seed + 1))
    U, S, V = matrix.svd()
    same(S, torch.linalg.svdvals(matrix.AB)[:inner])
    same(U * S @ V.T, matrix.AB)
    R_A, R_B = torch.linalg.qr(matrix.A).R, torch.linalg.qr(matrix.B.T).R
    same(torch.linalg.svdvals(R_A @ R_B.T), S)
