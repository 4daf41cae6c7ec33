"""T7, T9, T10, T14, T15: effects on logits and parts of scores add up; ablations and gradients are those of the model."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_models import BROKEN, EXACT, PLAIN_CASES, build, cases, identity, random

from transformer_circuits.circuits.induction import (
    contents,
    excess_by_source,
    head_output,
    k_composition_circuit,
    key_effect,
    logit_effect,
    mean_outputs,
    patterns_without,
    score_by_source,
    value_sizes,
)
from transformer_circuits.circuits.paths import causal_softmax, expand, run
from transformer_circuits.circuits.qk_ov import eigenvalues, matched_difference
from transformer_circuits.circuits.weights import relative_error, reparametrize_heads

TWO_LAYERS = [case for case in PLAIN_CASES if case.weights.n_layers > 1]


def some(case, n, seed=0):
    """n destinations with allowed sources before or at them, in any order."""
    generator = torch.Generator().manual_seed(seed)
    destinations = torch.randint(len(case.tokens), (n,), generator=generator)
    targets = (torch.rand(n, generator=generator) * (destinations + 1)).long()
    return destinations, targets


# T7: effects on logits.


@identity
@given(cases(min_layers=0))
def test_effects_of_all_heads_and_of_the_direct_path_add_up_to_the_logits(case):
    here = run(case.weights, case.tokens)
    wanted = case.tokens.flip(0)
    parts = [case.weights.W_E[case.tokens]] + [head_output(case.weights, here, *head) for head in case.weights.heads]
    rows = torch.arange(len(wanted))
    plain = sum(logit_effect(case.weights, p, wanted, above_mean=False) for p in parts)
    assert relative_error(plain, case.logits[rows, wanted]) < EXACT
    above = (case.logits - case.logits.mean(-1, keepdim=True))[rows, wanted]
    scale = case.logits.abs().max()
    assert ((sum(logit_effect(case.weights, p, wanted) for p in parts) - above).abs().max() / scale) < EXACT


@pytest.mark.parametrize("case", PLAIN_CASES)
def test_without_one_head_they_do_not(case):
    here = run(case.weights, case.tokens)
    parts = [case.weights.W_E[case.tokens]] + [head_output(case.weights, here, *head) for head in case.weights.heads[1:]]
    total = sum(logit_effect(case.weights, p, case.tokens, above_mean=False) for p in parts)
    assert relative_error(total, case.logits[torch.arange(len(case.tokens)), case.tokens]) > BROKEN


# T6: what is written is the model's, the size of v is not.


@pytest.mark.parametrize("case", PLAIN_CASES)
def test_value_sizes_depend_on_the_split_of_w_ov_and_written_ones_do_not(case):
    w, d_head = case.weights, case.weights.d_head
    other = reparametrize_heads(w, torch.eye(d_head, dtype=torch.float64), torch.diag(torch.arange(2.0, 2 + d_head)).double())
    residual = case.weights.W_E[case.tokens]
    for layer in range(w.n_layers):
        plain = [value_sizes(weights, residual, layer) for weights in (w, other)]
        written = [value_sizes(weights, residual, layer, written=True) for weights in (w, other)]
        assert relative_error(*plain) > 0.1 and relative_error(*written) < EXACT
        expected = torch.stack([(residual @ w.W_V[layer, h] @ w.W_O[layer, h]).norm(dim=-1) for h in range(w.n_heads)])
        assert relative_error(written[0], expected) < EXACT


# T9: scores by source.


@identity
@given(cases())
def test_contents_add_up_to_the_residual_stream(case):
    here = run(case.weights, case.tokens)
    for layer in range(case.weights.n_layers):
        moves, vectors = contents(case.weights, case.tokens, here.patterns, layer)
        assert len(moves) == (1 + case.weights.n_heads) ** layer
        assert relative_error((moves @ vectors).sum(0), here.residual[layer]) < EXACT


@identity
@given(cases(), st.integers(0, 99))
def test_a_score_is_the_sum_over_pairs_of_source_tokens(case, seed):
    here = run(case.weights, case.tokens)
    (i,), (j,) = some(case, 1, seed)
    for layer, head in case.weights.heads:
        split = score_by_source(case.weights, case.tokens, here.patterns, layer, head, int(i), int(j))
        expected = here.scores[layer, head]
        assert abs(split.sum() - expected[i, j]) / expected.abs().max() < EXACT
        assert (split[i + 1 : -1] == 0).all() and (split[:, j + 1 : -1] == 0).all()  # nothing comes from ahead


def test_an_entry_changes_with_its_own_two_tokens_only():
    case = build(n_layers=2, seed=3)
    patterns, i, j = case.patterns, 5, 4
    before = score_by_source(case.weights, case.tokens, patterns, 1, 0, i, j)
    changed = case.tokens.clone()
    changed[2] = (changed[2] + 1) % len(case.weights.W_E)
    differs = score_by_source(case.weights, changed, patterns, 1, 0, i, j) != before
    others = torch.tensor([0, 1, 3, 4, 5, 6])
    assert differs[2].any() and differs[:, 2].any() and not differs[others][:, others].any()


@identity
@given(cases(), st.integers(0, 99))
def test_parts_add_up_to_the_excess_over_the_rows_mean(case, seed):
    here = run(case.weights, case.tokens)
    destinations, targets = some(case, 7, seed)
    for layer, head in case.weights.heads:
        parts = excess_by_source(case.weights, case.tokens, here.patterns, layer, head, destinations, targets)
        scores = here.scores[layer, head]
        expected = torch.stack([scores[i, j] - scores[i, : i + 1].mean() for i, j in zip(destinations, targets)])
        assert ((parts.sum((0, 1)) - expected).abs().max() / scores.abs().max()) < EXACT


@pytest.mark.parametrize("case", TWO_LAYERS)
def test_parts_are_the_marginals_of_the_pairs(case):
    here = run(case.weights, case.tokens)
    i, j = 5, 3
    parts = excess_by_source(case.weights, case.tokens, here.patterns, 1, 1, torch.tensor([i]), torch.tensor([j]))[..., 0]

    def by_part(source):
        split = score_by_source(case.weights, case.tokens, here.patterns, 1, 1, i, source)

        def groups(m, at):  # rows by part: own, before, earlier, position
            none = torch.zeros_like(m[0])
            return torch.stack([m[at], m[at - 1] if at else none, m[: max(at - 1, 0)].sum(0), m[-1]])

        return groups(groups(split, i).T, source).T

    expected = by_part(j) - torch.stack([by_part(s) for s in range(i + 1)]).mean(0)
    assert relative_error(parts, expected) < EXACT


# T10.


@pytest.mark.parametrize("case", TWO_LAYERS)
def test_the_k_composition_circuit_is_the_part_of_the_score_through_the_earlier_head(case):
    w = case.weights
    circuit = k_composition_circuit(w, (0, 1), (1, 0))
    assert circuit.mdim == w.d_head
    expected = w.W_E @ w.W_Q[1, 0] @ (w.W_E @ w.W_V[0, 1] @ w.W_O[0, 1] @ w.W_K[1, 0]).T
    assert relative_error(circuit.AB, expected) < EXACT
    assert relative_error(k_composition_circuit(w, (0, 1), (1, 0)).AB.T, expected) > BROKEN
    large = torch.linalg.eigvals(expected)
    leading = large[large.abs().argsort(descending=True)[: w.d_head]]
    assert matched_difference(eigenvalues(circuit), leading) < 1e-8


# T14: ablation.


@pytest.mark.parametrize("case", PLAIN_CASES)
def test_a_head_replaced_by_its_own_output_changes_nothing(case):
    here = run(case.weights, case.tokens)
    for head in case.weights.heads:
        own = head_output(case.weights, here, *head)
        assert relative_error(patterns_without(case.weights, here, head, own), here.patterns) < EXACT


@pytest.mark.parametrize("case", PLAIN_CASES)
def test_replacing_by_nothing_is_a_model_whose_head_writes_nothing(case):
    here = run(case.weights, case.tokens)
    for layer, head in case.weights.heads:
        W_O = case.weights.W_O.clone()
        W_O[layer, head] = 0
        expected = run(dataclasses.replace(case.weights, W_O=W_O), case.tokens).patterns
        found = patterns_without(case.weights, here, (layer, head), case.weights.W_E.new_zeros(case.weights.d_model))
        assert relative_error(found, expected) < EXACT
        if layer + 1 < case.weights.n_layers:
            assert relative_error(found, here.patterns) > BROKEN  # what comes later was computed anew


@pytest.mark.parametrize("case", PLAIN_CASES)
def test_means_are_over_all_positions_alike(case):
    prompts = [case.tokens, case.tokens[:3]]  # of different lengths: each position weighs the same
    for layer in range(case.weights.n_layers):
        found = mean_outputs(case.weights, prompts, layer)
        for head in range(case.weights.n_heads):
            outputs = torch.cat([head_output(case.weights, run(case.weights, t), layer, head) for t in prompts])
            assert relative_error(found[head], outputs.mean(0)) < EXACT


# T15: effects through one key.


def effect_on_logit(case, here, reader, i, j, token, part, amount):
    """The reader's effect on one logit with `amount` of the part taken out of its key at j; plain and slow."""
    w, (layer, head) = case.weights, reader
    seen = here.residual[layer] + w.W_pos[: len(case.tokens)]
    keys = seen.clone()
    keys[j] = keys[j] - amount * part[j]
    scores = (seen @ w.W_Q[layer, head]) @ (keys @ w.W_K[layer, head]).T / math.sqrt(w.d_head)
    A = causal_softmax(scores)[i]
    return A @ here.residual[layer] @ w.W_V[layer, head] @ w.W_O[layer, head] @ w.W_U[:, token]


