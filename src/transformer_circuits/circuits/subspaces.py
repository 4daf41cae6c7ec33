"""Which parts of the residual stream are read and written, and by whom.

Paper: "Virtual Weights and the Residual Stream as a Communication Channel", "Subspaces and Residual Stream Bandwidth",
and the appendix on low-rank matrices.
"""

from __future__ import annotations

import dataclasses

import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens import FactoredMatrix

from transformer_circuits.circuits.qk_ov import at_least_single, ov
from transformer_circuits.circuits.weights import Weights

Writer = tuple[int, int] | str  # (layer, head) or "embed"
Reader = tuple[int, int, str] | str  # (layer, head, "Q" | "K" | "V") or "unembed"


def svd(
    matrix: FactoredMatrix,
) -> tuple[Float[Tensor, "left inner"], Float[Tensor, " inner"], Float[Tensor, "right inner"]]:
    """(U, S, V) with A B = U diag(S) V^T, through QR of the thin factors (claim E5).

    A = Q_A R_A and B^T = Q_B R_B, so A B = Q_A (R_A R_B^T) Q_B^T, and only the small middle needs an SVD. Half precision
    is computed in single.
    """
    A, B = at_least_single(matrix).pair
    Q_A, R_A = torch.linalg.qr(A)
    Q_B, R_B = torch.linalg.qr(B.T)
    U, S, Vh = torch.linalg.svd(R_A @ R_B.T, full_matrices=False)
    return Q_A @ U, S, Q_B @ Vh.T


def frobenius_norm(matrix: FactoredMatrix) -> Float[Tensor, ""]:
    """Square root of the sum of squared entries of A B, from two small Gram matrices: |A B|^2 = tr((A^T A) (B B^T)).

    Half precision is computed in single. Squares take half of the digits where A B all but cancels: then use `svd`.
    """
    A, B = at_least_single(matrix).pair
    return ((A.T @ A) * (B @ B.T)).sum().clamp(min=0).sqrt()


@dataclasses.dataclass(frozen=True)
class Subspaces:
    """A head's W_OV by singular value: along `read[:, i]` it reads, times `gain[i]` it writes along `write[:, i]`.

    Row vectors: x W_OV = sum_i (x . read_i) gain_i write_i. The paper's W_OV is the transpose, so its right singular
    vectors read and its left ones write.
    """

    read: Float[Tensor, "d_model d_head"]
    gain: Float[Tensor, " d_head"]
    write: Float[Tensor, "d_model d_head"]


def read_write_subspaces(weights: Weights, layer: int, head: int) -> Subspaces:
    """The subspaces that a head moves information from and to (claim O6); at most d_head dimensions each.

    Raises ValueError for a head that does not exist.
    """
    return Subspaces(*svd(ov(weights, layer, head)))


def overlap(first: Float[Tensor, "d_model a"], second: Float[Tensor, "d_model b"]) -> float:
    """Mean squared cosine of the principal angles between two subspaces given by orthonormal columns.

    1: one contains the other; 0: orthogonal. Two random ones have max(a, b) / d_model on average.
    """
    return ((first.T @ second).square().sum() / min(first.shape[1], second.shape[1])).item()


def virtual_weights(weights: Weights, writer: Writer, reader: Reader) -> FactoredMatrix:
    """The implicit weights W_out W_in between two components that share only the residual stream (claim O5).

    Writers: "embed" (W_E) or (layer, head) (its W_O). Readers: "unembed" (W_U) or (layer, head, "Q" | "K" | "V").
    Shape [what the writer has, what the reader computes]. Raises ValueError for a component that does not exist, or a
    reader that comes before the writer.
    """
    written_by, read_by = -1, weights.n_layers
    if writer == "embed":
        W_out = weights.W_E
    elif isinstance(writer, tuple) and len(writer) == 2:
        weights.check_head(*writer)
        written_by, W_out = writer[0], weights.W_O[writer]
    else:
        raise ValueError(f"a writer is 'embed' or (layer, head), not {writer!r}")
    if reader == "unembed":
        W_in = weights.W_U
    elif isinstance(reader, tuple) and len(reader) == 3 and reader[2] in ("Q", "K", "V"):
        layer, head, part = reader
        weights.check_head(layer, head)
        read_by, W_in = layer, getattr(weights, f"W_{part}")[layer, head]
    else:
        raise ValueError(f"a reader is 'unembed' or (layer, head, 'Q' | 'K' | 'V'), not {reader!r}")
    if read_by <= written_by:
        raise ValueError(f"layer {read_by} cannot read what layer {written_by} writes after it or beside it")
    return FactoredMatrix(W_out, W_in)


def spectrum(vectors: Float[Tensor, "vector d_model"]) -> Float[Tensor, " d_model"]:
    """PCA: the share of the vectors' variance along each principal direction, largest first (claim O7).

    Raises ValueError if the vectors are all the same, which leaves no variance to share.
    """
    deviations = vectors - vectors.mean(dim=0)
    variances = torch.linalg.eigvalsh(deviations.T @ deviations).flip(0).clamp(min=0)
    if not variances.any():
        raise ValueError("the vectors are all the same: there is no variance whose directions could be found")
    return variances / variances.sum()


def dimensions_for(shares: Float[Tensor, " d_model"], part: float = 0.9) -> int:
    """How many leading principal directions hold `part` of the variance. Raises ValueError unless 0 < part <= 1."""
    if not 0 < part <= 1:
        raise ValueError(f"the part of the variance is above 0 and at most 1, not {part}")
    return min(int((shares.cumsum(0) < part).sum()) + 1, len(shares))  # rounding may leave the whole sum below 1


@dataclasses.dataclass(frozen=True)
class JointSpectrum:
    """Principal directions of W_E and W_U together, each first scaled to total variance one."""

    directions: Float[Tensor, "d_model direction"]
    embed: Float[Tensor, " direction"]  # share of W_E's variance along each direction; adds up to one
    unembed: Float[Tensor, " direction"]  # share of W_U's variance along each direction; adds up to one

    @property
    def embed_part(self) -> Float[Tensor, " direction"]:
        """1: only the embedding uses this direction; 0: only the unembedding; 0.5: both alike."""
        return self.embed / (self.embed + self.unembed)


def joint_spectrum(weights: Weights) -> JointSpectrum:
    """Joint PCA of the rows of W_E and the columns of W_U, centered and normalized (claim O7)."""
    W_E = weights.W_E - weights.W_E.mean(dim=0)
    W_U = weights.W_U.T - weights.W_U.mean(dim=1)
    W_E, W_U = W_E / W_E.norm(), W_U / W_U.norm()
    _, directions = torch.linalg.eigh(W_E.T @ W_E + W_U.T @ W_U)
    directions = directions.flip(1)
    return JointSpectrum(directions, (W_E @ directions).square().sum(dim=0), (W_U @ directions).square().sum(dim=0))
