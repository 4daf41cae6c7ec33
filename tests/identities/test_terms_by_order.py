"""T11 to T13: orders without listing paths, composition taken from one side, virtual heads as products."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_models import BROKEN, EXACT, PLAIN_CASES, cases, identity, random

from transformer_circuits.circuits.composition import composition_ratios
from transformer_circuits.circuits.paths import causal_softmax, expand, head_outputs, run
from transformer_circuits.circuits.qk_ov import full_path
from transformer_circuits.circuits.subspaces import frobenius_norm
from transformer_circuits.circuits.term_importance import (
    ablations,
    direct_losses,
    token_losses,
    up_to_order,
    without_heads,
)
from transformer_circuits.circuits.virtual_heads import (
    composed_by_offset,
    mean_composed_attention,
    ov_norms,
    virtual_norms,
    virtual_ov,
)
from transformer_circuits.circuits.weights import relative_error

TWO_LAYERS = [case for case in PLAIN_CASES if case.weights.n_layers == 2]


def explicit(case, order):
    """Paths through at most `order` heads, one by one."""
    expansion = expand(case.weights, case.tokens, case.patterns)
    return sum(expansion.total(k) for k in range(order + 1))


@identity
@given(cases(min_layers=0))
def test_t11_the_papers_algorithm_is_the_path_sum_at_every_order(case):
    n_layers = case.weights.n_layers
    streams = up_to_order(case.weights, case.tokens, case.patterns, n_layers)
    assert len(streams) == n_layers + 1
    for order, stream in enumerate(streams):
        assert relative_error(stream, explicit(case, order)) < EXACT
    assert relative_error(streams[-1] @ case.weights.W_U, case.logits) < EXACT


@identity
@given(cases())
def test_t11_orders_side_by_side_are_the_papers_re_runs(case):
    n_layers = case.weights.n_layers
    streams = ablations(case.weights, case.tokens)
    reference = up_to_order(case.weights, case.tokens, case.patterns, n_layers)
    for order in range(1, n_layers + 1):
        assert relative_error(streams[f"order {order}"], reference[order]) < EXACT
    assert f"order {n_layers + 1}" not in streams and "order 0" not in streams


@identity
@given(cases())
def test_t11_a_layer_alone_is_the_direct_path_and_its_single_heads(case):
    streams = ablations(case.weights, case.tokens)
    expansion = expand(case.weights, case.tokens, case.patterns)
    for layer in range(case.weights.n_layers):
        chosen = [i for i, path in enumerate(expansion.paths) if all(at == layer for at, _ in path)]
        assert relative_error(streams[f"layer {layer}"], expansion.terms[chosen].sum(dim=0)) < EXACT


@pytest.mark.parametrize("case", PLAIN_CASES)
def test_t11_fails_with_the_wrong_order_or_other_patterns(case):
    n_layers = case.weights.n_layers
    streams = up_to_order(case.weights, case.tokens, case.patterns, n_layers)
    for order in range(n_layers):
        assert relative_error(streams[order], explicit(case, order + 1)) > BROKEN
    zero_order = case.weights.W_E[case.tokens]
    thawed = torch.stack([causal_softmax(torch.zeros_like(case.patterns[0]))] * n_layers)
    assert relative_error(streams[1], up_to_order(case.weights, case.tokens, thawed, 1)[1]) > BROKEN
    assert relative_error(streams[1], zero_order) > BROKEN


@pytest.mark.parametrize("case", PLAIN_CASES)
def test_orders_beyond_the_layers_add_nothing_and_batches_are_rows(case):
    n_layers = case.weights.n_layers
    streams = up_to_order(case.weights, case.tokens, case.patterns, n_layers + 2)
    assert relative_error(streams[-1], streams[n_layers]) < EXACT
    batch = torch.stack([case.tokens, case.tokens.flip(0)])
    patterns = run(case.weights, batch).patterns
    assert relative_error(up_to_order(case.weights, batch, patterns, n_layers)[:, 0], streams[: n_layers + 1]) < EXACT
    sides = ("K", "Q", "QK", "V") if n_layers > 1 else ()
    alone, together = ablations(case.weights, batch[1], sides), ablations(case.weights, batch, sides)
    assert alone.keys() == together.keys()
    assert all(relative_error(together[name][1], alone[name]) < EXACT for name in alone)


def last_layer(case, queries, keys, values):
    """What the last layer writes, head by head, if its three sides read these streams."""
    w, layer = case.weights, case.weights.n_layers - 1
    position = w.W_pos[: len(case.tokens)]
    out = torch.zeros_like(values)
    for head in range(w.n_heads):
        scores = (queries + position) @ w.W_Q[layer, head] @ ((keys + position) @ w.W_K[layer, head]).T
        A = causal_softmax(scores / math.sqrt(w.d_head))
        out += A @ values @ w.W_V[layer, head] @ w.W_O[layer, head]
    return out


@identity
@given(cases(min_layers=2))
def test_t12_each_side_alone_reads_embeddings(case):
    streams = ablations(case.weights, case.tokens, ("K", "Q", "QK", "V"))
    seen, e = run(case.weights, case.tokens).residual[-2], case.weights.W_E[case.tokens]
    expected = {"K": (seen, e, seen), "Q": (e, seen, seen), "QK": (e, e, seen), "V": (seen, seen, e)}
    for side, reads in expected.items():
        assert relative_error(streams[f"without {side}"], seen + last_layer(case, *reads)) < EXACT


@identity
@given(cases(min_layers=2, max_layers=2))
def test_t12_values_without_the_first_layer_are_order_one(case):
    streams = ablations(case.weights, case.tokens, ("V",))
    assert relative_error(streams["without V"], streams["order 1"]) < EXACT


@pytest.mark.parametrize("case", TWO_LAYERS)
def test_t12_sides_differ_from_one_another_and_from_the_model(case):
    streams = ablations(case.weights, case.tokens, ("K", "Q", "QK", "V"))
    names = [name for name in streams if name.startswith("without")] + ["order 2"]
    for i, name in enumerate(names):
        assert all(relative_error(streams[name], streams[other]) > BROKEN for other in names[:i])


@pytest.mark.parametrize("case", TWO_LAYERS)
def test_t12_a_constant_in_all_keys_changes_nothing_but_in_queries_it_does(case):
    """So that leaving an output out of the keys and replacing it by its mean are the same; for queries they are not."""
    seen, constant = run(case.weights, case.tokens).residual[-2], random(case.weights.d_model)
    plain = last_layer(case, seen, seen, seen)
    assert relative_error(last_layer(case, seen, seen + constant, seen), plain) < EXACT
    assert relative_error(last_layer(case, seen + constant, seen, seen), plain) > BROKEN


@identity
@given(cases(min_layers=2, max_layers=2))
def test_t12_one_side_without_one_head(case):
    w = case.weights
    embedded = w.W_E[case.tokens]
    outputs = head_outputs(w, embedded, case.patterns[0], 0)
    seen = embedded + outputs.sum(dim=0)
    for place, side in enumerate("QKV"):
        streams = without_heads(w, case.tokens, side)
        assert relative_error(streams["intact"] @ w.W_U, case.logits) < EXACT
        assert list(streams) == ["intact", *(f"0.{head}" for head in range(w.n_heads))]
        for head in range(w.n_heads):
            reads = [seen, seen, seen]
            reads[place] = seen - outputs[head]
            assert relative_error(streams[f"0.{head}"], seen + last_layer(case, *reads)) < EXACT


@pytest.mark.parametrize("case", PLAIN_CASES)
def test_losses_are_cross_entropies(case):
    residual, targets = run(case.weights, case.tokens).residual[-1], case.tokens.roll(1)
    expected = torch.nn.functional.cross_entropy(case.logits, targets, reduction="none")
    assert relative_error(token_losses(case.weights, residual, targets), expected) < EXACT
    windows = torch.stack([case.tokens, case.tokens.flip(0)])
    windows = torch.cat([windows, windows[:, :1]], dim=1)
    logits = case.weights.W_E[windows[:, :-1]] @ case.weights.W_U
    expected = torch.nn.functional.cross_entropy(logits.mT, windows[:, 1:], reduction="none").mean(dim=1)
    assert relative_error(direct_losses(case.weights, windows), expected) < EXACT


@identity
@given(cases(min_layers=2), st.integers(0, 8))
def test_t13_composed_patterns_split_by_distance(case, offset):
    offset = min(offset, len(case.tokens) - 1)
    first, second = case.patterns[0, 0], case.patterns[1, -1]
    ways = composed_by_offset(first, second, offset)
    assert len(ways) == offset + 1
    assert torch.allclose(ways.sum(dim=0), (second @ first).diagonal(-offset), rtol=0, atol=EXACT)


@pytest.mark.parametrize("case", TWO_LAYERS)
def test_t13_mean_attention_two_back_of_every_pair(case):
    windows = torch.stack([case.tokens, case.tokens.flip(0)])
    by_pair = mean_composed_attention(case.weights, windows, offset=2).sum(dim=0)
    patterns = run(case.weights, windows).patterns
    for i in range(case.weights.n_heads):
        for j in range(case.weights.n_heads):
            expected = (patterns[1, :, j] @ patterns[0, :, i]).diagonal(-2, dim1=-2, dim2=-1).mean()
            reverse = (patterns[0, :, i] @ patterns[1, :, j]).diagonal(-2, dim1=-2, dim2=-1).mean()
            assert abs(by_pair[j, i] - expected) < EXACT < abs(by_pair[j, i] - reverse)


@identity
@given(cases(min_layers=2))
def test_t13_virtual_ov_and_its_norm(case):
    w = case.weights
    path = ((0, w.n_heads - 1), (1, 0))
    dense = w.W_V[path[0]] @ w.W_O[path[0]] @ w.W_V[path[1]] @ w.W_O[path[1]]
    circuit = virtual_ov(w, path)
    assert circuit.mdim <= w.d_head and relative_error(circuit.AB, dense) < EXACT
    assert relative_error(w.W_E @ circuit.AB @ w.W_U, full_path(w, path).AB) < EXACT
    norms = virtual_norms(w, 0, 1)
    assert abs(norms[0, -1] - torch.linalg.matrix_norm(dense)) < EXACT * norms.max()


@pytest.mark.parametrize("case", TWO_LAYERS)
def test_t13_norms_against_chance_and_peers_mistakes(case):
    w = case.weights
    singles, pairs = ov_norms(w), virtual_norms(w, 0, 1)
    assert relative_error(singles, torch.linalg.matrix_norm(w.W_V @ w.W_O)) < EXACT
    chance = singles[1][:, None] * singles[0] / math.sqrt(w.d_model)
    assert relative_error(pairs / chance, composition_ratios(w, 0, 1)[2]) < EXACT
    W_OV = w.W_V @ w.W_O
    other_way = torch.linalg.matrix_norm(W_OV[1][:, None] @ W_OV[0])  # layer 2 first, as if rows were columns
    assert relative_error(other_way, pairs) > BROKEN
    assert relative_error(pairs.square(), pairs) > BROKEN  # without the square root
    assert torch.equal(frobenius_norm(virtual_ov(w, ((0, 1), (1, 0)))), pairs[0, 1])  # [second, first]
