"""E3, E5 and the spectra of O7: low-rank shortcuts, the library's and ours, against the dense computation."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_models import EXACT, cases, identity, random, same
from scipy.optimize import linear_sum_assignment
from transformer_lens import FactoredMatrix

from transformer_circuits.circuits.embeddings import joint_spectrum, spectrum
from transformer_circuits.measures.weights import positivity

sizes = st.tuples(st.integers(6, 20), st.integers(1, 5), st.integers(6, 20), st.integers(0, 2**32 - 1))


@identity
@given(sizes)
def test_e5_nonzero_eigenvalues_of_ab_are_those_of_ba(size):
    left, inner, _, seed = size
    matrix = FactoredMatrix(random(left, inner, seed=seed), random(inner, left, seed=seed + 1))
    dense = torch.linalg.eigvals(matrix.AB)
    dense = dense[dense.abs().argsort(descending=True)[:inner]]
    distance = (matrix.eigenvalues[:, None] - dense).abs()
    assert distance[linear_sum_assignment(distance)].max() < EXACT * dense.abs().max()


@identity
@given(sizes)
def test_e5_svd_from_the_factors_and_through_qr(size):
    left, inner, right, seed = size
    matrix = FactoredMatrix(random(left, inner, seed=seed), random(inner, right, seed=seed + 1))
    U, S, V = matrix.svd()
    same(S, torch.linalg.svdvals(matrix.AB)[:inner])
    same(U * S @ V.T, matrix.AB)
    R_A, R_B = torch.linalg.qr(matrix.A).R, torch.linalg.qr(matrix.B.T).R
    same(torch.linalg.svdvals(R_A @ R_B.T), S)


def test_positivity():
    assert positivity(torch.tensor([[1, 2j, 1], [-1, -3, 0]])).tolist() == [0.5, -1]


@identity
@given(cases(min_layers=0))
def test_o7_the_spectrum_is_that_of_the_centered_svd(case):
    W_E = case.model.W_E
    squares = torch.linalg.svdvals(W_E - W_E.mean(0)).square()
    expected = torch.zeros(W_E.shape[1], dtype=W_E.dtype)
    expected[: len(squares)] = squares / squares.sum()
    assert (spectrum(W_E) - expected).abs().max() < EXACT
    assert (spectrum(W_E + 5) - expected).abs().max() < EXACT


def test_o7_the_joint_spectrum_tells_shared_from_single_dimensions():
    first, second = random(400, 6, seed=1), random(400, 6, seed=2)
    first[:, 4:] = 0  # dimensions 0 to 3 for one, 2 to 5 for the other ...
    second[:, :2] = 0
    first[:, :2] *= 1.5  # ... and no two kinds with the same variance, which PCA could not tell apart
    second[:, 2:4] *= 3
    joint = joint_spectrum(first + 7, 50 * second)  # neither place nor scale matters
    assert joint.first.sum().item() == pytest.approx(1) and joint.second.sum().item() == pytest.approx(1)
    kinds = sorted(joint.part.tolist())
    assert kinds[:2] == pytest.approx([0, 0], abs=0.06) and kinds[4:] == pytest.approx([1, 1], abs=0.06)
    assert all(0.1 < kind < 0.7 for kind in kinds[2:4])
    assert bool(((joint.first + joint.second).diff() <= 1e-12).all())  # the directions of most variance first
