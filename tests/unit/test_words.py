"""Which tokens are the same word."""

import pytest

from transformer_circuits.circuits.words import akin_to, word_of
from transformer_circuits.data import vocabulary


@pytest.mark.parametrize(
    ("first", "second", "akin"),
    [("two", " two", True), ("Great", " great", True), ("lambda", "LAMBDA", True), ("city", " cities", True), ("box", "Boxes", True),
     ("day", "days", True), ("Straße", " straße", True), ("as", "a", False), ("is", "I", False), ("two", "three", False),
     ("cities", "citys", False), ("the", "there", False), ("  two", "two", False), ("+", " +", False), ("12", " 12", False),
     ("don't", "Don't", False)],
)  # fmt: skip
def test_akin(first, second, akin):
    assert akin_to([first, second]) == akin_to([second, first]) == ([{1}, {0}] if akin else [set(), set()])


def test_a_word_is_letters_after_at_most_one_space():
    tokens = (" The", "THE", "  the", "the ", "", " ", "a1", "\u00a0the", "été")
    assert [word_of(t) for t in tokens] == ["the", "the", None, None, None, None, None, None, "été"]


def test_being_akin_goes_both_ways_and_never_to_itself():
    akin = akin_to(vocabulary())
    assert all(i not in others and all(i in akin[j] for j in others) for i, others in enumerate(akin))
    assert sum(map(bool, akin)) > 500, "the vocabulary proves nothing where hardly any token has a relative"
    assert akin_to(["city", " City", "cities", " CITIES", "cit"])[0] == {1, 2, 3}
