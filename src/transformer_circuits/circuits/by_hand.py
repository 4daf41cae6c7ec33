"""Heads written by hand: weights that move and look as an algorithm says, with no training.

Paper: the companion problem set (transformer-circuits.pub/2021/exercises); claims X1 to X3. Row vectors throughout, so that
each matrix is the transpose of the one in the problem set's solutions.

A hand-written model keeps each kind of information in a block of the residual stream of its own:

    content    what the token is; written by the embedding, a vector of length one
    position   where it is: sines and cosines, in pairs
    free       empty, for the first layer to write to
    out        empty, for the second layer to write to; the unembedding reads it and nothing else
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens import FactoredMatrix

from transformer_circuits.circuits.factored import row_blocks
from transformer_circuits.circuits.paths import Run, attention_scores, causal_softmax, head_outputs, run
from transformer_circuits.circuits.weights import Weights
from transformer_circuits.models.architecture import BOS, ModelConfig, Transformer, sinusoids
from transformer_circuits.training.scores import Repeats, induction_scores

# ---- heads and models from plain matrices --------------------------------------------------------------------------------


class HandHead(NamedTuple):
    """One head as it is written down. Its score is exactly (x W_Q)(x W_K)^T.

    A model divides by sqrt(d_head); `assemble` makes up for that.
    """

    W_Q: Float[Tensor, "d_model d_match"]
    W_K: Float[Tensor, "d_model d_match"]
    W_V: Float[Tensor, "d_model d_moved"]
    W_O: Float[Tensor, "d_moved d_model"]


def assemble(
    W_E: Float[Tensor, "d_vocab d_model"],
    W_pos: Float[Tensor, "n_ctx d_model"],
    layers: Sequence[Sequence[HandHead]],
    W_U: Float[Tensor, "d_model d_vocab"],
) -> Weights:
    """One model from hand-written heads, the same number in each layer.

    All are filled up with zeros to the widest, which gives d_head; zeros match and move nothing. Raises ValueError if there are
    no heads, layers differ in their number, or a matrix does not fit the residual stream.
    """
    if not layers or not layers[0] or len({len(layer) for layer in layers}) > 1:
        raise ValueError("a model needs at least one layer, and each layer the same number of heads, at least one")
    d_model = W_E.shape[1]
    for head in (head for layer in layers for head in layer):
        if {head.W_Q.shape[0], head.W_K.shape[0], head.W_V.shape[0], head.W_O.shape[1]} != {d_model}:
            raise ValueError(f"every matrix of a head must read or write a residual stream of {d_model} dimensions")
        if head.W_Q.shape != head.W_K.shape or head.W_V.shape[1] != head.W_O.shape[0]:
            raise ValueError("W_Q and W_K of a head must have one width, and so must W_V and W_O")
    d_head = max(max(head.W_Q.shape[1], head.W_V.shape[1]) for layer in layers for head in layer)

    def stack(part: str) -> Float[Tensor, "layer head d_model d_head"]:
        wide = W_E.new_zeros(len(layers), len(layers[0]), d_model, d_head)
        for at, layer in enumerate(layers):
            for h, head in enumerate(layer):
                matrix = getattr(head, part).T if part == "W_O" else getattr(head, part)
                wide[at, h, :, : matrix.shape[1]] = matrix
        return wide

    W_Q, W_K, W_V, W_O = (stack(part) for part in HandHead._fields)
    return Weights(W_E, W_pos, W_Q * math.sqrt(d_head), W_K, W_V, W_O.mT, W_U)


def to_model(weights: Weights) -> Transformer:
    """An ordinary `Transformer` with these weights; `Weights.of` takes it apart again. W_pos takes the place of its sinusoids.

    Raises ValueError if d_model is odd, as the model itself does.
    """
    shape = (weights.d_model, weights.n_heads, weights.d_head, len(weights.W_E), weights.n_ctx)
    model = Transformer(ModelConfig(weights.n_layers, *shape)).to(weights.W_E).eval().requires_grad_(False)
    parts = {"tok_embed": weights.W_E, "pos": weights.W_pos, "head": weights.W_U.T}  # nn.Linear stores [out, in]
    for layer in range(weights.n_layers):
        for part in ("q", "k", "v"):
            matrix = getattr(weights, f"W_{part.upper()}")[layer]
            parts[f"layers.{layer}.attn.{part}"] = matrix.mT.flatten(0, 1)
        parts[f"layers.{layer}.attn.o"] = weights.W_O[layer].flatten(0, 1).T
    model.load_state_dict({f"{name}.weight": matrix for name, matrix in parts.items()})
    return model


def run_in_stream(weights: Weights, tokens: Int[Tensor, "*batch position"]) -> Run:
    """The forward pass of a standard transformer: positions are added to the residual stream, once and for all readers.

    `paths.run` instead adds them where queries and keys are read, and nowhere else (Shortformer). The same weights can be run
    either way. Raises ValueError for a prompt that is empty, too long or outside the vocabulary.
    """
    weights.check_tokens(tokens)
    bare = dataclasses.replace(weights, W_pos=torch.zeros_like(weights.W_pos))
    residual = weights.W_E[tokens] + weights.W_pos[: tokens.shape[-1]]
    stages, scores, patterns = [residual], [], []
    for layer in range(weights.n_layers):
        scores.append(attention_scores(bare, residual, layer))
        patterns.append(causal_softmax(scores[-1]))
        residual = residual + head_outputs(weights, residual, patterns[-1], layer).sum(dim=-3)
        stages.append(residual)
    return Run(torch.stack(stages), torch.stack(scores), torch.stack(patterns), residual @ weights.W_U)


# ---- content and positions -----------------------------------------------------------------------------------------------


def content_vectors(W_E: Float[Tensor, "d_vocab d_model"], components: int) -> Float[Tensor, "d_vocab components"]:
    """Each token by the leading principal components of an embedding, scaled to length one.

    At equal lengths a token matches none better than itself (Cauchy-Schwarz); at their own lengths a longer vector of similar
    direction would win. In double precision, returned as it came. Raises ValueError unless 1 <= components <= d_model, and for
    a token that has nothing in these components.
    """
    if not 1 <= components <= W_E.shape[1]:
        raise ValueError(f"an embedding of {W_E.shape[1]} dimensions has 1 to {W_E.shape[1]} components, not {components}")
    centered = W_E.double() - W_E.double().mean(dim=0)
    _, vectors = torch.linalg.eigh(centered.T @ centered)  # ascending
    kept = centered @ vectors[:, -components:].flip(-1)
    lengths = kept.norm(dim=1, keepdim=True)
    if (lengths <= 1e-12 * lengths.max()).any():
        raise ValueError("a token has nothing in these components, so that it cannot be scaled to length one: keep more of them")
    return (kept / lengths).to(W_E.dtype)


def rates(pairs: int) -> Float[Tensor, " pair"]:
    """How far each pair of `sinusoids(n, 2 * pairs)` turns per token, in radians; the fastest first (1.0), then ever slower."""
    return torch.exp(torch.arange(pairs, dtype=torch.float64) * (-math.log(10_000) / pairs))


def rotation(rates: Float[Tensor, " pair"], steps: float) -> Float[Tensor, "2*pair 2*pair"]:
    """The matrix that moves a position by `steps` tokens: p_n @ rotation(rates, steps) = p_(n + steps), for every n.

    p_n holds the sines of all pairs, then their cosines, as `sinusoids` does. Each pair is a point on a circle and is turned by
    its own angle, so the matrix is orthogonal and does not depend on n: this is what makes pointer arithmetic possible.
    """
    cos, sin = torch.diag((rates * steps).cos()), torch.diag((rates * steps).sin())
    return torch.cat([torch.cat([cos, -sin], dim=1), torch.cat([sin, cos], dim=1)])  # rows: sines, cosines


def kernel(rates: Float[Tensor, " pair"], n: int) -> Float[Tensor, " distance"]:
    """p_i . p_j at the distances 0 to n - 1: the sum of cos(rate * distance) over pairs, largest at 0.

    Raises ValueError unless there is a distance.
    """
    if n < 1:
        raise ValueError(f"there are no distances among {n} positions")
    return (rates.double() * torch.arange(n, dtype=torch.float64, device=rates.device)[:, None]).cos().sum(dim=1)


# ---- how sharp is sharp enough -------------------------------------------------------------------------------------------


def sharpness(gap: float, n: int, leak: float = 1e-3) -> float:
    """The factor at which softmax puts at least 1 - leak on the best of n sources, if all others score `gap` less before it.

    With all n - 1 others exactly that far below, they get (n - 1) e^(-factor gap) of what the best one gets. Raises ValueError
    if there is no gap (no factor helps then), or for fewer than two sources, or a leak that is no share between 0 and 1.
    """
    if gap <= 0:
        raise ValueError(f"the best source must score more than any other, not {-gap:g} less: no sharpness tells them apart")
    if n < 2 or not 0 < leak < 1:
        raise ValueError(f"sharpness is for two sources or more and a leak between 0 and 1, not {n} and {leak}")
    return math.log((n - 1) * (1 - leak) / leak) / gap


def content_gap(content: Float[Tensor, "d_vocab components"]) -> float:
    """By how much a token matches itself better than any other token of the vocabulary does: the worst case over all pairs.

    Raises ValueError for a vocabulary of one.
    """
    if len(content) < 2:
        raise ValueError("a vocabulary of one token has no other to tell it from")
    own, worst = content.square().sum(dim=1), math.inf
    for part, block in row_blocks(FactoredMatrix(content, content.T)):
        rows = torch.arange(len(block), device=block.device)
        block[rows, rows + part.start] = -math.inf
        worst = min(worst, (own[part] - block.amax(dim=1)).min().item())
    return worst


def position_gap(rates: Float[Tensor, " pair"], n: int) -> float:
    """By how much a position matches itself better than any other one of n. Raises ValueError for fewer than two."""
    if n < 2:
        raise ValueError(f"among {n} positions there is no other to tell one from")
    values = kernel(rates, n)
    return (values[0] - values[1:].max()).item()


@dataclasses.dataclass(frozen=True)
class Sharpness:
    """The factors of the hand-written scores: of content matches, of position matches, and of the pointer head's two parts."""

    content: float
    position: float
    same_content: float  # content match of the head that must overcome its own penalty on near positions
    not_self: float  # that penalty, the problem set's beta
    logits: float  # of the output's match with every token of the vocabulary

    @classmethod
    def for_context(
        cls, content: Float[Tensor, "d_vocab components"], rates: Float[Tensor, " pair"], n: int, leak: float = 1e-3
    ) -> Sharpness:
        """The least factors with which each head by itself leaks at most `leak`, whatever the n tokens are.

        The pointer head scores same_content * (c_i . c_j) - not_self * (p_i . p_j). Its `not_self` is set so that the position
        itself loses against any other one; `same_content` so that a copy, which may be the nearest neighbour and so the most
        penalized, still beats another token at the least penalized distance. Raises ValueError if two tokens or two positions
        coincide.
        """
        matches, places = content_gap(content), position_gap(rates, n)
        if min(matches, places) <= 0:
            what = "tokens have the same content" if matches <= 0 else "positions look the same"
            raise ValueError(f"two {what}, so that no sharpness tells them apart: keep more components, or more pairs")
        values = kernel(rates, n)
        not_self = sharpness(places, n, leak)
        spread = (values[1:].max() - values.min()).item()
        same = sharpness(matches, n, leak)
        logits = sharpness(matches, len(content), leak)
        return cls(same, sharpness(places, n, leak), same + not_self * spread / matches, not_self, logits)