@identity
@given(cases(min_layers=2), st.integers(0, 99))
def test_key_effects_are_those_of_ablation_and_of_autograd(case, seed):
    here = run(case.weights, case.tokens)
    destinations, targets = some(case, 4, seed)
    tokens = torch.randint(len(case.weights.W_E), (4,), generator=torch.Generator().manual_seed(seed))
    part = random(len(case.tokens), case.weights.d_model, seed=seed)
    reader = (1, case.weights.n_heads - 1)
    found = key_effect(case.weights, here, reader, part, destinations, targets, tokens)
    scale = case.logits.abs().max()
    for n, (i, j, token) in enumerate(zip(destinations.tolist(), targets.tolist(), tokens.tolist())):
        whole, without = (effect_on_logit(case, here, reader, i, j, token, part, a) for a in (0.0, 1.0))
        assert abs(found.ablation[n] - (whole - without)) / scale < EXACT
        amount = torch.zeros((), dtype=torch.float64, requires_grad=True)
        effect_on_logit(case, here, reader, i, j, token, part, amount).backward()
        assert abs(found.gradient[n] + amount.grad) / scale < EXACT  # taking out is minus putting in
        assert abs(found.attention[n] - here.patterns[1, reader[1], i, j]) < EXACT


def test_small_parts_have_the_same_effect_either_way():
    case = build(n_layers=2, seed=1)
    soft = dataclasses.replace(case.weights, W_Q=0.01 * case.weights.W_Q)  # attention far from certain
    here = run(soft, case.tokens)
    part = 1e-3 * random(len(case.tokens), soft.d_model)
    destinations, targets = torch.tensor([3, 5]), torch.tensor([1, 4])
    found = key_effect(soft, here, (1, 0), part, destinations, targets, case.tokens[:2])
    assert relative_error(found.gradient, found.ablation) < 1e-4
