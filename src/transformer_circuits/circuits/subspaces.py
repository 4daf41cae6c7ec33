"""Do heads share what they read, and where they write? Overlaps of subspaces, and what to compare them with.

Paper: where it wonders about copying heads that share part of their OV matrices, and talking-heads attention (claim W10). What a head
reads is the span of the columns of W_V, where it writes the span of the rows of W_O.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def overlaps(spans: Float[Tensor, "*batch head d_model d_head"]) -> Float[Tensor, "*batch head head"]:
    """Mean squared cosine between the column spaces of all pairs of heads: |Q1^T Q2|^2 / d_head with orthonormal bases (claim W10).

    1: the same subspace, 0: orthogonal; random ones have d_head / d_model on average, exactly.
    """
    Q = torch.linalg.qr(spans).Q
    return torch.einsum("...ami,...bmj->...abij", Q, Q).square().sum(dim=(-2, -1)) / Q.shape[-1]


def between_pairs(matrix: Float[Tensor, "*batch head head"]) -> Float[Tensor, "*batch pair"]:
    """The entries of all pairs of different heads, each once."""
    i, j = torch.triu_indices(*matrix.shape[-2:], offset=1, device=matrix.device)
    return matrix[..., i, j]


def root_covariance(vectors: Float[Tensor, "token d_model"]) -> Float[Tensor, "d_model d_model"]:
    """Symmetric square root of the covariance of the tokens' embeddings, or unembeddings (`model.W_U.T`).

    Times Gaussian columns it gives random mixtures of tokens; times W_V, a head's reading side as functions on the vocabulary, whose
    angles do not depend on the stream's coordinates.
    """
    centered = vectors.double() - vectors.double().mean(dim=0)
    values, directions = torch.linalg.eigh(centered.T @ centered / len(centered))
    return (directions * values.clamp(min=0).sqrt() @ directions.T).to(vectors.dtype)


def same_map(
    W_V: Float[Tensor, "head d_model d_head"], W_O: Float[Tensor, "head d_head d_model"]
) -> Float[Tensor, "head head"]:
    """Cosine between the OV matrices W_V W_O of all heads, as vectors of d_model^2 numbers; at random about 0 +- 1 / d_model.

    Two heads can read from one subspace and write to one, and still connect the two in another way: this asks for the same map.
    """
    # <V O, V' O'> = sum over ij of (V^T V')_ij (O O'^T)_ij: d_head x d_head for each pair, never d_model x d_model
    products = torch.einsum("ami,bmj->abij", W_V, W_V) * torch.einsum("aim,bjm->abij", W_O, W_O)
    inner = products.sum(dim=(-2, -1))
    norm = inner.diagonal().sqrt()
    return inner / norm[:, None] / norm
