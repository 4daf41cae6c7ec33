"""E1, E3, E4, E6, and hits of skip-trigrams: through thin factors, against the matrix over the whole vocabulary."""

from unittest import mock

import pytest
import torch
from random_models import EXACT, Case, build, cases, defined_in, differs, identity, same
from transformer_lens import FactoredMatrix

from transformer_circuits.circuits import head_dump
from transformer_circuits.circuits.copying import self_boost
from transformer_circuits.circuits.skip_trigrams import Hits
from transformer_circuits.measures.weights import centered, copying, copying_eigenvalues, positivity
from transformer_circuits.models.bridge import from_matrices, matrices

leading_eigenvectors = defined_in("05_copying", "eigenvectors", torch=torch).leading_eigenvectors
# d_head is 3, so that rank is not full.
SMALL_RANK = [build(n_layers=2, d_vocab=13, seed=seed) for seed in range(4)]


def circuits_of(case):
    return case.model.W_E @ case.model.OV @ case.model.W_U  # [layer, head, d_vocab, d_vocab]


@identity(cases())
def test_e3_eigenvalues_of_the_small_product_sum_to_the_trace(case):
    model = case.model
    values = copying_eigenvalues(model.OV, model.W_E, model.W_U)
    trace = circuits_of(case).AB.diagonal(dim1=-2, dim2=-1).sum(-1)
    assert ((values.sum(-1) - trace).abs() / values.abs().sum(-1)).max() < EXACT


@identity(cases())
def test_e1_centered_circuits_ignore_what_all_sources_and_all_out_tokens_have_in_common(case):
    """Subtracting the mean of every row and every column of the large matrix is what centering its factors does."""
    dense = circuits_of(case).AB
    mean_out, mean_source = dense.mean(-1, keepdim=True), dense.mean(-2, keepdim=True)
    E, U = centered(case.model.W_E, case.model.W_U)
    same((E @ case.model.OV @ U).AB, dense - mean_out - mean_source + dense.mean((-2, -1), keepdim=True))


def test_e1_a_heads_copying_ignores_what_all_embeddings_and_all_unembeddings_share():
    model, W = SMALL_RANK[0].model, matrices(SMALL_RANK[0].model)
    shared = from_matrices(**W | {"W_E": W["W_E"] + W["W_E"][3], "W_U": W["W_U"] + W["W_U"][:, [3]]})
    same(copying(shared)[0], copying(model)[0], 1e-5)


@identity(cases())
def test_e4_self_boost_against_the_dense_matrix(case):
    circuit = circuits_of(case)[0, 0]
    dense, k = circuit.AB, min(3, circuit.rdim)
    own = dense.diagonal()
    rank = (dense > own[:, None]).sum(dim=1)
    expected = [(found.double().mean().item()) for found in (own > 0, rank < k, rank == 0)]
    assert self_boost(circuit, k) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("matrix", "sign", "shares"),
    [
        (torch.eye(6), 1.0, (1, 1, 1)),
        (-torch.eye(6), -1.0, (0, 0, 0)),
        (torch.eye(6).roll(1, dims=1), 0.0, (0, 1, 0)),  # each raises the next; all others are equal
        (torch.ones(6, 6), 1.0, (1, 1, 1)),  # a set that copies as a whole: ties count as raised most
    ],
)
def test_e1_e4_heads_made_by_hand(matrix, sign, shares):
    circuit = FactoredMatrix(matrix.double(), torch.eye(6).double())
    assert positivity(circuit.eigenvalues) == pytest.approx(sign, abs=1e-6)
    assert self_boost(circuit, k=2) == shares


@pytest.mark.parametrize("case", SMALL_RANK)
def test_e6_leading_eigenvectors_over_the_vocabulary(case):
    for circuit in (circuits_of(case)[head] for head in ((0, 0), (0, 1), (1, 0), (1, 1))):
        dense = circuit.AB
        values, vectors = leading_eigenvectors(circuit)
        real = torch.linalg.eigvals(circuit.BA)
        assert len(values) == ((real.imag == 0) & (real.real > 0)).sum()
        if len(values):
            same(vectors @ dense, values[:, None] * vectors, 1e-8)
            differs(vectors @ dense.T, values[:, None] * vectors)  # the wrong side is no eigenvector
            assert torch.allclose(vectors.norm(dim=1), torch.ones_like(values)) and (values.diff() <= 0).all()
            assert torch.equal(vectors.amax(dim=1), vectors.abs().amax(dim=1))  # the sign
            assert torch.equal(leading_eigenvectors(circuit, n=1)[0], values[:1])


def circuits_above_means(case: Case, head: int) -> tuple[torch.Tensor, torch.Tensor]:
    """QK [source, destination] above the mean over sources and OV [source, out] above that over out tokens, multiplied out."""
    m = case.model
    scores = (m.W_E @ m.W_Q[0, head]) @ (m.W_E @ m.W_K[0, head]).T / m.cfg.d_head**0.5
    boosts = m.W_E @ m.W_V[0, head] @ m.W_O[0, head] @ m.W_U
    return scores.T - scores.T.mean(dim=0), boosts - boosts.mean(dim=1, keepdim=True)


@identity(cases(min_layers=1, max_layers=2))
def test_hits_are_the_top_of_the_multiplied_circuits(case):
    n, every_token = case.model.cfg.d_vocab, torch.arange(case.model.cfg.d_vocab)
    with mock.patch.object(head_dump, "SHARE", 0.5):
        hits = Hits.of(case.model)
    triples = torch.cartesian_prod(every_token, every_token, every_token)
    by_column, by_row = (hits(*triples.T, axis).view(-1, n, n, n) for axis in ("column", "row"))
    for head in range(len(by_column)):
        columns, boosts = circuits_above_means(case, head)
        top = [matrix.topk(n // 2).indices for matrix in (columns, columns.T, boosts)]
        attended, attracting, raised = ((tokens[:, None] == every_token[:, None]).any(-1) for tokens in top)
        assert torch.equal(by_column[head], attended[:, :, None] & raised[:, None])
        assert torch.equal(by_row[head], attracting.T[:, :, None] & raised[:, None])
