"""E1, E3, E4, E6: what copying is measured by, through thin factors, against the matrix over the whole vocabulary."""

import pytest
import torch
from hypothesis import given
from random_models import EXACT, build, cases, differs, identity, same

from transformer_circuits.circuits.copying import boost_within, leading_eigenvectors, self_boost, token_sets
from transformer_circuits.measures.weights import positivity

SMALL_RANK = [
    build(n_layers=2, d_vocab=13, seed=seed) for seed in range(4)
]  # d_head 3, so that rank is not full


def circuits_of(case):
    return case.model.W_E @ case.model.OV @ case.model.W_U  # [layer, head, d_vocab, d_vocab]


@identity
@given(cases())
def test_e3_eigenvalues_of_the_small_product_sum_to_the_trace(case):
    circuits = circuits_of(case)
    values, dense = circuits.eigenvalues, circuits.AB
    trace = dense.diagonal(dim1=-2, dim2=-1).sum(-1)
    assert ((values.sum(-1) - trace).abs() / values.abs().sum(-1)).max() < EXACT
    assert torch.allclose((circuits.A * circuits.B.mT).sum((-2, -1)), trace)  # as the chapter sums it
    assert (positivity(values) * values.abs().sum(-1) - trace).abs().max() < EXACT * values.abs().sum()


@pytest.mark.parametrize("case", SMALL_RANK)
def test_e1_positivity_is_that_of_the_dense_matrix_and_not_of_the_singular_values(case):
    circuits = circuits_of(case)
    assert (
        positivity(circuits.eigenvalues) - positivity(torch.linalg.eigvals(circuits.AB))
    ).abs().max() < 1e-6
    dense = circuits.AB[0, 0]
    same(torch.linalg.svdvals(-dense), torch.linalg.svdvals(dense))
    assert (positivity(torch.linalg.eigvals(-dense)) + positivity(torch.linalg.eigvals(dense))).abs() < 1e-6


@identity
@given(cases())
def test_e4_self_boost_against_the_dense_matrix(case):
    circuit = circuits_of(case)[0, 0]
    dense, k = circuit.AB, min(3, circuit.rdim)
    own = dense.diagonal()
    rank = (dense > own[:, None]).sum(dim=1)
    expected = [(found.double().mean().item()) for found in (own > 0, rank < k, rank == 0)]
    assert self_boost(circuit, k) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("case", SMALL_RANK)
def test_e6_leading_eigenvectors_over_the_vocabulary(case):
    for head in ((0, 0), (0, 1), (1, 0), (1, 1)):
        circuit = circuits_of(case)[head]
        dense = circuit.AB
        values, vectors = leading_eigenvectors(circuit)
        real = torch.linalg.eigvals(circuit.BA)
        assert len(values) == ((real.imag == 0) & (real.real > 0)).sum()
        if len(values):
            same(vectors @ dense, values[:, None] * vectors, 1e-8)
            differs(vectors @ dense.T, values[:, None] * vectors)  # the wrong side is no eigenvector
            assert torch.allclose(vectors.norm(dim=1), torch.ones_like(values)) and (values.diff() <= 0).all()


@pytest.mark.parametrize("case", SMALL_RANK)
def test_e6_boost_within_sets_against_the_dense_block(case):
    circuit = circuits_of(case)[0, 0]
    sets = token_sets(circuit.AB[:4], k=5)
    for tokens, boost in zip(sets, boost_within(circuit, sets), strict=True):
        block = circuit.AB[tokens][:, tokens]
        expected = (block.sum() - block.trace()) / 20 / circuit.AB.std(unbiased=False)
        assert abs(boost - expected) < 1e-8
