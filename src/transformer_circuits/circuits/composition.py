"""Composition: how strongly a later head's queries, keys and values read what an earlier head writes.

Paper: "Two-Layer Attention-Only Transformers": "Three Kinds of Composition", its figure of composition scores, and the
correction of that figure. Row-vector convention, a residual vector being a row: what head 1 writes is x W_OV1, and W_in of
head 2 is multiplied from the right,

    Q   |W_OV1 W_QK2|     over the product of both norms        W_QK = W_Q W_K^T, [destination, source]
    K   |W_OV1 W_QK2^T|
    V   |W_OV1 W_OV2|

all Frobenius norms. The paper's column formulas, W_QK^T W_OV and so on, are the transposes of these; applied to matrices stored
for row vectors they measure something else, and what composes then looks like chance.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from transformer_circuits.circuits.paths import ScoreTerms
from transformer_circuits.circuits.weights import Weights

SIDES = ("Q", "K", "V")
Order = Literal["right", "swapped", "rotated", "rotated on"]


def composition_scores(weights: Weights, writer_layer: int = 0, reader_layer: int = 1) -> Float[Tensor, "side reader writer"]:
    """The paper's composition scores |W_OV W_in| / (|W_OV| |W_in|), before anything is subtracted (claims T3, T5).

    Sides are Q, K and V; W_in is W_Q W_K^T, its transpose, and W_V W_O: products, because only they are fixed by what the model
    computes (claim O4). Nothing of size d_model by d_model is formed. Equal to TransformerLens's `all_composition_scores`.
    NaN where a head is zero throughout. Raises ValueError for layers that do not exist or are in the wrong order.
    """
    return composition_ratios(weights, writer_layer, reader_layer) / math.sqrt(weights.d_model)


def composition_ratios(
    weights: Weights, writer_layer: int = 0, reader_layer: int = 1, at_random: torch.Generator | None = None
) -> Float[Tensor, "side reader writer"]:
    """Composition scores as a multiple of chance: times sqrt(d_model) (claims O5, T3, T5).

    With `at_random` a Haar-random rotation is put between the two heads of each pair. That keeps all singular values and
    destroys any agreement; the root mean square expected is then exactly 1. Raises ValueError as `composition_scores` does.
    """
    if at_random is None:
        return reordered_ratios(weights, "right", writer_layer, reader_layer)
    written, read = _spectra(weights, writer_layer, reader_layer)
    ratios = written.new_empty(len(SIDES), len(read[0]), len(written))
    for side, reader, writer in itertools.product(*map(range, ratios.shape)):
        squares = _haar_squares(weights.d_model, written.shape[-1], read.shape[-1], at_random).to(written)
        ratios[side, reader, writer] = (weights.d_model * (written[writer] @ squares @ read[side, reader])).sqrt()
    return ratios


class Expectation(NamedTuple):
    """Mean and standard deviation at random, in units of the composition ratio."""

    mean: Float[Tensor, "side reader writer"]
    std: Float[Tensor, "side reader writer"]


def rotated_expectation(
    weights: Weights, generator: torch.Generator, samples: int = 100, writer_layer: int = 0, reader_layer: int = 1
) -> Expectation:
    """What each pair's ratio would be if its two heads lay at random to one another, their own singular values kept.

    Each sample is one rotation, which all pairs share: the numbers of a pair are right, those of two pairs not independent. The
    fewer directions two heads really use, the wider their chance varies. Raises ValueError as `composition_scores` does, and for
    fewer than two samples.
    """
    if samples < 2:
        raise ValueError(f"a standard deviation needs at least 2 samples, not {samples}")
    written, read = _spectra(weights, writer_layer, reader_layer)
    ratios = []
    for _ in range(samples):
        squares = _haar_squares(weights.d_model, written.shape[-1], read.shape[-1], generator).to(written)
        ratios.append((weights.d_model * torch.einsum("wi,ij,srj->srw", written, squares, read)).sqrt())
    stacked = torch.stack(ratios)
    return Expectation(stacked.mean(dim=0), stacked.std(dim=0))


def gaussian_like(weights: Weights, generator: torch.Generator) -> Weights:
    """The same shapes, with Gaussian heads: the paper's random baseline. Embeddings and positions stay as they are."""
    heads = {name: getattr(weights, name) for name in ("W_Q", "W_K", "W_V", "W_O")}
    drawn = {name: torch.randn(W.shape, generator=generator, device=generator.device).to(W) for name, W in heads.items()}
    return dataclasses.replace(weights, **drawn)


