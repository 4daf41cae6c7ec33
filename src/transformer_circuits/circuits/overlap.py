"""Do heads share what they read, and where they write? Overlaps of subspaces, and what to compare them with.

Paper: where it wonders about copying heads that share part of their OV matrices, and talking-heads attention (claim W10).
What a head reads is the span of the columns of W_V, where it writes the span of the rows of W_O: d_head dimensions each, if
both have full rank.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor

from transformer_circuits.circuits.weights import Weights

SIDES = ("read", "write")


def bases(weights: Weights, side: str, layer: int = 0, tokens: bool = False) -> Float[Tensor, "head d_model d_head"]:
    """Orthonormal bases of what each head of a layer reads, or where it writes.

    Angles in the residual stream depend on its coordinates, which the model does not fix. With `tokens` they are those of
    functions on the vocabulary, which it does: W_E W_V of the head, one number a source token and dimension, or W_O W_U, one
    a dimension and out token, both less their mean over tokens. Whatever invertible change of coordinates is made in the
    stream, these stay.
    Raises ValueError for another side or layer.
    """
    weights.check_head(layer, 0)
    if side not in SIDES:
        raise ValueError(f"a head has the sides 'read' and 'write', not {side!r}")
    spans = weights.W_V[layer] if side == "read" else weights.W_O[layer].mT
    return torch.linalg.qr(root_covariance(weights, side) @ spans if tokens else spans)[0]


def root_covariance(
    weights: Weights, side: str, frequency: Float[Tensor, " token"] | None = None
) -> Float[Tensor, "d_model d_model"]:
    """Symmetric square root of the covariance, over tokens, of their embeddings ("read") or unembeddings ("write").

    Tokens count alike, or by `frequency`. Raises ValueError for another side, or frequencies that are not of all tokens.
    """
    if side not in SIDES:
        raise ValueError(f"a head has the sides 'read' and 'write', not {side!r}")
    vectors = (weights.W_E if side == "read" else weights.W_U.T).double()
    if frequency is not None and len(frequency) != len(vectors):
        raise ValueError(f"there are {len(vectors)} tokens, but frequencies of {len(frequency)}")
    share = vectors.new_ones(len(vectors)) if frequency is None else frequency.to(vectors)
    share = share / share.sum()
    centred = vectors - share @ vectors
    values, directions = torch.linalg.eigh(centred.T @ (share[:, None] * centred))
    return (directions * values.clamp(min=0).sqrt() @ directions.T).to(weights.W_E.dtype)


def overlaps(
    first: Float[Tensor, "a d_model d_head"], second: Float[Tensor, "b d_model d_head"] | None = None
) -> Float[Tensor, "a b"]:
    """Mean squared cosine between subspaces, all pairs: `subspaces.overlap` at once (claim W10).

    Squared Frobenius norm of the product of the two orthonormal bases, over d_head. 1: the same subspace, 0: orthogonal. Two
    random ones have d_head / d_model on average, exactly. Raises ValueError for bases that are not orthonormal.
    """
    second = first if second is None else second
    for B in (first, second):
        eye = torch.eye(B.shape[-1], dtype=B.dtype, device=B.device)
        if (B.mT @ B - eye).abs().max() > 1e-3:
            raise ValueError("the columns of each basis must be orthonormal: take those of `bases`, or of torch.linalg.qr")
    cosines = torch.einsum("ami,bmj->abij", first, second)
    return cosines.square().sum(dim=(-2, -1)) / first.shape[-1]


def between_pairs(matrix: Float[Tensor, "head head"], heads: Iterable[int]) -> Float[Tensor, " pair"]:
    """The entries of all pairs of different heads among these, each once. Raises ValueError for fewer than two."""
    chosen = sorted(set(heads))
    if len(chosen) < 2:
        raise ValueError(f"pairs need at least two heads, not {chosen}")
    block = matrix[chosen][:, chosen]
    i, j = torch.triu_indices(len(chosen), len(chosen), offset=1, device=matrix.device)
    return block[i, j]


def random_bases(
    n_heads: int, d_model: int, d_head: int, shape: Float[Tensor, "d_model d_model"] | None = None, seed: int = 0
) -> Float[Tensor, "head d_model d_head"]:
    """Bases of random subspaces: no direction preferred, or spanned by Gaussian vectors multiplied by `shape`.

    With `root_covariance(weights, "read")` as `shape` the subspaces are spanned by random mixtures of the tokens' embeddings.
    Gradient descent adds to the columns of W_V nothing but mixtures of what came in, so that heads with nothing in common
    would still overlap like these.
    Raises ValueError unless 1 <= d_head <= d_model and there is a head.
    """
    if n_heads < 1 or not 1 <= d_head <= d_model:
        raise ValueError(f"there must be at least one subspace of 1 to {d_model} dimensions, not {n_heads} of {d_head}")
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(n_heads, d_model, d_head, generator=generator, dtype=torch.float64)
    if shape is not None:
        drawn = shape.to(drawn) @ drawn
    return torch.linalg.qr(drawn)[0].float()


def effective_dimensions(root: Float[Tensor, "d_model d_model"]) -> float:
    """Participation ratio of a covariance, given by its root: (sum of variances)^2 / sum of squared variances.

    d if d directions share the variance evenly. Two subspaces of k dimensions, each spanned by random mixtures of such
    vectors, overlap by about k over this number as long as k is far below it.
    """
    variances = torch.linalg.eigvalsh(root.double()).square()
    return (variances.sum().square() / variances.square().sum()).item()


def shared_directions(
    bases: Float[Tensor, "head d_model d_head"],
) -> tuple[Float[Tensor, " direction"], Float[Tensor, "d_model direction"]]:
    """(shares, directions): the directions that lie most in all of these subspaces, first the most shared.

    A share is the mean squared cosine between the direction and the subspaces, 1 if it lies in every one; all shares add up
    to d_head.
    """
    n, d_model, d_head = bases.shape
    flat = bases.movedim(0, 1).reshape(d_model, n * d_head)
    directions, values, _ = torch.linalg.svd(flat.double(), full_matrices=False)
    return (values.square() / n).to(bases.dtype), directions.to(bases.dtype)


def same_map(weights: Weights, layer: int = 0, tokens: bool = False) -> Float[Tensor, "head head"]:
    """Cosine between the OV matrices of all heads of a layer, as vectors of d_model^2 numbers (claim W10, beside it).

    Two heads can read from one subspace and write to one, and still connect the two in another way. This asks for the same map:
    <M, M'> / (|M| |M'|), at random 0 with a standard deviation of about 1 / d_model. With `tokens` it is the cosine of the OV
    circuits over the vocabulary, less the means over source and out tokens. Raises ValueError for a layer that does not
    exist.
    """
    weights.check_head(layer, 0)
    V, O = weights.W_V[layer].double(), weights.W_O[layer].double()
    if tokens:
        V, O = root_covariance(weights, "read").double() @ V, O @ root_covariance(weights, "write").double()
    # <V O, V' O'> = sum over ij of (V^T V')_ij (O O'^T)_ij: d_head x d_head for each pair, never d_model x d_model
    inner = (torch.einsum("ami,bmj->abij", V, V) * torch.einsum("aim,bjm->abij", O, O)).sum(dim=(-2, -1))
    norm = inner.diagonal().sqrt()
    return (inner / norm[:, None] / norm).to(weights.W_E.dtype)
