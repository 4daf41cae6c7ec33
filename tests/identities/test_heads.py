"""O1 to O6, T3: heads add up, a head is A (x) W_OV, the basis is free, only W_QK and W_OV matter, virtual weights, subspaces."""

import pytest
import torch
from hypothesis import strategies as st
from random_models import BROKEN, EXACT, PLAIN_CASES, cases, differs, identity, random, same

from transformer_circuits.circuits.heads import relative_error
from transformer_circuits.measures import weights
from transformer_circuits.models.bridge import from_matrices, matrices

seeds = st.integers(0, 2**32 - 1)


def error_with(case, **changed):
    """Of the logits, against the plain module's, with other weights."""
    return relative_error(from_matrices(**{**matrices(case.model), **changed})(case.tokens), case.logits)


def layer_of_plain(case, residual):
    """What the plain module's first layer adds: heads side by side, then one projection."""
    return case.plain.layers[0].attn(residual, case.plain.pos.weight[: residual.shape[1]])[0]


@identity(cases())
def test_o1_heads_add_up(case):
    cache = case.cache
    same(cache.stack_head_results(layer=1).sum(0), layer_of_plain(case, cache["embed"]))


@identity(cases())
def test_o2_a_head_is_a_tensor_product(case):
    """Head 0.0 is one big matrix, A (x) W_OV (the paper's, for columns), times the residual stream laid out as one long vector."""
    cache, attention = case.cache, case.plain.layers[0].attn
    big = torch.kron(cache["pattern", 0][0, 0], case.model.OV[0, 0].AB.T.contiguous())
    kept = attention.o.weight.clone()
    attention.o.weight[:, attention.d_head :] = 0  # the plain module's head 0.0 alone
    alone = layer_of_plain(case, cache["embed"])
    attention.o.weight.copy_(kept)
    same((big @ cache["embed"].flatten()).view_as(alone), alone)


def in_another_basis(case, seed=0):
    W, d_model = matrices(case.model), case.model.cfg.d_model
    Q = torch.linalg.qr(random(d_model, d_model, seed=seed)).Q
    M = Q * torch.linspace(-1, 1, d_model, dtype=torch.float64).exp() @ Q.T  # far from a rotation
    writes = {name: W[name] @ M for name in ("W_E", "W_pos", "W_O")}
    return writes | {name: torch.linalg.solve(M, W[name]) for name in ("W_Q", "W_K", "W_V", "W_U")}


@identity(cases(min_layers=0), seeds)
def test_o3_no_privileged_basis(case, seed):
    other = in_another_basis(case, seed)
    differs(other["W_E"], case.model.W_E)
    assert error_with(case, **other) < EXACT


@pytest.mark.parametrize("case", PLAIN_CASES)
@pytest.mark.parametrize("name", ["W_E", "W_pos", "W_Q", "W_K", "W_V", "W_O", "W_U"])
def test_o3_fails_when_one_matrix_stays_behind(case, name):
    if name != "W_pos" or case.model.W_pos.any():  # a model without positions has nothing to forget
        assert error_with(case, **in_another_basis(case) | {name: matrices(case.model)[name]}) > BROKEN


@identity(cases(), seeds)
def test_o4_only_w_qk_and_w_ov_matter(case, seed):
    W, eye = matrices(case.model), torch.eye(case.model.cfg.d_head, dtype=torch.float64)
    R, S = random(2, *W["W_Q"].shape[:2], *eye.shape, seed=seed) + 3 * eye
    if max(torch.linalg.cond(R).max(), torch.linalg.cond(S).max()) > 100:
        R, S = 2 * eye, 3 * eye
    Q, K, V, O = W["W_Q"] @ R, W["W_K"] @ torch.linalg.inv(R).mT, W["W_V"] @ S, torch.linalg.inv(S) @ W["W_O"]
    assert error_with(case, W_Q=Q, W_K=K, W_V=V, W_O=O) < EXACT


@identity(cases(min_layers=2), st.sampled_from("QKV"))
def test_o5_virtual_weights_carry_all_that_a_later_head_reads(case, part):
    """Queries, keys or values of head 1.0 are a sum over what it reads of the embedding and of each head of layer 0."""
    cache, W_in = case.cache, matrices(case.model)[f"W_{part}"][1, 0]
    virtual = case.model.W_O[0] @ W_in  # [head, d_head, d_head]
    read = cache["embed"] @ W_in + torch.einsum("bphd,hde->bpe", cache["z", 0], virtual)
    stream = cache["embed"] + layer_of_plain(case, cache["embed"])
    expected = getattr(case.plain.layers[1].attn, part.lower())(stream)
    same(read, expected[..., : case.model.cfg.d_head])


@pytest.mark.parametrize("layers", [(0, 1), (0, 2), (1, 2)])
def test_t3_ratios_are_norms_of_products_in_any_two_layers(layers):
    model, norm = PLAIN_CASES[3].model, torch.linalg.matrix_norm
    OV, QK, OV2 = model.OV[layers[0]], model.QK[layers[1]], model.OV[layers[1]]
    found = weights.composition_ratios(OV, QK, OV2) / model.cfg.d_model**0.5
    for side, read in enumerate((QK.AB, QK.AB.mT, OV2.AB)):
        for reader, into in enumerate(read):
            right, *wrong = (OV.AB @ into, into @ OV.AB, OV.AB @ into.T, OV.AB.mT @ into)
            same(found[side, reader], norm(right) / norm(OV.AB) / norm(into), 1e-8)
            for product in wrong:
                differs(found[side, reader], norm(product) / norm(OV.AB) / norm(into))


@identity(cases())
def test_o6_the_svd_says_where_a_head_reads_and_writes(case):
    OV, x = case.model.OV[0, 0], case.model.W_E[case.tokens[0]]
    if OV.mdim > OV.ldim:
        return  # more dimensions than the stream has: no subspaces of its own
    read, gain, write = OV.svd()
    eye = torch.eye(OV.mdim, dtype=torch.float64)
    same(read.T @ read, eye)
    same(write.T @ write, eye)
    same((x @ read * gain) @ write.T, x @ OV.AB)
