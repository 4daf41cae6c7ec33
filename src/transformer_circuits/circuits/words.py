"""Which tokens are variants of one another: the same word ignoring case, a leading space, or a plural ending.

Paper: "Copying / Primitive In-Context Learning", whose second pattern, [b] ... [a] -> [b'], is about such pairs.
"""

from collections import defaultdict
from collections.abc import Sequence

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
