"""A3: layer normalization folds into the weights, up to one number for each token.

The reference is the plain module's own forward pass, with PyTorch's LayerNorm in it.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_models import BROKEN, EXACT, PLAIN_CASES, Case, cases, identity, random

from transformer_circuits.circuits.layer_norm import (
    Folded,
    centered,
    fold,
    frozen,
    raw_weights,
    readings,
    run_folded,
    with_normalization,
)
from transformer_circuits.circuits.paths import expand
from transformer_circuits.circuits.weights import relative_error
from transformer_circuits.models.architecture import Transformer

fewer = settings(identity, max_examples=15)  # each example folds and runs several times
CENTERS = ("writing", "reading", "both")


def normalized(case: Case, seed: int, d_mlp: int | None = None) -> Transformer:
    """The case's model with random normalizations: gains of either sign, biases of the same size."""
    shape = (len(readings(case.weights.n_layers, bool(d_mlp))), case.weights.d_model)
    gains, biases = random(2, *shape, seed=seed)
    return with_normalization(case.weights, gains, biases, d_mlp, torch.Generator().manual_seed(seed + 1))


def logits_of(model: Transformer, case: Case) -> torch.Tensor:
    return model(case.tokens[None])[0]


@fewer
@given(cases(min_layers=0, max_layers=2), st.sampled_from([None, 5]), st.integers(0, 2**31))
def test_a3_folded_models_give_the_same_logits(case, d_mlp, seed):
    model = normalized(case, seed, d_mlp)
    for center in CENTERS:
        result = run_folded(fold(model, center), case.tokens)
        assert relative_error(result.logits, logits_of(model, case)) < EXACT, center


@fewer
@given(cases(min_layers=0, max_layers=2), st.sampled_from([None, 5]), st.integers(0, 2**31))
def test_a3_the_first_scale_is_a_table_over_the_vocabulary(case, d_mlp, seed):
    model = normalized(case, seed, d_mlp)
    folded = fold(model)
    free = run_folded(folded, case.tokens)
    looked_up = folded.token_scales()[case.tokens]
    assert relative_error(looked_up, free.scales[0]) < EXACT
    scales = [looked_up] + [None] * (len(folded.readings) - 1)
    assert relative_error(run_folded(folded, case.tokens, scales=scales).logits, logits_of(model, case)) < EXACT


@fewer
@given(cases(min_layers=0, max_layers=3), st.sampled_from(CENTERS), st.integers(0, 2**31))
def test_a3_with_scales_frozen_the_logits_are_a_sum_over_paths(case, center, seed):
    model = normalized(case, seed)
    folded = fold(model, center)
    result = run_folded(folded, case.tokens)
    weights, patterns = frozen(folded, result)
    expansion = expand(weights, case.tokens, patterns)
    assert len(expansion.paths) == (2 + case.weights.n_heads) ** case.weights.n_layers
    logits = expansion.total() / result.scales[-1][:, None] @ weights.W_U + folded.b_U
    assert relative_error(logits, logits_of(model, case)) < EXACT


@fewer
@given(cases(min_layers=1, max_layers=2), st.sampled_from([None, 5]), st.integers(0, 2**31))
def test_what_each_centering_leaves_of_the_residual_stream(case, d_mlp, seed):
    model = normalized(case, seed, d_mlp)
    caught: list[torch.Tensor] = []
    model.ln_out.register_forward_pre_hook(lambda module, inputs: caught.append(inputs[0][0]))
    model(case.tokens[None])
    writing, reading = (run_folded(fold(model, center), case.tokens) for center in ("writing", "reading"))
    assert relative_error(reading.residual[-1], caught[0]) < EXACT
    assert relative_error(writing.residual[-1], centered(caught[0])) < EXACT
    assert relative_error(writing.scales, reading.scales) < EXACT


@fewer
@given(cases(min_layers=1, max_layers=2), st.integers(0, 2**31))
def test_an_ablation_changes_logits_directly_and_through_the_scale(case, seed):
    folded = fold(normalized(case, seed))
    base = run_folded(folded, case.tokens)
    patterns = base.patterns.clone()
    patterns[-1, 0] = 0
    fixed = run_folded(folded, case.tokens, patterns, list(base.scales))
    free = run_folded(folded, case.tokens, patterns)
    r = (base.scales[-1] / free.scales[-1])[:, None]
    assert relative_error(r * (fixed.logits - folded.b_U), free.logits - folded.b_U) < EXACT


