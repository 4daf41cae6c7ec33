"""T3, T4: composition ratios, and what changes them. (The expansions T1 and T2 are in test_paths.)"""

import pytest
import torch
from hypothesis import given
from random_models import EXACT, PLAIN_CASES, cases, differs, identity, random, same

from transformer_circuits.circuits.composition import (
    change_basis,
    composition_ratios,
    out_of_order,
    token_basis,
)
from transformer_circuits.circuits.heads import relative_error
from transformer_circuits.measures import weights
from transformer_circuits.models.bridge import from_matrices, matrices

two_layers = cases(min_layers=2, max_layers=2)
TWO = [case for case in PLAIN_CASES if case.model.cfg.n_layers == 2]


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
    W, stretch = matrices(case.model), torch.tensor([1.0, 3, 9], dtype=torch.float64)
    other = from_matrices(**W | {"W_V": W["W_V"] * stretch, "W_O": W["W_O"] / stretch[:, None]})
    same(other(case.tokens), case.logits)
    same(composition_ratios(other), composition_ratios(case.model), 1e-8)
    assert relative_error(out_of_order(other), out_of_order(case.model)) > 0.1


def sheared(case):
    """Return the same model in a basis that is far from a rotation of its own."""
    d_model = case.model.cfg.d_model
    Q = torch.linalg.qr(random(d_model, d_model)).Q
    stretch = torch.linspace(-1, 1, d_model, dtype=torch.float64).exp()
    return change_basis(case.model, Q * stretch @ Q.T)


@identity
@given(cases(min_layers=0))
def test_the_stream_may_be_sheared(case):
    same(sheared(case)(case.tokens), case.logits)


@pytest.mark.parametrize("case", PLAIN_CASES[1:])
def test_ratios_follow_a_shear_and_ratios_over_tokens_do_not(case):
    other, over_tokens = sheared(case), token_basis(case.model)
    assert relative_error(composition_ratios(other), composition_ratios(case.model)) > 0.02
    same(composition_ratios(token_basis(other)), composition_ratios(over_tokens), 1e-8)
    same(over_tokens(case.tokens), case.logits)
    same(over_tokens.W_E.T @ over_tokens.W_E, torch.eye(case.model.cfg.d_model).double(), 1e-8)
