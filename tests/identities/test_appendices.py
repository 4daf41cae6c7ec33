"""A1, A2, A4: convolution as attention, the residual connection as a head, biases as a dimension that is always one."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from random_models import Case, cases, identity, random, same
from torch import nn

from transformer_circuits.circuits.biases import collect_biases, with_one
from transformer_circuits.models.bridge import from_matrices, matrices


@identity
@given(cases())
def test_a1_heads_at_fixed_offsets_are_a_convolution(case):
    """The first layer with head k looking k places back is PyTorch's causal convolution with these heads' W_OV."""
    n, taps = case.tokens.shape[1], case.model.cfg.n_heads
    fixed = torch.stack([torch.eye(n, dtype=torch.float64).roll(k, 0).tril(-k) for k in range(taps)])
    with case.model.hooks(fwd_hooks=[("blocks.0.attn.hook_pattern", lambda p, hook: fixed[None])]):
        _, cache = case.model.run_with_cache(case.tokens)
    W = case.model.OV[0].AB.flip(0).permute(2, 1, 0)  # [out, in, tap], the present position last
    padded = nn.functional.pad(cache["embed"].mT, (taps - 1, 0))
    same(cache["blocks.0.attn.hook_out"], nn.functional.conv1d(padded, W).mT)


@identity
@given(cases())
def test_a2_with_the_identity_head_a_layer_is_a_sum_of_heads(case):
    _, cache = case.model.run_with_cache(case.tokens)
    x = case.model.W_E[case.tokens[0]]
    for layer in range(case.model.cfg.n_layers):
        heads = (cache["pattern", layer][0] @ x @ case.model.OV[layer].AB).sum(0)
        x = heads + torch.eye(len(x), dtype=x.dtype) @ x @ torch.eye(x.shape[1], dtype=x.dtype)
    same((x @ case.model.W_U)[None], case.logits)


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


@identity
@given(cases(min_layers=0), st.integers(0, 2**31))
def test_a4_biases_are_a_dimension_that_is_always_one(case, seed):
    logits, b = with_biases(case, seed)
    model = from_matrices(**with_one(matrices(case.model), b))
    found, cache = model.run_with_cache(case.tokens)
    same(found, logits)
    for layer in range(model.cfg.n_layers):
        assert (cache["resid_post", layer][..., -2] == 1).all()


@identity
@given(cases(min_layers=0), st.integers(0, 2**31))
def test_a4_all_biases_become_one_on_queries_and_one_on_logits(case, seed):
    logits, b = with_biases(case, seed)
    b_Q, b_U = collect_biases(matrices(case.model), b)
    hooks = [
        (f"blocks.{layer}.attn.hook_q", lambda q, hook, bias=bias: q + bias) for layer, bias in enumerate(b_Q)
    ]
    same(case.model.run_with_hooks(case.tokens, fwd_hooks=hooks) + b_U, logits)
