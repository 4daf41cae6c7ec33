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


def composition_ratios(model: Any) -> Float[Tensor, "side reader writer"]:
    """Return composition scores of the first two layers times sqrt(d_model), sides Q, K, V; 1 is the root mean square of random matrices.

    Claims O5, T3, T5.
    """
    return weights.composition_ratios(model.OV[0], model.QK[1], model.OV[1])


def turned_at_random(model: Any, seed: int = 0) -> Float[Tensor, "side reader writer"]:
    """Return the ratios with a random rotation of the stream between the two heads of each pair: chance that keeps all singular values.

    A rotation R enters |W_OV R W_in| through the squares of its corner alone: with u and w the squared singular values of both, scaled
    to sum 1, the squared norm is sum_ij u_i R_ij^2 w_j.
    """
    generator, d_model = torch.Generator().manual_seed(seed), model.cfg.d_model
    OV, QK, OV2 = (circuit.S.square() for circuit in (model.OV[0], model.QK[1], model.OV[1]))
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


def out_of_order(model: Any) -> Float[Tensor, "reader writer"]:
    """Return K-composition with its first factor moved to the end, |W_O W_K W_Q^T W_V|, as a multiple of chance (claim T4).

    The product is only d_head by d_head. It keeps its trace and its eigenvalues, but not its norm. Two pairs of matrices meet in the
    stream where one should (W_O with W_K, and W_Q with W_V), so chance is 1 / d_model.
    """
    V, O, QK = model.W_V[0], model.W_O[0], model.QK[1]
    product = (O @ model.W_K[1][:, None]) @ (model.W_Q[1].mT[:, None] @ V)
    norm = torch.linalg.matrix_norm
    return norm(product) * model.cfg.d_model / (norm(V) * norm(O) * QK.norm()[:, None])


def change_basis(model: TransformerBridge, matrix: Float[Tensor, "d_model d_model"]) -> TransformerBridge:
    """Return the same model in another basis of the residual stream: what writes is multiplied by the matrix, what reads by its inverse.

    No logit changes, because without normalization no component measures lengths in the stream. The result is in double precision,
    which a stretched basis needs.
    """
    matrix = matrix.double()
    weights = {name: W.double() for name, W in matrices(model).items()}
    writes = {name: weights[name] @ matrix for name in ("W_E", "W_pos", "W_O")}
    reads = {name: torch.linalg.solve(matrix, weights[name]) for name in ("W_Q", "W_K", "W_V", "W_U")}
    return from_matrices(**writes, **reads, tokenizer=model.tokenizer)


def token_basis(model: TransformerBridge) -> TransformerBridge:
    """Return the same model in the basis in which the embeddings of all tokens together are white: W_E^T W_E is the identity.

    In this basis a norm over the stream is a norm over tokens, and the ratios do not depend on the basis that the model was given in.
    The embeddings must span the stream.
    """
    values, vectors = torch.linalg.eigh(model.W_E.double().T @ model.W_E.double())
    return change_basis(model, vectors / values.sqrt() @ vectors.T)
