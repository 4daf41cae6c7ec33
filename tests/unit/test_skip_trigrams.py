"""The head dump on weights made by hand; which tokens are the same word; skip-trigrams of a text, against a count by hand."""

import numpy as np
import pytest
import torch
from scipy import sparse

from book_tools import attested as command
from transformer_circuits.circuits import head_dump, skip_trigrams
from transformer_circuits.circuits.skip_trigrams import Candidates, often_followed
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


D_VOCAB = 9


@pytest.fixture(params=[1, 30, 1_000_000])
def text(request, monkeypatch) -> np.ndarray:
    """Documents of many lengths, one of them empty; looked at in chunks of several sizes; every occasion counts."""
    monkeypatch.setattr(command, "AT_A_TIME", request.param)
    monkeypatch.setattr(command, "LEAST_SEEN", 2)
    monkeypatch.setattr(head_dump, "SHARE", 0.4)
    monkeypatch.setattr(skip_trigrams, "LEVELS", (1, 2, 3))
    tokens = np.random.default_rng(0).integers(1, D_VOCAB, 300).astype(np.uint16)
    tokens[[0, 50, 51, 200, 299]] = 0
    return tokens


def by_hand(tokens: np.ndarray, n_ctx: int) -> tuple[np.ndarray, np.ndarray]:
    """n(s, d) and n(s, d, o), for all tokens, place by place."""
    document = np.cumsum(tokens == 0)
    occasions, seen = np.zeros([D_VOCAB] * 2, int), np.zeros([D_VOCAB] * 3, int)
    for j in range(len(tokens) - 1):
        if document[j] == document[j + 1]:
            near = range(max(0, j - n_ctx + 1), j)
            for s in {int(tokens[i]) for i in near if document[i] == document[j]}:
                occasions[s, tokens[j]] += 1
                seen[s, tokens[j], tokens[j + 1]] += 1
    return occasions, seen


def counts_of(tokens: np.ndarray) -> sparse.csr_array:
    return sparse.csr_array((np.ones(len(tokens) - 1, int), (tokens[:-1], tokens[1:])), shape=[D_VOCAB] * 2)


def random_model(seed: int, d_vocab: int = D_VOCAB):
    generator = torch.Generator().manual_seed(seed)
    W_E, W_U = torch.randn(2, d_vocab, 4, generator=generator)
    W_Q, W_K, W_V, W_O = torch.randn(4, 1, 2, 4, 4, generator=generator)
    return from_matrices(W_E=W_E, W_pos=torch.zeros(6, 4), W_Q=W_Q, W_K=W_K, W_V=W_V, W_O=W_O, W_U=W_U.T)


@pytest.mark.parametrize("n_ctx", [2, 6, 600])
def test_right_and_wrong_against_a_count_by_hand(text, n_ctx):
    candidates = Candidates.of(random_model(0), torch.tensor([[1, 2], [2, 5]]))
    listed = torch.cartesian_prod(*[torch.arange(1, 5)] * 3).T
    found = command.attest(command.Text(text, counts_of(text), n_ctx), candidates, listed)
    (occasions, seen), table = by_hand(text, n_ctx), counts_of(text).toarray()
    wrong = {least: found.wrong(least) for least in skip_trigrams.LEVELS}
    sources, destinations, outs, _ = (part.tolist() for part in candidates)

    def right(s, d, o):
        n = seen[s, d, o]
        return n >= 2 and n / occasions[s, d] > table[d, o] / table[d].sum()

    assert found.paper.T.tolist() == [way for way in listed.T.tolist() if right(*way)]
    for h, i, d, o in np.ndindex(found.right.shape):
        s, dd, oo = sources[h][i], destinations[h][i][d], outs[h][i][o]
        n = seen[s, dd, oo]
        assert found.right[h, i, d, o] == right(s, dd, oo)
        for least, marked in wrong.items():
            assert marked[h, i, d, o] == (n == 0 and occasions[s, dd] >= least)
    assert wrong[3].any() and (found.right.any() or n_ctx == 2)
    with pytest.raises(ValueError, match="the bigram counts must have"):
        command.Text(text, counts_of(text[:-1]), n_ctx)


def test_counts_are_loaded_for_the_model_that_they_were_made_for_alone():
    with pytest.raises(ValueError, match="counted for other weights"):
        skip_trigrams.load_attested(random_model(1, d_vocab=200))
