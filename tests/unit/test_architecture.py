"""The plain transformer against explicit computations."""

import math

import pytest
import torch
from torch import nn

from transformer_circuits.models.architecture import ModelConfig, Transformer, causal_attention, sinusoids

SMALL = dict(d_model=32, n_heads=3, d_head=8, d_vocab=300, n_ctx=40)


def random_model(n_layers: int, dtype: torch.dtype = torch.float64, **options) -> Transformer:
    """Return a model with weights of order one, so that no term can hide; d_model, heads times d_head and d_head all differ."""
    torch.manual_seed(n_layers)
    model = Transformer(ModelConfig(n_layers, **(SMALL | options)))
    for name, parameter in model.named_parameters():
        if name != "pos.weight":
            fan_in = parameter.shape[-1] if "embed" not in name and parameter.ndim == 2 else 1
            nn.init.normal_(parameter, std=fan_in**-0.5)
    return model.to(dtype).eval().requires_grad_(False)


def explicit_attention(q, k, v):
    n = q.shape[-2]
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1])
    allowed = torch.arange(n)[None, :] <= torch.arange(n)[:, None]
    return torch.where(allowed, scores, -math.inf).softmax(-1) @ v


@pytest.mark.parametrize("n", [1, 2, 31, 127, 128, 129, 255, 256, 300])
def test_causal_attention_and_its_gradients_equal_the_explicit_computation(n):
    torch.manual_seed(n)
    ours = [torch.randn(2, 3, n, 8, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    theirs = [x.detach().clone().requires_grad_() for x in ours]
    out, expected = causal_attention(*ours), explicit_attention(*theirs)
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    weight = torch.randn_like(out)
    (out * weight).sum().backward()
    (expected * weight).sum().backward()
    for mine, explicit in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, explicit.grad, rtol=1e-10, atol=1e-10)


def test_sinusoids():
    positions = sinusoids(40, 32)
    p = torch.arange(40, dtype=torch.float64)
    for pair, rate in ((0, 1), (15, 10_000 ** (-30 / 32))):  # the shortest wavelength is 2 pi
        torch.testing.assert_close(positions[:, pair], (p * rate).sin().float())
        torch.testing.assert_close(positions[:, 16 + pair], (p * rate).cos().float())
    gram = positions.double() @ positions.double().T
    torch.testing.assert_close(gram[5:, 5:], gram[:-5, :-5], rtol=0, atol=1e-5)  # relative distance alone


OPTIONS = [{}, {"normalization": "LN", "d_mlp": 24}, {"smeared_keys": True}, {"standard_positions": True}]


@pytest.mark.parametrize("options", OPTIONS)
def test_later_tokens_change_nothing_before_them(options):
    model = random_model(2, **options)
    tokens = torch.randint(50, (1, 20))
    changed = tokens.clone()
    changed[0, 12] = (changed[0, 12] + 1) % 50
    difference = (model(tokens) - model(changed)).abs().amax(-1)[0]
    assert difference[:12].max() < 1e-12
    assert difference[12:].min() > 1e-6


def test_standard_positions_enter_the_stream_and_so_the_values():
    """Under uniform attention every head moves the mean of token and position: the logits are written out here."""
    model = random_model(2, standard_positions=True)
    tokens = torch.randint(50, (2, 9))
    residual = model.tok_embed.weight[tokens] + model.W_pos[:9]
    uniform = torch.ones(9, 9).double().tril() / torch.arange(1, 10)[:, None]
    for layer in model.layers:
        layer.attn.q.weight.data.zero_()  # all scores equal
        residual = residual + uniform @ residual @ layer.attn.v.weight.T @ layer.attn.o.weight.T
    torch.testing.assert_close(model(tokens), residual @ model.head.weight.T, rtol=1e-11, atol=1e-11)


def test_smeared_keys_equal_the_scores_written_out():
    model = random_model(1, smeared_keys=True)
    attention, tokens = model.layers[0].attn, torch.randint(50, (1, 12))
    with_positions = model.tok_embed.weight[tokens[0]] + model.W_pos[:12]
    seen = {}
    keep = [lambda pattern: pattern, lambda scores: seen.setdefault("scores", scores)]
    attention(model.tok_embed(tokens), model.W_pos[None, :12], *keep)
    for h, own in enumerate(attention.smear.sigmoid()):
        rows = slice(8 * h, 8 * h + 8)
        queries, keys = (with_positions @ linear.weight[rows].T for linear in (attention.q, attention.k))
        mixed = torch.stack([keys[0], *(own * keys[j] + (1 - own) * keys[j - 1] for j in range(1, 12))])
        expected = (queries @ mixed.T / math.sqrt(8)).tril()
        torch.testing.assert_close(seen["scores"][0, h].tril(), expected, rtol=1e-10, atol=1e-10)
