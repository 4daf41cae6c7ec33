"""How frequent tokens are in the training text, and tokens of similar frequency: chance for claims S1, S6, E6."""

import torch
from jaxtyping import Float, Int, Num
from torch import Tensor

from transformer_circuits.data import BigramCounts

# held-out windows behind losses of bigrams: the model's part of their gain is known within 0.3 points
WINDOWS = 300


def token_frequency(counts: BigramCounts) -> Float[Tensor, " d_vocab"]:
    """Return the share of each token in the training text, as the first of a pair."""
    totals = torch.bincount(counts.preceding, counts.count.double(), minlength=len(counts.row_start) - 1)
    return (totals / totals.sum()).float()


def similarly_frequent(
    frequency: Num[Tensor, " d_vocab"], tokens: Int[Tensor, "*shape"], within: int = 50, seed: int = 0
) -> Int[Tensor, "*shape"]:
    """Return for each token a random other one, at most `within` ranks of frequency away (twice that at the ends).
    Raises ValueError for fewer than 2 * within + 1 tokens."""
    if len(frequency) <= 2 * within:
        raise ValueError(f"there must be more than {2 * within} tokens, got {len(frequency)}; lower `within`")
    by_rank = frequency.cpu().argsort(descending=True, stable=True)
    own = by_rank.argsort()[tokens.cpu()]
    # The window of 2 * within + 1 ranks stays inside the vocabulary.
    low = (own - within).clamp(0, len(frequency) - 1 - 2 * within)
    other = low + torch.randint(2 * within, own.shape, generator=torch.Generator().manual_seed(seed))
    return by_rank[other + (other >= own).long()].to(tokens.device)  # any but the token itself
