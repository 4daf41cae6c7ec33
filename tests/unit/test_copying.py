"""Copying on matrices made by hand, where the answer is known."""

import pytest
import torch
from transformer_lens import FactoredMatrix

from transformer_circuits.circuits.copying import (
    akin_pairs,
    boost_within,
    ginibre,
    leading_eigenvectors,
    self_boost,
    untrained,
)
from transformer_circuits.measures.weights import positivity
from transformer_circuits.models.architecture import ModelConfig, Transformer
from transformer_circuits.models.bridge import matrices, wrap

CYCLE = torch.eye(6).roll(1, dims=1)  # each token raises the next


def circuit_of(matrix):
    matrix = torch.as_tensor(matrix, dtype=torch.float64)
    return FactoredMatrix(matrix, torch.eye(matrix.shape[1], dtype=torch.float64))


@pytest.mark.parametrize(
    ("matrix", "sign", "shares"),
    [
        (torch.eye(6), 1.0, (1, 1, 1)),
        (-torch.eye(6), -1.0, (0, 0, 0)),
        (
            CYCLE,
            0.0,
            (0, 1, 0),
        ),  # of the two that a token raises most (itself not at all: zero, as all others)
        (torch.ones(6, 6), 1.0, (1, 1, 1)),  # a set that copies as a whole: ties count as raised most
    ],
)
def test_heads_made_by_hand(matrix, sign, shares):
    assert positivity(circuit_of(matrix).eigenvalues) == pytest.approx(sign, abs=1e-6)
    assert self_boost(circuit_of(matrix), k=2) == shares


@pytest.mark.parametrize(("size", "published"), [(16, 0.097), (32, 0.047), (64, 0.023)])
def test_ginibre_spread(size, published):
    values = ginibre(1500, size)
    found = positivity(values)
    assert found.std().item() == pytest.approx(published, rel=0.08)
    assert found.std().item() == pytest.approx(1.5 / size, rel=0.08)
    assert abs(found.mean().item()) < 4 * published / 1500**0.5
    # A disk of radius sqrt(size).
    assert values.abs().square().mean().item() == pytest.approx(size / 2, rel=0.05)


def test_untrained_is_what_the_trainer_starts_from_and_does_not_copy():
    config = ModelConfig(1, d_model=64, n_heads=8, d_head=16, d_vocab=100, n_ctx=12)
    like, state = wrap(Transformer(config)), torch.random.get_rng_state()
    found = matrices(untrained(like, seed=3))
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(3)  # as training/train.py does
    expected = matrices(wrap(Transformer(config)))
    assert all(torch.equal(found[name], expected[name]) for name in found)
    fresh = [untrained(like, seed) for seed in range(10)]
    values = positivity(torch.cat([(m.W_E @ m.OV[0] @ m.W_U).eigenvalues for m in fresh]))
    assert abs(values.mean()) < 4 * values.std() / len(values) ** 0.5 and 0.06 < values.std() < 0.16


def test_leading_eigenvectors_are_real_positive_and_in_order():
    rotation = torch.tensor([[0.0, 50], [-50, 0]])  # large, but complex
    matrix = torch.block_diag(torch.diag(torch.tensor([2.0, -9, 5])), rotation)
    found = leading_eigenvectors(circuit_of(matrix), n=10)
    assert found.values.tolist() == pytest.approx([5, 2])
    assert torch.allclose(found.vectors, torch.eye(5, dtype=torch.float64)[[2, 0]])
    assert leading_eigenvectors(circuit_of(matrix), n=1).values.tolist() == pytest.approx([5])
    assert leading_eigenvectors(circuit_of(-torch.eye(3)), n=4).vectors.shape == (0, 3)


def test_boost_within_leaves_out_a_tokens_own():
    matrix = torch.full((5, 5), 1.0)
    matrix[1, 3], matrix[3, 1] = 4.0, 8.0
    matrix.fill_diagonal_(1000.0)
    found = boost_within(circuit_of(matrix), torch.tensor([[1, 3], [0, 2]])) * matrix.std(unbiased=False)
    assert found.tolist() == pytest.approx([6, 1])


def test_akin_pairs():
    akin = [frozenset({1}), frozenset({0}), frozenset(), frozenset()]
    assert akin_pairs(torch.tensor([[0, 1, 2], [1, 2, 3]]), akin) == pytest.approx(1 / 6)


def test_bad_input():
    with pytest.raises(ValueError, match="got 4 by 5 and 2"):
        self_boost(FactoredMatrix(torch.ones(4, 2), torch.ones(2, 5)), k=2)
    with pytest.raises(ValueError, match="got 3 by 3 and 4"):
        self_boost(circuit_of(torch.eye(3)), k=4)
