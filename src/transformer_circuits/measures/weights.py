"""Scores that are read from weights alone: positivity, composition ratios, and what chance gives for both.

A head's circuits are products A @ B of two thin matrices: OV of W_V and W_O, QK of W_Q and W_K^T.
"""

import functools
from collections.abc import Callable

import torch
from jaxtyping import Complex, Float
from torch import Tensor
from transformer_lens import FactoredMatrix
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.utilities import composition_scores

from transformer_circuits.measures.cache import cached
from transformer_circuits.models.view import Head, View

COPYING_DEVIATIONS = 5  # of random heads; a normal variable exceeds five of them once in three million
COMPOSES = 2.0  # composition ratio from which a pair of heads composes; 1 is what random matrices give
NEAR_CHANCE = 1.5  # composition ratio below which a pair is near chance (T14): halfway to COMPOSES
# Distance from a half of a joint component's part: above, it serves one of the two matrices; below, both (claim O7).
ONE_SIDED, MIXED = 0.4, 0.25
# Attention to the current token from which, and positivity up to which, a head deletes or may delete (claim O8).
DELETES, MAY_DELETE = (0.5, -0.5), (0.25, -0.2)
RANDOM_HEADS = 400  # their standard deviation, and so the threshold for a copying head, is known within 4%
MATCH = 1.0  # units of attention score by which a token's entry for itself exceeds its row (T10): a factor of e
MOST = 8 / 12  # of the working heads: "most heads copy" (claim E1)

SIDES = ("Q", "K", "V")  # what a later head can read with: queries, keys, values
Embedding, Unembedding = Float[Tensor, "d_vocab d_model"], Float[Tensor, "d_model d_vocab"]


def positivity(eigenvalues: Complex[Tensor, "*batch n"]) -> Float[Tensor, "*batch"]:
    """Return the sum of eigenvalues over that of their absolute values (claims E1, T10): 1 if all are positive."""
    return eigenvalues.real.sum(dim=-1) / eigenvalues.abs().sum(dim=-1)


def factored_positivity(first: Tensor, second: Tensor) -> Float[Tensor, "*batch"]:
    """Return the positivity of `first @ second`, from the eigenvalues of `second @ first`."""
    return positivity(torch.linalg.eigvals((second @ first).double())).float()


def copying_eigenvalues(OV: FactoredMatrix, W_E: Embedding, W_U: Unembedding) -> Complex[Tensor, "*batch d_head"]:
    """Return the eigenvalues, other than zero, of the OV circuits W_E W_OV W_U through the vocabulary (claim E1)."""
    return torch.linalg.eigvals((OV.B @ (W_U @ W_E) @ OV.A).double())


def copying_positivity(model: View | TransformerBridge) -> Float[Tensor, "layer head"]:
    """Return the positivity of each head's circuit between centered embedding and unembedding, on the CPU (E1)."""
    view = View.of(model)
    return positivity(copying_eigenvalues(view.OV, *centered(view.W_E, view.W_U))).float().cpu()


def copying(model: View | TransformerBridge) -> tuple[Float[Tensor, "layer head"], float]:
    """Return `copying_positivity`, and the threshold above which a head copies (claim E1)."""
    view = View.of(model)
    return copying_positivity(view), copying_threshold(*centered(view.W_E, view.W_U), view.cfg.d_head)


def centered(W_E: Embedding, W_U: Unembedding) -> tuple[Embedding, Unembedding]:
    """Return the embedding minus its mean over tokens, and the unembedding minus that over out tokens (claim E1)."""
    return W_E - W_E.mean(dim=0), W_U - W_U.mean(dim=1, keepdim=True)


def random_positivities(W_E: Embedding, W_U: Unembedding, d_head: int) -> Float[Tensor, " head"]:
    """Return the positivity of OV circuits with random W_V and W_O between a model's own W_E and W_U.

    This is chance for everything that goes through the vocabulary: trained embeddings make positivity wider than random
    matrices do (the Ginibre ensemble has a standard deviation of about 1.5 / d_head).
    """

    def measure() -> Tensor:
        # What each direction of the stream becomes when read as tokens and embedded again.
        tokens = (W_U.double() @ W_E.double()).cpu()
        V, O = _random_heads(len(tokens), d_head, seed=0)
        return positivity(torch.linalg.eigvals(O @ tokens @ V)).float()

    return cached(f"positivities of random heads {d_head}", measure, [W_E, W_U]).cpu()


def random_match_positivities(W_E: Embedding, d_head: int, two_tokens: bool = False) -> Float[Tensor, " head"]:
    """Return the positivity of K-composition circuits W_E W_QK W_OV^T W_E^T with random heads (claim T10).

    `two_tokens`: of circuits W_E W_OV' W_QK W_OV^T W_E^T, in which the query reads an earlier head as well (claim T17).
    """
    tokens = (W_E.double().mT @ W_E.double()).cpu()
    Q, K = _random_heads(len(tokens), d_head, seed=0)
    V, O = _random_heads(len(tokens), d_head, seed=1)
    if two_tokens:
        moved, written = _random_heads(len(tokens), d_head, seed=2)
        Q = moved @ (written @ Q)
    return positivity(torch.linalg.eigvals(V.mT @ tokens @ Q @ (K @ O.mT))).float()


