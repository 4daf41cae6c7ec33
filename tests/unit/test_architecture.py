"""The plain transformer's attention. (test_bridge writes a whole model out.)"""

import math

import pytest
import torch

from transformer_circuits.models.architecture import causal_attention
from transformer_circuits.training.blocked import blocked_attention


def explicit_attention(q, k, v):
    n = q.shape[-2]
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1])
    allowed = torch.arange(n)[None, :] <= torch.arange(n)[:, None]
    return torch.where(allowed, scores, -math.inf).softmax(-1) @ v


@pytest.mark.parametrize("attention", [causal_attention, blocked_attention])
@pytest.mark.parametrize("n", [1, 2, 31, 127, 128, 129, 255, 256, 300])
def test_attention_and_its_gradients_equal_the_explicit_computation(n, attention):
    torch.manual_seed(n)
    ours = [torch.randn(2, 3, n, 8, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    theirs = [x.detach().clone().requires_grad_() for x in ours]
    out, expected = attention(*ours), explicit_attention(*theirs)
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    weight = torch.randn_like(out)
    (out * weight).sum().backward()
    (expected * weight).sum().backward()
    for mine, explicit in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, explicit.grad, rtol=1e-10, atol=1e-10)
