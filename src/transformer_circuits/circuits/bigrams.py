"""Bigram tables, how far a direct path is from them, and tokens of similar frequency (paper: "Zero-Layer Transformers"; claims Z1 to Z3)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from transformer_circuits.data import BigramCounts

# Tokens -> log-probabilities of the next one in nats, on the CPU.
Rows = Callable[[Int[Tensor, " row"]], Float[Tensor, "row d_vocab"]]
BLOCK = 512  # rows at a time: no table is formed whole


@dataclasses.dataclass(frozen=True)
class SmoothedBigrams:
    """Next-token probabilities from counts, by interpolated Kneser-Ney smoothing.

    A fixed `discount` is subtracted from every count and given to all tokens, in proportion to how many different tokens
    each one follows: P(b|a) = max(n_ab - D, 0) / n_a + D * (different successors of a) / n_a * P_continuation(b).
    """

    counts: BigramCounts
    discount: float
    frequency: Float[Tensor, " d_vocab"]  # share of each token in the training text, as first of a pair
    continuation: Float[Tensor, " d_vocab"]  # share of the different pairs that each token ends

    @classmethod
    def of(cls, counts: BigramCounts) -> SmoothedBigrams:
        """Set D = n1 / (n1 + 2 n2), from the numbers of pairs seen once and twice (Ney, Essen and Kneser 1994)."""
        d_vocab = len(counts.row_start) - 1
        once, twice = ((counts.count == n).sum().item() for n in (1, 2))
        frequency = torch.bincount(counts.preceding, counts.count.double(), minlength=d_vocab)
        # One more, so that no token is impossible.
        kinds = torch.bincount(counts.following, minlength=d_vocab) + 1.0
        shares = [(number / number.sum()).float() for number in (frequency, kinds)]
        return cls(counts, once / (once + 2 * twice), *shares)

    def log_probs(self, tokens: Int[Tensor, " row"]) -> Float[Tensor, "row d_vocab"]:
        """Return log P(next | token). After a token that was never seen, these are the continuation probabilities."""
        rows = self.counts.dense(tokens)
        seen = rows.sum(-1, keepdim=True)
        left_over = self.discount * (rows > 0).sum(-1, keepdim=True) / seen.clamp(min=1)
        left_over[seen == 0] = 1.0
        return ((rows - self.discount).clamp(min=0) / seen.clamp(min=1) + left_over * self.continuation).log()

    def unigram_log_probs(self, tokens: Int[Tensor, " row"]) -> Float[Tensor, "row d_vocab"]:
        """Return log P(next) regardless of the token: counts plus one."""
        counts = self.counts
        totals = 1 + torch.bincount(counts.following, counts.count.double(), minlength=len(self.frequency))
        return (totals / totals.sum()).log().float().expand(len(tokens), -1)


def direct_path(model: TransformerBridge) -> Rows:
    """Return the direct path W_E W_U as a predictor of the next token."""
    return lambda tokens: (model.W_E[tokens] @ model.W_U).log_softmax(-1).cpu()


def at_pairs(
    rows: Rows, before: Int[Tensor, " pair"], after: Int[Tensor, " pair"], top: int | None = None
) -> Float[Tensor, " pair"]:
    """Return log P(after | before) of chosen pairs; with `top`, 1.0 where `after` is among the row's `top` most likely tokens, else 0.0."""
    found = torch.empty(len(before))
    for tokens in before.unique().split(BLOCK):
        here, table = torch.isin(before, tokens), rows(tokens)
        row = torch.searchsorted(tokens, before[here])
        own = table[row, after[here]]
        found[here] = own if top is None else (own >= table.topk(top).values[row, -1]).float()
    return found


def mean_divergence(p: Rows, q: Rows, frequency: Float[Tensor, " d_vocab"]) -> float:
    """Return the Kullback-Leibler divergence KL(p || q) of the next token, in nats, averaged over first tokens by their frequency."""
    total = 0.0
    for tokens in torch.arange(len(frequency)).split(BLOCK):
        log_p = p(tokens)
        total += (frequency[tokens, None] * log_p.exp() * (log_p - q(tokens))).double().sum().item()
    return total


def similarly_frequent(
    frequency: Float[Tensor, " d_vocab"], tokens: Int[Tensor, "*shape"], within: int = 50, seed: int = 0
) -> Int[Tensor, "*shape"]:
    """Return for each token a random other one, at most `within` ranks of frequency away: chance for claims S1, S6, and E6.

    Raises ValueError if the vocabulary does not have more than 2 * within tokens.
    """
    n = len(frequency)
    if n <= 2 * within:
        raise ValueError(f"within must be below half of the {n} tokens, got {within}")
    by_rank = frequency.cpu().argsort(descending=True, stable=True)
    own = by_rank.argsort()[tokens.cpu()]
    # The window of 2 * within + 1 ranks stays inside the vocabulary.
    low = (own - within).clamp(0, n - 1 - 2 * within)
    other = low + torch.randint(2 * within, own.shape, generator=torch.Generator().manual_seed(seed))
    return by_rank[other + (other >= own).long()].to(tokens.device)  # any but the token itself
