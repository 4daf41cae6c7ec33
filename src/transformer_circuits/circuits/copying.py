"""Does a head copy? Measures of its OV circuit beside the eigenvalues, what chance gives, and what eigenvectors hold.

Paper: "Copying / Primitive In-Context Learning" and "Summarizing OV/QK Matrices" (claims E1, E2, E4, E6). A circuit is
W_E W_OV W_U, [source token, out token], as a FactoredMatrix: `(model.W_E @ model.OV @ model.W_U)[layer, head]`. Entries are logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor
from transformer_lens import FactoredMatrix
from transformer_lens.model_bridge import TransformerBridge

from transformer_circuits.circuits.factored import entries, ranks
from transformer_circuits.models.architecture import Transformer
from transformer_circuits.models.bridge import wrap


class SelfBoost(NamedTuple):
    """What share of tokens a circuit lets raise themselves, in three ways (claim E4). Each is between 0 and 1."""

    positive: float  # the token's own entry is above zero
    top_k: float  # it is among the k largest of its row
    top_1: float  # it is the largest of its row


def self_boost(circuit: FactoredMatrix, k: int = 10) -> SelfBoost:
    """How often a token raises itself, is among the k that it raises most, and is the one that it raises most (claim E4).

    Of equal entries none is larger than the other. Raises ValueError unless the circuit is square and 1 <= k <= d_vocab.
    """
    if circuit.ldim != circuit.rdim or not 0 < k <= circuit.rdim:
        raise ValueError(f"this takes a square circuit and k from 1 to its size, not {circuit.ldim} by {circuit.rdim} and {k}")
    tokens = torch.arange(circuit.ldim, device=circuit.A.device)
    own, larger = entries(circuit, tokens, tokens), ranks(circuit, tokens, tokens)
    return SelfBoost(*(found.float().mean().item() for found in (own > 0, larger < k, larger == 0)))


# ---- what chance gives ---------------------------------------------------------------------------------------------------


def ginibre(n_matrices: int, size: int, seed: int = 0) -> Complex[Tensor, "matrix size"]:
    """Eigenvalues of real matrices with independent standard normal entries (the real Ginibre ensemble).

    They fill a disk of radius sqrt(size). Their positivity is 0 with a standard deviation of about 1.5 / size: the trace
    is normal with variance `size`, and the moduli average two thirds of the radius.
    """
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.eigvals(torch.randn(n_matrices, size, size, generator=generator))


def untrained(like: Any, seed: int) -> TransformerBridge:
    """A model of the same shape as it is before training, from this seed (claim E2). The global random state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Transformer(like.original_model.config)
    return wrap(model.to(like.W_E).requires_grad_(False))


# ---- what eigenvectors hold ----------------------------------------------------------------------------------------------


class Eigenvectors(NamedTuple):
    """Positive real eigenvalues, largest first, and their vectors over the vocabulary, of length one."""

    values: Float[Tensor, " vector"]
    vectors: Float[Tensor, "vector token"]


def leading_eigenvectors(circuit: FactoredMatrix, n: int = 10) -> Eigenvectors:
    """The n largest positive real eigenvalues, fewer where there are not so many, with u M = lambda u (claim E6).

    u is a mixture of source tokens that raises the logits of that same mixture. With M = A B it is u = w B, w (B A) = lambda w: a
    small problem, here in double precision. (Rows are sources: this is the eigenvector of the paper's W_U W_OV W_E, which is M
    transposed; those of `circuit.T` say which tokens do the raising.)
    The sign, which means nothing, makes the entry of largest modulus positive.
    """
    values, vectors = torch.linalg.eig((circuit.B.double() @ circuit.A.double()).cpu().T)
    real = ((values.imag == 0) & (values.real > 0)).nonzero()[:, 0]  # LAPACK: an imaginary part of exactly zero
    real = real[values.real[real].argsort(descending=True)][:n]
    lifted = vectors.real.T[real].to(circuit.B.device) @ circuit.B.double()
    lifted = lifted / lifted.gather(1, lifted.abs().argmax(1, keepdim=True)).sign() / lifted.norm(dim=1, keepdim=True)
    return Eigenvectors(values.real[real].to(lifted.device), lifted)


def token_sets(vectors: Float[Tensor, "vector token"], k: int = 10) -> Int[Tensor, "set k"]:
    """For each vector the k tokens with its largest entries, and the k with its most negative ones: two sets a vector."""
    return torch.stack([vectors, -vectors], dim=1).flatten(0, 1).topk(k).indices


def boost_within(circuit: FactoredMatrix, sets: Int[Tensor, "set k"]) -> Float[Tensor, " set"]:
    """For each set the mean entry from one of its tokens to another, a token's own left out, in standard deviations of all entries.

    Those come from the factors alone: the entries' sum is (column sums of A) . (row sums of B), that of their squares the
    squared norm. (claim E6)
    """
    k, n = sets.shape[-1], circuit.ldim * circuit.rdim
    A, B = circuit.A.double(), circuit.B.double()
    blocks = A[sets] @ B.T[sets].mT  # [set, k, k]
    own = blocks.diagonal(dim1=-2, dim2=-1).sum(-1)
    variance = ((A.T @ A) * (B @ B.T)).sum() / n - (A.sum(0) @ B.sum(1) / n) ** 2
    return (blocks.sum((-2, -1)) - own) / (k * (k - 1)) / variance.sqrt()


def akin_pairs(sets: Int[Tensor, "set k"], akin: Sequence[frozenset[int]]) -> float:
    """The share of pairs of tokens within a set that are akin (`words.akin_to`), over all sets (claim E6)."""
    found = [b in akin[a] for row in sets.tolist() for i, a in enumerate(row) for b in row[i + 1 :]]
    return sum(found) / len(found)


def like_frequency(
    counts: Int[Tensor, " token"], tokens: Int[Tensor, "*shape"], seed: int = 0, within: int = 50
) -> Int[Tensor, "*shape"]:
    """For each token a random other one, at most `within` ranks of frequency away (claim E6's chance level).

    Raises ValueError if the vocabulary has not more than 2 * within tokens.
    """
    n = len(counts)
    if n <= 2 * within:
        raise ValueError(f"within must be below half of the {n} tokens, not {within}")
    by_rank = counts.cpu().argsort(descending=True, stable=True)
    own = by_rank.argsort()[tokens.cpu()]
    low = (own - within).clamp(0, n - 1 - 2 * within)  # the window of 2 * within + 1 ranks stays inside the vocabulary
    other = low + torch.randint(2 * within, own.shape, generator=torch.Generator().manual_seed(seed))
    return by_rank[other + (other >= own).long()].to(tokens.device)  # any but the token itself
