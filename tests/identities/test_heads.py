"""O3, T3: the basis is free, and ratios of composition. (O1, O2, O4, O6: chapters 1 and A2, on the shipped models.)"""

import pytest
import torch
from hypothesis import strategies as st
from random_models import BROKEN, EXACT, PLAIN_CASES, build, cases, differs, identity, random, same

from transformer_circuits.circuits.heads import relative_error
from transformer_circuits.measures import weights
from transformer_circuits.models.bridge import from_matrices, matrices

seeds = st.integers(0, 2**32 - 1)


def error_with(case, **changed):
    """Of the logits, against the plain module's, with other weights."""
    return relative_error(from_matrices(**{**matrices(case.model), **changed})(case.tokens), case.logits)


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


def test_t3_ratios_between_white_circuits_are_the_same_in_all_bases():
    case = build(n_layers=2, d_vocab=90, seed=5)
    model, rewritten = case.model, from_matrices(**in_another_basis(case))
    same(weights.white_ratios(rewritten), weights.white_ratios(model), 1e-8)
    stored = [weights.composition_ratios(one.OV[0], one.QK[1], one.OV[1]) for one in (rewritten, model)]
    differs(*stored)
    same(weights.ratios_of_reader(model, (1, 1))[:, 0], stored[1][:, 1])
