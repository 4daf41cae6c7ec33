"""E1, E3, E4, E6: what copying is measured by, through thin factors, against the matrix over the whole vocabulary."""

import pytest
import torch
from hypothesis import given
from random_models import BROKEN, EXACT, PLAIN_CASES, build, cases, identity

from transformer_circuits.circuits.copying import (
    boost_within,
    centered,
    combined_ov,
    eigenvectors,
    entry_moments,
    leading_eigenvectors,
    ov_eigenvalues,
    self_boost,
    token_sets,
)
from transformer_circuits.circuits.factored import diagonal
from transformer_circuits.circuits.qk_ov import eigenvalues, full_ov, matched_difference, positivity
from transformer_circuits.circuits.weights import relative_error

SMALL_RANK = [build(n_layers=2, d_vocab=13, seed=seed) for seed in range(4)]  # d_head 3, so that rank is not full


@identity
@given(cases())
def test_e1_all_heads_at_once(case):
    together = ov_eigenvalues(case.weights)
    for layer, head in case.weights.heads:
        one = eigenvalues(full_ov(case.weights, layer, head))
        # a circuit whose rank exceeds d_vocab has zero eigenvalues, which rounding moves far more than others
        assert (together[layer, head].sum() - one.sum()).abs() / one.abs().sum() < EXACT


@pytest.mark.parametrize("case", SMALL_RANK)
def test_e1_positivity_is_that_of_the_dense_matrix(case):
    for layer, head in case.weights.heads:
        dense = torch.linalg.eigvals(full_ov(case.weights, layer, head).AB)
        dense = dense[dense.abs().argsort(descending=True)][: case.weights.d_head]
        values = ov_eigenvalues(case.weights)[layer, head]
        assert matched_difference(values, dense) < EXACT
        assert (positivity(values) - positivity(dense)).abs() < EXACT


@identity
@given(cases())
def test_e3_sign_of_positivity_is_that_of_the_mean_diagonal(case):
    circuit = full_ov(case.weights, 0, 0)
    total, values = diagonal(circuit).sum(), eigenvalues(circuit)
    assert (positivity(values) * values.abs().sum() - total).abs() / values.abs().sum() < EXACT


@identity
@given(cases())
def test_e4_self_boost_against_the_dense_matrix(case):
    circuit = full_ov(case.weights, 0, 0)
    dense, k = circuit.AB, min(3, circuit.rdim)
    own = dense.diagonal()
    rank = (dense > own[:, None]).sum(dim=1)
    expected = [(own > 0).double().mean(), (rank == 0).double().mean(), (rank < k).double().mean()]
    assert self_boost(circuit, k) == pytest.approx([x.item() for x in expected], abs=1e-6)


@identity
@given(cases())
def test_combined_circuit_is_the_sum(case):
    heads = case.weights.heads
    dense = sum(full_ov(case.weights, *head).AB for head in heads)
    assert relative_error(combined_ov(case.weights, heads).AB, dense) < EXACT


@pytest.mark.parametrize("case", PLAIN_CASES)
def test_eigenvalues_of_a_sum_are_not_those_of_its_parts(case):
    first, second = (full_ov(case.weights, 0, head) for head in (0, 1))
    both = combined_ov(case.weights, [(0, 0), (0, 1)])
    assert matched_difference(eigenvalues(both), torch.cat([eigenvalues(first), eigenvalues(second)])) > BROKEN


@identity
@given(cases())
def test_centered_rows(case):
    circuit = full_ov(case.weights, 0, 0)
    expected = circuit.AB - circuit.AB.mean(dim=1, keepdim=True)
    assert (centered(circuit).AB - expected).abs().max() < EXACT * circuit.AB.abs().max()


@identity
@given(cases())
def test_e6_moments_of_all_entries(case):
    circuit = full_ov(case.weights, 0, 0)
    mean, sd = entry_moments(circuit)
    scale = circuit.AB.abs().max().item()
    assert abs(mean - circuit.AB.mean().item()) < EXACT * scale
    assert abs(sd - circuit.AB.std(unbiased=False).item()) < 1e-7 * scale  # a difference of squares, then its root


@pytest.mark.parametrize("case", SMALL_RANK)
@pytest.mark.parametrize("side", ["out", "source"])
def test_e6_eigenvector_equation_over_the_vocabulary(case, side):
    circuit = full_ov(case.weights, 1, 1)
    dense = circuit.AB.to(torch.complex128)
    values, vectors = eigenvectors(circuit, side)
    applied = vectors @ dense if side == "out" else vectors @ dense.T
    assert relative_error(applied, values[:, None] * vectors) < EXACT
    assert torch.allclose(vectors.norm(dim=1), torch.ones(3, dtype=torch.float64))
    assert (values.abs().diff() <= 1e-12).all()
    other = vectors @ dense.T if side == "out" else vectors @ dense  # the wrong side is no eigenvector
    assert relative_error(other, values[:, None] * vectors) > BROKEN
    paper = dense.T  # W_U W_OV W_E: its right eigenvectors, as the paper writes M v = lambda v, are our out side
    assert side == "source" or relative_error((paper @ vectors.T).T, values[:, None] * vectors) < EXACT


@pytest.mark.parametrize("case", SMALL_RANK)
def test_e6_sides_rebuild_the_circuit(case):
    circuit = full_ov(case.weights, 0, 1)
    (values, u), (again, v) = eigenvectors(circuit, "out"), eigenvectors(circuit, "source")
    if (values.imag != 0).any():  # pairs of equal modulus may come in either order: match by value
        order = torch.stack([(again - value).abs().argmin() for value in values])
        v = v[order]
    scale = (u * v).sum(dim=1)  # u_i v_i, to be one
    rebuilt = (v.T * (values / scale)) @ u
    assert relative_error(rebuilt.real, circuit.AB) < 1e-8 and rebuilt.imag.abs().max() < 1e-8 * circuit.AB.abs().max()


@identity
@given(cases())
def test_e6_leading_vectors_solve_the_equation_in_real_numbers(case):
    circuit = full_ov(case.weights, 0, 0)
    values, vectors = leading_eigenvectors(circuit, 10)
    assert not vectors.is_complex() and (values > 0).all() and (values.diff() <= 0).all()
    scale = eigenvalues(circuit).abs().max()
    kept = values > 1e-3 * scale  # vectors of zero eigenvalues (more heads' dimensions than tokens) are rounding
    error = (vectors @ circuit.AB - values[:, None] * vectors)[kept].abs()
    assert not error.numel() or error.max() < 1e-8 * scale


@pytest.mark.parametrize("case", SMALL_RANK)
def test_e6_boost_within_sets_against_the_dense_block(case):
    circuit = full_ov(case.weights, 0, 0)
    sets = token_sets(circuit.AB[:4], k=5)
    found = boost_within(circuit, sets)
    for tokens, boost in zip(sets, found):
        block = circuit.AB[tokens][:, tokens]
        expected = (block.sum() - block.trace()) / 20
        assert abs(boost - expected) < EXACT * circuit.AB.abs().max()
