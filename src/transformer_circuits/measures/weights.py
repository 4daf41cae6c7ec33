"""Scores that are read from weights alone: positivity, composition ratios, and what chance gives for both.

A head's circuits are products of two thin matrices, as TransformerLens's FactoredMatrix holds them: OV = `A @ B` with A = W_V and
B = W_O, QK with A = W_Q and B = W_K^T. Only small products are formed.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Complex, Float
from torch import Tensor

COPYING_DEVIATIONS = 5  # of random heads; a normal variable exceeds five of them once in three million
COMPOSES = 2.0  # composition ratio from which a pair of heads composes; 1 is what random matrices give
NEAR_CHANCE = 1.5  # composition ratio below which a pair is near chance (T14): halfway to COMPOSES
CORNER = 0.5  # positivity at which figures of training draw a line; claim T10 itself compares with random heads
# Distance from a half of a joint component's part: above, it serves one of the two matrices; below, both (claim O7).
ONE_SIDED, MIXED = 0.4, 0.25
# Attention to the current token from which, and positivity up to which, a head deletes or may delete (claim O8).
DELETES, MAY_DELETE = (0.5, -0.5), (0.25, -0.2)
RANDOM_HEADS = 400
MOST = 8 / 12  # of the working heads: "most heads copy" (claim E1)

SIDES = ("Q", "K", "V")  # what a later head can read with: queries, keys, values


class Product(NamedTuple):
    """A low-rank matrix A @ B: stands in for FactoredMatrix where TransformerLens is not imported (the trainer)."""

    A: Float[Tensor, "*batch d_model d_head"]
    B: Float[Tensor, "*batch d_head d_model"]


def positivity(eigenvalues: Complex[Tensor, "*batch n"]) -> Float[Tensor, "*batch"]:
    """Return the sum of the eigenvalues divided by the sum of their absolute values (claims E1, T10).

    1 if all are positive, -1 if all are negative, about 0 for a random matrix.
    """
    return eigenvalues.real.sum(dim=-1) / eigenvalues.abs().sum(dim=-1)


def factored_positivity(
    first: Float[Tensor, "*batch large small"], second: Float[Tensor, "*batch small large"]
) -> Float[Tensor, "*batch"]:
    """Return the positivity of `first @ second` from the eigenvalues of the small `second @ first`, which are the same except for zeros."""
    return positivity(torch.linalg.eigvals((second @ first).double())).float()


def centered(
    W_E: Float[Tensor, "d_vocab d_model"], W_U: Float[Tensor, "d_model d_vocab"]
) -> tuple[Float[Tensor, "d_vocab d_model"], Float[Tensor, "d_model d_vocab"]]:
    """Return the embedding minus its mean over tokens, and the unembedding minus its mean over out tokens (claim E1).

    Softmax ignores what is added to all logits, and what all source tokens have in common does not depend on which one is attended to.
    """
    return W_E - W_E.mean(dim=0), W_U - W_U.mean(dim=1, keepdim=True)


def random_positivities(
    W_E: Float[Tensor, "d_vocab d_model"], W_U: Float[Tensor, "d_model d_vocab"], d_head: int
) -> Float[Tensor, " head"]:
    """Return the positivity of OV circuits with random W_V and W_O between these two matrices, a model's own embedding and unembedding.

    Center both (`centered`) if the circuits that are compared with chance are. This is chance for everything that goes through the vocabulary. Trained embeddings alone make positivity several times as wide as
    random matrices do (the Ginibre ensemble has a standard deviation of about 1.5 / d_head).
    """
    # What each direction of the stream becomes when read as tokens and embedded again.
    tokens = (W_U.double() @ W_E.double()).cpu()
    V, O = _random_heads(len(tokens), d_head, seed=0)
    return positivity(torch.linalg.eigvals(O @ tokens @ V)).float()


def random_match_positivities(W_E: Float[Tensor, "d_vocab d_model"], d_head: int) -> Float[Tensor, " head"]:
    """Return the positivity of K-composition circuits W_E W_QK W_OV^T W_E^T with random heads and this model's own embedding (claim T10)."""
    tokens = (W_E.double().mT @ W_E.double()).cpu()
    Q, K = _random_heads(len(tokens), d_head, seed=0)
    V, O = _random_heads(len(tokens), d_head, seed=1)
    return positivity(torch.linalg.eigvals(V.mT @ tokens @ Q @ (K @ O.mT))).float()


