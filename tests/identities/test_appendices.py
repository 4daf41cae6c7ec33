"""A1 and A4: convolution as attention, biases as a dimension that is always one. (A2 is in test_paths.py.)"""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_models import BROKEN, EXACT, PLAIN_CASES, Case, cases, identity, random
from torch import nn

from transformer_circuits.circuits.paths import run
from transformer_circuits.circuits.positions import convolve_by_heads
from transformer_circuits.circuits.weights import Biases, collect_biases, fold_biases, relative_error


def torch_convolution(x, kernel):
    """PyTorch's own causal convolution; its weight is [out, in, tap], and its last tap is the present position."""
    padded = nn.functional.pad(x.T[None], (len(kernel) - 1, 0))
    return nn.functional.conv1d(padded, kernel.flip(0).permute(2, 1, 0))[0].T


@identity
@given(st.integers(1, 12), st.integers(1, 5), st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_a1_heads_at_fixed_offsets_are_a_convolution(n, taps, d_in, d_out, seed):
    x, kernel = 5 * random(n, d_in, seed=seed), 5 * random(taps, d_in, d_out, seed=seed + 1)
    assert relative_error(convolve_by_heads(x, kernel), torch_convolution(x, kernel)) < EXACT


@pytest.mark.parametrize("seed", range(3))
def test_a1_fails_with_a_kernel_transposed_reversed_or_short(seed):
    x, kernel = random(8, 4, seed=seed), random(3, 4, 4, seed=seed + 9)
    expected = torch_convolution(x, kernel)
    for wrong in (kernel.mT, kernel.flip(0), kernel[:2]):
        assert relative_error(convolve_by_heads(x, wrong), expected) > BROKEN


def with_biases(case: Case, seed: int) -> tuple[torch.Tensor, Biases]:
    """Logits of the plain module after every linear map in it was given a random bias, and those biases."""
    weights, model = case.weights, case.model
    shape = (weights.n_layers, weights.n_heads, weights.d_head)
    b_Q, b_K, b_V = 2 * random(3, *shape, seed=seed)
    b_O = 2 * random(weights.n_layers, weights.d_model, seed=seed + 1)
    b_U = 2 * random(weights.W_U.shape[1], seed=seed + 2)
    changed: list[nn.Linear] = []

    def give(linear: nn.Linear, bias: torch.Tensor) -> None:
        linear.bias = nn.Parameter(bias, requires_grad=False)
        changed.append(linear)

    for layer, block in enumerate(model.layers):
        for part, bias in (("q", b_Q), ("k", b_K), ("v", b_V)):
            give(getattr(block.attn, part), bias[layer].flatten())
        give(block.attn.o, b_O[layer])
    give(model.head, b_U)
    logits = case.logits
    for linear in changed:
        linear.bias = None
    return logits, Biases(b_Q, b_K, b_V, b_O, b_U)


@identity
@given(cases(min_layers=0), st.integers(0, 2**32 - 1))
def test_a4_biases_are_a_dimension_that_is_always_one(case, seed):
    logits, biases = with_biases(case, seed)
    folded = fold_biases(case.weights, biases)
    assert folded.d_model == case.weights.d_model + 1
    result = run(folded, case.tokens)
    assert relative_error(result.logits, logits) < EXACT
    assert torch.equal(result.residual[..., -1], torch.ones_like(result.residual[..., -1]))


@identity
@given(cases(min_layers=0), st.integers(0, 2**32 - 1))
def test_a4_all_but_the_query_biases_become_a_bias_on_the_logits(case, seed):
    logits, biases = with_biases(case, seed)
    biases = dataclasses.replace(biases, b_Q=torch.zeros_like(biases.b_Q))
    without_queries = fold_biases(case.weights, biases)
    b_Q, b_U = collect_biases(case.weights, biases)
    assert b_Q.shape == biases.b_Q.shape
    if case.weights.n_layers == 1:  # nothing shifts the queries of a first layer
        bare = run(case.weights, case.tokens).logits + b_U
        assert relative_error(run(without_queries, case.tokens).logits, bare) < EXACT


@pytest.mark.parametrize("case", PLAIN_CASES)
def test_a4_fails_when_one_bias_is_forgotten(case):
    logits, biases = with_biases(case, seed=5)
    for name in ("b_Q", "b_V", "b_O", "b_U"):
        forgotten = dataclasses.replace(biases, **{name: torch.zeros_like(getattr(biases, name))})
        assert relative_error(run(fold_biases(case.weights, forgotten), case.tokens).logits, logits) > BROKEN, name


@pytest.mark.parametrize("case", PLAIN_CASES)
def test_a4_key_biases_change_nothing(case):
    logits, biases = with_biases(case, seed=5)
    other = dataclasses.replace(biases, b_K=-7 * biases.b_K)
    assert relative_error(run(fold_biases(case.weights, other), case.tokens).logits, logits) < EXACT
