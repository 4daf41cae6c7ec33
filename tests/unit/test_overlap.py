"""Overlaps of heads' subspaces on hand-made and random weights."""

import math

import pytest
import torch

from transformer_circuits.circuits import overlap
from transformer_circuits.circuits.overlap import bases, between_pairs, overlaps, random_bases
from transformer_circuits.circuits.subspaces import overlap as overlap_of_two
from transformer_circuits.circuits.subspaces import read_write_subspaces
from transformer_circuits.circuits.weights import Weights
from transformer_circuits.figures import overlap as figures

D_MODEL, D_HEAD, WORDS = 12, 2, 30


def model(*heads) -> Weights:
    """A one-layer model; each head is (dimensions that it reads, dimensions that it writes)."""
    generator = torch.Generator().manual_seed(0)
    eye = torch.eye(D_MODEL)
    W_V = torch.stack([eye[:, list(reads)] for reads, _ in heads])[None]
    W_O = torch.stack([eye[list(writes)] for _, writes in heads])[None]
    W_E, W_U = torch.randn(WORDS, D_MODEL, generator=generator), torch.randn(D_MODEL, WORDS, generator=generator)
    return Weights(W_E, torch.zeros(4, D_MODEL), torch.zeros_like(W_V), torch.zeros_like(W_V), W_V, W_O, W_U)


def test_overlaps_that_are_known():
    weights = model(((0, 1), (4, 5)), ((0, 2), (6, 7)), ((1, 0), (4, 5)))
    read, write = (overlaps(bases(weights, side)) for side in overlap.SIDES)
    assert torch.allclose(read, torch.tensor([[1, 0.5, 1], [0.5, 1, 0.5], [1, 0.5, 1]]), atol=1e-6)
    assert torch.allclose(write, torch.tensor([[1.0, 0, 1], [0, 1, 0], [1, 0, 1]]), atol=1e-6)


def test_the_metric_is_over_d_head_and_squares_cosines():
    """A mean over all d_head^2 products, or of cosines without the square, would be wrong by a factor."""
    angle = math.pi / 3
    line = torch.tensor([[[1.0], [0.0]], [[math.cos(angle)], [math.sin(angle)]]])
    assert overlaps(line)[0, 1].item() == pytest.approx(math.cos(angle) ** 2)
    plane = torch.eye(3)[:, :2][None]
    assert overlaps(plane)[0, 0].item() == pytest.approx(1)


def test_as_the_function_for_two():
    generator = torch.Generator().manual_seed(1)
    W_V, W_O = torch.randn(1, 3, D_MODEL, D_HEAD, generator=generator), torch.randn(1, 3, D_HEAD, D_MODEL, generator=generator)
    weights = model(((0, 1), (2, 3)))
    weights = Weights(weights.W_E, weights.W_pos, W_V, W_V, W_V, W_O, weights.W_U)
    read, write = (overlaps(bases(weights, side)) for side in overlap.SIDES)
    parts = [read_write_subspaces(weights, 0, h) for h in range(3)]
    for i, a in enumerate(parts):
        for j, b in enumerate(parts):
            assert read[i, j].item() == pytest.approx(overlap_of_two(a.read, b.read), abs=1e-5)
            assert write[i, j].item() == pytest.approx(overlap_of_two(a.write, b.write), abs=1e-5)


def test_pairs_come_once_and_without_the_diagonal():
    matrix = torch.arange(16.0).view(4, 4)
    assert between_pairs(matrix, [3, 0, 1]).tolist() == [1, 3, 7]
    for heads in ([], [2], [2, 2]):
        with pytest.raises(ValueError, match="at least two"):
            between_pairs(matrix, heads)


def test_expectation_at_random():
    found = between_pairs(overlaps(random_bases(60, 48, 6)), range(60))
    error = (found.mean() - 6 / 48).abs()
    assert error < 4 * found.std() / len(found) ** 0.5


def test_mixtures_of_few_dimensions_overlap_more():
    shape = torch.diag(torch.tensor([1.0] * 8 + [0.01] * 40))
    free, mixed = (between_pairs(overlaps(random_bases(20, 48, 2, s)), range(20)).mean() for s in (None, shape))
    assert overlap.effective_dimensions(shape) == pytest.approx(8, abs=0.1)
    assert free.item() == pytest.approx(2 / 48, abs=0.01)
    assert mixed.item() == pytest.approx(2 / 8, abs=0.05)