# ---- the two induction heads ---------------------------------------------------------------------------------------------


class Blocks(NamedTuple):
    """Columns of the identity for each block: x @ block is what x holds there, y @ block.T writes y there."""

    content: Float[Tensor, "d_model components"]
    position: Float[Tensor, "d_model 2*pair"]
    free: Float[Tensor, "d_model width"]
    out: Float[Tensor, "d_model components"]


def blocks(components: int, pairs: int, device: torch.device | str = "cpu") -> Blocks:
    """A residual stream with room for content, positions, one copy of either, and an output.

    The free block gets one dimension more where the width would be odd, which no `Transformer` may have. Raises ValueError
    for no components or pairs.
    """
    if components < 1 or pairs < 1:
        raise ValueError(f"content and positions need a dimension each at least, not {components} and {pairs}")
    widths = [components, 2 * pairs, max(components, 2 * pairs), components]
    widths[2] += sum(widths) % 2
    return Blocks(*torch.eye(sum(widths), device=device).split(widths, dim=1))


def previous_token_head(
    match: Float[Tensor, "d_model 2*pair"],
    rates: Float[Tensor, " pair"],
    factor: float,
    W_V: Float[Tensor, "d_model d_moved"],
    W_O: Float[Tensor, "d_moved d_model"],
    back: int = 1,
) -> HandHead:
    """A head that attends `back` tokens back: the query is its own position, turned back by that many steps.

    `match` reads sines, then cosines, of the pairs with these rates.
    """
    turned = match @ rotation(rates, -back).to(match)
    return HandHead(factor * turned, match, W_V, W_O)


