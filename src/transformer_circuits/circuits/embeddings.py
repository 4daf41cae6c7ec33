"""Which directions of the residual stream the embedding and the unembedding use (claim O7).

A head's own subspaces need no code: `model.OV[layer, head].svd()` gives where it reads (U), how much (S) and where it writes (V).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


def spectrum(vectors: Float[Tensor, "vector d_model"]) -> Float[Tensor, " d_model"]:
    """Return the share of the vectors' variance along each principal direction, largest first."""
    deviations = vectors - vectors.mean(dim=0)
    variances = torch.linalg.eigvalsh(deviations.T @ deviations).flip(0).clamp(min=0)
    return variances / variances.sum()


class JointSpectrum(NamedTuple):
    """Shares of the variance of two sets of vectors along their joint principal directions; each adds up to one."""

    first: Float[Tensor, " direction"]
    second: Float[Tensor, " direction"]

    @property
    def part(self) -> Float[Tensor, " direction"]:
        """1 if only the first set uses this direction, 0 if only the second does, 0.5 if both use it equally."""
        return self.first / (self.first + self.second)


def joint_spectrum(first: Float[Tensor, "a d_model"], second: Float[Tensor, "b d_model"]) -> JointSpectrum:
    """Return the joint PCA of two sets of vectors, each centered and scaled to total variance one; the directions of most variance first."""
    sets = [vectors - vectors.mean(dim=0) for vectors in (first, second)]
    sets = [vectors / vectors.norm() for vectors in sets]
    directions = torch.linalg.eigh(sum(vectors.T @ vectors for vectors in sets)).eigenvectors.flip(1)
    return JointSpectrum(*((vectors @ directions).square().sum(dim=0) for vectors in sets))
