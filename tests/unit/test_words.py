"""Which tokens are the same word."""

import pytest

from transformer_circuits.circuits.words import akin_to, word_of
from transformer_circuits.data import vocabulary

SAME = [("two", " two"), ("lambda", "LAMBDA"), ("city", " cities"), ("box", "Boxes"), ("Straße", " straße")]
OTHER = [("as", "a"), ("is", "I"), ("cities", "citys"), ("the", "there"), ("  two", "two"), ("+", " +")]


@pytest.mark.parametrize(("first", "second"), SAME + OTHER)
def test_akin(first, second):
    expected = [{1}, {0}] if (first, second) in SAME else [set(), set()]
    assert akin_to([first, second]) == akin_to([second, first]) == expected


def test_a_word_is_letters_after_at_most_one_space():
    tokens = (" The", "THE", "  the", "the ", "", " ", "a1", "\u00a0the", "été")
    assert [word_of(t) for t in tokens] == ["the", "the", None, None, None, None, None, None, "été"]


def test_being_akin_goes_both_ways_and_never_to_itself():
    akin = akin_to(vocabulary())
    assert all(i not in others and all(i in akin[j] for j in others) for i, others in enumerate(akin))
    assert sum(map(bool, akin)) > 500, "few tokens of the vocabulary have a variant: this shows little"
    assert akin_to(["city", " City", "cities", " CITIES", "cit"])[0] == {1, 2, 3}
