"""Which tokens are variants of one another (the same word ignoring case, a leading space, or a plural ending), and
which are similarly frequent, which is chance for claims S1, S6, and E6.

Paper: "Copying / Primitive In-Context Learning", whose second pattern, [b] ... [a] -> [b'], is about such pairs.
"""

from collections import defaultdict
from collections.abc import Sequence

import torch
from jaxtyping import Int, Num
from torch import Tensor

SHORTEST_WITH_PLURAL = 3  # "as" is not a plural of "a", nor "is" of "I"


def word_of(token: str) -> str | None:
    """Return a token's word, in lower case and without a leading space; None if the rest is not letters only."""
    word = token.removeprefix(" ")
    return word.lower() if word.isalpha() else None


def plurals(word: str) -> tuple[str, ...]:
    """Return how the plural of an English word may be spelled; nothing for the shortest words."""
    if len(word) < SHORTEST_WITH_PLURAL:
        return ()
    return (word + "s", word + "es", word[:-1] + "ies") if word.endswith("y") else (word + "s", word + "es")


def variants_of(names: Sequence[str]) -> list[frozenset[int]]:
    """Return for each token the ids of its variants, without the token itself. `names`: the strings of all tokens."""
    tokens_of = defaultdict(set)
    for i, name in enumerate(names):
        if word := word_of(name):
            tokens_of[word].add(i)
    akin: list[set[int]] = [set() for _ in names]
    for word, same in list(tokens_of.items()):
        more = set().union(*(tokens_of[p] for p in plurals(word) if p in tokens_of))
        for i in same:
            akin[i] |= same | more
        for i in more:
            akin[i] |= same
    return [frozenset(others - {i}) for i, others in enumerate(akin)]


def similarly_frequent(
    frequency: Num[Tensor, " d_vocab"], tokens: Int[Tensor, "*shape"], within: int = 50, seed: int = 0
) -> Int[Tensor, "*shape"]:
    """Return for each token a random other one, at most `within` ranks of frequency away (twice that at the ends)."""
    by_rank = frequency.cpu().argsort(descending=True, stable=True)
    own = by_rank.argsort()[tokens.cpu()]
    # The window of 2 * within + 1 ranks stays inside the vocabulary.
    low = (own - within).clamp(0, len(frequency) - 1 - 2 * within)
    other = low + torch.randint(2 * within, own.shape, generator=torch.Generator().manual_seed(seed))
    return by_rank[other + (other >= own).long()].to(tokens.device)  # any but the token itself