def test_random_bases_are_a_matter_of_the_seed_alone():
    before = torch.random.get_rng_state()
    assert torch.equal(random_bases(2, 6, 2), random_bases(2, 6, 2))
    assert not torch.equal(random_bases(2, 6, 2), random_bases(2, 6, 2, seed=1))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_root_covariance():
    weights = model(((0, 1), (2, 3)))
    root = overlap.root_covariance(weights, "read")
    assert torch.allclose(root, root.T, atol=1e-5)
    assert torch.allclose(root @ root, torch.cov(weights.W_E.T, correction=0), atol=1e-4)
    often = torch.zeros(WORDS)
    often[:3] = torch.tensor([1.0, 2, 1])
    weighted = overlap.root_covariance(weights, "write", often)
    vectors = weights.W_U.T[[0, 1, 1, 2]]
    assert torch.allclose(weighted @ weighted, torch.cov(vectors.T, correction=0), atol=1e-4)
    with pytest.raises(ValueError, match="frequencies of 2"):
        overlap.root_covariance(weights, "read", torch.ones(2))


def test_shared_directions():
    shares, directions = overlap.shared_directions(bases(model(((0, 1), (4, 5)), ((0, 2), (6, 7))), "read"))
    assert shares[0].item() == pytest.approx(1, abs=1e-5)  # dimension 0 is in both
    assert directions[0, 0].abs().item() == pytest.approx(1, abs=1e-5)
    assert shares.sum().item() == pytest.approx(D_HEAD, abs=1e-5)
    assert torch.allclose(shares[1:3], torch.tensor([0.5, 0.5]), atol=1e-5)


def test_same_subspaces_need_not_be_the_same_map():
    weights = model(((0, 1), (4, 5)), ((0, 1), (5, 4)), ((0, 1), (4, 5)), ((2, 3), (4, 5)))
    cosine = overlap.same_map(weights)
    assert torch.allclose(overlaps(bases(weights, "write"))[0], torch.ones(4), atol=1e-5)
    assert torch.allclose(cosine[0], torch.tensor([1.0, 0, 1, 0]), atol=1e-5)


def test_same_map_has_a_sign_and_is_that_of_the_whole_matrices():
    weights = model(((0, 1), (4, 5)), ((0, 2), (4, 6)))
    weights.W_V[0, 1] *= -3
    OV = (weights.W_V[0] @ weights.W_O[0]).flatten(1)
    expected = torch.nn.functional.cosine_similarity(OV[0], OV[1], dim=0)
    assert overlap.same_map(weights)[0, 1].item() == pytest.approx(expected.item(), abs=1e-6)
    assert expected < 0


def test_bad_input():
    weights = model(((0, 1), (2, 3)))
    with pytest.raises(ValueError, match="'read' and 'write'"):
        bases(weights, "left")
    with pytest.raises(ValueError, match="'read' and 'write'"):
        overlap.root_covariance(weights, "left")
    with pytest.raises(ValueError, match="no layer 1"):
        bases(weights, "read", layer=1)
    with pytest.raises(ValueError, match="no layer 1"):
        overlap.same_map(weights, layer=1)
    with pytest.raises(ValueError, match="orthonormal"):
        overlaps(2 * torch.eye(3)[None])
    for shape in ((0, 4, 2), (1, 4, 0), (1, 4, 5)):
        with pytest.raises(ValueError, match="at least one subspace"):
            random_bases(*shape)


def test_figures():
    matrix = torch.tensor([[1.0, 0.3, 0.1], [0.3, 1, 0.2], [0.1, 0.2, 1]])
    fig = figures.overlap_maps({"read": matrix, "write": matrix}, 0.1, ["0.0", "0.1", "0.2"], framed=2, faint=[1])
    assert [label.get_text() for label in fig.axes[0].get_xticklabels()] == ["0.0", "(0.1)", "0.2"]
    shown = fig.axes[0].images[0].get_array()
    assert shown[0, 1] == pytest.approx(3) and math.isnan(shown.data[0, 0])
    pairs = {"read": between_pairs(matrix, range(3)), "write": between_pairs(matrix, range(3))}
    fig = figures.overlap_pairs({"all": pairs}, 0.1, 0.01, pairs, {"twice random": 0.2})
    assert len(fig.axes) == 2
    with pytest.raises(ValueError, match="2 names"):
        figures.overlap_maps({"read": matrix}, 0.1, ["0.0", "0.1"], framed=1)
    with pytest.raises(ValueError, match="no pairs"):
        figures.overlap_pairs({}, 0.1, 0.01, pairs, {})
