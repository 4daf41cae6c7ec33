"""Does a head copy? Measures of its OV circuit W_E W_OV W_U [source token, out token], and its eigenvectors.

Paper: "Copying / Primitive In-Context Learning" and "Summarizing OV/QK Matrices" (claims E1, E4, E6, E7).
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens import FactoredMatrix

from transformer_circuits.circuits.factored import ranks


class SelfBoost(NamedTuple):
    """The fraction of tokens that raise themselves through a circuit, in three senses (claim E4)."""

    positive: float  # the token's own entry is above zero
    top_k: float  # it is among the k largest of its row; equal entries share a rank
    top_1: float  # it is the largest of its row


def self_boost(circuit: FactoredMatrix, k: int = 10) -> SelfBoost:
    tokens = torch.arange(circuit.ldim, device=circuit.A.device)
    own, larger = (circuit.A * circuit.B.T).sum(dim=-1), ranks(circuit, tokens, tokens)
    return SelfBoost(*(found.float().mean().item() for found in (own > 0, larger < k, larger == 0)))


def boost_within(circuit: FactoredMatrix, sets: Int[Tensor, "set k"]) -> Float[Tensor, " set"]:
    """Return for each set the mean entry between different tokens, in standard deviations of all entries (claim E6)."""
    k, n = sets.shape[-1], circuit.ldim * circuit.rdim
    A, B = circuit.A.double(), circuit.B.double()
    blocks = A[sets] @ B.T[sets].mT  # [set, k, k]
    own = blocks.diagonal(dim1=-2, dim2=-1).sum(-1)
    variance = ((A.T @ A) * (B @ B.T)).sum() / n - (A.sum(0) @ B.sum(1) / n) ** 2
    return (blocks.sum((-2, -1)) - own) / (k * (k - 1)) / variance.sqrt()
