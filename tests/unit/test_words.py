"""Which tokens are the same word."""

import random

import pytest

from transformer_circuits.circuits.words import akin_to, are_akin, word_of
from transformer_circuits.data import vocabulary


@pytest.mark.parametrize(
    ("first", "second"),
    [("two", " two"), ("Great", " great"), ("lambda", "LAMBDA"), ("city", " cities"), ("box", "Boxes"), ("cat", "cats"),
     ("day", "days"), ("Straße", " straße"), ("go", "go")],
)  # fmt: skip
def test_akin(first, second):
    assert are_akin(first, second) and are_akin(second, first)


@pytest.mark.parametrize(
    ("first", "second"),
    [("as", "a"), ("is", "I"), ("us", "u"), ("two", "three"), ("cat", "category"), ("cities", "citys"), ("the", "there"),
     ("  two", "two"), ("+", " +"), ("12", " 12"), ("\n", "\n"), ("", ""), (" ", " "), ("don't", "don't"), ("x_i", "x_i")],
)  # fmt: skip
def test_not_akin(first, second):
    assert not are_akin(first, second) and not are_akin(second, first)


def test_a_word_is_letters_after_at_most_one_space():
    assert [word_of(t) for t in (" The", "THE", "  the", "the ", "", " ", "a1", "\u00a0the", "été")] == [
        "the", "the", None, None, None, None, None, None, "été",
    ]  # fmt: skip


def test_akin_to_is_the_pairwise_definition_on_the_vocabulary():
    names = vocabulary()
    akin = akin_to(names)
    assert len(akin) == len(names) and all(i not in others for i, others in enumerate(akin))
    assert all(i in akin[j] for i, others in enumerate(akin) for j in others), "being akin goes both ways"
    for i in random.Random(0).sample(range(len(names)), 40):
        assert akin[i] == {j for j, name in enumerate(names) if j != i and are_akin(names[i], name)}
    assert sum(map(bool, akin)) > 1000, "the sample proves nothing where hardly any token has a relative"


def test_akin_to_links_plurals_with_all_their_spellings():
    names = ["city", " City", "cities", " CITIES", "cit", "a", "as", "an", "+", " +"]
    assert akin_to(names)[0] == {1, 2, 3} and akin_to(names)[3] == {0, 1, 2}
    assert akin_to(names)[4:] == [frozenset()] * 6
    assert akin_to([]) == []
