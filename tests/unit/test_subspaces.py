"""Overlaps of known subspaces, of random ones, and what a change of coordinates leaves alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from transformer_circuits.circuits.subspaces import between_pairs, overlaps, root_covariance, same_map


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_overlaps_of_known_subspaces() -> None:
    axes = torch.eye(6, dtype=torch.float64)
    # One axis at 45 degrees, one orthogonal.
    turned = torch.stack([(axes[0] + axes[2]) / 2**0.5, axes[5]], dim=1)
    found = overlaps(torch.stack([axes[:, :2], axes[:, 2:4], axes[:, [1, 0]], turned]))
    expected = [[1, 0, 1, 0.25], [0, 1, 0, 0.25], [1, 0, 1, 0.25], [0.25, 0.25, 0.25, 1]]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))
    assert between_pairs(found).tolist() == pytest.approx([0, 1, 0.25, 0, 0.25, 0.25])


def test_random_subspaces_overlap_by_their_share_of_the_dimensions_and_mixtures_of_few_by_more() -> None:
    noise = random(40, 48, 8)
    assert between_pairs(overlaps(noise)).mean().item() == pytest.approx(8 / 48, rel=0.03)
    root = root_covariance(random(500, 48, seed=1) * torch.logspace(0, -2, 48, dtype=torch.float64))
    assert between_pairs(overlaps(root @ noise)).mean() > 2 * 8 / 48


def test_root_covariance_is_a_root_of_the_centered_covariance() -> None:
    vectors = random(30, 5) + 3
    root = root_covariance(vectors)
    torch.testing.assert_close(root @ root, torch.cov(vectors.T, correction=0))
    torch.testing.assert_close(root, root.T)


def test_same_map_is_the_cosine_of_the_products() -> None:
    V, O = random(3, 7, 2), random(3, 2, 7, seed=1)
    flat = (V @ O).flatten(1)
    expected = torch.cosine_similarity(flat[:, None], flat[None], dim=-1)
    torch.testing.assert_close(same_map(V, O), expected)


def test_overlaps_over_tokens_do_not_depend_on_the_streams_coordinates() -> None:
    W_E, W_V = random(30, 8), random(3, 8, 2, seed=1)
    S = torch.eye(8) + 0.3 * random(8, 8, seed=2)
    other = torch.linalg.solve(S, W_V)  # W_E S reads like W_E, S^-1 W_V like W_V
    found, expected = overlaps(root_covariance(W_E @ S) @ other), overlaps(root_covariance(W_E) @ W_V)
    torch.testing.assert_close(found, expected)
    assert (overlaps(other) - overlaps(W_V)).abs().max() > 1e-2  # those in the stream do
