"""Counting skip-trigrams in a text, against a count by hand; and the counts that are shipped."""

import numpy as np
import pytest
import torch

from transformer_circuits.circuits.skip_trigrams import Candidates
from transformer_circuits.circuits.weights import Weights
from transformer_circuits.data import BigramCounts
from transformer_circuits.models import load_model
from transformer_circuits.training import attested
from transformer_circuits.training.attested import Attested, AttestedError, Text

D_VOCAB = 9


@pytest.fixture(params=[1, 30, 1_000_000])
def text(request, monkeypatch) -> np.ndarray:
    """Documents of many lengths, one of them empty; looked at in chunks of several sizes."""
    monkeypatch.setattr(attested, "AT_A_TIME", request.param)
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


@pytest.mark.parametrize("n_ctx", [2, 5, 600])
def test_counts_are_those_made_by_hand(text, n_ctx):
    occasions, seen = by_hand(text, n_ctx)
    d, o = np.array([0, 3, 4]), np.array([2, 5, 8])
    packed = Text.of(text, D_VOCAB)
    for source in range(D_VOCAB):
        n, triples = attested.count(packed, source, d, o, n_ctx, D_VOCAB)
        assert n.tolist() == occasions[source, d].tolist()
        assert triples.tolist() == seen[source][np.ix_(d, o)].tolist()


def counts_of(tokens: np.ndarray) -> BigramCounts:
    table = np.zeros([D_VOCAB] * 2, dtype=np.int64)
    np.add.at(table, (tokens[:-1], tokens[1:]), 1)
    row_start = np.concatenate([[0], (table > 0).sum(1).cumsum()])
    return BigramCounts(*(torch.from_numpy(x) for x in (row_start, np.nonzero(table)[1], table[table > 0])))


@pytest.fixture
def candidates() -> Candidates:
    return Candidates(
        torch.tensor([[1, 2], [2, 5]]),
        torch.tensor([[[1, 3], [3, 4]], [[2, 7], [1, 8]]]),
        torch.tensor([[[1, 2, 3], [2, 5, 6]], [[3, 4, 5], [6, 7, 8]]]),
    )


def test_right_is_seen_often_enough_and_likelier_than_without_the_source(text, candidates):
    found = attested.attest(text, candidates, counts_of(text), n_ctx=6, least_seen=2)
    occasions, seen = by_hand(text, 6)
    pairs = np.zeros([D_VOCAB] * 2)
    np.add.at(pairs, (text[:-1], text[1:]), 1)
    n_right = 0
    for h, i, d, o in np.ndindex(found.right.shape):
        s, dd, oo = (int(x) for x in (candidates.sources[h, i], candidates.destinations[h, i, d], candidates.outs[h, i, o]))
        n = seen[s, dd, oo]
        likelier = n > 0 and n / occasions[s, dd] > pairs[dd, oo] / pairs[dd].sum()
        assert found.right[h, i, d, o] == (n >= 2 and likelier)
        assert found.never[h, i, d, o] == (n == 0)
        assert found.occasions[h, i, d] == occasions[s, dd]
        n_right += int(found.right[h, i, d, o])
    assert n_right > 0 and not (found.right & found.never).any()


def test_wrong_asks_for_occasions(candidates):
    never = torch.ones(2, 2, 2, 3, dtype=torch.bool)
    found = Attested(candidates, torch.tensor([[[0, 5], [9, 10]], [[300, 1], [2, 3]]]), ~never, never)
    assert found.wrong(10)[..., 0].nonzero().tolist() == [[0, 1, 1], [1, 0, 0]]
    assert found.wrong(0).all()


def test_a_text_that_was_packed_otherwise_is_refused(text, candidates):
    with pytest.raises(ValueError, match="must begin with token 0"):
        Text.of(text[1:], D_VOCAB)
    with pytest.raises(ValueError, match="below 5"):
        Text.of(text, 5)
    with pytest.raises(ValueError, match="bigram counts are of another text"):
        attested.attest(text, candidates, counts_of(text[:-1]), n_ctx=6)


class Tiny:
    """All that `fingerprint` reads."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for name in ("W_E", "W_Q", "W_K", "W_V", "W_O", "W_U"):
            setattr(self, name, torch.randn(3, 4, generator=generator))


def test_saved_counts_come_back_for_the_same_weights_only(tmp_path, text, candidates):
    found = attested.attest(text, candidates, counts_of(text), n_ctx=6, least_seen=2)
    file = tmp_path / "counts.npz"
    attested.save(found, file, attested.fingerprint(Tiny(0)))
    again = attested.load(Tiny(0), file)
    for name in ("occasions", "right", "never"):
        assert torch.equal(getattr(again, name), getattr(found, name))
    for name in ("sources", "destinations", "outs"):
        assert torch.equal(getattr(again.candidates, name), getattr(candidates, name))
    with pytest.raises(AttestedError, match="counted for other weights"):
        attested.load(Tiny(1), file)
    with pytest.raises(AttestedError, match="there is no"):
        attested.load(Tiny(0), tmp_path / "none.npz")


def test_shipped_counts_belong_to_the_shipped_model_and_its_hits():
    model = load_model("attn-only-1l")
    found = attested.load(model)
    assert found.right.shape == (12, attested.N_SOURCES, 81, 81)
    assert not (found.right & found.never).any()
    some = found.candidates.sources[:, :2]
    here = Candidates.of(Weights.of(model), some)
    stored = found.candidates.destinations[:, :2], found.candidates.outs[:, :2]
    for one, other in zip(stored, (here.destinations, here.outs)):
        same = torch.stack([torch.isin(x, y).float().mean() for x, y in zip(one.flatten(0, 1), other.flatten(0, 1))])
        assert same.min() > 0.97  # the last one or two of 81 may differ by rounding on another machine
