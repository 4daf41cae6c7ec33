"""A3, A4, A5: layer normalization folded into the weights, biases as a dimension that is always one, paths into an MLP.

The functions are those that the appendices write out. (A2, the residual connection as a head: in test_paths each layer
of a path has this head too.)
"""

import copy

import torch
from hypothesis import strategies as st
from random_models import Case, build, cases, defined_in, identity, random, same
from torch import nn
from transformer_lens.utilities import get_act_name

from transformer_circuits.models.bridge import from_matrices, matrices

BIASES = defined_in("a3_convolution_identity_biases", "with-one", "collect-biases", torch=torch)
IMPORTED = dict(torch=torch, copy=copy, get_act_name=get_act_name)
FOLDS = defined_in("a4_layer_normalization", "readers-writers", "fold-model", **IMPORTED)


@identity(st.sampled_from([0, 1, 3]), st.sampled_from([{}, {"d_mlp": 5}, {"smeared_keys": True}]), st.integers(0, 1))
def test_a3_folded_models_give_the_same_logits_and_only_divide(n_layers, kind, seed):
    case = build(n_layers, normalization="LN", seed=seed, **kind)
    model, tokens = case.model, case.tokens
    logits, cache = FOLDS.fold(model).run_with_cache(tokens)
    unfolded, original = model.run_with_cache(tokens)
    same(logits, case.logits)
    same(unfolded, case.logits)  # folding leaves the model as it was
    for norm in [name.removesuffix(".hook_scale") for name in cache if name.endswith("hook_scale")]:
        stream, scale = cache[f"{norm}.hook_in"], cache[f"{norm}.hook_scale"]
        same(cache[f"{norm}.hook_out"], stream / scale)  # all that is left of a normalization
        before = original[f"{norm}.hook_in"]
        same(stream, before - before.mean(-1, keepdim=True))
        same(scale, original[f"{norm}.hook_scale"])


def with_biases(case: Case, seed: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Logits of the plain module after every linear map in it was given a random bias, and those biases."""
    cfg, linears = case.plain.config, []
    shapes = dict.fromkeys("QKV", (cfg.n_layers, cfg.n_heads, cfg.d_head))
    shapes |= {"O": (cfg.n_layers, cfg.d_model), "U": (cfg.d_vocab,)}
    b = {part: 2 * random(*shape, seed=seed + i) for i, (part, shape) in enumerate(shapes.items())}
    for layer, block in enumerate(case.plain.layers):
        linears += [(getattr(block.attn, part.lower()), b[part][layer].flatten()) for part in "QKVO"]
    for linear, bias in (linears := [*linears, (case.plain.head, b["U"])]):
        linear.bias = nn.Parameter(bias, requires_grad=False)
    logits = case.logits
    for linear, _ in linears:
        linear.bias = None
    return logits, b


@identity(cases(min_layers=0), st.integers(0, 2**31))
def test_a4_biases_are_a_dimension_that_is_always_one(case, seed):
    logits, b = with_biases(case, seed)
    model = from_matrices(**BIASES.with_one(matrices(case.model), b))
    found, cache = model.run_with_cache(case.tokens)
    same(found, logits)
    for layer in range(model.cfg.n_layers):
        assert (cache["resid_post", layer][..., -2] == 1).all()


@identity(cases(min_layers=0), st.integers(0, 2**31))
def test_a4_all_biases_become_one_on_queries_and_one_on_logits(case, seed):
    logits, b = with_biases(case, seed)
    b_Q, b_U = BIASES.collect_biases(matrices(case.model), b)
    hooks = [(f"blocks.{layer}.attn.hook_q", lambda q, hook, bias=bias: q + bias) for layer, bias in enumerate(b_Q)]
    same(case.model.run_with_hooks(case.tokens, fwd_hooks=hooks) + b_U, logits)
