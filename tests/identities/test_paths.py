"""P1 to P3, T1, T2 and A2: logits and scores as sums over paths; frozen patterns."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_models import BROKEN, EXACT, PLAIN_CASES, cases, identity, random

from transformer_circuits.circuits.paths import (
    expand,
    expand_scores,
    path_name,
    product_of_heads,
    run,
    with_identity_head,
)
from transformer_circuits.circuits.positions import FOUR_TERMS, attention_to_start, mean_attention, mean_by_offset, position_scores
from transformer_circuits.circuits.positions import position_terms
from transformer_circuits.circuits.qk_ov import direct, full_ov, full_path, full_qk
from transformer_circuits.circuits.weights import Weights, relative_error


def all_paths(case, drop=None):
    expansion = expand(case.weights, case.tokens, case.patterns)
    terms = [term for path, term in zip(expansion.paths, expansion.terms) if path != drop]
    return sum(terms) @ case.weights.W_U


@identity
@given(cases(min_layers=0))
def test_p1_t1_paths_add_up_to_the_logits(case):
    assert relative_error(all_paths(case), case.logits) < EXACT


@pytest.mark.parametrize("case", PLAIN_CASES)
def test_p1_t1_fail_without_any_one_path(case):
    for path in expand(case.weights, case.tokens, case.patterns).paths:
        assert relative_error(all_paths(case, drop=path), case.logits) > BROKEN, path_name(path)


@identity
@given(cases(min_layers=0))
def test_every_choice_of_increasing_layers_is_one_path(case):
    n_layers, n_heads = case.weights.n_layers, case.weights.n_heads
    expected = {
        tuple((layer, head) for layer, head in enumerate(choice) if head is not None)
        for choice in itertools.product([None, *range(n_heads)], repeat=n_layers)
    }
    paths = expand(case.weights, case.tokens, case.patterns).paths
    assert len(paths) == len(expected) == (1 + n_heads) ** n_layers and set(paths) == expected
    assert [len(path) for path in paths] == sorted(len(path) for path in paths)


def one_path(case, path, patterns):
    """Its term by the formula: the product of patterns, times one-hot tokens, times the path's full OV circuit."""
    A = torch.eye(len(case.tokens), dtype=torch.float64)
    for layer, head in path:
        A = patterns[layer, head] @ A
    one_hot = torch.eye(len(case.weights.W_E), dtype=torch.float64)[case.tokens]
    return A @ one_hot @ full_path(case.weights, path).AB


@identity
@given(cases(min_layers=0), st.data())
def test_each_term_is_a_pattern_times_an_ov_circuit(case, data):
    expansion = expand(case.weights, case.tokens, case.patterns)
    i = data.draw(st.integers(0, len(expansion.paths) - 1))
    expected = one_path(case, expansion.paths[i], case.patterns)
    assert relative_error(expansion.terms[i] @ case.weights.W_U, expected) < EXACT
    token = data.draw(st.integers(0, len(case.weights.W_E) - 1))
    assert relative_error(expansion.logits(case.weights, token)[i], expected[:, token]) < EXACT
    above = expansion.logits(case.weights, token, above_mean=True)[i]
    assert (above - expected[:, token] + expected.mean(1)).abs().max() / expected.abs().max() < EXACT


@pytest.mark.parametrize("case", PLAIN_CASES)
def test_a_term_fails_with_the_pattern_transposed(case):
    expansion = expand(case.weights, case.tokens, case.patterns)
    for path, term in zip(expansion.paths[1:], expansion.terms[1:]):
        assert relative_error(one_path(case, path, case.patterns.mT), term @ case.weights.W_U) > BROKEN


@identity
@given(cases(min_layers=0))
def test_orders_add_up(case):
    expansion = expand(case.weights, case.tokens, case.patterns)
    by_order = sum(expansion.total(order) for order in range(case.weights.n_layers + 1))
    assert relative_error(by_order @ case.weights.W_U, case.logits) < EXACT


def test_a_batch_expands_like_its_prompts():
    case = PLAIN_CASES[3]
    tokens = torch.stack([case.tokens, case.tokens.flip(0)])
    batched = run(case.weights, tokens)
    assert relative_error(batched.logits, case.model(tokens)) < EXACT
    terms = expand(case.weights, tokens, batched.patterns).terms
    alone = expand(case.weights, tokens[1], run(case.weights, tokens[1]).patterns).terms
    assert relative_error(terms[:, 1], alone) < EXACT


# P2: scores of a first-layer head.