def k_composition(
    content: Float[Tensor, "d_vocab components"], n_ctx: int, pairs: int = 8, table: int = 32, sharp: Sharpness | None = None
) -> Weights:
    """Induction by K-composition (claim X3): layer one brings each token's predecessor along, layer two looks for it.

    Positions are needed for the previous-token head alone, which reads the `pairs` fastest of a table of `table` pairs. Works
    with positions at queries and keys only (`paths.run`) and in the stream (`run_in_stream`) alike. `sharp` defaults to what a
    context of `n_ctx` tokens needs. Raises ValueError as `Sharpness.for_context` does, or for more pairs than the table has.
    """
    at, match, turn, sharp, embedding = _common(content, n_ctx, pairs, table, sharp)
    before = at.free[:, : content.shape[1]]
    fetch = previous_token_head(match, turn, sharp.position, at.content, before.T)
    look = HandHead(sharp.content * at.content, before, at.content, at.out.T)
    return assemble(*embedding, [[fetch], [look]], sharp.logits * at.out @ content.T)


def pointer_arithmetic(
    content: Float[Tensor, "d_vocab components"], n_ctx: int, pairs: int = 8, table: int = 32, sharp: Sharpness | None = None
) -> Weights:
    """Induction by pointer arithmetic (claim X2): layer one fetches the position of the earlier copy, layer two goes one on.

    For `run_in_stream`; with positions at queries and keys only there is no position to fetch. Raises ValueError as
    `k_composition` does.
    """
    at, match, turn, sharp, embedding = _common(content, n_ctx, pairs, table, sharp)
    pointer = at.free[:, : 2 * pairs]
    find = HandHead(
        torch.cat([sharp.same_content * at.content, -sharp.not_self * match], dim=1),
        torch.cat([at.content, match], dim=1),
        match,
        pointer.T,
    )
    step = HandHead(sharp.position * pointer @ rotation(turn, 1).to(pointer), match, at.content, at.out.T)
    return assemble(*embedding, [[find], [step]], sharp.logits * at.out @ content.T)


