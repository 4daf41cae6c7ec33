"""The QK and OV circuits of a head, kept as products of thin factors.

Paper: "Splitting Attention Head terms into Query-Key and Output-Value Circuits". Row-vector convention:

    OV circuit   W_E W_V W_O W_U        [source token, out token]           the paper's W_U W_OV W_E, transposed
    QK circuit   W_E W_Q W_K^T W_E^T    [destination token, source token]   scores divide it by sqrt(d_head)

Each has rank d_head at most: the factors are d_vocab by d_head, and the product is never formed. TransformerLens's
`FactoredMatrix` holds the factors; it is used here for two-dimensional matrices only, because indexing its leading
dimensions has open bugs, and its own products may multiply out (`@` does so when the inner dimension is not the smaller
one).
"""

from __future__ import annotations

import torch
from jaxtyping import Complex, Float
from torch import Tensor
from transformer_lens import FactoredMatrix

from transformer_circuits.circuits.factored import diagonal
from transformer_circuits.circuits.paths import Path
from transformer_circuits.circuits.weights import Weights


def ov(weights: Weights, layer: int, head: int) -> FactoredMatrix:
    """W_V W_O, [d_model, d_model]: what the head writes for each direction that it reads.

    Raises ValueError for a head that does not exist, as all functions here do.
    """
    weights.check_head(layer, head)
    return FactoredMatrix(weights.W_V[layer, head], weights.W_O[layer, head])


def qk(weights: Weights, layer: int, head: int) -> FactoredMatrix:
    """W_Q W_K^T, [d_model at the destination, d_model at the source], not divided by sqrt(d_head)."""
    weights.check_head(layer, head)
    return FactoredMatrix(weights.W_Q[layer, head], weights.W_K[layer, head].T)


def full_ov(weights: Weights, layer: int, head: int) -> FactoredMatrix:
    """W_E W_V W_O W_U, [source token, out token]: how attending to a token changes every logit."""
    circuit = ov(weights, layer, head)
    return FactoredMatrix(weights.W_E @ circuit.A, circuit.B @ weights.W_U)


def full_qk(weights: Weights, layer: int, head: int) -> FactoredMatrix:
    """W_E W_Q W_K^T W_E^T, [destination token, source token]: which tokens want to attend to which."""
    circuit = qk(weights, layer, head)
    return FactoredMatrix(weights.W_E @ circuit.A, circuit.B @ weights.W_E.T)


def direct(weights: Weights) -> FactoredMatrix:
    """W_E W_U, [present token, out token]: the direct path."""
    return FactoredMatrix(weights.W_E, weights.W_U)


def full_path(weights: Weights, path: Path) -> FactoredMatrix:
    """W_E W_OV^h1 ... W_OV^hk W_U, [source token, out token]: the OV circuit of a path, or of a virtual head.

    Raises ValueError if a head does not exist or the layers do not increase along the path.
    """
    if any(first[0] >= second[0] for first, second in zip(path, path[1:])):
        raise ValueError(f"a path passes from earlier to later layers, not {path}")
    left, right = weights.W_E, None
    for layer, head in path:
        circuit = ov(weights, layer, head)
        left = (left if right is None else left @ right) @ circuit.A  # d_vocab by d_head at every step
        right = circuit.B
    return FactoredMatrix(left, weights.W_U if right is None else right @ weights.W_U)


def eigenvalues(matrix: FactoredMatrix) -> Complex[Tensor, " inner"]:
    """The eigenvalues of A B that can differ from zero, computed as those of B A (claim E5), in no particular order.

    B A is only as large as the inner dimension. Half precision is computed in single. Raises ValueError if the
    matrix is not square.
    """
    if matrix.ldim != matrix.rdim:
        raise ValueError(f"only a square matrix has eigenvalues, this one is {matrix.ldim} by {matrix.rdim}")
    A, B = at_least_single(matrix).pair
    return torch.linalg.eigvals(B @ A)


def at_least_single(matrix: FactoredMatrix) -> FactoredMatrix:
    """The same matrix, with half precision turned into single: linear algebra routines take nothing narrower."""
    if matrix.A.dtype in (torch.float16, torch.bfloat16):
        return FactoredMatrix(matrix.A.float(), matrix.B.float())
    return matrix


def matched_difference(values: Complex[Tensor, " inner"], others: Complex[Tensor, " inner"]) -> float:
    """The largest difference between two lists of eigenvalues, matched one to one, over the largest of `others`.

    Each value in turn, largest first, takes the nearest one that is left. Raises ValueError for lists of different lengths,
    and if there is no eigenvalue other than zero to compare with.
    """
    if values.shape != others.shape:
        raise ValueError(f"{len(values)} and {len(others)} eigenvalues cannot be matched one to one")
    if not others.any():
        raise ValueError("there must be at least one eigenvalue other than zero to measure a difference against")
    left, worst = others.clone(), 0.0
    for value in values[values.abs().argsort(descending=True)]:
        distances = (left - value).abs()
        worst = max(worst, distances.min().item())
        left = torch.cat([left[: distances.argmin()], left[distances.argmin() + 1 :]])
    return worst / others.abs().max().item()


def positivity(values: Complex[Tensor, "*batch inner"]) -> Float[Tensor, "*batch"]:
    """Sum of the eigenvalues' real parts over the sum of their moduli: 1 if all are positive, -1 if all are negative.

    (The imaginary parts of a real matrix's eigenvalues cancel in the sum.) NaN for a matrix whose eigenvalues are all zero.
    """
    return values.real.sum(dim=-1) / values.abs().sum(dim=-1)


def trace(matrix: FactoredMatrix) -> Float[Tensor, ""]:
    """Sum of the diagonal of A B, which is never formed (claim E3). Raises ValueError if the matrix is not square."""
    if matrix.ldim != matrix.rdim:
        raise ValueError(f"only a square matrix has a trace, this one is {matrix.ldim} by {matrix.rdim}")
    return diagonal(matrix).sum()
