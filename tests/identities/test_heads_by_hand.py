"""X1, X2, X3: the virtual head expands exactly; in the sharp limit both induction circuits attend to one place and no other."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_models import BROKEN, EXACT, cases, identity, random

from transformer_circuits.circuits import by_hand, induction
from transformer_circuits.circuits.by_hand import HandHead
from transformer_circuits.circuits.paths import expand, run
from transformer_circuits.circuits.positions import offset_pattern
from transformer_circuits.circuits.virtual_heads import virtual_ov
from transformer_circuits.circuits.weights import Weights, relative_error

LAYERS = [([0, 1, 2, 3], [8, 9, 10, 11]), ([4, 5, 6, 8], [12, 13, 14, 15]), ([15], [16])]  # dimensions read and written


def virtual_head(layers, d_model, length=9) -> tuple[Weights, torch.Tensor]:
    """Previous-token heads that copy dimensions, on random content in dimensions 0 to 7; patterns are fixed."""
    unit = torch.eye(d_model, dtype=torch.float64)
    none = torch.zeros(d_model, 1, dtype=torch.float64)
    heads = [[HandHead(none, none, unit[:, reads], unit[writes])] for reads, writes in layers]
    W_E = random(length, d_model, seed=3).masked_fill(torch.arange(d_model) >= 8, 0.0)
    weights = by_hand.assemble(W_E, torch.zeros_like(W_E), heads, unit)
    A = offset_pattern(length, 1, torch.float64)
    return weights, A.expand(len(layers), 1, length, length)


def shifted(x: torch.Tensor, back: int) -> torch.Tensor:
    return torch.cat([torch.zeros_like(x[:back]), x[: len(x) - back]])


def test_each_dimension_is_one_copy():
    weights, A = virtual_head(LAYERS[:2], 16)
    tokens = torch.arange(len(weights.W_E))
    x, y = weights.W_E, run(weights, tokens, A).logits  # unembedded by the identity
    assert torch.equal(y[:, :8], x[:, :8])
    assert relative_error(y[:, 8:15], shifted(x, 1)[:, :7]) < EXACT  # seven from one back
    assert relative_error(y[:, 15], shifted(x, 2)[:, 0]) < EXACT  # one from two back


def test_the_terms_hold_one_and_two_token_copies():
    weights, A = virtual_head(LAYERS[:2], 16)
    net1, net2 = (weights.W_V[layer, 0] @ weights.W_O[layer, 0] for layer in (0, 1))
    assert [tuple(cell) for cell in (net1 @ net2).nonzero().tolist()] == [(0, 15)]
    assert not (net2 @ net1).any()  # the other order holds nothing: a product of matrices for the wrong convention
    assert (net1 + net2)[:8].count_nonzero() == 7
    product = virtual_ov(weights, ((0, 0), (1, 0)))
    assert relative_error(product.A @ product.B, net1 @ net2) < EXACT
    x = weights.W_E
    found = expand(weights, torch.arange(len(x)), A)
    expected = [x, A[0, 0] @ x @ net1, A[0, 0] @ x @ net2, A[0, 0] @ A[0, 0] @ x @ net1 @ net2]
    assert relative_error(found.terms, torch.stack(expected)) < EXACT


@identity
@given(cases(min_layers=2, max_layers=2))
def test_two_layers_multiply_out_whatever_their_weights_and_patterns(case):
    w = case.weights
    x, A = w.W_E[case.tokens], case.patterns
    net = w.W_V @ w.W_O
    one = sum(A[h] @ x @ net[h] for h in w.heads)
    two = sum(A[1, j] @ A[0, i] @ x @ net[0, i] @ net[1, j] for i in range(w.n_heads) for j in range(w.n_heads))
    assert relative_error((x + one + two) @ w.W_U, case.logits) < EXACT


def test_a_third_layer_copies_from_three_back():
    weights, A = virtual_head(LAYERS, 17)
    x = weights.W_E
    y = run(weights, torch.arange(len(x)), A).logits
    assert relative_error(y[:, 16], shifted(x, 3)[:, 0]) < EXACT


def test_a_filled_workspace_is_moved_along():
    """Dimension 8 of the token before is copied too: a copy is exact only into dimensions that were kept free."""
    weights, A = virtual_head(LAYERS[:2], 16)
    full = dataclasses.replace(weights, W_E=random(*weights.W_E.shape, seed=4))
    x = full.W_E
    y = run(full, torch.arange(len(x)), A).logits
    expected = x[:, 15] + shifted(x, 1)[:, 8] + shifted(x, 2)[:, 0]
    assert relative_error(y[:, 15], expected) < EXACT
    assert relative_error(y[:, 15], shifted(x, 2)[:, 0]) > BROKEN


@identity
@given(st.integers(1, 12), st.integers(-30, 30), st.integers(0, 400))
def test_turning_by_steps_is_moving_by_steps(pairs, steps, n):
    turn = by_hand.rates(pairs)
    here, there = (torch.cat([(at * turn).sin(), (at * turn).cos()]) for at in (n, n + steps))
    assert (here @ by_hand.rotation(turn, steps) - there).abs().max() < EXACT


@pytest.mark.parametrize("build", [by_hand.k_composition, by_hand.pointer_arithmetic])
def test_in_the_sharp_limit_all_attention_is_on_the_target(build):
    content = by_hand.content_vectors(random(60, 16), 12)
    turn = by_hand.rates(16)[:6]
    sharp = by_hand.Sharpness.for_context(content, turn, 40, leak=1e-14)
    weights = build(content, 40, 6, 16, sharp=sharp)
    forward = run if build is by_hand.k_composition else by_hand.run_in_stream
    for sequence in induction.repeated_random_tokens(60, 40, rows=5, copies=2, shortest=5):
        A = forward(weights, sequence.tokens).patterns[1, 0]
        assert (1 - induction.attention_to_last(A, sequence)).abs().max() < EXACT
