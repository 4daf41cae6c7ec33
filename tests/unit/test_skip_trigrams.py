"""The head dump on weights made by hand, where the answer is known; which tokens are the same word."""

import pytest
import torch
from scipy import sparse

from transformer_circuits.circuits import head_dump
from transformer_circuits.circuits.skip_trigrams import often_followed
from transformer_circuits.circuits.words import variants_of
from transformer_circuits.models.bridge import from_matrices


def one_layer(scores: torch.Tensor, boosts: torch.Tensor):
    """A model whose QK circuits [head, destination, source] (over sqrt(d_head)) and OV circuits [head, source, out] are what is given."""
    n, eye = len(scores[0]), torch.eye(len(scores[0]))
    one = eye.expand(1, *scores.shape)
    Q, V = scores[None] * n**0.5, boosts[None]
    return from_matrices(W_E=eye, W_U=eye, W_pos=torch.zeros(8, n), W_K=one, W_O=one, W_Q=Q, W_V=V)


def test_the_head_dump_of_two_heads_alike():
    scores = torch.tensor(
        [[0.0, 4, -1, 1], [3, 0, -1, 2], [1, 2, -3, 0], [1, 3, -2, 2]]
    )  # [destination, source]; means 1, 1, 0, 1
    scores = scores + torch.tensor([0.0, 9, 0, 0])[:, None]  # of one destination to all sources alike: invisible
    boosts = torch.tensor([[4.0, 0, 0, 0], [1, 2, 9, 0], [0, 0, 0, 8], [5, 1, 1, 5]])  # [source, out]
    model = one_layer(scores.expand(2, -1, -1), boosts.expand(2, -1, -1))
    dump = head_dump.head_dump(model, torch.full((4,), 0.25), n_sources=4, k=2)
    # largest scores above the destination's mean: 2, 3, -2, 1;  largest boosts above the source's mean: 3, 6, 6, 2;  products 6, 18, -12, 2.
    assert dump["source"].tolist() == 2 * [1, 0, 3, 2] and dump["rank"].tolist() == 2 * [1, 2, 3, 4]
    assert dump["head"].tolist() == [0] * 4 + [1] * 4
    assert dump["score"][:4].tolist() == pytest.approx([x * 0.25**0.1 for x in (18, 6, 2, -12)])
    assert dump["destinations"].tolist()[:2] == [[0, 2], [1, 2]]  # columns of QK, not rows
    assert dump["destination_scores"][0] == pytest.approx([3, 2])
    assert dump["in_row"].tolist()[:2] == [[True, True], [True, False]]  # destination 2 prefers source 1
    assert dump["outs"][0] == [2, 1]  # rows of OV, not columns
    assert dump["out_boosts"][0] == pytest.approx([6, -1])


SAME = [("two", " two"), ("lambda", "LAMBDA"), ("city", " cities"), ("box", "Boxes"), ("Straße", " straße")]
OTHER = [("as", "a"), ("is", "I"), ("cities", "citys"), ("the", "there"), ("  two", "two"), ("+", " +")]


@pytest.mark.parametrize(("first", "second"), SAME + OTHER)
def test_words_that_differ_in_case_space_or_plural_alone_are_akin(first, second):
    expected = [{1}, {0}] if (first, second) in SAME else [set(), set()]
    assert variants_of([first, second]) == variants_of([second, first]) == expected


def test_what_follows_often_comes_more_than_twice_as_often_as_overall():
    bigrams = sparse.csr_array([[2, 2, 0], [1, 3, 1], [6, 0, 5]])  # [before, token]: token 1 is a quarter of all
    alone, akin = torch.eye(3).bool(), torch.tensor([[1, 0, 0], [0, 1, 1], [0, 0, 1]]).bool()
    assert often_followed(bigrams, alone).nonzero().tolist() == [[1, 1]]  # three fifths of what follows; a half is not
    assert not often_followed(bigrams, akin).any()  # with its variant, it is more than half of all