def copying_threshold(
    W_E: Float[Tensor, "d_vocab d_model"], W_U: Float[Tensor, "d_model d_vocab"], d_head: int
) -> float:
    """Return the positivity above which a head is a copying head: COPYING_DEVIATIONS standard deviations of `random_positivities`."""
    return COPYING_DEVIATIONS * float(random_positivities(W_E, W_U, d_head).std())


def composition_ratios(
    writer_OV: Product, reader_QK: Product, reader_OV: Product
) -> Float[Tensor, "side=3 reader writer"]:
    """Return how strongly each reader's queries, keys, and values (SIDES) read what each writer writes, as a multiple of chance (claims O5, T3).

    |W_OV W_in| / (|W_OV| |W_in|) in Frobenius norms, times sqrt(d_model); 1 is the root mean square of random matrices.
    Arguments have one batch dimension, the heads.
    """
    sides = []
    for A, B in ((reader_QK.A, reader_QK.B), (reader_QK.B.mT, reader_QK.A.mT), (reader_OV.A, reader_OV.B)):
        # [reader, writer, d_head, d_head]: where the writer's output meets the reader's input
        middle = writer_OV.B[None] @ A[:, None]
        product = _norm(writer_OV.A[None], middle @ B[:, None])
        sides.append(product / (_norm(A, B)[:, None] * _norm(writer_OV.A, writer_OV.B)[None]))
    return torch.stack(sides) * writer_OV.B.shape[-1] ** 0.5


def _norm(A: Tensor, B: Tensor) -> Tensor:
    """Return the Frobenius norm of A @ B without forming it: tr(A^T A B B^T)."""
    return ((A.mT @ A) * (B @ B.mT)).sum(dim=(-2, -1)).clamp(min=0).sqrt()


def _random_heads(d_model: int, d_head: int, seed: int) -> Product:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((RANDOM_HEADS, d_model, d_head), (RANDOM_HEADS, d_head, d_model))
    return Product(*(torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes))


def turned_at_random(model: Any) -> Float[Tensor, "side reader writer"]:
    """Return the ratios of the first two layers with a random rotation of the stream between the two heads of each pair."""
    generator, d_model = torch.Generator().manual_seed(0), model.cfg.d_model
    OV, QK, OV2 = (circuit.S.square() for circuit in (model.OV[0], model.QK[1], model.OV[1]))
    return torch.stack([turned(OV, read, d_model, generator) for read in (QK, QK, OV2)])


def turned(
    written: Float[Tensor, "writer d_head"],
    read: Float[Tensor, "reader d_head"],
    d_model: int,
    generator: torch.Generator,
) -> Float[Tensor, "reader writer"]:
    """Return the ratios of heads with these squared singular values and a random rotation of the stream between them.

    A rotation R enters |W_OV R W_in| through the squares of its corner alone: with u and w the squared singular values of both, scaled
    to sum 1, the squared norm is sum_ij u_i R_ij^2 w_j.
    """
    shape = (len(read), len(written), d_model, written.shape[-1])
    corner = torch.linalg.qr(torch.randn(shape, generator=generator)).Q[..., : written.shape[-1], :]
    shares = [values / values.sum(-1, True) for values in (written, read)]
    square = torch.einsum("wi,rwij,rj->rw", shares[0], corner.square().to(written), shares[1])
    return (d_model * square).sqrt()