def reordered_ratios(
    weights: Weights, order: Order, writer_layer: int = 0, reader_layer: int = 1
) -> Float[Tensor, "side reader writer"]:
    """The norm of W_V1 W_O1 A B (W_in = A B) with its four factors in another order, as a multiple of chance (claim T4).

    - "right": as they stand.
    - "swapped": A B W_V1 W_O1, the two matrices exchanged.
    - "rotated": W_O1 A B W_V1, the first factor moved to the end.
    - "rotated on": B W_V1 W_O1 A, the last factor moved to the front.

    All four have the same trace and the same eigenvalues, apart from zeros; their norms have nothing to do with one another. The
    last two are cheap, d_head by d_head, but change when W_V and W_O (or A and B) are written differently without changing the
    model (claim O4). Each is divided by its root mean square under independent random rotations wherever two heads meet. Raises
    ValueError for another order, and as `composition_scores` does.
    """
    if order not in get_args(Order):
        raise ValueError(f"the order is 'right', 'swapped', 'rotated' or 'rotated on', not {order!r}")
    meetings = 1 if order in ("right", "swapped") else 2
    result = []
    for V, O, A, B in _factors(weights, writer_layer, reader_layer):
        written, read = _norm(_thin(V) @ _thin(O.mT).mT), _norm(_thin(A) @ _thin(B.mT).mT)
        if order == "right":
            norm = _norm(_thin(V) @ _meet(O, A) @ _thin(B.mT).mT[:, None])
        elif order == "swapped":
            norm = _norm(_thin(A)[:, None] @ _meet(B, V, reader_first=True) @ _thin(O.mT).mT)
        elif order == "rotated":
            norm, written = _norm(_meet(O, A) @ _meet(B, V, reader_first=True)), _norm(V) * _norm(O)
        else:
            norm, read = _norm(_meet(B, V, reader_first=True) @ _meet(O, A)), _norm(A) * _norm(B)
        result.append(norm / (written * read[:, None]) * math.sqrt(weights.d_model) ** meetings)
    return torch.stack(result)


def _factors(weights: Weights, writer_layer: int, reader_layer: int) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """(V, O, A, B) for Q, K and V: W_OV = V O of every writer, W_in = A B of every reader.

    V and A are [head, d_model, d_head], O and B are [head, d_head, d_model].
    """
    weights.check_head(writer_layer, 0)
    weights.check_head(reader_layer, 0)
    if reader_layer <= writer_layer:
        raise ValueError(f"layer {reader_layer} cannot read what layer {writer_layer} writes after it or beside it")
    V, O = weights.W_V[writer_layer], weights.W_O[writer_layer]
    W_Q, W_K = weights.W_Q[reader_layer], weights.W_K[reader_layer]
    yield V, O, W_Q, W_K.mT
    yield V, O, W_K, W_Q.mT
    yield V, O, weights.W_V[reader_layer], weights.W_O[reader_layer]


_norm = torch.linalg.matrix_norm


def _meet(
    left: Float[Tensor, "head d_head d_model"], right: Float[Tensor, "head d_model d_head"], reader_first: bool = False
) -> Float[Tensor, "reader writer d_head d_head"]:
    """Every product of a left factor with a right one, where two heads meet in the residual stream.

    O A: what of the writer's output the reader's near end takes in. B V (`reader_first`): the reader's far end against what the
    writer takes in.
    """
    return torch.einsum("rim,wmj->rwij" if reader_first else "wim,rmj->rwij", left, right)


def _thin(matrices: Float[Tensor, "head d_model d_head"]) -> Float[Tensor, "head inner d_head"]:
    """R of a QR decomposition: in a norm it stands for the tall matrix itself. (A Gram matrix would lose half the digits.)"""
    return torch.linalg.qr(matrices, mode="r").R


def _spectra(
    weights: Weights, writer_layer: int, reader_layer: int
) -> tuple[Float[Tensor, "writer value"], Float[Tensor, "side reader value"]]:
    """Squared singular values of each W_OV and each W_in, scaled to sum 1."""

    def shares(left: Tensor, right: Tensor) -> Tensor:
        values = torch.linalg.svdvals(_thin(left) @ _thin(right.mT).mT).square()
        return values / values.sum(dim=-1, keepdim=True)

    factors = list(_factors(weights, writer_layer, reader_layer))
    V, O, _, _ = factors[0]  # the writers are the same on all sides
    return shares(V, O), torch.stack([shares(A, B) for _, _, A, B in factors])


