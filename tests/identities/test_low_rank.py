"""E3, E5 and the spectra of O7: low-rank shortcuts against the dense computation."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_models import BROKEN, EXACT, PLAIN_CASES, build, cases, identity, random
from transformer_lens import FactoredMatrix

from transformer_circuits.circuits.qk_ov import eigenvalues, full_ov, full_path, full_qk, matched_difference, positivity, trace
from transformer_circuits.circuits.subspaces import dimensions_for, frobenius_norm, joint_spectrum, spectrum, svd
from transformer_circuits.circuits.weights import relative_error

sizes = st.tuples(st.integers(6, 20), st.integers(1, 5), st.integers(6, 20), st.integers(0, 2**32 - 1))


def factored(left, inner, right, seed=0):
    return FactoredMatrix(3 * random(left, inner, seed=seed), 3 * random(inner, right, seed=seed + 1))


def dense_eigenvalues(matrix, inner):
    values = torch.linalg.eigvals(matrix)
    return values[values.abs().argsort(descending=True)[:inner]]


@identity
@given(sizes)
def test_e5_nonzero_eigenvalues_of_ab_are_those_of_ba(size):
    left, inner, _, seed = size
    matrix = factored(left, inner, left, seed)
    assert matched_difference(eigenvalues(matrix), dense_eigenvalues(matrix.AB, inner)) < EXACT


@pytest.mark.parametrize("seed", range(3))
def test_e5_fails_with_one_factor_transposed(seed):
    matrix = factored(9, 3, 9, seed)
    wrong = torch.linalg.eigvals(matrix.A.T @ matrix.B.T @ torch.diag(torch.tensor([1.0, 2, 3], dtype=torch.float64)))
    swapped = torch.linalg.eigvals(matrix.B @ matrix.A.flip(0))
    assert matched_difference(wrong, dense_eigenvalues(matrix.AB, 3)) > BROKEN
    assert matched_difference(swapped, dense_eigenvalues(matrix.AB, 3)) > BROKEN


@identity
@given(sizes)
def test_e5_svd_through_qr(size):
    left, inner, right, seed = size
    matrix = factored(left, inner, right, seed)
    U, S, V = svd(matrix)
    assert relative_error(S, torch.linalg.svdvals(matrix.AB)[:inner]) < EXACT
    assert relative_error(U * S @ V.T, matrix.AB) < EXACT
    eye = torch.eye(inner, dtype=torch.float64)
    assert relative_error(U.T @ U, eye) < EXACT and relative_error(V.T @ V, eye) < EXACT
    assert abs(frobenius_norm(matrix) / torch.linalg.norm(matrix.AB) - 1) < EXACT


@pytest.mark.parametrize("seed", range(3))
def test_e5_svd_fails_when_right_vectors_are_not_transposed(seed):
    U, S, V = svd(factored(9, 3, 9, seed))
    expected = factored(9, 3, 9, seed).AB
    assert relative_error(V * S @ U.T, expected) > BROKEN
    core = factored(9, 3, 9, seed)
    R_A, R_B = torch.linalg.qr(core.A).R, torch.linalg.qr(core.B.T).R
    assert relative_error(torch.linalg.svdvals(R_A @ R_B), torch.linalg.svdvals(expected)[:3]) > BROKEN


@identity
@given(cases())
def test_e3_trace_is_the_sum_of_the_eigenvalues_and_of_the_diagonal(case):
    matrix = full_ov(case.weights, 0, 0)
    scale = eigenvalues(matrix).abs().sum()
    assert (trace(matrix) - matrix.AB.diagonal().sum()).abs() / scale < EXACT
    assert (eigenvalues(matrix).sum() - trace(matrix)).abs() / scale < EXACT


@pytest.mark.parametrize("case", PLAIN_CASES)
def test_e3_fails_with_one_factor_transposed(case):
    matrix = full_ov(case.weights, 0, 0)
    wrong = (matrix.A * matrix.B.T.flip(0)).sum()
    assert (wrong - matrix.AB.diagonal().sum()).abs() / eigenvalues(matrix).abs().sum() > BROKEN


@identity
@given(cases())
def test_circuits_are_the_products_they_stand_for(case):
    w = case.weights
    ov = w.W_E @ w.W_V[0, 0] @ w.W_O[0, 0] @ w.W_U
    qk = w.W_E @ w.W_Q[0, 0] @ w.W_K[0, 0].T @ w.W_E.T
    assert relative_error(full_ov(w, 0, 0).AB, ov) < EXACT
    assert relative_error(full_qk(w, 0, 0).AB, qk) < EXACT
    assert full_ov(w, 0, 0).mdim == full_qk(w, 0, 0).mdim == w.d_head


@pytest.mark.parametrize("case", PLAIN_CASES)
def test_circuits_are_not_their_transposes(case):
    w = case.weights
    ov = w.W_E @ w.W_V[0, 0] @ w.W_O[0, 0] @ w.W_U
    qk = w.W_E @ w.W_Q[0, 0] @ w.W_K[0, 0].T @ w.W_E.T
    assert relative_error(full_ov(w, 0, 0).AB.T, ov) > BROKEN
    assert relative_error(full_qk(w, 0, 0).AB.T, qk) > BROKEN
    if w.n_layers > 1:
        virtual = full_path(w, ((0, 0), (1, 1)))
        other_order = w.W_E @ w.W_V[1, 1] @ w.W_O[1, 1] @ w.W_V[0, 0] @ w.W_O[0, 0] @ w.W_U
        assert virtual.mdim == w.d_head and relative_error(virtual.AB, other_order) > BROKEN


def test_matching_is_one_to_one():
    values = torch.tensor([1.0, 1, 4])
    assert matched_difference(values, torch.tensor([4.0, 1, 1])) == 0
    assert matched_difference(values, torch.tensor([4.0, 1, 3])) == 0.5  # not 0, though each has a neighbour at 1 or 4
    with pytest.raises(ValueError, match="3 and 2 eigenvalues cannot be matched"):
        matched_difference(values, values[:2])
    for nothing in (torch.zeros(3), torch.zeros(0)):
        with pytest.raises(ValueError, match="at least one eigenvalue other than zero"):
            matched_difference(nothing, nothing)


def test_positivity():
    assert positivity(torch.tensor([[1, 2j, 1], [-1, -3, 0]])).tolist() == [0.5, -1]
    assert positivity(torch.zeros(3, dtype=torch.complex64)).isnan()


def test_only_square_matrices_have_a_trace():
    with pytest.raises(ValueError, match="only a square matrix has a trace, this one is 4 by 5"):
        trace(factored(4, 2, 5))


def test_half_precision_is_computed_in_single():
    matrix = factored(9, 3, 9)
    half = FactoredMatrix(matrix.A.half(), matrix.B.half())
    assert eigenvalues(half).dtype == torch.complex64 and svd(half)[1].dtype == torch.float32
    large = FactoredMatrix(half.A * 300, half.B * 300)  # squares of which half precision cannot hold
    assert frobenius_norm(large).isfinite() and abs(frobenius_norm(large) / torch.linalg.norm(svd(large)[1]) - 1) < 1e-5


@identity
@given(cases(min_layers=0))
def test_o7_spectrum_is_that_of_the_centred_svd(case):
    W_E = case.weights.W_E
    singular = np.linalg.svd((W_E - W_E.mean(0)).numpy(), compute_uv=False) ** 2
    expected = np.zeros(case.weights.d_model)
    expected[: len(singular)] = (singular / singular.sum())[: case.weights.d_model]
    assert np.abs(spectrum(W_E).numpy() - expected).max() < EXACT


@pytest.mark.parametrize("case", PLAIN_CASES)
def test_o7_spectrum_fails_without_centring(case):
    shifted = case.weights.W_E + 5
    singular = torch.linalg.svdvals(shifted).square()
    assert relative_error(spectrum(shifted), singular / singular.sum()) > BROKEN
    assert relative_error(spectrum(shifted), spectrum(case.weights.W_E)) < EXACT


def test_o7_joint_spectrum_tells_shared_from_single_dimensions():
    weights = build(d_vocab=400, d_model=6).weights
    weights.W_E[:, 4:] = 0  # dimensions 0 to 3 for the embedding, 2 to 5 for the unembedding ...
    weights.W_U[:2] = 0
    weights.W_E[:, :2] *= 1.5  # ... and no two kinds with the same variance, which PCA could not tell apart
    weights.W_U[2:4] *= 3
    weights.W_U.mul_(50)  # its scale must not matter
    joint = joint_spectrum(weights)
    assert joint.embed.sum().item() == pytest.approx(1) and joint.unembed.sum().item() == pytest.approx(1)
    kinds = sorted(joint.embed_part.tolist())
    assert kinds[:2] == pytest.approx([0, 0], abs=0.06) and kinds[4:] == pytest.approx([1, 1], abs=0.06)
    assert all(0.1 < kind < 0.7 for kind in kinds[2:4])


def test_o7_dimensions_for_a_share_of_the_variance():
    shares = torch.tensor([0.5, 0.3, 0.15, 0.05])
    assert [dimensions_for(shares, part) for part in (0.4, 0.6, 0.9)] == [1, 2, 3]
    assert dimensions_for(torch.full((10,), 0.0999999), 1.0) == 10  # rounding leaves less than all, and there is no eleventh
    for part in (0, 1.1):
        with pytest.raises(ValueError, match="above 0 and at most 1"):
            dimensions_for(shares, part)


def test_o7_vectors_all_alike_have_no_spectrum():
    with pytest.raises(ValueError, match="the vectors are all the same"):
        spectrum(torch.ones(5, 3))
