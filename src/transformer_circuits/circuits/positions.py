"""Where positions enter: only at queries and keys, so each first-layer score has four terms, and values have none.

Paper: "One-Layer Attention-Only Transformers" (footnotes on positions) and the appendix on convolution.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transformer_circuits.circuits.paths import expand_scores, run
from transformer_circuits.circuits.weights import Weights

FOUR_TERMS = ["token-token", "token-position", "position-token", "position-position"]  # destination first


def position_terms(
    weights: Weights, tokens: Int[Tensor, " position"], head: int
) -> dict[str, Float[Tensor, "destination source"]]:
    """The four parts of a first-layer head's scores: token or position at the destination, and at the source (claim P2).

    Before the mask, after the division by sqrt(d_head). Raises ValueError for a head that does not exist and for a prompt
    that is empty, too long or outside the vocabulary.
    """
    weights.check_head(0, head)
    weights.check_tokens(tokens)
    no_patterns = weights.W_E.new_zeros(0)  # the first layer's scores come before any pattern
    split = expand_scores(weights, tokens, no_patterns, 0, head)
    return dict(zip(FOUR_TERMS, split.terms.flatten(0, 1)))


def position_scores(weights: Weights, layer: int, head: int, n: int) -> Float[Tensor, "destination source"]:
    """The position-position term for the first n positions: the part of the scores that no token can change.

    Raises ValueError for a head that does not exist, or more positions than the context has.
    """
    weights.check_head(layer, head)
    weights.check_tokens(torch.zeros(n, dtype=torch.long))
    P = weights.W_pos[:n]
    return (P @ weights.W_Q[layer, head]) @ (P @ weights.W_K[layer, head]).T / math.sqrt(weights.d_head)


def mean_by_offset(matrix: Float[Tensor, "*batch destination source"], n_offsets: int) -> Float[Tensor, "*batch offset"]:
    """Mean of a score or pattern at each distance back: offset 0 is the present token, 1 the one before, ...

    Raises ValueError if the matrix has fewer positions than offsets.
    """
    if not 0 < n_offsets <= matrix.shape[-1]:
        raise ValueError(f"{n_offsets} offsets do not fit into {matrix.shape[-1]} positions")
    return torch.stack([matrix.diagonal(-k, dim1=-2, dim2=-1).mean(dim=-1) for k in range(n_offsets)], dim=-1)


def offset_pattern(
    n: int, offset: int, dtype: torch.dtype = torch.float32, device: torch.device | None = None
) -> Float[Tensor, "destination source"]:
    """A pattern that looks exactly `offset` tokens back, and nowhere where there is no such token (claim A1)."""
    return torch.diag(torch.ones(max(n - offset, 0), dtype=dtype, device=device), -offset)[:n, :n]


def convolve_by_heads(
    x: Float[Tensor, "position d_in"], W_OV: Float[Tensor, "offset d_in d_out"]
) -> Float[Tensor, "position d_out"]:
    """A causal convolution as attention: one head for each offset, whose W_OV is the kernel there (claim A1)."""
    patterns = torch.stack([offset_pattern(len(x), offset, x.dtype, x.device) for offset in range(len(W_OV))])
    return (patterns @ x @ W_OV).sum(dim=0)


def mean_attention(
    weights: Weights, windows: Int[Tensor, "window position"], n_offsets: int = 1
) -> Float[Tensor, "layer head offset"]:
    """Average attention of every head to the present token, the one before, and so on, over windows of text.

    Destinations start after the start-of-text token, which attends to itself whatever the head does. One window at a
    time, so memory stays that of one prompt. Raises ValueError as `run` does.
    """
    total = 0.0
    for window in windows:
        patterns = run(weights, window).patterns[..., 1:, :]
        offsets = [patterns.diagonal(1 - k, dim1=-2, dim2=-1) for k in range(n_offsets)]
        total = total + torch.stack([diagonal.mean(dim=-1) for diagonal in offsets], dim=-1)
    return total / len(windows)


def attention_to_start(weights: Weights, windows: Int[Tensor, "window position"]) -> Float[Tensor, "layer head"]:
    """Average attention of every head to the first token, the start of text, over windows of text.

    Near 1: the head rests, and moves next to nothing, whatever its circuits say. The start token's own row is left out.
    Raises ValueError as `run` does, and for windows of a single token.
    """
    if windows.shape[-1] < 2:
        raise ValueError("a window needs at least two tokens: the first one's own row is left out")
    return torch.stack([run(weights, window).patterns[..., 1:, 0].mean(dim=-1) for window in windows]).mean(dim=0)