def scores_by_formula(case, head, divide=True, transpose=False, positions=True):
    x = case.weights.W_E[case.tokens] + positions * case.weights.W_pos[: len(case.tokens)]
    W_QK = case.weights.W_Q[0, head] @ case.weights.W_K[0, head].T
    scores = x @ (W_QK.T if transpose else W_QK) @ x.T
    return scores / math.sqrt(case.weights.d_head) if divide else scores


def pattern_error(case, scores):
    """The reference is the pattern that the plain module computes from its own scores."""
    future = torch.ones_like(scores, dtype=torch.bool).triu(1)
    return relative_error(scores.masked_fill(future, -math.inf).softmax(-1), case.patterns[0, 0])


@identity
@given(cases())
def test_p2_four_terms_add_up_to_the_scores(case):
    terms = position_terms(case.weights, case.tokens, head=0)
    assert list(terms) == FOUR_TERMS
    assert pattern_error(case, sum(terms.values())) < EXACT
    assert relative_error(sum(terms.values()), scores_by_formula(case, 0)) < EXACT
    token_token = full_qk(case.weights, 0, 0).AB[case.tokens][:, case.tokens] / math.sqrt(case.weights.d_head)
    assert relative_error(terms["token-token"], token_token) < EXACT
    expected = position_scores(case.weights, 0, 0, len(case.tokens))
    assert relative_error(terms["position-position"], expected) < EXACT


@pytest.mark.parametrize("case", [case for case in PLAIN_CASES if case.weights.W_pos.any()])
def test_p2_fails_without_scale_without_positions_or_transposed(case):
    assert pattern_error(case, scores_by_formula(case, 0)) < EXACT
    assert pattern_error(case, scores_by_formula(case, 0, divide=False)) > BROKEN
    assert pattern_error(case, scores_by_formula(case, 0, transpose=True)) > BROKEN
    assert pattern_error(case, scores_by_formula(case, 0, positions=False)) > BROKEN
    terms = position_terms(case.weights, case.tokens, head=0)
    for name in FOUR_TERMS:
        assert pattern_error(case, sum(term for other, term in terms.items() if other != name)) > BROKEN, name
    terms["token-position"], terms["position-token"] = terms["position-token"].T, terms["token-position"].T
    assert pattern_error(case, sum(terms.values())) > BROKEN


# T2: scores of later heads.


def module_scores(case, layer):
    """Scores [head, destination, source] of a layer of the plain module, from its own queries and keys."""
    residual, positions = case.model.tok_embed(case.tokens)[None], case.model.pos(torch.arange(len(case.tokens)))
    for block in case.model.layers[:layer]:
        residual = residual + block.attn(residual, positions)[0]
    attention = case.model.layers[layer].attn
    heads = (attention.n_heads, attention.d_head)
    q, k = (f(residual + positions)[0].unflatten(-1, heads).transpose(0, 1) for f in (attention.q, attention.k))
    return q @ k.mT / math.sqrt(attention.d_head)


@identity
@given(cases(), st.data())
def test_t2_terms_add_up_to_the_scores(case, data):
    layer = data.draw(st.integers(0, case.weights.n_layers - 1))
    head = data.draw(st.integers(0, case.weights.n_heads - 1))
    split = expand_scores(case.weights, case.tokens, case.patterns, layer, head)
    expected = module_scores(case, layer)[head]
    assert relative_error(split.total(), expected) < EXACT
    assert relative_error(sum(split.by_composition().values()), expected) < EXACT
    assert len(split.components) == 1 + (1 + case.weights.n_heads) ** layer


@pytest.mark.parametrize("case", [case for case in PLAIN_CASES if case.weights.n_layers > 1])
def test_t2_fails_without_any_part_or_with_q_and_k_exchanged(case):
    last = case.weights.n_layers - 1
    parts = expand_scores(case.weights, case.tokens, case.patterns, last, 0).by_composition()
    expected = module_scores(case, last)[0]
    for name in parts:
        assert relative_error(sum(part for other, part in parts.items() if other != name), expected) > BROKEN, name
    exchanged = parts["none"] + parts["Q"].T + parts["K"].T + parts["Q and K"]
    assert relative_error(exchanged, expected) > BROKEN


