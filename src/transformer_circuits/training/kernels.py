"""Attention as the trainer computes it on a CPU: the values of PyTorch's, faster forward and backward in bf16
(benchmarks/training_step.py times it alone). A whole step of the two-layer model takes 0.7 to 0.8 times as long as with
PyTorch's own kernel, on one thread; in float32 it takes as long."""

import math

import torch
from torch import Tensor

BLOCK = 128  # queries taken at a time


class BlockedAttention(torch.autograd.Function):
    """Causal attention in blocks of queries, each against only the keys it can see; q, k, v: [batch, head, position,
    d_head].

    On CPUs PyTorch's fused kernel has a slow backward pass at this size, and slices of keys added up by autograd cost
    as much as the products themselves.
    """

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # type: ignore[override]
        n, ctx.scale = q.shape[-2], q.shape[-1] ** -0.5
        q = q * ctx.scale
        ahead = torch.full((BLOCK, BLOCK), -math.inf, dtype=q.dtype, device=q.device).triu(1)
        out, patterns = q.new_empty(*q.shape[:-1], v.shape[-1]), []
        for start in range(0, n, BLOCK):
            stop = min(start + BLOCK, n)
            scores = q[..., start:stop, :] @ k[..., :stop, :].mT
            scores[..., start:] += ahead[: stop - start, : stop - start]
            patterns.append(scores.softmax(dim=-1))
            out[..., start:stop, :] = patterns[-1] @ v[..., :stop, :]
        ctx.save_for_backward(q, k, v, *patterns)
        return out

    @staticmethod
    def backward(ctx, d_out: Tensor):  # type: ignore[override]
        q, k, v, *patterns = ctx.saved_tensors
        d_q, d_k, d_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for i, pattern in enumerate(patterns):
            start, stop = i * BLOCK, i * BLOCK + pattern.shape[-2]
            d_rows = d_out[..., start:stop, :]
            d_v[..., :stop, :] += pattern.mT @ d_rows
            d_pattern = d_rows @ v[..., :stop, :].mT
            d_scores = torch.ops.aten._softmax_backward_data(d_pattern, pattern, -1, pattern.dtype)
            d_q[..., start:stop, :] = d_scores @ k[..., :stop, :] * ctx.scale
            d_k[..., :stop, :] += d_scores.mT @ q[..., start:stop, :]
        return d_q, d_k, d_v