def match_positivity(model: View | TransformerBridge, reader: Head, writer: Head) -> Float[Tensor, ""]:
    """Return the positivity of the K-composition circuit W_E W_QK W_OV^T W_E^T of two heads: whether the reader's keys
    match, through the writer, tokens with themselves (claim T10)."""
    view = View.of(model)
    QK, OV = view.QK[reader], view.OV[writer]
    return factored_positivity(view.W_E.mT @ view.W_E @ QK.A, QK.B @ OV.B.mT @ OV.A.mT)


def copying_threshold(W_E: Embedding, W_U: Unembedding, d_head: int) -> float:
    """Return the positivity above which a head copies: COPYING_DEVIATIONS times the deviation of random heads."""
    return COPYING_DEVIATIONS * float(random_positivities(W_E, W_U, d_head).std())


def composition_ratios(
    writer_OV: FactoredMatrix, reader_QK: FactoredMatrix, reader_OV: FactoredMatrix
) -> Float[Tensor, "side=3 reader writer"]:
    """Return how strongly each reader's SIDES read what each writer writes, as a multiple of chance (claims O5, T3).

    TransformerLens' scores, `|W_OV W_in| / (|W_OV| |W_in|)` in Frobenius norms, times sqrt(d_model). All are batches
    of heads.
    """
    read = (reader_QK, reader_QK.T, reader_OV)
    scores = torch.stack([composition_scores(writer_OV, side) for side in read])  # [side, writer, reader]
    return scores.mT * writer_OV.rdim**0.5


def white_circuits(OV: FactoredMatrix, QK: FactoredMatrix, W_E: Embedding) -> tuple[FactoredMatrix, FactoredMatrix]:
    """Return OV and QK circuits in coordinates of the stream in which all tokens' embeddings are white (claim T3).

    There W_E^T W_E, with one row of W_E per token, is the identity. What is written to the stream is multiplied by an
    invertible matrix, and what is read by its inverse. The model computes the same, and `composition_ratios` no longer
    depend on the coordinates in which it is stored. The embeddings must fill the stream.
    """
    values, vectors = torch.linalg.eigh(W_E.double().mT @ W_E.double())
    writes = (vectors / values.sqrt() @ vectors.mT).to(W_E)
    reads = (vectors * values.sqrt() @ vectors.mT).to(W_E)  # symmetric, like its inverse
    return FactoredMatrix(reads @ OV.A, OV.B @ writes), FactoredMatrix(reads @ QK.A, QK.B @ reads)


def white_ratios(
    model: View | TransformerBridge, ratios: Callable[..., Tensor] = composition_ratios
) -> Float[Tensor, "side=3 reader writer"]:
    """Return `ratios` (or `turned`) of a model's second layer with its first, in coordinates with white embeddings."""
    view = View.of(model)
    first, second = (white_circuits(view.OV[layer], view.QK[layer], view.W_E) for layer in (0, 1))
    return ratios(first[0], second[1], second[0])


def ratios_of_reader(
    model: View | TransformerBridge, reader: Head, ratios: Callable[..., Tensor] = composition_ratios
) -> Float[Tensor, "side=3 layer head"]:
    """Return `ratios` (or `turned`) of one head with all heads of all earlier layers, in the model's coordinates."""
    view, (layer, head) = View.of(model), reader
    written = FactoredMatrix(view.OV.A[:layer].flatten(0, 1), view.OV.B[:layer].flatten(0, 1))
    found = ratios(written, view.QK[layer, [head]], view.OV[layer, [head]])
    return found[:, 0].unflatten(1, (layer, view.cfg.n_heads))


@functools.lru_cache(maxsize=2)
def _random_heads(d_model: int, d_head: int, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((RANDOM_HEADS, d_model, d_head), (RANDOM_HEADS, d_head, d_model))
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def turned(
    writer_OV: FactoredMatrix, reader_QK: FactoredMatrix, reader_OV: FactoredMatrix
) -> Float[Tensor, "side=3 reader writer"]:
    """Return `composition_ratios` with a random rotation between the two heads: chance for them.

    A rotation R enters `|W_OV R W_in|` through the squares of its corner alone: with u and w the squared singular
    values of both, scaled to sum 1, the squared norm is sum_ij u_i R_ij^2 w_j.
    """
    generator, d_model = torch.Generator().manual_seed(0), writer_OV.B.shape[-1]
    squares = [M.S.square() for M in (writer_OV, reader_QK, reader_OV)]
    written, QK, OV = (values / values.sum(-1, True) for values in squares)
    n_writers, d_head = written.shape
    ratios = []
    for read in (QK, QK, OV):
        drawn = torch.randn(len(read), n_writers, d_model, d_head, generator=generator)
        corner = torch.linalg.qr(drawn).Q[..., :d_head, :].square().to(written)
        ratios.append((d_model * torch.einsum("wi,rwij,rj->rw", written, corner, read)).sqrt())
    return torch.stack(ratios)
