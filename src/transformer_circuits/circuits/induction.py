"""Induction heads: where they look, what they write, how they find their target, and what breaks them.

Paper: "Two-Layer Attention-Only Transformers" (induction heads; their function; how they work; checking the mechanism). A
head does induction if from a token that occurred before it attends to the token after that earlier occurrence, and
raises its logit: [a][b] ... [a] -> [b].
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformer_lens import FactoredMatrix

from transformer_circuits.circuits.factored import ranks
from transformer_circuits.circuits.paths import Head, Run, attention_scores, causal_softmax, head_outputs, run
from transformer_circuits.circuits.qk_ov import ov, qk
from transformer_circuits.circuits.weights import Weights

# ---- where an induction head should look -------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Repeated:
    """`start token, s, s, s`: a segment s of different tokens, several times over. Nothing but its earlier copies predicts it."""

    tokens: Int[Tensor, " position"]
    length: int  # of the segment
    copies: int

    @property
    def destinations(self) -> Int[Tensor, " destination"]:
        """The tokens that occurred before: every position of copies two and on."""
        return torch.arange(1 + self.length, len(self.tokens), device=self.tokens.device)

    @property
    def targets(self) -> Int[Tensor, " destination"]:
        """For each of these, the position after the token's last occurrence."""
        return self.destinations - self.length + 1

    @property
    def following(self) -> Int[Tensor, " destination"]:
        """For each of these, the token at its target: the one that is to be predicted."""
        return self.tokens[self.targets]

    def to(self, device: torch.device | str) -> Repeated:
        return dataclasses.replace(self, tokens=self.tokens.to(device))


def repeated_random_tokens(
    d_vocab: int,
    n_ctx: int,
    rows: int = 100,
    copies: int = 3,
    shortest: int = 20,
    longest: int | None = None,
    start: int = 0,
    seed: int = 0,
    choose_from: Int[Tensor, " token"] | None = None,
) -> list[Repeated]:
    """Segments drawn uniformly and without replacement from the vocabulary, each several times over (claim T8).

    Lengths are uniform between `shortest` and `longest` (default: what fits), so the distance between copies differs from
    row to row: a head that looks a fixed number of tokens back is right in few rows. The start token comes first and is
    never drawn.

    Args:
        choose_from: token ids to draw from instead of the whole vocabulary, each once.
    Raises:
        ValueError: fewer than two copies, copies that do not fit into the context, or too few or repeated tokens to draw from.
    """
    if copies < 2:
        raise ValueError(f"{copies} copies repeat nothing: take two or more")
    fits = (n_ctx - 1) // copies
    longest = fits if longest is None else longest
    pool = torch.arange(d_vocab) if choose_from is None else choose_from.cpu()
    pool = pool[pool != start]
    if len(pool.unique()) < len(pool):
        raise ValueError("a token stands twice in choose_from: a segment is of different tokens, so name each once")
    if not 1 < shortest <= longest <= fits:
        raise ValueError(
            f"{copies} copies of {shortest} to {longest} tokens do not fit a context of {n_ctx}: lengths may be 2 to {fits}"
        )
    if longest > len(pool):
        raise ValueError(f"{longest} different tokens cannot be drawn from {len(pool)}: take shorter segments")
    generator = torch.Generator().manual_seed(seed)
    sequences = []
    for length in torch.randint(shortest, longest + 1, (rows,), generator=generator).tolist():
        segment = pool[torch.randperm(len(pool), generator=generator)[:length]]
        sequences.append(Repeated(torch.cat([torch.tensor([start]), segment.repeat(copies)]), length, copies))
    return sequences


def attention_to_last(
    patterns: Float[Tensor, "*head destination source"], sequence: Repeated
) -> Float[Tensor, "*head repeated"]:
    """Attention from each repeated token to the token after the one's last occurrence; its mean is the induction score.

    Raises ValueError if the patterns are not of this sequence's length.
    """
    _same_length(patterns, sequence)
    return patterns[..., sequence.destinations, sequence.targets]


