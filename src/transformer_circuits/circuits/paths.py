"""Path expansion: a model's logits, and its attention scores, as sums over paths through the heads.

Paper: "Zero-Layer", "One-Layer" and "Two-Layer Attention-Only Transformers". A path is a tuple of heads, earliest first,
each in a later layer than the one before; the empty path is the direct one, W_E W_U. With the patterns A recorded,

    logits = sum over paths (h1, ..., hk) of (A^hk ... A^h1) W_E[tokens] W_OV^h1 ... W_OV^hk W_U       (any number of layers)

Attention scores of a head split likewise, with one path for the query and one for the key.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transformer_circuits.circuits.weights import Weights

Head = tuple[int, int]  # (layer, head)
Path = tuple[Head, ...]  # earliest head first; () is the direct path


def path_name(path: Path) -> str:
    """"direct", "0.7", or "0.7 → 1.4" for layer.head, in the order in which information passes."""
    return " → ".join(f"{layer}.{head}" for layer, head in path) or "direct"


@dataclasses.dataclass(frozen=True)
class Run:
    """What a forward pass leaves behind. Scores are before the causal mask, after the division by sqrt(d_head)."""

    residual: Float[Tensor, "stage *batch position d_model"]  # before each layer, and after the last one
    scores: Float[Tensor, "layer *batch head destination source"]
    patterns: Float[Tensor, "layer *batch head destination source"]
    logits: Float[Tensor, "*batch position d_vocab"]


def run(
    weights: Weights,
    tokens: Int[Tensor, "*batch position"] | Float[Tensor, "*batch position d_vocab"],
    patterns: Float[Tensor, "layer *batch head destination source"] | None = None,
) -> Run:
    """The forward pass written out; with `patterns` given it is the frozen run, in which no softmax is left.

    `tokens` may also be a mixture of one-hot rows: a frozen run is linear in it (claim P3).
    Raises ValueError for a prompt that is empty, too long or outside the vocabulary, or patterns of another shape.
    """
    if tokens.is_floating_point():
        weights.check_tokens(torch.zeros(tokens.shape[:-1], dtype=torch.long))
        residual = tokens @ weights.W_E
    else:
        weights.check_tokens(tokens)
        residual = weights.W_E[tokens]
    n = residual.shape[-2]
    shape = (weights.n_layers, *residual.shape[:-2], weights.n_heads, n, n)
    if patterns is not None and patterns.shape != shape:
        raise ValueError(f"patterns must have shape {shape} for this prompt, not {tuple(patterns.shape)}")
    stages, scores, used = [residual], residual.new_zeros(shape), residual.new_zeros(shape)
    for layer in range(weights.n_layers):
        scores[layer] = attention_scores(weights, residual, layer)
        used[layer] = causal_softmax(scores[layer]) if patterns is None else patterns[layer]
        residual = residual + head_outputs(weights, residual, used[layer], layer).sum(dim=-3)
        stages.append(residual)
    return Run(torch.stack(stages), scores, used, residual @ weights.W_U)


def attention_scores(
    weights: Weights, residual: Float[Tensor, "*batch position d_model"], layer: int
) -> Float[Tensor, "*batch head destination source"]:
    """(x + p) W_Q W_K^T (x + p)^T / sqrt(d_head) for every head of a layer, future sources included."""
    seen = (residual + weights.W_pos[: residual.shape[-2]]).unsqueeze(-3)
    return (seen @ weights.W_Q[layer]) @ (seen @ weights.W_K[layer]).mT / math.sqrt(weights.d_head)


def causal_softmax(scores: Float[Tensor, "*batch destination source"]) -> Float[Tensor, "*batch destination source"]:
    """Attention of each destination to itself and to the sources before it; every row adds up to one."""
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return scores.masked_fill(future, -math.inf).softmax(dim=-1)


def head_outputs(
    weights: Weights,
    residual: Float[Tensor, "*batch position d_model"],
    pattern: Float[Tensor, "*batch head destination source"],
    layer: int,
) -> Float[Tensor, "*batch head position d_model"]:
    """What each head of a layer adds to the residual stream: A^h x W_V^h W_O^h. Positions do not enter."""
    return pattern @ (residual.unsqueeze(-3) @ weights.W_V[layer]) @ weights.W_O[layer]


@dataclasses.dataclass(frozen=True)
class Expansion:
    """What every path adds to the residual stream."""

    paths: list[Path]
    terms: Float[Tensor, "path *batch position d_model"]

    def total(self, order: int | None = None) -> Float[Tensor, "*batch position d_model"]:
        """Sum of all paths, or of those through exactly `order` heads."""
        chosen = [i for i, path in enumerate(self.paths) if order is None or len(path) == order]
        return self.terms[chosen].sum(dim=0)

    def logits(self, weights: Weights, token: int, above_mean: bool = False) -> Float[Tensor, "path *batch position"]:
        """What every path adds to the logit of one token, or to what that has above the mean logit of all tokens.

        The mean is what softmax does not see. Raises ValueError if the vocabulary has no such token.
        """
        weights.check_tokens(torch.tensor([token]))
        read = weights.W_U[:, token]
        return self.terms @ (read - weights.W_U.mean(dim=1) if above_mean else read)


def expand(
    weights: Weights,
    tokens: Int[Tensor, "*batch position"],
    patterns: Float[Tensor, "layer *batch head destination source"],
    n_layers: int | None = None,
) -> Expansion:
    """All paths through the first `n_layers` layers (default: all of them), by order and then by head (claims P1, T1).

    A model of L layers with H heads has (1 + H)^L paths. `patterns` are those of a run, one of its layers after the other:
    `run(weights, tokens).patterns`, or a list of what a model's cache holds.
    Raises ValueError as `run` does.
    """
    weights.check_tokens(tokens)
    paths: list[Path] = [()]
    terms = weights.W_E[tokens][None]
    for layer in range(weights.n_layers if n_layers is None else n_layers):
        through = torch.stack([head_outputs(weights, term, patterns[layer], layer) for term in terms])
        through = through.movedim(-3, 1).flatten(0, 1)  # [path and then head, ...]
        paths += [(*path, (layer, head)) for path in paths for head in range(weights.n_heads)]
        terms = torch.cat([terms, through])
    in_order = sorted(range(len(paths)), key=lambda i: (len(paths[i]), paths[i]))
    return Expansion([paths[i] for i in in_order], terms[in_order])


@dataclasses.dataclass(frozen=True)
class ScoreTerms:
    """The attention scores of one head, split by where query and key come from.

    Components are the position, and the paths through earlier layers; the direct path is called "token".
    """

    components: list[str]
    terms: Float[Tensor, "query_component key_component destination source"]

    def by_composition(self) -> dict[str, Float[Tensor, "destination source"]]:
        """Four parts that add up to the scores: no composition, Q alone, K alone, Q and K together (claim T2).

        A side composes if it comes through an earlier head, and not from the token or its position.
        """
        plain = torch.tensor([name in ("token", "position") for name in self.components])
        return {
            "none": self.terms[plain][:, plain].sum(dim=(0, 1)),
            "Q": self.terms[~plain][:, plain].sum(dim=(0, 1)),
            "K": self.terms[plain][:, ~plain].sum(dim=(0, 1)),
            "Q and K": self.terms[~plain][:, ~plain].sum(dim=(0, 1)),
        }

    def total(self) -> Float[Tensor, "destination source"]:
        return self.terms.sum(dim=(0, 1))


def expand_scores(
    weights: Weights,
    tokens: Int[Tensor, " position"],
    patterns: Float[Tensor, "layer head destination source"],
    layer: int,
    head: int,
) -> ScoreTerms:
    """Scores of head `layer`.`head` (before the mask) as a sum over query and key components (claims P2, T2).

    A first-layer head has four terms (token and position on either side). A second-layer head among 12 + 12 has 14 x 14.
    Raises ValueError for a head that does not exist and as `run` does.
    """
    weights.check_head(layer, head)
    earlier = expand(weights, tokens, patterns, n_layers=layer)
    names = ["token", "position"] + [path_name(path) for path in earlier.paths[1:]]
    position = weights.W_pos[: tokens.shape[-1]]
    components = torch.cat([earlier.terms[:1], position[None], earlier.terms[1:]])
    queries = components @ weights.W_Q[layer, head] / math.sqrt(weights.d_head)
    keys = components @ weights.W_K[layer, head]
    return ScoreTerms(names, torch.einsum("adk,bsk->abds", queries, keys))


def with_identity_head(
    weights: Weights, patterns: Float[Tensor, "layer head destination source"]
) -> tuple[Float[Tensor, "layer head+1 destination source"], Float[Tensor, "layer head+1 d_model d_model"]]:
    """Patterns and W_OV of all heads, with one more head per layer whose pattern and W_OV are the identity (claim A2).

    That head is the residual connection: with it a layer is nothing but a sum of heads.
    """
    n = patterns.shape[-1]
    eye = torch.eye(n, dtype=patterns.dtype, device=patterns.device).expand(weights.n_layers, 1, n, n)
    W_OV = weights.W_V @ weights.W_O
    d_model = weights.d_model
    identity = torch.eye(d_model, dtype=W_OV.dtype, device=W_OV.device).expand(weights.n_layers, 1, d_model, d_model)
    return torch.cat([patterns, eye], dim=1), torch.cat([W_OV, identity], dim=1)


def product_of_heads(
    weights: Weights,
    tokens: Int[Tensor, " position"],
    patterns: Float[Tensor, "layer head destination source"],
) -> Float[Tensor, "position d_vocab"]:
    """Logits as a plain product over layers of sums of heads, the identity head among them (claim A2)."""
    weights.check_tokens(tokens)
    residual = weights.W_E[tokens]
    for A, W_OV in zip(*with_identity_head(weights, patterns)):
        residual = (A @ residual @ W_OV).sum(dim=0)
    return residual @ weights.W_U