def _haar_squares(d_model: int, rows: int, columns: int, generator: torch.Generator) -> Float[Tensor, "rows columns"]:
    """Squared entries of the corner of a random rotation of d_model dimensions, without making all of it.

    On the generator's device, the CPU as a rule. (QR leaves the signs of the columns biased; in squares they do not matter.)
    """
    gaussian = torch.randn(d_model, columns, generator=generator, dtype=torch.float64, device=generator.device)
    return torch.linalg.qr(gaussian).Q[:rows].square()


def directions_used(weights: Weights, writer_layer: int = 0, reader_layer: int = 1) -> Float[Tensor, "side reader writer"]:
    """Over how many directions each pair's composition spreads: (sum s^2)^2 / sum s^4 of the singular values s of W_OV W_in.

    1 if everything passes through one direction, d_head if evenly through all. Raises ValueError as `composition_scores` does.
    """
    result = []
    for V, O, A, B in _factors(weights, writer_layer, reader_layer):
        small = _thin(V) @ _meet(O, A) @ _thin(B.mT).mT[:, None]
        squares = torch.linalg.svdvals(small).square()
        result.append(squares.sum(dim=-1).square() / squares.square().sum(dim=-1))
    return torch.stack(result)


def composing_heads(d_model: int, d_head: int, generator: torch.Generator) -> Weights:
    """Gaussian heads in two layers of three, in which head 1.i composes with head 0.i alone, and in one way alone.

    1.0 by its queries, 1.1 by its keys, 1.2 by its values: that input matrix is the transpose of what the first head writes with.
    Double precision, on the generator's device; there is no text (two tokens, no positions).
    """

    def gaussian(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64, device=generator.device) / math.sqrt(d_model)

    reads = [gaussian(2, 3, d_model, d_head) for _ in SIDES]
    W_O = gaussian(2, 3, d_head, d_model)
    for i, W in enumerate(reads):
        W[1, i] = W_O[0, i].T
    W_E = gaussian(2, d_model)
    return Weights(W_E, torch.zeros_like(W_E), *reads, W_O, gaussian(d_model, 2))


def change_basis(weights: Weights, matrix: Float[Tensor, "d_model d_model"]) -> Weights:
    """The same model in any other basis of the residual stream, stretched or sheared: `rotate_basis` without the rotation.

    Writers are multiplied by the matrix, readers by its inverse; no logit changes, because without layer normalization nothing
    measures lengths in the stream. Raises ValueError if the matrix has another shape or no inverse.
    """
    if matrix.shape != (weights.d_model, weights.d_model) or torch.linalg.matrix_rank(matrix) < weights.d_model:
        raise ValueError(f"a change of basis is an invertible {weights.d_model} by {weights.d_model} matrix")
    reads = {name: torch.linalg.solve(matrix, getattr(weights, name)) for name in ("W_Q", "W_K", "W_V", "W_U")}
    writes = {name: getattr(weights, name) @ matrix for name in ("W_E", "W_pos", "W_O")}
    return Weights(**reads, **writes)


def token_basis(weights: Weights) -> Weights:
    """The model in the basis in which the tokens' embeddings are white: W_E^T W_E is the identity.

    Norms there are norms over tokens: |W_QK| becomes |W_E W_QK W_E^T|, the norm of the QK circuit, and |W_OV1 W_QK2^T| that of
    the K-composition circuit. So ratios measured there are the same whatever basis the model came in. Computed in double
    precision. Raises ValueError if the embeddings do not span the residual stream.
    """
    double = Weights.of(weights, dtype=torch.float64)
    values, vectors = torch.linalg.eigh(double.W_E.T @ double.W_E)
    if values.min() <= 1e-10 * values.max():
        raise ValueError("the embeddings do not span the residual stream, so they fix no basis of it")
    return Weights.of(change_basis(double, vectors / values.sqrt() @ vectors.T), dtype=weights.W_E.dtype)


def term_sizes(split: ScoreTerms) -> Float[Tensor, "query_component key_component"]:
    """How much each term of a head's scores varies along a row: what softmax can see of it.

    The standard deviation over the sources that a destination may attend to, as a root mean square over destinations; the first
    one, which has no choice, is left out. Same units as the scores. Raises ValueError for a prompt of one token.
    """
    n = split.terms.shape[-1]
    if n < 2:
        raise ValueError("with one token there is nothing to choose between: take a longer prompt")
    allowed = split.terms.new_ones(n, n).tril()
    count = allowed.sum(dim=-1)
    mean = (split.terms * allowed).sum(dim=-1) / count
    deviations = (split.terms - mean[..., None]) * allowed  # not E x^2 - (E x)^2: a term may be large and hardly vary
    return (deviations.square().sum(dim=-1) / count)[..., 1:].mean(dim=-1).sqrt()
