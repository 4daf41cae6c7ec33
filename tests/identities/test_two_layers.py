"""T1 to T4: the expansions of logits and scores, composition ratios, and what leaves them alone."""

import pytest
import torch
from hypothesis import given
from random_models import BROKEN, EXACT, PLAIN_CASES, cases, identity, random

from transformer_circuits.circuits.composition import (
    SIDES,
    change_basis,
    composition_ratios,
    out_of_order,
    token_basis,
)
from transformer_circuits.circuits.heads import relative_error
from transformer_circuits.models.bridge import from_matrices, matrices

two_layers = cases(min_layers=2, max_layers=2)
TWO = [case for case in PLAIN_CASES if case.model.cfg.n_layers == 2]


def terms_of_logits(case):
    """Direct path, single heads and virtual heads, in the lines of chapter 6."""
    _, cache = case.model.run_with_cache(case.tokens)
    A, x, OV = torch.stack([cache["pattern", layer][0] for layer in (0, 1)]), cache["embed"][0], case.model.OV.AB
    single = torch.einsum("lhqk,kd,lhde->qe", A, x, OV)
    virtual = torch.einsum("ghqk,hke,gef->qf", A[1][:, None] @ A[0], x @ OV[0], OV[1])
    return torch.stack([x, single, virtual]) @ case.model.W_U


@identity
@given(two_layers)
def test_t1_direct_path_heads_and_virtual_heads_are_the_logits(case):
    assert relative_error(terms_of_logits(case).sum(0), case.logits[0]) < EXACT


@pytest.mark.parametrize("case", TWO)
def test_t1_fails_without_any_of_the_three(case):
    terms = terms_of_logits(case)
    assert all(relative_error(terms.sum(0) - left_out, case.logits[0]) > BROKEN for left_out in terms)


def terms_of_scores(case, positions=True):
    """[query from, key from, head, destination, source], in the lines of chapter 6."""
    model = case.model
    _, cache = model.run_with_cache(case.tokens)
    own, written = cache.decompose_resid(layer=1, mode="attn")[:, 0]
    parts = torch.stack([own + positions * model.W_pos[: len(own)], written])
    return torch.einsum("xqd,hde,yke->xyhqk", parts, model.QK[1].AB, parts) / model.cfg.d_head**0.5


def plain_scores(case):
    """Scores of the second layer from the plain module's own projections, [head, destination, source]."""
    plain = case.plain
    residual, positions = plain.start(case.tokens)
    (residual,) = plain.layers[0](residual, positions=positions)
    attn = plain.layers[1].attn
    q, k = (linear(residual + positions)[0].unflatten(-1, (attn.n_heads, -1)) for linear in (attn.q, attn.k))
    return torch.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5


@identity
@given(two_layers)
def test_t2_four_kinds_of_terms_are_the_scores(case):
    found, expected = terms_of_scores(case).sum((0, 1)), plain_scores(case)
    assert relative_error(found, expected) < EXACT
    _, cache = case.model.run_with_cache(case.tokens)
    recorded = cache["attn_scores", 1][0]
    allowed = recorded.isfinite()
    assert relative_error(found[allowed], recorded[allowed]) < EXACT


@pytest.mark.parametrize("case", TWO)
def test_t2_fails_without_any_of_the_four_and_without_positions(case):
    terms, expected = terms_of_scores(case), plain_scores(case)
    assert all(relative_error(terms.sum((0, 1)) - left_out, expected) > BROKEN for left_out in terms.flatten(0, 1))
    if case.model.W_pos.any():
        assert relative_error(terms_of_scores(case, positions=False).sum((0, 1)), expected) > BROKEN


@pytest.mark.parametrize("layers", [(0, 1), (0, 2), (1, 2)])
def test_t3_ratios_are_norms_of_products_in_any_two_layers(layers):
    model, norm = PLAIN_CASES[3].model, torch.linalg.matrix_norm
    OV, QK, OV2 = model.OV[layers[0]].AB, model.QK[layers[1]].AB, model.OV[layers[1]].AB
    found = composition_ratios(model, *layers) / model.cfg.d_model**0.5
    for side, read in zip(range(len(SIDES)), (QK, QK.mT, OV2), strict=True):
        for reader in range(len(read)):
            product = OV @ read[reader]
            assert relative_error(found[side, reader], norm(product) / norm(OV) / norm(read[reader])) < 1e-8
            for wrong in (read[reader] @ OV, OV @ read[reader].T, OV.mT @ read[reader]):
                assert relative_error(found[side, reader], norm(wrong) / norm(OV) / norm(read[reader])) > BROKEN


@identity
@given(two_layers)
def test_t4_the_moved_factor_keeps_the_trace_and_not_the_norm(case):
    model, norm = case.model, torch.linalg.matrix_norm
    V, O, Q, K = model.W_V[0, 0], model.W_O[0, 0], model.W_Q[1, 0], model.W_K[1, 0]
    right, moved = V @ O @ K @ Q.T, O @ K @ Q.T @ V
    scale = norm(V @ O) * norm(K @ Q.T)
    assert abs(right.trace() - moved.trace()) / scale < EXACT
    expected = norm(moved) * model.cfg.d_model / (norm(V) * norm(O) * norm(Q @ K.T))
    assert abs(out_of_order(model)[0, 0] / expected - 1) < 1e-8


@pytest.mark.parametrize("case", TWO)
def test_t4_only_the_right_order_is_a_property_of_the_model(case):
    """Writing W_V W_O with other factors (claim O4) changes the moved norm alone."""
    weights, stretch = matrices(case.model), torch.tensor([1.0, 3, 9], dtype=torch.float64)
    other = from_matrices(**{**weights, "W_V": weights["W_V"] * stretch, "W_O": weights["W_O"] / stretch[:, None]})
    assert relative_error(other(case.tokens), case.logits) < EXACT
    assert relative_error(composition_ratios(other), composition_ratios(case.model)) < 1e-8
    assert relative_error(out_of_order(other), out_of_order(case.model)) > 0.1


def sheared(case):
    """The same model in a basis that is far from a rotation of its own."""
    d_model = case.model.cfg.d_model
    Q = torch.linalg.qr(random(d_model, d_model)).Q
    return change_basis(case.model, Q @ torch.diag(torch.linspace(-1, 1, d_model, dtype=torch.float64).exp()) @ Q.T)


@identity
@given(cases(min_layers=0))
def test_the_stream_may_be_sheared(case):
    assert relative_error(sheared(case)(case.tokens), case.logits) < EXACT


@pytest.mark.parametrize("case", PLAIN_CASES[1:])
def test_ratios_follow_a_shear_and_ratios_over_tokens_do_not(case):
    other, over_tokens = sheared(case), token_basis(case.model)
    assert relative_error(composition_ratios(other), composition_ratios(case.model)) > 0.02
    assert relative_error(composition_ratios(token_basis(other)), composition_ratios(over_tokens)) < 1e-8
    assert relative_error(over_tokens(case.tokens), case.logits) < EXACT
    assert relative_error(over_tokens.W_E.T @ over_tokens.W_E, torch.eye(case.model.cfg.d_model).double()) < 1e-8
