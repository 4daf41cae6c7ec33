"""Does a head copy? Measures of its OV circuit, what chance would give, and the sets of tokens that eigenvectors hold.

Paper: "Copying / Primitive In-Context Learning" and "Summarizing OV/QK Matrices" (claims E1, E2, E4, E6). A circuit is
W_E W_V W_O W_U, [source token, out token], as `qk_ov.full_ov` gives it: thin factors, never formed whole. Entries are logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor
from transformer_lens import FactoredMatrix

from transformer_circuits.circuits.factored import entries, ranks
from transformer_circuits.circuits.paths import Head, run
from transformer_circuits.circuits.qk_ov import full_ov
from transformer_circuits.circuits.subspaces import frobenius_norm
from transformer_circuits.circuits.weights import Weights
from transformer_circuits.models.architecture import ModelConfig, Transformer


class SelfBoost(NamedTuple):
    """What share of tokens a circuit lets raise themselves, in three ways (claim E4). Each is between 0 and 1."""

    positive: float  # the token's own entry is above zero
    top_1: float  # it is the largest of its row
    top_k: float  # it is among the k largest of its row


def ov_eigenvalues(weights: Weights) -> Complex[Tensor, "layer head d_head"]:
    """The eigenvalues of every head's OV circuit: `eigenvalues(full_ov(...))` for all of them at once (claim E1).

    The heads share the product W_U W_E, [d_model, d_model], and each adds W_O on its left and W_V on its right. In no
    particular order; half precision has to be made single first.
    """
    return torch.linalg.eigvals(weights.W_O @ (weights.W_U @ weights.W_E) @ weights.W_V)


def self_boost(circuit: FactoredMatrix, k: int = 10, tokens: Int[Tensor, " some"] | None = None) -> SelfBoost:
    """How often a token raises itself, raises itself most, and is among the k that it raises most (claim E4).

    Over all tokens, or over the source tokens named. Of equal entries none is larger than the other.
    Raises ValueError if the circuit is not square, if there are no tokens, or unless 1 <= k <= d_vocab.
    """
    if circuit.ldim != circuit.rdim:
        raise ValueError(f"only a square circuit has a diagonal, this one is {circuit.ldim} by {circuit.rdim}")
    if not 0 < k <= circuit.rdim:
        raise ValueError(f"k must be 1 to {circuit.rdim}, the size of the vocabulary, not {k}")
    tokens = torch.arange(circuit.ldim, device=circuit.A.device) if tokens is None else tokens
    if not len(tokens):
        raise ValueError("name at least one token, or leave `tokens` out for all of them")
    own, larger = entries(circuit, tokens, tokens), ranks(circuit, tokens, tokens)
    return SelfBoost(*(found.float().mean().item() for found in (own > 0, larger == 0, larger < k)))


def centered(circuit: FactoredMatrix) -> FactoredMatrix:
    """The circuit less the mean of each row: adding one number to all logits is nothing that softmax could see."""
    return FactoredMatrix(circuit.A, circuit.B - circuit.B.mean(dim=1, keepdim=True))


# What chance gives


def ginibre(n_matrices: int, size: int, seed: int = 0) -> Complex[Tensor, "matrix size"]:
    """Eigenvalues of real matrices with independent standard normal entries (the real Ginibre ensemble).

    They fill a disk of radius sqrt(size). Their positivity is 0 with a standard deviation of about 1.5 / size: the trace
    is normal with variance `size`, and the moduli average two thirds of the radius. Raises ValueError for no matrices.
    """
    if n_matrices < 1 or size < 1:
        raise ValueError(f"there must be at least one matrix of size 1, not {n_matrices} of size {size}")
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.eigvals(torch.randn(n_matrices, size, size, generator=generator))


def untrained(like: Weights, seed: int) -> Weights:
    """A one-layer model of the same shape as it is before training: made by `Transformer` itself, from this seed (claim E2).

    The global random state is left as it was. For a model trained elsewhere this is our initialization, not its own.
    """
    config = ModelConfig(
        n_layers=1, d_model=like.d_model, n_heads=like.n_heads, d_head=like.d_head, d_vocab=len(like.W_E), n_ctx=1
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Transformer(config)
    return Weights.of(model.to(like.W_E.device, like.W_E.dtype))


def mean_square_one(values: Complex[Tensor, "*batch inner"]) -> Complex[Tensor, "*batch inner"]:
    """Eigenvalues in units in which their moduli have a mean square of one, for each matrix by itself."""
    return values / values.abs().square().mean(dim=-1, keepdim=True).sqrt()


# Heads that look at the same places


def combined_ov(weights: Weights, heads: Sequence[Head]) -> FactoredMatrix:
    """The OV circuit of several heads with one attention pattern: the sum of theirs, of rank len(heads) d_head at most.

    Raises ValueError for a head that does not exist or comes twice, and for no heads.
    """
    if not heads or len(set(heads)) < len(heads):
        raise ValueError(f"name one or more different heads, not {list(heads)}")
    circuits = [full_ov(weights, layer, head) for layer, head in heads]
    return FactoredMatrix(torch.cat([c.A for c in circuits], dim=1), torch.cat([c.B for c in circuits], dim=0))


class Looks(NamedTuple):
    """Where the heads of a model look, averaged over text; heads in the order of `Weights.heads`."""

    start: Float[Tensor, " head"]  # share of attention on the first token, the start of text
    shared: Float[Tensor, "head head"]  # share of the remaining attention that two heads have in common


def looks(weights: Weights, windows: Int[Tensor, "window position"]) -> Looks:
    """Attention to the start of text, and how much of the rest each pair of heads shares: 2 sum min(A, A') / sum (A + A').

    1: the same pattern, 0: never the same place. The first token is left out, as source and as destination: heads rest on
    it when they find nothing, and would all be alike. Raises ValueError as `run` does, and for windows of a single token.
    """
    if windows.shape[-1] < 2:
        raise ValueError("a window needs at least two tokens: the first is left out")
    n = weights.n_layers * weights.n_heads
    start, total, common = (weights.W_E.new_zeros(shape) for shape in ((n,), (n,), (n, n)))
    for window in windows:
        patterns = run(weights, window).patterns.flatten(0, 1)[:, 1:]  # [head, destination, source]
        start += patterns[:, :, 0].mean(dim=1)
        rest = patterns[:, :, 1:].flatten(1)
        total += rest.sum(dim=1)
        common += torch.stack([torch.minimum(one, rest).sum(dim=1) for one in rest])
    return Looks(start / len(windows), 2 * common / (total[:, None] + total).clamp(min=torch.finfo(total.dtype).tiny))


# What eigenvectors hold


class Eigenvectors(NamedTuple):
    """Eigenvalues and vectors over the vocabulary, of length one, largest modulus first."""

    values: Complex[Tensor, " inner"] | Float[Tensor, " inner"]
    vectors: Complex[Tensor, "inner token"] | Float[Tensor, "inner token"]


def eigenvectors(circuit: FactoredMatrix, side: str = "out") -> Eigenvectors:
    """The eigenvectors of M = A B that belong to eigenvalues other than zero, from those of B A; in double precision.

    Row vectors leave two kinds. `side="out"`: u M = lambda u, a mixture of source tokens that raises the logits of that same
    mixture; u = w B with w (B A) = lambda w. These are the eigenvectors of the paper's W_U W_OV W_E, which is M transposed.
    `side="source"`: M v = lambda v with v = A x, (B A) x = lambda x; v_i is how much source token i stirs that mixture.
    Length one is chosen; the sign (of a complex vector the phase) means nothing. Raises ValueError for another side, or a
    circuit that is not square.
    """
    if side not in ("out", "source"):
        raise ValueError(f'side must be "out" or "source", not {side!r}')
    if circuit.ldim != circuit.rdim:
        raise ValueError(f"only a square circuit has eigenvectors, this one is {circuit.ldim} by {circuit.rdim}")
    A, B = circuit.A.double(), circuit.B.double()
    small = (B @ A).cpu()  # tiny, and LAPACK gives real eigenvalues an imaginary part of exactly zero
    values, vectors = torch.linalg.eig(small.T if side == "out" else small)
    thin = (B if side == "out" else A.T).to(vectors.dtype)
    lifted = vectors.T.to(thin.device) @ thin
    order = values.abs().argsort(descending=True).to(thin.device)
    return Eigenvectors(values.to(thin.device)[order], (lifted / lifted.norm(dim=1, keepdim=True))[order])


def leading_eigenvectors(circuit: FactoredMatrix, n: int = 10, side: str = "out") -> Eigenvectors:
    """The n largest positive real eigenvalues with their real vectors; fewer where there are not so many (claim E6).

    The sign is set so that the entry of largest modulus is positive. Raises ValueError as `eigenvectors` does, and for n
    below 1.
    """
    if n < 1:
        raise ValueError(f"ask for at least one eigenvector, not {n}")
    values, vectors = eigenvectors(circuit, side)
    chosen = ((values.imag == 0) & (values.real > 0)).nonzero()[:n, 0]
    real = vectors[chosen].real  # LAPACK gives real vectors for real eigenvalues
    largest = real.gather(1, real.abs().argmax(dim=1, keepdim=True))
    return Eigenvectors(values[chosen].real, real * largest.sign())


def token_sets(vectors: Float[Tensor, "vector token"], k: int = 10) -> Int[Tensor, "set k"]:
    """For each vector the k tokens with its largest entries, and the k with its most negative ones: two sets a vector.

    Raises ValueError unless 1 <= k <= number of tokens.
    """
    if not 0 < k <= vectors.shape[-1]:
        raise ValueError(f"a set holds 1 to {vectors.shape[-1]} tokens, not {k}")
    both = torch.stack([vectors, -vectors], dim=1).flatten(0, 1)
    return both.topk(k).indices


def entry_moments(circuit: FactoredMatrix) -> tuple[float, float]:
    """(mean, standard deviation) of all entries of A B, exactly, from the factors alone.

    The sum of the entries is (column sums of A) . (row sums of B), that of their squares the squared Frobenius norm.
    """
    precise = FactoredMatrix(circuit.A.double(), circuit.B.double())
    n = circuit.ldim * circuit.rdim
    mean = (precise.A.sum(dim=0) @ precise.B.sum(dim=1)).item() / n
    return mean, max(frobenius_norm(precise).item() ** 2 / n - mean**2, 0.0) ** 0.5


def boost_within(circuit: FactoredMatrix, sets: Int[Tensor, "set k"]) -> Float[Tensor, " set"]:
    """For each set the mean entry from one of its tokens to another, a token's own left out, in logits (claim E6).

    Raises ValueError for sets of fewer than two tokens.
    """
    k = sets.shape[-1]
    if k < 2:
        raise ValueError("a set of one token has no other token to raise")
    blocks = circuit.A[sets] @ circuit.B.T[sets].mT  # [set, k, k]
    own = blocks.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
    return (blocks.sum(dim=(-2, -1)) - own) / (k * (k - 1))


def akin_pairs(sets: Int[Tensor, "set k"], akin: Sequence[frozenset[int]]) -> float:
    """The share of pairs of tokens within a set that are akin (`words.akin_to`), over all sets (claim E6).

    Raises ValueError for no sets, or sets of fewer than two tokens.
    """
    count, k = sets.shape
    if not count or k < 2:
        raise ValueError(f"there must be sets of at least two tokens, not {count} of {k}")
    found = sum(b in akin[a] for row in sets.tolist() for i, a in enumerate(row) for b in row[i + 1 :])
    return found / (count * k * (k - 1) / 2)


def like_frequency(
    frequency: Float[Tensor, " token"], tokens: Int[Tensor, "*shape"], generator: torch.Generator, within: int = 50
) -> Int[Tensor, "*shape"]:
    """For each token a random other one, at most `within` ranks of frequency away (claim E6's chance level).

    Raises ValueError if the vocabulary has not more than 2 * within tokens.
    """
    n = len(frequency)
    if not 0 < within or n <= 2 * within:
        raise ValueError(f"within must be at least 1 and below half of the {n} tokens, not {within}")
    by_rank = frequency.cpu().argsort(descending=True, stable=True)
    rank = torch.empty_like(by_rank)
    rank[by_rank] = torch.arange(n)
    own = rank[tokens.cpu()]
    low = (own - within).clamp(0, n - 1 - 2 * within)  # the window of 2 * within + 1 ranks stays inside the vocabulary
    other = low + torch.randint(2 * within, own.shape, generator=generator)
    other += (other >= own).long()  # any but the token itself
    return by_rank[other].to(tokens.device)