def wrong_folds(model: Transformer) -> dict[str, Folded]:
    """Every mistake that a fold can make, one at a time."""
    right, reading, raw = fold(model), fold(model, "reading"), raw_weights(model)
    gain = torch.stack([block.ln1.weight for block in model.layers])[:, None, :, None]
    bias = torch.stack([block.ln1.bias for block in model.layers])[:, None, None]

    def other(folded: Folded, **matrices: torch.Tensor) -> Folded:
        return dataclasses.replace(folded, matrices=dataclasses.replace(folded.matrices, **matrices))

    return {
        "bias of queries": dataclasses.replace(right, at_Q=(raw.W_pos @ raw.W_Q).expand_as(right.at_Q)),
        "bias of values": dataclasses.replace(right, b_V=torch.zeros_like(right.b_V)),
        "bias of logits": dataclasses.replace(right, b_U=torch.zeros_like(right.b_U)),
        "bias after the gain": dataclasses.replace(right, at_Q=(raw.W_pos + bias) @ right.matrices.W_Q),
        "gain of queries": other(right, W_Q=raw.W_Q),
        "gain of keys": other(right, W_K=raw.W_K),
        "gain of values": other(right, W_V=raw.W_V),
        "gain of logits": other(right, W_U=raw.W_U),
        "gain on the output": other(right, W_O=gain.mT * right.matrices.W_O, W_V=raw.W_V),
        "centering before the gain": other(reading, W_V=gain * centered(raw.W_V.mT).mT),
        "embedding not centered": other(right, W_E=raw.W_E),
        "heads not centered": other(right, W_O=raw.W_O),
    }


@pytest.mark.parametrize("case", PLAIN_CASES)
@pytest.mark.parametrize("mistake", list(wrong_folds(normalized(PLAIN_CASES[0], 0))))
def test_a3_fails_with_each_mistake(case, mistake):
    model = normalized(case, seed=3)
    wrong = run_folded(wrong_folds(model)[mistake], case.tokens).logits
    assert relative_error(wrong, logits_of(model, case)) > BROKEN


@pytest.mark.parametrize("case", [case for case in PLAIN_CASES if case.weights.W_pos.any()])
def test_a3_fails_if_positions_are_normalized(case):
    """Shortformer: they are added after the normalization. Centered, or multiplied by the gain, they are others."""
    model = normalized(case, seed=3)
    right, raw = fold(model), raw_weights(model)
    bias = torch.stack([block.ln1.bias for block in model.layers])[:, None, None]
    gain = torch.stack([block.ln1.weight for block in model.layers])[:, None, :, None]
    for rows, matrix in ((centered(raw.W_pos), raw.W_Q), (raw.W_pos, gain * raw.W_Q)):
        wrong = dataclasses.replace(right, at_Q=rows @ matrix + bias @ raw.W_Q)
        assert relative_error(run_folded(wrong, case.tokens).logits, logits_of(model, case)) > BROKEN


@pytest.mark.parametrize("case", PLAIN_CASES)
def test_a3_fails_without_the_division(case):
    model = normalized(case, seed=3)
    folded = fold(model)
    free = run_folded(folded, case.tokens)
    for reading in range(len(folded.readings)):
        scales = [None] * len(folded.readings)
        scales[reading] = torch.ones_like(free.scales[reading])
        wrong = run_folded(folded, case.tokens, scales=scales).logits
        assert relative_error(wrong, logits_of(model, case)) > BROKEN, folded.readings[reading]


@pytest.mark.parametrize("case", PLAIN_CASES)
def test_biases_of_keys_change_nothing(case):
    model = normalized(case, seed=3)
    right, raw = fold(model), raw_weights(model)
    without = dataclasses.replace(right, at_K=(raw.W_pos @ raw.W_K).expand_as(right.at_K))
    assert relative_error(run_folded(without, case.tokens).logits, logits_of(model, case)) < EXACT


@pytest.mark.parametrize("case", PLAIN_CASES)
def test_the_path_expansion_fails_with_scales_left_out(case):
    model = normalized(case, seed=3)
    folded = fold(model)
    result = run_folded(folded, case.tokens)
    unscaled = dataclasses.replace(result, scales=torch.ones_like(result.scales))
    weights, patterns = frozen(folded, unscaled)
    logits = expand(weights, case.tokens, patterns).total() / result.scales[-1][:, None] @ weights.W_U + folded.b_U
    assert relative_error(logits, logits_of(model, case)) > BROKEN


@pytest.mark.parametrize("case", PLAIN_CASES)
def test_the_sign_of_last_gain_and_unembedding_is_no_property_of_the_model(case):
    shape = (case.weights.n_layers + 1, case.weights.d_model)
    gains, biases = random(2, *shape, seed=1)
    flipped = torch.ones(shape[0], 1, dtype=torch.float64)
    flipped[-1] = -1
    model = with_normalization(case.weights, gains, biases)
    other = with_normalization(dataclasses.replace(case.weights, W_U=-case.weights.W_U), flipped * gains, flipped * biases)
    assert relative_error(logits_of(other, case), logits_of(model, case)) < EXACT
    assert relative_error(fold(other).matrices.W_U, fold(model).matrices.W_U) < EXACT
    assert relative_error(raw_weights(other).W_U, raw_weights(model).W_U) > BROKEN


def test_the_length_of_the_stream_means_nothing_but_for_eps():
    case = PLAIN_CASES[1]
    longer = dataclasses.replace(case.weights, W_E=1e4 * case.weights.W_E, W_O=1e4 * case.weights.W_O)
    longest = dataclasses.replace(case.weights, W_E=1e8 * case.weights.W_E, W_O=1e8 * case.weights.W_O)
    gains, biases = random(2, 3, case.weights.d_model, seed=1)
    logits = [logits_of(with_normalization(w, gains, biases), case) for w in (longer, longest)]
    assert relative_error(logits[0], logits[1]) < EXACT
