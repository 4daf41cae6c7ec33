"""A3: layer normalization folds into the weights, up to one number for each token.

The reference is the plain module's own forward pass, with PyTorch's LayerNorm in it.
"""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_models import BROKEN, EXACT, differs, identity, random, same

from transformer_circuits.circuits.heads import freeze, relative_error, without_heads
from transformer_circuits.circuits.layer_norm import fold
from transformer_circuits.models.architecture import ModelConfig, Transformer
from transformer_circuits.models.bridge import wrap

TOKENS = torch.tensor([[0, 3, 7, 3, 10, 1]])
KINDS = [{}, {"d_mlp": 5}, {"standard_positions": True}, {"smeared_keys": True}]
fewer = settings(identity, max_examples=20)


def normalized(n_layers: int = 2, seed: int = 0, **kind) -> Transformer:
    """A model with random weights: gains of either sign, biases of the same size."""
    model = Transformer(ModelConfig(n_layers, 8, 2, 3, 11, 9, normalization="LN", **kind))
    model = model.double().eval().requires_grad_(False)
    for i, (name, parameter) in enumerate(model.named_parameters()):
        if name != "pos.weight":
            parameter.copy_(random(*parameter.shape, seed=seed + i))
    return model


shapes = st.integers(0, 3), st.integers(0, 2**20), st.sampled_from(KINDS)
models = st.builds(lambda n_layers, seed, kind: normalized(n_layers, seed, **kind), *shapes)


def norms_of(cache) -> list[str]:
    return [name.removesuffix(".hook_scale") for name in cache if name.endswith("hook_scale")]


@fewer
@given(models)
def test_a3_folded_models_give_the_same_logits_and_only_divide(model):
    folded, bridge = fold(wrap(model)), wrap(model)
    logits, cache = folded.run_with_cache(TOKENS)
    same(logits, model(TOKENS))
    _, original = bridge.run_with_cache(TOKENS)
    for norm in norms_of(cache):
        stream, scale = cache[f"{norm}.hook_in"], cache[f"{norm}.hook_scale"]
        same(cache[f"{norm}.hook_out"], stream / scale)  # all that is left of a normalization
        before = original[f"{norm}.hook_in"]
        same(stream, before - before.mean(-1, keepdim=True))
        same(scale, original[f"{norm}.hook_scale"])


@fewer
@given(models)
def test_a3_the_first_normalization_is_a_table_over_the_vocabulary(model):
    # With those it depends on the place too.
    if model.config.n_layers and not model.config.standard_positions:
        bridge = wrap(model)
        table = bridge.blocks[0].ln1(bridge.W_E)
        looked_up = bridge.run_with_hooks(
            TOKENS, fwd_hooks=[("blocks.0.ln1.hook_out", lambda x, hook: table[TOKENS])]
        )
        same(looked_up, model(TOKENS))


def mixing(folded, hooks) -> float:
    """How far the logits are from those of a model that is affine in its embedding."""
    one, two = random(2, 1, 6, 8, seed=9)

    def at(x):
        return folded.run_with_hooks(TOKENS, fwd_hooks=[("embed.hook_out", lambda e, hook: x), *hooks])

    return relative_error(at(0.3 * one + 0.7 * two), 0.3 * at(one) + 0.7 * at(two))


@pytest.mark.parametrize("n_layers", [0, 1, 2])
def test_with_patterns_and_scales_frozen_the_model_is_linear_and_with_patterns_alone_it_is_not(n_layers):
    folded = fold(wrap(normalized(n_layers)))
    _, cache = folded.run_with_cache(TOKENS)
    scales = [(f"{norm}.hook_scale", lambda s, hook: cache[hook.name]) for norm in norms_of(cache)]
    assert mixing(folded, freeze(cache) + scales) < EXACT
    assert mixing(folded, freeze(cache)) > BROKEN


@pytest.mark.parametrize("kind", KINDS)
def test_an_ablation_changes_logits_directly_and_through_the_last_scale(kind):
    folded = fold(wrap(normalized(2, **kind)))
    _, cache = folded.run_with_cache(TOKENS)
    fixed = [(f"{norm}.hook_scale", lambda s, hook: cache[hook.name]) for norm in norms_of(cache)]
    out = without_heads([(1, 0)])
    b_U, seen = folded.unembed.original_component.bias, []
    direct = folded.run_with_hooks(TOKENS, fwd_hooks=out + fixed) - b_U
    watch = [("ln_final.hook_scale", lambda s, hook: seen.append(s))]
    free = folded.run_with_hooks(TOKENS, fwd_hooks=out + fixed[:-1] + watch) - b_U
    r = cache["ln_final.hook_scale"] / seen[0]
    same(r * direct, free)
    differs(direct, free)


def part(model, path: str):
    for name in path.split("."):
        model = model[int(name)] if name.isdigit() else getattr(model, name)
    return model.original_component


@pytest.mark.parametrize("path", ["blocks.0.attn.k", "blocks.1.mlp.in", "unembed"])
def test_a3_fails_with_a_reader_left_without_the_gain_or_the_bias(path):
    model = wrap(normalized(2, d_mlp=5))
    wrong = fold(model)
    part(wrong, path).weight.copy_(part(model, path).weight)
    differs(wrong(TOKENS), model(TOKENS))
    wrong = fold(model)
    part(wrong, path.replace(".k", ".q")).bias.zero_()  # softmax forgets what all keys have in common
    differs(wrong(TOKENS), model(TOKENS))


@pytest.mark.parametrize("path", ["embed", "blocks.0.attn.o", "blocks.0.mlp.out"])
def test_a3_division_is_not_enough_where_a_writer_is_not_centered(path):
    model = wrap(normalized(2, d_mlp=5))
    wrong = fold(model)
    part(wrong, path).weight.copy_(part(model, path).weight)
    _, cache = wrong.run_with_cache(TOKENS)
    differs(cache["ln_final.hook_out"], cache["ln_final.hook_in"] / cache["ln_final.hook_scale"])


def test_a3_fails_where_positions_pass_the_gain():
    """Shortformer: they are added after the normalization."""
    model = wrap(normalized(2))
    wrong = fold(copy.deepcopy(model))
    wrong.reset_hooks(including_permanent=True)
    part(wrong, "positions").weight.copy_(model.W_pos)
    differs(wrong(TOKENS), model(TOKENS))