def attention_to_any(
    patterns: Float[Tensor, "*head destination source"], sequence: Repeated
) -> Float[Tensor, "*head repeated"]:
    """The same, to the tokens after all of its earlier occurrences together: in the third copy there are two.

    Raises ValueError if the patterns are not of this sequence's length.
    """
    _same_length(patterns, sequence)
    after = after_earlier(sequence.tokens)[sequence.destinations]
    return (patterns[..., sequence.destinations, :] * after).sum(dim=-1)


def _same_length(patterns: Tensor, sequence: Repeated) -> None:
    if patterns.shape[-1] != len(sequence.tokens):
        raise ValueError(f"patterns of {patterns.shape[-1]} positions are not those of {len(sequence.tokens)} tokens")


def after_earlier(tokens: Int[Tensor, " position"]) -> Bool[Tensor, "destination source"]:
    """True where the source comes right after an earlier occurrence of the destination's token.

    The source may be the destination itself (a token twice in a row); it is never ahead of it.
    """
    same = (tokens[:, None] == tokens).tril(-1)
    return F.pad(same, (1, 0))[:, :-1]


def last_target(tokens: Int[Tensor, " position"]) -> Int[Tensor, " position"]:
    """For each token, the position after its last earlier occurrence; -1 where it is new."""
    after = after_earlier(tokens)
    places = torch.arange(len(tokens), device=tokens.device)
    return torch.where(after, places, -1).amax(dim=-1)


def copy_losses(losses: Float[Tensor, " position-1"], sequence: Repeated) -> Float[Tensor, " copy"]:
    """Mean loss in each copy, its first token left out. `losses[i]` is the loss at predicting token i + 1.

    Raises ValueError if there are not as many losses as predicted tokens.
    """
    if len(losses) != len(sequence.tokens) - 1:
        raise ValueError(f"{len(losses)} losses for {len(sequence.tokens)} tokens: one is needed for each but the first")
    return losses.unflatten(0, (sequence.copies, sequence.length))[:, 1:].mean(dim=1)


def next_token_losses(
    logits: Float[Tensor, "*batch position d_vocab"], tokens: Int[Tensor, "*batch position"]
) -> Float[Tensor, "*batch position-1"]:
    """Nats at predicting each token after the first."""
    return -logits[..., :-1, :].log_softmax(dim=-1).gather(-1, tokens[..., 1:, None])[..., 0]


# ---- what a head moves, and what that does to the logits ------------------------------------------------------------------


def value_sizes(
    weights: Weights, residual: Float[Tensor, "*batch position d_model"], layer: int, written: bool = False
) -> Float[Tensor, "*batch head position"]:
    """|v| = |x W_V| for each head of a layer; with `written`, |x W_V W_O|: what the head would write if it attended there.

    |v| depends on how W_OV is split into W_V and W_O, which the model leaves open (claim O4); what is written does not.
    `residual` is what the layer reads, `run(...).residual[layer]`. Raises ValueError for a layer that does not exist.
    """
    weights.check_head(layer, 0)
    values = residual.unsqueeze(-3) @ weights.W_V[layer]
    return (values @ weights.W_O[layer] if written else values).norm(dim=-1)


def value_weighted(
    patterns: Float[Tensor, "*head destination source"],
    sizes: Float[Tensor, "*head source"],
    rows_sum_to_one: bool = False,
) -> Float[Tensor, "*head destination source"]:
    """A_ij |v_j|: how much each source adds. Rows may be scaled to sum 1, which hides that some of them move next to nothing.

    (A row that moves nothing at all has no shares: it becomes NaN.) Never scaled by the maximum over heads or rows: numbers of
    one head stay comparable. Raises ValueError for sizes of other heads or positions.
    """
    if sizes.shape != patterns.shape[:-2] + patterns.shape[-1:]:
        raise ValueError(f"sizes {tuple(sizes.shape)} do not belong to patterns {tuple(patterns.shape)}: one a head and source")
    moved = patterns * sizes.unsqueeze(-2)
    return moved / moved.sum(dim=-1, keepdim=True) if rows_sum_to_one else moved


