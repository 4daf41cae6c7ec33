"""T1 to T4: composition scores, the orders of a product, and what leaves them alone. (The expansions are in test_paths.py too.)"""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_models import BROKEN, EXACT, PLAIN_CASES, build, cases, forward_error, identity, random

from transformer_circuits.circuits.composition import (
    change_basis,
    composition_ratios,
    composition_scores,
    directions_used,
    reordered_ratios,
    term_sizes,
    token_basis,
)
from transformer_circuits.circuits.paths import ScoreTerms, attention_scores, expand_scores, path_name, run
from transformer_circuits.circuits.weights import relative_error, reparametrize_heads

two_layers = cases(min_layers=2, max_layers=2)
ORDERS = ["right", "swapped", "rotated", "rotated on"]


def dense(weights, side, reader, writer):
    """V, O, A, B of W_OV = V O and W_in = A B, for one pair and side."""
    V, O = weights.W_V[0, writer], weights.W_O[0, writer]
    Q, K = weights.W_Q[1, reader], weights.W_K[1, reader]
    A, B = [(Q, K.T), (K, Q.T), (weights.W_V[1, reader], weights.W_O[1, reader])][side]
    return V, O, A, B


@identity
@given(two_layers, st.integers(0, 2), st.data())
def test_t3_scores_are_norms_of_products(case, side, data):
    heads = st.integers(0, case.weights.n_heads - 1)
    reader, writer = data.draw(heads), data.draw(heads)
    V, O, A, B = dense(case.weights, side, reader, writer)
    expected = torch.linalg.norm(V @ O @ A @ B) / (torch.linalg.norm(V @ O) * torch.linalg.norm(A @ B))
    scores = composition_scores(case.weights)
    assert scores.shape == (3, case.weights.n_heads, case.weights.n_heads)
    assert abs(scores[side, reader, writer] / expected - 1) < 1e-8  # the norm may be that of a small remainder
    singular = torch.linalg.svdvals(V @ O @ A @ B).square()
    used = singular.sum().square() / singular.square().sum()
    assert abs(directions_used(case.weights)[side, reader, writer] / used - 1) < 1e-8


@pytest.mark.parametrize("case", PLAIN_CASES[1:3])
def test_t3_fails_with_a_factor_transposed_or_in_the_papers_order(case):
    for side in range(3):
        V, O, A, B = dense(case.weights, side, 0, 1)
        right = composition_scores(case.weights)[side, 0, 1]
        for wrong in (A @ B @ V @ O, V @ O @ (A @ B).T, (V @ O).T @ A @ B):
            score = torch.linalg.norm(wrong) / (torch.linalg.norm(V @ O) * torch.linalg.norm(A @ B))
            assert abs(score / right - 1) > BROKEN


@pytest.mark.parametrize("layers", [(0, 1), (0, 2), (1, 2)])
def test_t3_any_two_layers_of_three(layers):
    weights = PLAIN_CASES[3].weights
    first, second = layers
    W_OV = weights.W_V[first, 1] @ weights.W_O[first, 1]
    W_QK = weights.W_Q[second, 0] @ weights.W_K[second, 0].T
    expected = torch.linalg.norm(W_OV @ W_QK.T) / (torch.linalg.norm(W_OV) * torch.linalg.norm(W_QK))
    assert abs(composition_scores(weights, *layers)[1, 0, 1] / expected - 1) < 1e-8


@identity
@given(two_layers, st.integers(0, 2))
def test_t4_orders_are_what_they_say(case, side):
    weights, d = case.weights, case.weights.d_model
    V, O, A, B = dense(weights, side, 0, 0)
    norm = torch.linalg.norm
    expected = {
        "right": norm(V @ O @ A @ B) * d**0.5 / (norm(V @ O) * norm(A @ B)),
        "swapped": norm(A @ B @ V @ O) * d**0.5 / (norm(V @ O) * norm(A @ B)),
        "rotated": norm(O @ A @ B @ V) * d / (norm(V) * norm(O) * norm(A @ B)),
        "rotated on": norm(B @ V @ O @ A) * d / (norm(V @ O) * norm(A) * norm(B)),
    }
    for order in ORDERS:
        assert abs(reordered_ratios(weights, order)[side, 0, 0] / expected[order] - 1) < 1e-8, order


