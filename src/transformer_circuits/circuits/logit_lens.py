"""The logit lens: the residual stream read through the unembedding after the embedding and after each layer.

Paper: "Virtual Weights and the Residual Stream as a Communication Channel" (claim W9). The reading after layer i is the sum of the paths
that have ended there. Stages are those of `cache.accumulated_resid()`: 0 after the embedding, i after i layers.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

BATCH = 4  # windows read together: logits of 512 positions and 4,096 tokens take 34 MB a stage


def streams(
    model: TransformerBridge, tokens: Int[Tensor, "row pos"]
) -> Float[Tensor, "stage row pos d_model"]:
    """Return the residual stream after the embedding and after each layer."""
    wanted = ["hook_embed", *(f"blocks.{layer}.hook_resid_post" for layer in range(model.cfg.n_layers))]
    caches = (model.run_with_cache(rows, names_filter=wanted)[1] for rows in tokens.split(BATCH))
    return torch.cat([torch.stack([cache[name] for name in wanted]) for cache in caches], dim=1)


def reading_losses(
    model: TransformerBridge,
    streams: Float[Tensor, "*stage row pos d_model"],
    targets: Int[Tensor, "row pos"],
) -> Float[Tensor, "*stage row pos"]:
    """Return the loss (nats) at predicting `targets` when each stream is read through the unembedding, without a normalization before it."""
    wanted = targets.expand(streams.shape[:-1]).flatten(0, -2)
    found = [
        -(rows @ model.W_U).log_softmax(dim=-1).gather(-1, own[..., None])[..., 0]
        for rows, own in zip(streams.flatten(0, -3).split(BATCH), wanted.split(BATCH))
    ]
    return torch.cat(found).unflatten(0, streams.shape[:-2])


def linear_map(
    x: Float[Tensor, "row d_model"], y: Float[Tensor, "row d_model"]
) -> tuple[Float[Tensor, "d_model d_model"], Float[Tensor, "d_model"]]:
    """Return (M, b) such that x M + b is nearest to y in the mean square: the least that a "tuned" lens can be.

    Each column of M is its own regression, so that errors in the stream and errors in the logits give the same M.
    """
    dx, dy = (v.double() - v.double().mean(dim=0) for v in (x, y))
    M = torch.linalg.lstsq(dx.T @ dx, dx.T @ dy).solution
    return M.to(x.dtype), (y.double().mean(dim=0) - x.double().mean(dim=0) @ M).to(x.dtype)