def logit_effect(
    weights: Weights,
    written: Float[Tensor, "*batch position d_model"],
    tokens: Int[Tensor, "*batch position"],
    above_mean: bool = True,
) -> Float[Tensor, "*batch position"]:
    """What a vector in the residual stream adds to one token's logit at each position: (written W_U)_token (claim T7).

    With `above_mean`, less its mean over the vocabulary, which softmax does not see. `written` is a head's output, or a
    path's. Raises ValueError for token ids outside the vocabulary.
    """
    weights.check_tokens(tokens)
    read = weights.W_U.T[tokens]
    return (written * (read - weights.W_U.mean(dim=1) if above_mean else read)).sum(dim=-1)


def head_output(weights: Weights, here: Run, layer: int, head: int) -> Float[Tensor, "*batch position d_model"]:
    """What one head wrote in a run: A x W_V W_O. Raises ValueError for a head that does not exist."""
    weights.check_head(layer, head)
    return here.patterns[layer, ..., head, :, :] @ (here.residual[layer] @ weights.W_V[layer, head]) @ weights.W_O[layer, head]


# ---- how it finds its target: scores by source token --------------------------------------------------------------------

QUERY_PARTS = KEY_PARTS = ("own token", "token before", "earlier tokens", "position")


class Contents(NamedTuple):
    """What frozen earlier layers have put into each position: by path, a pattern and the vectors that it mixes.

    The residual stream is the sum over paths of `patterns[path] @ vectors[path]`; the direct path's pattern is the identity.
    """

    patterns: Float[Tensor, "path position source"]
    vectors: Float[Tensor, "path source d_model"]


def contents(
    weights: Weights, tokens: Int[Tensor, " position"], patterns: Float[Tensor, "layer head position source"], layer: int
) -> Contents:
    """All paths from the tokens to what `layer` reads, with pattern and vectors kept apart, so that sources can be told apart.

    As in `paths.expand`, but a term (A^h2 A^h1) x W_OV^h1 W_OV^h2 is not multiplied out. There are (1 + n_heads)^layer paths,
    each with a pattern: 13 before the second layer of 12 heads, 169 (170 MB at 512 tokens) before the third.
    Raises ValueError for a layer that does not exist and as `run` does.
    """
    weights.check_head(layer, 0)
    weights.check_tokens(tokens)
    moves = torch.eye(len(tokens), dtype=weights.W_E.dtype, device=weights.W_E.device)[None]
    vectors = weights.W_E[tokens][None]
    for earlier in range(layer):
        moves = torch.cat([moves, (patterns[earlier][:, None] @ moves).flatten(0, 1)])
        passed = vectors @ weights.W_V[earlier][:, None] @ weights.W_O[earlier][:, None]
        vectors = torch.cat([vectors, passed.flatten(0, 1)])
    return Contents(moves, vectors)


def score_by_source(
    weights: Weights,
    tokens: Int[Tensor, " position"],
    patterns: Float[Tensor, "layer head destination source"],
    layer: int,
    head: int,
    destination: int,
    source: int,
) -> Float[Tensor, "query_source+1 key_source+1"]:
    """One score of one head, split by the token that the query's and the key's content came from (patterns frozen; claim T9).

    Entry [i, j]: query content that came from token i, key content from token j; the last row and column are the
    positions' parts. All entries add up to the score (after the division by sqrt(d_head)).
    Raises ValueError for a head or position that does not exist and as `run` does.
    """
    weights.check_head(layer, head)
    if not (0 <= destination < len(tokens) and 0 <= source < len(tokens)):
        raise ValueError(f"positions {destination} and {source} are not both among the {len(tokens)} of this prompt")
    moves, vectors = contents(weights, tokens, patterns, layer)

    def at(position: int, W: Tensor) -> Float[Tensor, "source+1 d_head"]:
        from_tokens = torch.einsum("ps,psd->sd", moves[:, position], vectors)
        return torch.cat([from_tokens, weights.W_pos[position][None]]) @ W

    query, key = at(destination, weights.W_Q[layer, head]), at(source, weights.W_K[layer, head])
    return query @ key.T / math.sqrt(weights.d_head)