@identity
@given(two_layers, st.integers(0, 2))
def test_t4_all_orders_share_their_trace_and_eigenvalues(case, side):
    V, O, A, B = dense(case.weights, side, 0, 0)
    products = [V @ O @ A @ B, A @ B @ V @ O, O @ A @ B @ V, B @ V @ O @ A]
    scale = torch.linalg.norm(V @ O) * torch.linalg.norm(A @ B)
    for power in (1, 2):  # traces of powers are sums of powers of eigenvalues; eigenvalues themselves may be defective
        traces = torch.stack([torch.linalg.matrix_power(product, power).trace() for product in products])
        assert (traces - traces[0]).abs().max() / scale**power < EXACT


@identity
@given(two_layers, st.integers(0, 2**32 - 1))
def test_t4_only_whole_matrices_have_norms_of_their_own(case, seed):
    """Writing W_V W_O and W_Q W_K^T differently (claim O4) leaves the right order and the swapped one alone."""
    weights = case.weights
    R = random(2, weights.n_layers, weights.n_heads, weights.d_head, weights.d_head, seed=seed)
    R = R + 3 * torch.eye(weights.d_head, dtype=torch.float64)
    R = torch.where(torch.linalg.cond(R)[..., None, None] < 100, R, torch.eye(weights.d_head, dtype=torch.float64) * 2)
    other = reparametrize_heads(weights, *R)
    for order in ("right", "swapped"):
        before, after = reordered_ratios(weights, order), reordered_ratios(other, order)
        assert ((after - before) / before).abs().max() < 1e-8


@pytest.mark.parametrize("order", ["rotated", "rotated on"])
def test_t4_a_rotated_order_depends_on_how_the_factors_are_written(order):
    weights = PLAIN_CASES[1].weights
    R = torch.diag(torch.tensor([1.0, 3, 9], dtype=torch.float64))
    other = reparametrize_heads(weights, R, R)
    assert forward_error(PLAIN_CASES[1], other) < EXACT
    assert relative_error(reordered_ratios(other, order), reordered_ratios(weights, order)) > 0.1


def stretched(d_model, seed=0):
    """An invertible matrix that is far from a rotation."""
    Q = torch.linalg.qr(random(d_model, d_model, seed=seed)).Q
    return Q @ torch.diag(torch.linspace(-1, 1, d_model, dtype=torch.float64).exp()) @ Q.T


@identity
@given(cases(min_layers=0), st.integers(0, 2**32 - 1))
def test_the_stream_may_be_sheared(case, seed):
    assert forward_error(case, change_basis(case.weights, stretched(case.weights.d_model, seed))) < EXACT


@pytest.mark.parametrize("case", PLAIN_CASES[1:])
def test_ratios_follow_a_shear_and_ratios_over_tokens_do_not(case):
    sheared = change_basis(case.weights, stretched(case.weights.d_model))
    before, after = composition_ratios(case.weights), composition_ratios(sheared)
    assert relative_error(after, before) > 0.02
    before, after = composition_ratios(token_basis(case.weights)), composition_ratios(token_basis(sheared))
    assert relative_error(after, before) < 1e-8
    assert forward_error(case, token_basis(case.weights)) < EXACT


def test_norms_in_the_token_basis_are_norms_of_token_circuits():
    weights = PLAIN_CASES[1].weights
    W_OV = weights.W_V[0, 0] @ weights.W_O[0, 0]
    W_QK = weights.W_Q[1, 1] @ weights.W_K[1, 1].T
    pinv = torch.linalg.pinv(weights.W_E)
    circuit = torch.linalg.norm(weights.W_E @ W_OV @ W_QK.T @ weights.W_E.T)
    factors = torch.linalg.norm(weights.W_E @ W_OV @ pinv) * torch.linalg.norm(weights.W_E @ W_QK @ weights.W_E.T)
    expected = circuit / factors * math.sqrt(weights.d_model)
    assert abs(composition_ratios(token_basis(weights))[1, 1, 0] / expected - 1) < 1e-8