def _common(content: Tensor, n_ctx: int, pairs: int, table: int, sharp: Sharpness | None) -> tuple:
    """Blocks, the columns that read the fastest pairs, their rates, sharpness, and (W_E, W_pos)."""
    if not 1 <= pairs <= table:
        raise ValueError(f"heads can read 1 to {table} pairs of this table of positions, not {pairs}")
    at = Blocks(*(block.to(content) for block in blocks(content.shape[1], table)))  # in the content's precision too
    turn = rates(table)[:pairs]
    match = at.position[:, fastest(pairs, table)]
    sharp = sharp or Sharpness.for_context(content, turn, n_ctx)
    P = sinusoids(n_ctx, 2 * table).to(content)
    return at, match, turn, sharp, (content @ at.content.T, P @ at.position.T)


def fastest(pairs: int, table: int) -> Int[Tensor, "2*pair"]:
    """Columns of `sinusoids(n, 2 * table)` that hold its fastest pairs: their sines, then their cosines."""
    return torch.cat([torch.arange(pairs), table + torch.arange(pairs)])


# ---- a fair test ---------------------------------------------------------------------------------------------------------


def distinct_repeats(d_vocab: int, rows: int, n_ctx: int, seed: int = 0) -> Repeats:
    """`Repeats` in which nothing comes twice but the segment: all other tokens of a row differ.

    Lengths and offsets are random as there; tokens are drawn from the whole vocabulary without replacement, the start token
    left out. Each token of the second copy has one earlier occurrence, so that a perfect head scores 1. Raises ValueError if
    the vocabulary or the context is too small.
    """
    if d_vocab <= n_ctx:
        raise ValueError(f"{n_ctx} different tokens cannot be drawn from a vocabulary of {d_vocab}: take a shorter context")
    pool = torch.arange(d_vocab)
    pool = pool[pool != BOS]
    drawn = Repeats.draw(pool, rows, n_ctx, seed)
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.stack([pool[torch.randperm(len(pool), generator=generator)[:n_ctx]] for _ in range(rows)])
    tokens[:, 0] = BOS
    for row, one, two, n in zip(tokens, drawn.first.tolist(), drawn.second.tolist(), drawn.length.tolist()):
        row[two : two + n] = row[one : one + n]
    return dataclasses.replace(drawn, tokens=tokens)


def score(weights: Weights, repeats: Repeats, in_stream: bool = False, entries: int = 4_000_000) -> Float[Tensor, "layer head"]:
    """Induction score of every head; positions at queries and keys only, or in the residual stream.

    `entries` bounds the attention patterns that are kept at a time. Raises ValueError as the forward pass does.
    """
    blind = dataclasses.replace(weights, W_U=weights.W_U[:, :0])  # no logits: only attention is asked for
    forward = run_in_stream if in_stream else run
    n = repeats.tokens.shape[1]
    step = max(1, entries // (n * n * weights.n_heads * weights.n_layers))
    total = torch.zeros(weights.n_layers, weights.n_heads, device=weights.W_E.device, dtype=weights.W_E.dtype)
    for start in range(0, len(repeats.tokens), step):
        part = Repeats(*(getattr(repeats, f.name)[start : start + step] for f in dataclasses.fields(repeats)))
        patterns = forward(blind, part.tokens.to(weights.W_E.device)).patterns
        total += induction_scores(patterns, part) * len(part.tokens)
    return total / len(repeats.tokens)