def excess_by_source(
    weights: Weights,
    tokens: Int[Tensor, " position"],
    patterns: Float[Tensor, "layer head destination source"],
    layer: int,
    head: int,
    destinations: Int[Tensor, " destination"],
    targets: Int[Tensor, " destination"],
) -> Float[Tensor, "query_part=4 key_part=4 destination"]:
    """Score at each target less the mean score of its row, split by where query and key content come from (claim T9).

    Parts (QUERY_PARTS, KEY_PARTS), counted from the position itself: its own token, the token before it, earlier tokens, and
    its position. A row is all that the destination may attend to. The parts add up to the excess.
    The rows' means need no matrix of scores: the score is linear in the key, so the mean score is that of the mean key.
    Raises ValueError for a head that does not exist and as `run` does.
    """
    weights.check_head(layer, head)
    moves, vectors = contents(weights, tokens, patterns, layer)
    seen = torch.arange(1, len(tokens) + 1, device=moves.device)[:, None]

    def parts(W: Tensor) -> Float[Tensor, "part position d_head"]:
        projected = vectors @ W
        own = (moves.diagonal(dim1=-2, dim2=-1)[..., None] * projected).sum(dim=0)
        before = torch.zeros_like(own)
        before[1:] = (moves.diagonal(-1, dim1=-2, dim2=-1)[..., None] * projected[:, :-1]).sum(dim=0)
        everything = (moves @ projected).sum(dim=0)
        return torch.stack([own, before, everything - own - before, weights.W_pos[: len(tokens)] @ W])

    queries, keys = parts(weights.W_Q[layer, head]), parts(weights.W_K[layer, head])
    row_means = keys.cumsum(dim=1) / seen
    above = keys[:, targets] - row_means[:, destinations]
    return torch.einsum("adk,bdk->abd", queries[:, destinations], above) / math.sqrt(weights.d_head)


# ---- the mechanism in the weights ----------------------------------------------------------------------------------------


def k_composition_circuit(weights: Weights, earlier: Head, later: Head) -> FactoredMatrix:
    """W_E W_QK (W_OV^earlier)^T W_E^T, [present token, token that the earlier head has brought into the key] (claim T10).

    The paper's W_E^T W_QK W_OV W_E. If the earlier head has fetched the previous token, a large diagonal says: attend to
    where the token before is the present one. Raises ValueError if a head does not exist or comes too late.
    """
    if earlier[0] >= later[0]:
        raise ValueError(f"a head of layer {later[0]} cannot read what one of layer {earlier[0]} writes after it or beside it")
    match, moved = qk(weights, *later), ov(weights, *earlier)
    return FactoredMatrix(weights.W_E @ match.A, match.B @ moved.B.T @ moved.A.T @ weights.W_E.T)


def self_match_share(circuit: FactoredMatrix) -> float:
    """Share of tokens whose largest entry in their row is the one with themselves; one in d_vocab at random.

    Raises ValueError if the circuit is not square.
    """
    if circuit.ldim != circuit.rdim:
        raise ValueError(f"tokens can match themselves in a square circuit only, not in {circuit.ldim} by {circuit.rdim}")
    every = torch.arange(circuit.ldim, device=circuit.A.device)
    return (ranks(circuit, every, every) == 0).float().mean().item()


# ---- what breaks it -----------------------------------------------------------------------------------------------------------


def without_unembedding(weights: Weights) -> Weights:
    """The same weights with an empty vocabulary to predict, for runs of which only attention is wanted: about half the work."""
    return dataclasses.replace(weights, W_U=weights.W_U[:, :0])