# T2: terms by the formula A_q (x) A_k (x) W, in two and three layers, positions among them.


def component(case, name):
    """A query or key component as (what mixes its positions, what it holds before that, what it passes through)."""
    weights, n = case.weights, len(case.tokens)
    A, W = torch.eye(n, dtype=torch.float64), torch.eye(weights.d_model, dtype=torch.float64)
    if name == "position":
        return A, weights.W_pos[:n], W
    for part in [] if name == "token" else name.split(" → "):
        layer, head = map(int, part.split("."))
        A, W = case.patterns[layer, head] @ A, W @ weights.W_V[layer, head] @ weights.W_O[layer, head]
    return A, weights.W_E[case.tokens], W


@identity
@given(cases(min_layers=2), st.data())
def test_t2_every_term_is_two_patterns_and_a_matrix(case, data):
    last = case.weights.n_layers - 1
    head = data.draw(st.integers(0, case.weights.n_heads - 1))
    split = expand_scores(case.weights, case.tokens, case.patterns, last, head)
    q, k = (data.draw(st.sampled_from(range(len(split.components)))) for _ in range(2))
    A_q, x_q, W_q = component(case, split.components[q])
    A_k, x_k, W_k = component(case, split.components[k])
    W_QK = case.weights.W_Q[last, head] @ case.weights.W_K[last, head].T
    expected = A_q @ (x_q @ W_q @ W_QK @ W_k.T @ x_k.T) @ A_k.T / math.sqrt(case.weights.d_head)
    assert (split.terms[q, k] - expected).abs().max() / split.terms.abs().max() < EXACT


@pytest.mark.parametrize("case", [case for case in PLAIN_CASES if case.weights.n_layers > 1 and case.weights.W_pos.any()])
def test_t2_fails_without_position_terms(case):
    last = case.weights.n_layers - 1
    split = expand_scores(case.weights, case.tokens, case.patterns, last, 0)
    expected = attention_scores(case.weights, run(case.weights, case.tokens).residual[last], last)[0]
    assert relative_error(split.total(), expected) < EXACT
    place = split.components.index("position")
    for dropped in (split.terms[place], split.terms[:, place]):
        assert relative_error(split.total() - dropped.sum(0), expected) > BROKEN


@pytest.mark.parametrize("case", [case for case in PLAIN_CASES if case.weights.n_layers == 3])
def test_t2_in_three_layers_components_may_pass_two_heads(case):
    split = expand_scores(case.weights, case.tokens, case.patterns, 2, 0)
    assert split.components[-1] == path_name(((0, 1), (1, 1))) and len(split.components) == 10


@identity
@given(cases(min_layers=1))
def test_term_sizes_are_standard_deviations_along_rows(case):
    if len(case.tokens) < 2:
        with pytest.raises(ValueError, match="take a longer prompt"):
            term_sizes(expand_scores(case.weights, case.tokens, case.patterns, 0, 0))
        return
    split = expand_scores(case.weights, case.tokens, case.patterns, case.weights.n_layers - 1, 0)
    sizes = term_sizes(split)
    rows = [split.terms[..., i, : i + 1].var(dim=-1, unbiased=False) for i in range(1, len(case.tokens))]
    assert (sizes - torch.stack(rows).mean(0).sqrt()).abs().max() / split.terms.abs().max() < 1e-7


def test_term_sizes_see_neither_the_future_nor_what_is_alike_along_a_row():
    case = build(n_layers=2, length=5)
    split = expand_scores(case.weights, case.tokens, case.patterns, 1, 0)
    sizes = term_sizes(split)
    split.terms.add_(torch.arange(5.0, dtype=torch.float64)[:, None]).add_(100 * torch.ones(5, 5, dtype=torch.float64).triu(1))
    assert relative_error(term_sizes(split), sizes) < 1e-8


def test_term_sizes_of_a_large_term_that_hardly_varies():
    small = torch.randn(1, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    sizes, shifted = (term_sizes(ScoreTerms(["token"], terms)) for terms in (small, small + 3000))  # in single precision
    assert relative_error(shifted, sizes) < 1e-3
