"""Composition: how strongly a later head's queries, keys, and values read what an earlier head writes, as a multiple of chance.

Paper: "Three Kinds of Composition", its figure of composition scores, and the correction of that figure. The scores are those of
TransformerLens's `all_composition_scores`: |W_OV W_QK|, |W_OV W_QK^T|, and |W_OV W_OV'| (row vectors, Frobenius norms), divided by the
norms of both matrices.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from transformer_circuits.measures import weights
from transformer_circuits.models.bridge import from_matrices, matrices


def _check_order(model: Any, writer_layer: int, reader_layer: int) -> None:
    if not 0 <= writer_layer < reader_layer < model.cfg.n_layers:
        raise ValueError(
            f"the writer must be in an earlier layer than the reader, got writer layer {writer_layer} and reader layer "
            f"{reader_layer} in a model of {model.cfg.n_layers} layers"
        )


def composition_ratios(
    model: Any, writer_layer: int = 0, reader_layer: int = 1
) -> Float[Tensor, "side reader writer"]:
    """Return composition scores times sqrt(d_model), sides Q, K, V; 1 is the root mean square of random matrices (claims O5, T3, T5).

    Raises ValueError unless the reading layer comes after the writing one.
    """
    _check_order(model, writer_layer, reader_layer)
    return weights.composition_ratios(model.OV[writer_layer], model.QK[reader_layer], model.OV[reader_layer])


def turned_at_random(
    model: Any, writer_layer: int = 0, reader_layer: int = 1, seed: int = 0
) -> Float[Tensor, "side reader writer"]:
    """Return the ratios with a random rotation of the stream between the two heads of each pair: chance that keeps all singular values.

    A rotation R enters |W_OV R W_in| through the squares of its corner alone: with u and w the squared singular values of both, scaled
    to sum 1, the squared norm is sum_ij u_i R_ij^2 w_j. Raises ValueError as `composition_ratios` does.
    """
    _check_order(model, writer_layer, reader_layer)
    generator, d_model = torch.Generator().manual_seed(seed), model.cfg.d_model
    OV, QK, OV2 = (
        circuit.S.square()
        for circuit in (model.OV[writer_layer], model.QK[reader_layer], model.OV[reader_layer])
    )
    return torch.stack([turned(OV, read, d_model, generator) for read in (QK, QK, OV2)])


def turned(
    written: Float[Tensor, "writer d_head"],
    read: Float[Tensor, "reader d_head"],
    d_model: int,
    generator: torch.Generator,
) -> Float[Tensor, "reader writer"]:
    """Return the ratios of heads with these squared singular values and a random rotation of the stream between them."""
    shape = (len(read), len(written), d_model, written.shape[-1])
    corner = torch.linalg.qr(torch.randn(shape, generator=generator)).Q[..., : written.shape[-1], :]
    shares = [values / values.sum(-1, True) for values in (written, read)]
    square = torch.einsum("wi,rwij,rj->rw", shares[0], corner.square().to(written), shares[1])
    return (d_model * square).sqrt()


def out_of_order(model: Any, writer_layer: int = 0, reader_layer: int = 1) -> Float[Tensor, "reader writer"]:
    """Return K-composition with its first factor moved to the end, |W_O W_K W_Q^T W_V|, as a multiple of chance (claim T4).

    The product is only d_head by d_head. It keeps its trace and its eigenvalues, but not its norm. Two pairs of matrices meet in the
    stream where one should (W_O with W_K, and W_Q with W_V), so chance is 1 / d_model. Raises ValueError as
    `composition_ratios` does.
    """
    _check_order(model, writer_layer, reader_layer)
    V, O, QK = model.W_V[writer_layer], model.W_O[writer_layer], model.QK[reader_layer]
    product = (O @ model.W_K[reader_layer][:, None]) @ (model.W_Q[reader_layer].mT[:, None] @ V)
    norm = torch.linalg.matrix_norm
    return norm(product) * model.cfg.d_model / (norm(V) * norm(O) * QK.norm()[:, None])


def change_basis(model: TransformerBridge, matrix: Float[Tensor, "d_model d_model"]) -> TransformerBridge:
    """Return the same model in another basis of the residual stream: what writes is multiplied by the matrix, what reads by its inverse.

    No logit changes, because without normalization no component measures lengths in the stream. The result is in double precision,
    which a stretched basis needs. Raises ValueError if the matrix has no inverse.
    """
    matrix = matrix.double()
    if matrix.shape != (model.cfg.d_model,) * 2 or torch.linalg.matrix_rank(matrix) < len(matrix):
        raise ValueError(
            f"the change of basis must be an invertible {model.cfg.d_model} by {model.cfg.d_model} matrix, got shape "
            f"{tuple(matrix.shape)} of rank {int(torch.linalg.matrix_rank(matrix))}"
        )
    weights = {name: W.double() for name, W in matrices(model).items()}
    writes = {name: weights[name] @ matrix for name in ("W_E", "W_pos", "W_O")}
    reads = {name: torch.linalg.solve(matrix, weights[name]) for name in ("W_Q", "W_K", "W_V", "W_U")}
    return from_matrices(**writes, **reads, tokenizer=model.tokenizer)


def token_basis(model: TransformerBridge) -> TransformerBridge:
    """Return the same model in the basis in which the embeddings of all tokens together are white: W_E^T W_E is the identity.

    In this basis a norm over the stream is a norm over tokens, and the ratios do not depend on the basis that the model was given in.
    Raises ValueError if the embeddings do not span the stream.
    """
    values, vectors = torch.linalg.eigh(model.W_E.double().T @ model.W_E.double())
    if values.min() <= 1e-10 * values.max():
        raise ValueError(
            "the embeddings must span the residual stream to define a basis of it; pass a model with more tokens than dimensions"
        )
    return change_basis(model, vectors / values.sqrt() @ vectors.T)
