"""Composition: how strongly a later head's queries, keys and values read what an earlier head writes, as a multiple of chance.

Paper: "Three Kinds of Composition", its figure of composition scores and the correction of that figure. The scores themselves are
TransformerLens's `all_composition_scores`: |W_OV W_QK|, |W_OV W_QK^T| and |W_OV W_OV'| (row vectors, Frobenius norms) over the
norms of both matrices.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from transformer_circuits.models.bridge import from_matrices, matrices

SIDES = ("Q", "K", "V")


def _check_order(model: Any, writer_layer: int, reader_layer: int) -> None:
    if not 0 <= writer_layer < reader_layer < model.cfg.n_layers:
        raise ValueError(
            f"a layer reads what an earlier one wrote: in a model of {model.cfg.n_layers} layers "
            f"layer {reader_layer} cannot read layer {writer_layer}"
        )


def composition_ratios(model: Any, writer_layer: int = 0, reader_layer: int = 1) -> Float[Tensor, "side reader writer"]:
    """Composition scores times sqrt(d_model), sides Q, K, V: 1 is the root mean square of random matrices (claims O5, T3, T5).

    Raises ValueError unless the reading layer comes after the writing one.
    """
    _check_order(model, writer_layer, reader_layer)
    scores = [model.all_composition_scores(side).scores[writer_layer, :, reader_layer].T for side in SIDES]
    return torch.stack(scores) * model.cfg.d_model**0.5


def turned_at_random(
    model: Any, writer_layer: int = 0, reader_layer: int = 1, seed: int = 0
) -> Float[Tensor, "side reader writer"]:
    """The ratios with a random rotation of the stream between the two heads of each pair: chance that keeps all singular values.

    A rotation R enters |W_OV R W_in| by the squares of its corner alone: with u and w the squared singular values of both, scaled
    to sum 1, the squared norm is sum_ij u_i R_ij^2 w_j. Raises ValueError as `composition_ratios` does.
    """
    _check_order(model, writer_layer, reader_layer)
    generator, d_model = torch.Generator().manual_seed(seed), model.cfg.d_model
    OV, QK, OV2 = (circuit.S.square() for circuit in (model.OV[writer_layer], model.QK[reader_layer], model.OV[reader_layer]))
    ratios = []
    for read in (QK, QK, OV2):
        columns = torch.linalg.qr(torch.randn(len(read), len(OV), d_model, OV.shape[-1], generator=generator)).Q
        corner = columns[..., : OV.shape[-1], :]
        square = torch.einsum("wi,rwij,rj->rw", OV / OV.sum(-1, True), corner.square().to(OV), read / read.sum(-1, True))
        ratios.append((d_model * square).sqrt())
    return torch.stack(ratios)


def out_of_order(model: Any, writer_layer: int = 0, reader_layer: int = 1) -> Float[Tensor, "reader writer"]:
    """K-composition with its first factor moved to the end, |W_O W_K W_Q^T W_V|, as a multiple of chance (claim T4).

    The product keeps its trace and its eigenvalues, and is only d_head by d_head; its norm is another one. Two pairs of matrices
    meet in the stream where one should (W_O with W_K, and W_Q with W_V), so chance is 1 / d_model. Raises ValueError as
    `composition_ratios` does.
    """
    _check_order(model, writer_layer, reader_layer)
    V, O, QK = model.W_V[writer_layer], model.W_O[writer_layer], model.QK[reader_layer]
    product = (O @ model.W_K[reader_layer][:, None]) @ (model.W_Q[reader_layer].mT[:, None] @ V)
    norm = torch.linalg.matrix_norm
    return norm(product) * model.cfg.d_model / (norm(V) * norm(O) * QK.norm()[:, None])


def change_basis(model: TransformerBridge, matrix: Float[Tensor, "d_model d_model"]) -> TransformerBridge:
    """The same model in another basis of the residual stream: what writes is multiplied by the matrix, what reads by its inverse.

    No logit changes, because without normalization nothing measures lengths in the stream. In double precision, which a
    stretched basis needs. Raises ValueError if the matrix has no inverse.
    """
    matrix = matrix.double()
    if matrix.shape != (model.cfg.d_model,) * 2 or torch.linalg.matrix_rank(matrix) < len(matrix):
        raise ValueError(f"a change of basis is an invertible {model.cfg.d_model} by {model.cfg.d_model} matrix")
    weights = {name: W.double() for name, W in matrices(model).items()}
    writes = {name: weights[name] @ matrix for name in ("W_E", "W_pos", "W_O")}
    reads = {name: torch.linalg.solve(matrix, weights[name]) for name in ("W_Q", "W_K", "W_V", "W_U")}
    return from_matrices(**writes, **reads, tokenizer=model.tokenizer)


def token_basis(model: TransformerBridge) -> TransformerBridge:
    """The same model in the basis in which the embeddings of all tokens together are white: W_E^T W_E is the identity.

    There a norm over the stream is a norm over tokens: ratios come out the same whatever basis the model was given in.
    Raises ValueError if the embeddings do not span the stream.
    """
    values, vectors = torch.linalg.eigh(model.W_E.double().T @ model.W_E.double())
    if values.min() <= 1e-10 * values.max():
        raise ValueError("the embeddings do not span the residual stream, so they fix no basis of it")
    return change_basis(model, vectors / values.sqrt() @ vectors.T)
