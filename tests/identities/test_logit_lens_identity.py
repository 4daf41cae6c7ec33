"""The logit lens is the path expansion cut off by depth (claim W9), and what changes of basis leave alone (claim W10)."""

import dataclasses

import pytest
import torch
from hypothesis import given
from random_models import BROKEN, EXACT, PLAIN_CASES, build, cases, identity, random

from transformer_circuits.circuits import logit_lens, overlap
from transformer_circuits.circuits.composition import change_basis
from transformer_circuits.circuits.logit_lens import key_lens, log_probs, streams
from transformer_circuits.circuits.paths import expand, expand_scores, run
from transformer_circuits.circuits.term_importance import ablations
from transformer_circuits.circuits.weights import relative_error


@identity
@given(cases(min_layers=0))
def test_streams_are_those_of_a_run_and_end_at_the_plain_models_logits(case):
    x = streams(case.weights, case.tokens)
    assert relative_error(x, run(case.weights, case.tokens).residual) < EXACT
    assert relative_error(x[-1] @ case.weights.W_U, case.logits) < EXACT
    batch = streams(case.weights, case.tokens.expand(2, -1))
    assert relative_error(batch[:, 1], x) < EXACT


@identity
@given(cases(max_layers=2))
def test_the_lens_is_the_sum_of_the_paths_that_have_ended(case):
    weights, x = case.weights, streams(case.weights, case.tokens)
    for stage in range(weights.n_layers + 1):
        paths = expand(weights, case.tokens, case.patterns, n_layers=stage)
        assert all(path[-1][0] < stage for path in paths.paths if path)
        assert relative_error(sum(term @ weights.W_U for term in paths.terms), x[stage] @ weights.W_U) < EXACT


@pytest.mark.parametrize("case", PLAIN_CASES)
def test_a_missing_path_is_noticed(case):
    x = streams(case.weights, case.tokens)
    paths = expand(case.weights, case.tokens, case.patterns, n_layers=1)
    for i in range(len(paths.paths)):
        rest = torch.cat([paths.terms[:i], paths.terms[i + 1 :]]).sum(dim=0)
        assert relative_error(rest @ case.weights.W_U, x[1] @ case.weights.W_U) > BROKEN


def test_cut_by_depth_is_not_cut_by_order():
    """After one layer and at the end the two ways to cut agree; in between, with three layers, they part."""
    case = build(n_layers=3, seed=5)
    x, by_order = streams(case.weights, case.tokens), ablations(case.weights, case.tokens)
    assert relative_error(by_order["layer 0"], x[1]) < EXACT
    assert relative_error(by_order["order 3"], x[3]) < EXACT
    assert relative_error(by_order["order 1"], x[1]) > BROKEN
    assert relative_error(by_order["order 2"], x[2]) > BROKEN


@pytest.mark.parametrize("case", PLAIN_CASES)
def test_reading_divergences_are_those_of_the_definition(case):
    tokens = case.tokens[None]
    x = streams(case.weights, tokens)
    reading = logit_lens.read(case.weights, x, tokens)
    logs = log_probs(case.weights, x)
    p = logs.exp()
    assert relative_error(reading.kl, (p[1:] * (logs[1:] - logs[:-1])).sum(-1)) < EXACT
    assert (reading.kl > -EXACT).all()
    assert relative_error(reading.entropy, -(p * logs).sum(-1)) < EXACT
    shifted = dataclasses.replace(case.weights, W_U=case.weights.W_U + random(case.weights.d_model, 1))  # the same to all logits
    for one, other in zip(logit_lens.read(shifted, x, tokens), reading):
        assert relative_error(one.double(), other.double()) < EXACT


@pytest.mark.parametrize("case", [case for case in PLAIN_CASES if case.weights.n_layers > 1])
def test_key_lens_is_the_score_of_the_query_token(case):
    x = streams(case.weights, case.tokens)
    scores = key_lens(case.weights, x[1], 1, 0)  # [source, query token]
    split = expand_scores(case.weights, case.tokens, case.patterns, 1, 0)
    position = split.components.index("position")
    from_token = split.terms[split.components.index("token")]  # [key component, destination, source]
    without_position = from_token.sum(dim=0) - from_token[position]
    assert relative_error(scores[:, case.tokens].T, without_position) < EXACT


@pytest.mark.parametrize("case", PLAIN_CASES)
def test_overlaps_over_tokens_do_not_depend_on_the_basis(case):
    weights = case.weights
    other = change_basis(weights, torch.eye(weights.d_model) + 0.3 * random(weights.d_model, weights.d_model))
    for side in overlap.SIDES:
        before, after = (overlap.overlaps(overlap.bases(w, side, tokens=True)) for w in (weights, other))
        assert relative_error(after, before) < 1e-8  # roots of covariances lose some digits
        before, after = (overlap.overlaps(overlap.bases(w, side)) for w in (weights, other))
        assert relative_error(after, before) > BROKEN  # those in the stream do
    assert relative_error(overlap.same_map(other, tokens=True), overlap.same_map(weights, tokens=True)) < 1e-8
    assert relative_error(streams(other, case.tokens) @ other.W_U, streams(weights, case.tokens) @ weights.W_U) < 1e-8


@pytest.mark.parametrize("case", PLAIN_CASES)
@pytest.mark.parametrize("side", overlap.SIDES)
def test_overlaps_over_tokens_are_those_of_functions_of_tokens(case, side):
    """Against the whole d_vocab x d_head matrices, centred over tokens."""
    weights = case.weights
    if side == "read":
        functions = weights.W_E @ weights.W_V[0]
    else:
        functions = (weights.W_O[0] @ weights.W_U).mT
    naive = torch.linalg.qr(functions - functions.mean(dim=1, keepdim=True))[0]
    found = overlap.overlaps(overlap.bases(weights, side, tokens=True))
    assert relative_error(found, overlap.overlaps(naive)) < 1e-8


@pytest.mark.parametrize("case", PLAIN_CASES)
def test_same_map_over_tokens_is_that_of_the_circuits(case):
    weights = case.weights
    OV = weights.W_E @ (weights.W_V[0] @ weights.W_O[0]) @ weights.W_U  # formed whole: tiny here
    OV = OV - OV.mean(dim=1, keepdim=True)
    OV = (OV - OV.mean(dim=2, keepdim=True)).flatten(1)
    naive = torch.nn.functional.cosine_similarity(OV[:, None], OV, dim=-1)
    assert relative_error(overlap.same_map(weights, tokens=True), naive) < 1e-8