def mean_outputs(weights: Weights, prompts: Sequence[Int[Tensor, " position"]], layer: int) -> Float[Tensor, "head d_model"]:
    """Mean output of every head of a layer over all positions of all prompts: what an ablated head says instead (claim T14).

    One vector a head. Not one for each position: positions never enter values, and at positions that few prompts reach a
    mean would be the very output that is to be removed. Raises ValueError for no prompts, a layer that does not exist, and
    as `run` does.
    """
    if not prompts:
        raise ValueError("there are no prompts to take a mean over")
    weights.check_head(layer, 0)
    weights = without_unembedding(weights)
    total, n = 0.0, 0
    for tokens in prompts:
        here = run(weights, tokens)
        attended = here.patterns[layer] @ (here.residual[layer] @ weights.W_V[layer])
        total, n = total + attended.sum(dim=-2), n + len(tokens)
    return torch.einsum("hk,hkm->hm", total / n, weights.W_O[layer])


def patterns_without(
    weights: Weights, here: Run, head: Head, replacement: Float[Tensor, " d_model"]
) -> Float[Tensor, "layer *batch head destination source"]:
    """Patterns of a run in which one head writes `replacement` everywhere and all later layers are computed anew.

    `here` is the run with all heads. Raises ValueError for a head that does not exist.
    """
    written = head_output(weights, here, *head)
    patterns, residual = here.patterns.clone(), here.residual[head[0] + 1] - written + replacement
    for layer in range(head[0] + 1, weights.n_layers):
        patterns[layer] = causal_softmax(attention_scores(weights, residual, layer))
        if layer + 1 < weights.n_layers:
            residual = residual + head_outputs(weights, residual, patterns[layer], layer).sum(dim=-3)
    return patterns


class KeyEffect(NamedTuple):
    """Effect of a part of one key on a logit, where that key is attended to: by removing it, and by its gradient."""

    ablation: Float[Tensor, " destination"]  # nats of logit that go when the part is removed
    gradient: Float[Tensor, " destination"]  # gradient of the logit times the part
    attention: Float[Tensor, " destination"]  # to the target, before
    score: Float[Tensor, " destination"]  # what the part adds to the score


def key_effect(
    weights: Weights,
    here: Run,
    reader: Head,
    part: Float[Tensor, "position d_model"],
    destinations: Int[Tensor, " destination"],
    targets: Int[Tensor, " destination"],
    tokens: Int[Tensor, " destination"],
) -> KeyEffect:
    """How much a logit owes to `part` of the residual stream at the target, as the key of one head reads it (claim T15).

    For each destination, the part is taken out of the reader's key at its target alone; the reader's scores, its softmax and
    its own effect on the logit of `tokens` are computed anew. The gradient is that of the same function at the same place, so a
    linear effect would give the same number: gradient = A (u_target - sum_j A_j u_j) times the part's score, with u_j the
    logit that attending to j would give. Where A is near one the bracket is near zero.

    `part` is measured from what replaces it: a head's output less its mean. Unbatched runs. Raises ValueError for a head that
    does not exist, and unless there are as many targets and tokens as destinations.
    """
    weights.check_head(*reader)
    if not len(destinations) == len(targets) == len(tokens):
        given = f"{len(targets)} and {len(tokens)}"
        raise ValueError(f"{len(destinations)} destinations need as many targets and tokens, not {given}")
    layer, head = reader
    residual = here.residual[layer]
    queries = (residual + weights.W_pos[: len(residual)])[destinations] @ weights.W_Q[layer, head]
    shift = (queries * (part[targets] @ weights.W_K[layer, head])).sum(dim=-1) / math.sqrt(weights.d_head)

    n = len(residual)
    ahead = torch.arange(n, device=residual.device) > destinations[:, None]
    scores = here.scores[layer, head, destinations].masked_fill(ahead, -math.inf)
    values = residual @ weights.W_V[layer, head]
    reads = weights.W_O[layer, head] @ weights.W_U[:, tokens]  # [d_head, destination]
    u = (values @ reads).T  # [destination, source]: the logit that attending there would give

    rows = torch.arange(len(destinations), device=residual.device)
    A = scores.softmax(dim=-1)
    before = (A * u).sum(dim=-1)
    scores[rows, targets] -= shift
    after = (scores.softmax(dim=-1) * u).sum(dim=-1)
    attention = A[rows, targets]
    return KeyEffect(before - after, attention * (u[rows, targets] - before) * shift, attention, shift)