@identity
@given(cases(min_layers=2))
def test_t2_k_composition_is_a_pattern_times_a_circuit(case):
    """The term (token, 0.0) of head 1.0 by the paper's formula, with the first head's pattern on the key side."""
    weights, tokens = case.weights, case.tokens
    split = expand_scores(weights, tokens, case.patterns, 1, 0)
    term = split.terms[split.components.index("token"), split.components.index("0.0")]
    W_QK = weights.W_Q[1, 0] @ weights.W_K[1, 0].T
    W_OV = weights.W_V[0, 0] @ weights.W_O[0, 0]
    circuit = weights.W_E @ W_QK @ W_OV.T @ weights.W_E.T  # [destination token, the token that 0.0 attends to]
    expected = circuit[tokens][:, tokens] @ case.patterns[0, 0].T / math.sqrt(weights.d_head)
    assert (term - expected).abs().max() / split.terms.abs().max() < EXACT  # one small term may cancel to nothing


# P3: frozen patterns.


@identity
@given(cases(min_layers=0), st.integers(0, 2**32 - 1))
def test_p3_frozen_logits_are_linear_in_the_tokens(case, seed):
    s, t = random(2, len(case.tokens), len(case.weights.W_E), seed=seed)

    def frozen(mixture):
        return run(case.weights, mixture, patterns=case.patterns).logits

    assert relative_error(frozen(3 * s - 2 * t), 3 * frozen(s) - 2 * frozen(t)) < EXACT
    one_hot = torch.eye(len(case.weights.W_E), dtype=torch.float64)[case.tokens]
    assert relative_error(frozen(one_hot), case.logits) < EXACT
    assert relative_error(run(case.weights, case.tokens, patterns=case.patterns).logits, case.logits) < EXACT


@pytest.mark.parametrize("case", PLAIN_CASES)
def test_p3_fails_when_patterns_are_free(case):
    s, t = random(2, len(case.tokens), len(case.weights.W_E))
    mixed = run(case.weights, 3 * s - 2 * t).logits
    assert relative_error(3 * run(case.weights, s).logits - 2 * run(case.weights, t).logits, mixed) > BROKEN


@identity
@given(cases())
def test_p3_the_linear_map_is_a_sum_of_tensor_products(case):
    """One layer: Id (x) W_E W_U + sum_h A^h (x) OV circuit^h, as one big matrix on the one-hot tokens laid out flat."""
    weights = Weights(case.weights.W_E, case.weights.W_pos,
                      *(getattr(case.weights, f"W_{part}")[:1] for part in "QKVO"), case.weights.W_U)  # fmt: skip
    one_hot = torch.eye(len(weights.W_E), dtype=torch.float64)[case.tokens]
    big = torch.kron(torch.eye(len(one_hot), dtype=torch.float64), direct(weights).AB.T.contiguous())
    for head in range(weights.n_heads):
        big = big + torch.kron(case.patterns[0, head], full_ov(weights, 0, head).AB.T.contiguous())
    expected = run(weights, case.tokens).logits
    assert relative_error((big @ one_hot.flatten()).view_as(expected), expected) < EXACT


# A2: the identity head.


@identity
@given(cases(min_layers=0))
def test_a2_with_an_identity_head_every_path_is_a_product_of_heads(case):
    assert relative_error(product_of_heads(case.weights, case.tokens, case.patterns), case.logits) < EXACT


@pytest.mark.parametrize("case", PLAIN_CASES)
def test_a2_fails_without_the_identity_head(case):
    residual = case.weights.W_E[case.tokens]
    for A, W_OV in zip(*with_identity_head(case.weights, case.patterns)):
        residual = (A[:-1] @ residual @ W_OV[:-1]).sum(0)
    assert relative_error(residual @ case.weights.W_U, case.logits) > BROKEN


# Measures of position.


def test_offsets_are_counted_from_the_present_token():
    n = 5
    distance = torch.arange(n)[:, None] - torch.arange(n)
    assert mean_by_offset(distance.double(), 3).tolist() == [0, 1, 2]


def test_attention_to_start_leaves_out_the_start_tokens_own_row():
    case = PLAIN_CASES[1]
    expected = torch.stack([run(case.weights, x).patterns[..., 1:, 0].mean(dim=-1) for x in (case.tokens, case.tokens.flip(0))])
    measured = attention_to_start(case.weights, torch.stack([case.tokens, case.tokens.flip(0)]))
    assert relative_error(measured, expected.mean(dim=0)) < EXACT
    with pytest.raises(ValueError, match="at least two tokens"):
        attention_to_start(case.weights, case.tokens[None, :1])


def test_mean_attention_is_the_mean_over_destinations_after_the_first():
    case = PLAIN_CASES[1]
    measured = mean_attention(case.weights, case.tokens[None], n_offsets=2)
    n, patterns = len(case.tokens), case.patterns
    for offset in (0, 1):
        expected = sum(patterns[..., i, i - offset] for i in range(1, n)) / (n - 1)
        assert relative_error(measured[..., offset], expected) < EXACT
