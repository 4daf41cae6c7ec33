"""What heads written by hand are made of: content, positions, and a residual stream with room for both (chapter 9).

Paper: the companion problem set (transformer-circuits.pub/2021/exercises), which has each matrix transposed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from transformer_circuits.models.bridge import from_matrices

PAIRS = 8  # of sine and cosine, by which a stream tells positions apart
LEAK = 1e-3  # the attention that a head may put elsewhere, whatever the tokens are


def rates(pairs: int) -> Float[Tensor, "pair"]:
    """Radians that each pair of sine and cosine turns per token: the fastest of a table of 64 dimensions."""
    return 10_000.0 ** (-torch.arange(pairs, dtype=torch.float64) / 32)


def position_vectors(rates: Float[Tensor, "pair"], n: int) -> Float[Tensor, "n 2*pair"]:
    """Positions 0 to n - 1: the sines of all pairs, then their cosines."""
    angles = torch.arange(n, dtype=torch.float64)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def rotation(rates: Float[Tensor, "pair"], steps: float | int) -> Float[Tensor, "2*pair 2*pair"]:
    """The one matrix R with p_n @ R = p_(n + steps) for every n: each pair is turned by its own angle."""
    cos, sin = torch.diag((rates * steps).cos()), torch.diag((rates * steps).sin())
    return torch.cat([torch.cat([cos, -sin], dim=1), torch.cat([sin, cos], dim=1)])


def sharpness(gap: float, n: int) -> float:
    """The factor at which softmax puts 1 - LEAK on the best of n sources if all others score `gap` less before it."""
    return math.log((n - 1) * (1 - LEAK) / LEAK) / gap


class Head(NamedTuple):
    """One head as it is written down: its score is just (x W_Q)(x W_K)^T, without sqrt(d_head)."""

    W_Q: Float[Tensor, "d_model d_match"]
    W_K: Float[Tensor, "d_model d_match"]
    W_V: Float[Tensor, "d_model d_moved"]
    W_O: Float[Tensor, "d_moved d_model"]


@dataclasses.dataclass(frozen=True)
class Stream:
    """A residual stream with a block of dimensions for each kind of information, and how sharp heads must be in it.

    A block is columns of the identity: x @ block is what x holds there, y @ block.T writes y there.
    """

    tokens: Float[Tensor, "d_vocab components"]  # what tells them apart, of length one
    rates: Float[Tensor, "pair"]
    n_ctx: int
    content: Float[Tensor, "d_model components"]  # block: which token; written by the embedding
    position: Float[Tensor, "d_model 2*pair"]  # block: where
    free: Float[Tensor, "d_model width"]  # block: empty, for the first layer
    out: Float[Tensor, "d_model components"]  # block: empty, for the second; all that the unembedding reads
    beta_content: float  # the factors at which a head leaks at most LEAK
    beta_position: float
    beta_copy: float  # of a content match that has to overcome a penalty of beta_position on near positions
    beta_logits: float  # of the match of the out block with every token of the vocabulary

    @classmethod
    def of(cls, tokens: Float[Tensor, "d_vocab components"], n_ctx: int) -> Stream:
        turn, components = rates(PAIRS), tokens.shape[1]
        widths = [components, 2 * PAIRS, max(components, 2 * PAIRS), components]
        blocks = torch.eye(sum(widths), dtype=tokens.dtype, device=tokens.device).split(widths, dim=1)
        match = tokens @ tokens.T
        own = match.diagonal().clone()
        gap = float((own - match.fill_diagonal_(-math.inf).amax(dim=1)).min())  # in the worst case
        positions = position_vectors(turn, n_ctx)
        match = positions @ positions[0]  # at each distance
        content, position = sharpness(gap, n_ctx), sharpness(float(match[0] - match[1:].max()), n_ctx)
        # The most that the penalty can differ between two places.
        most = position * float(match[1:].max() - match.min())
        return cls(tokens, turn, n_ctx, *blocks, content, position, content + most / gap, sharpness(gap, len(tokens)))

    def turned(self, block: Float[Tensor, "d_model plane"], steps: float | int) -> Float[Tensor, "d_model plane"]:
        """Reads a position from a block, moved by `steps` tokens."""
        return block @ rotation(self.rates, steps).to(block)

    def model(self, layers: Sequence[Sequence[Head]], standard_positions: bool = False) -> TransformerBridge:
        """A hooked model of these heads, as many in each layer, filled up with zeros; the out block gives the logits.

        `standard_positions`: positions go into the residual stream, instead of into queries and keys only.
        """
        heads = [head._replace(W_O=head.W_O.T) for layer in layers for head in layer]
        d_head = max(W.shape[1] for head in heads for W in head)
        filled = [torch.stack([F.pad(W, (0, d_head - W.shape[1])) for W in part]) for part in zip(*heads)]
        W_Q, W_K, W_V, W_O = (part.unflatten(0, (len(layers), len(layers[0]))) for part in filled)
        return from_matrices(
            W_E=self.tokens @ self.content.T,
            W_pos=position_vectors(self.rates, self.n_ctx).to(self.tokens) @ self.position.T,
            W_Q=W_Q * d_head**0.5,
            W_K=W_K,
            W_V=W_V,
            W_O=W_O.mT,
            W_U=self.beta_logits * self.out @ self.tokens.T,
            standard_positions=standard_positions,
        )
