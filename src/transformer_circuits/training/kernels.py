"""Attention and loss as the trainer computes them: the values of the plain ones, faster forward and backward on a CPU
(benchmarks/training_step.py)."""

import math

import torch
from torch import Tensor

from transformer_circuits.models.architecture import causal_attention

BLOCK = 128  # queries taken at a time
CHUNK = {"cpu": 256, "cuda": 32_768}  # rows of logits taken at a time


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


def blocked_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`architecture.causal_attention`, faster to train with on CPUs."""
    return causal_attention(q, k, v) if q.is_cuda else BlockedAttention.apply(q, k, v)


class LinearCrossEntropy(torch.autograd.Function):
    """The mean over rows of -log softmax(W_U x)[target], in chunks of rows whose float32 logits fit into a CPU's cache.

    Only the gradient of the logits is kept, in the type of the residual stream.
    """

    @staticmethod
    def forward(ctx, residual: Tensor, W_U: Tensor, targets: Tensor, chunk: int) -> Tensor:  # type: ignore[override]
        total = torch.zeros((), device=residual.device)
        d_logits = torch.empty(len(residual), len(W_U), dtype=residual.dtype, device=residual.device)
        for start in range(0, len(residual), chunk):
            rows = slice(start, start + chunk)
            log_probs = torch.log_softmax((residual[rows] @ W_U.T).float(), dim=-1)
            target = targets[rows, None]
            total -= log_probs.gather(1, target).sum()
            gradient = log_probs.exp_().scatter_add_(1, target, torch.full_like(target, -1, dtype=log_probs.dtype))
            d_logits[rows] = gradient.div_(len(residual))
        ctx.save_for_backward(residual, W_U, d_logits)
        return total / len(residual)

    @staticmethod
    def backward(ctx, d_loss: Tensor):  # type: ignore[override]
        residual, W_U, d_logits = ctx.saved_tensors
        d_residual, d_W_U = d_logits @ W_U, d_logits.T @ residual
        return d_residual * d_loss, d_W_U * d_loss, None, None


def linear_cross_entropy(residual: Tensor, W_U: Tensor, targets: Tensor, chunk: int | None = None) -> Tensor:
    """Return the mean loss in nats per token, in float32; residual [..., d_model], W_U [d_vocab, d_model], targets
    [...]; autocast as for a matmul."""
    device = residual.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        residual, W_U = residual.to(dtype), W_U.to(dtype)
    return LinearCrossEntropy.apply(residual.flatten(0, -2), W_U, targets.flatten(), chunk or CHUNK[device])
