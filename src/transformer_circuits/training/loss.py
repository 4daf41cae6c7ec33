"""Cross-entropy of W_U x against the next token, without keeping float32 logits for the whole batch."""

import torch
from torch import Tensor


class LinearCrossEntropy(torch.autograd.Function):
    """The mean over rows of -log softmax(W_U x)[target], in chunks of rows whose float32 logits fit into a CPU's cache.

    Only the gradient of the logits is kept, in the type of the residual stream.
    """

    @staticmethod
    def forward(ctx, residual: Tensor, W_U: Tensor, targets: Tensor, chunk: int) -> Tensor:  # type: ignore[override]
        """residual [row, d_model] and W_U [d_vocab, d_model] of one type; targets [row] -> scalar, nats, float32."""
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
    """Return the mean loss in nats per token; residual [..., d_model], W_U [d_vocab, d_model], targets [...]; autocast
    as for a matmul."""
    if torch.is_autocast_enabled(residual.device.type):
        dtype = torch.get_autocast_dtype(residual.device.type)
        residual, W_U = residual.to(dtype), W_U.to(dtype)
    chunk = chunk or (32_768 if residual.is_cuda else 256)
    return LinearCrossEntropy.apply(residual.flatten(0, -2), W_U, targets.flatten(), chunk)
