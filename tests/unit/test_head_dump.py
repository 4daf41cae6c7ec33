"""The head dump: known answers on weights written by hand, and the dense computation on random models."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_circuits.circuits import factored
from transformer_circuits.circuits.head_dump import head_dump
from transformer_circuits.circuits.weights import Weights

# One head over four tokens whose circuits are these, as [destination, source] and [source, out].
QK = torch.tensor([[0.0, 8.0, -2.0, 1.0], [6.0, 0.0, -2.0, 3.0], [2.0, 4.0, -6.0, 2.0], [1.0, 6.0, -4.0, 0.0]])
OV = torch.tensor([[4.0, 0.0, 0.0, 0.0], [1.0, 2.0, 9.0, 0.0], [0.0, 0.0, 0.0, 8.0], [5.0, 1.0, 1.0, 5.0]])


def by_hand(*heads: tuple[torch.Tensor, torch.Tensor], layers: int = 1) -> Weights:
    """A model whose token embeddings are unit vectors, and whose heads of the first layer have these QK and OV circuits."""
    one = torch.eye(4)
    head = torch.zeros(layers, len(heads), 4, 4)
    W_Q, W_V = head.clone(), head.clone()
    for i, (qk, ov) in enumerate(heads):
        W_Q[0, i], W_V[0, i] = qk, ov
    return Weights(W_E=one, W_pos=torch.zeros(8, 4), W_Q=W_Q, W_K=head + one, W_V=W_V, W_O=head + one, W_U=one)


EVEN = torch.full((4,), 0.25)


def test_the_known_answer():
    dump = head_dump(by_hand((QK, OV)), EVEN, n_sources=4, k=2)
    assert list(dump.columns)[:5] == ["layer", "head", "rank", "source", "score"]
    assert list(dump.columns)[5:] == ["destinations", "destination_scores", "outs", "out_boosts"]
    # max QK / sqrt(4): 3, 4, -1, 1.5;  max OV above the row's mean: 3, 6, 6, 2;  products 9, 24, -6, 3.
    assert dump["source"].tolist() == [1, 0, 3, 2] and dump["rank"].tolist() == [1, 2, 3, 4]
    assert dump["score"].tolist() == pytest.approx([x * 0.25**0.1 for x in (24, 9, 3, -6)])
    assert dump["destinations"].tolist()[:2] == [[0, 3], [1, 2]]  # columns of QK, not rows
    assert dump["destination_scores"][0] == pytest.approx([4, 3])
    assert dump["outs"][0] == [2, 1] and dump["out_boosts"][0] == pytest.approx([6, -1])  # rows of OV, not columns


def test_a_boost_of_every_logit_changes_nothing():
    before = head_dump(by_hand((QK, OV)), EVEN, n_sources=4, k=4)
    after = head_dump(by_hand((QK, OV + torch.tensor([[100.0], [0.0], [-50.0], [7.0]]))), EVEN, n_sources=4, k=4)
    assert after["source"].tolist() == before["source"].tolist()
    assert after["score"].tolist() == pytest.approx(before["score"].tolist(), rel=1e-4)


def test_frequent_tokens_come_first_and_unseen_ones_get_zero():
    ones = torch.eye(4)
    frequency = torch.tensor([0.0, 0.1, 0.8, 0.1 * 2**-10])
    dump = head_dump(by_hand((ones, ones)), frequency, n_sources=4, k=1)
    assert dump["source"].tolist() == [2, 1, 3, 0] and dump["score"][3] == 0
    assert dump["score"][1] / dump["score"][2] == pytest.approx(2.0)  # 2^10 times as frequent, to the power 0.1


def test_a_source_that_no_destination_wants_ranks_last():
    frequency = torch.tensor([1e-9, 1e-9, 1.0, 0.0])
    dump = head_dump(by_hand((QK, OV)), frequency, n_sources=4, k=1)
    assert dump["source"].tolist() == [1, 0, 3, 2]


def test_every_head_is_there_and_only_those_of_the_first_layer():
    dump = head_dump(by_hand((QK, OV), (QK.T, OV), (QK, OV.T), layers=2), EVEN, n_sources=None, k=1)
    assert dump[["layer", "head"]].drop_duplicates().to_numpy().tolist() == [[0, 0], [0, 1], [0, 2]]
    for _, rows in dump.groupby("head"):
        assert sorted(rows["source"]) == [0, 1, 2, 3] and rows["rank"].tolist() == [1, 2, 3, 4]
    assert dump.index.tolist() == list(range(12))


def random_weights(d_vocab: int, seed: int, d_model: int = 6, d_head: int = 3, heads: int = 2) -> Weights:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    W_Q, W_K, W_V = (draw(1, heads, d_model, d_head) for _ in range(3))
    return Weights(draw(d_vocab, d_model), draw(9, d_model), W_Q, W_K, W_V, draw(1, heads, d_head, d_model), draw(d_model, d_vocab))


@settings(max_examples=25, deadline=None, derandomize=True)
@given(d_vocab=st.integers(1, 200), k=st.integers(1, 12), part=st.floats(0, 1), seed=st.integers(0, 2**32 - 1))
def test_equals_the_dense_computation(d_vocab, k, part, seed):
    weights, k, n = random_weights(d_vocab, seed), min(k, d_vocab), max(1, round(part * d_vocab))
    frequency = torch.rand(d_vocab, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    dump = head_dump(weights, frequency, n_sources=n, k=k)
    assert len(dump) == weights.n_heads * n
    for head, rows in dump.groupby("head"):
        W_Q, W_K, W_V, W_O = (getattr(weights, name)[0, head] for name in ("W_Q", "W_K", "W_V", "W_O"))
        scores = weights.W_E @ W_Q @ W_K.T @ weights.W_E.T / math.sqrt(weights.d_head)
        boosts = weights.W_E @ W_V @ W_O @ weights.W_U
        boosts = boosts - boosts.mean(dim=1, keepdim=True)
        expected = scores.amax(dim=0) * boosts.amax(dim=1) * frequency**0.1
        order = expected.argsort(descending=True)[:n]
        assert rows["source"].tolist() == order.tolist()
        assert rows["score"].tolist() == pytest.approx(expected[order].tolist())
        for column, dense in (("destinations", scores.T), ("outs", boosts)):
            assert rows[column].tolist() == dense[order].topk(k).indices.tolist()
        for column, dense in (("destination_scores", scores.T), ("out_boosts", boosts)):
            torch.testing.assert_close(torch.tensor(rows[column].tolist(), dtype=torch.float64), dense[order].topk(k).values)


def test_blocks_do_not_show(monkeypatch):
    weights, frequency = random_weights(150, seed=1), torch.rand(150)
    whole = head_dump(weights, frequency, n_sources=20)
    monkeypatch.setattr(factored, "BLOCK", 1000)
    streamed = head_dump(weights, frequency, n_sources=20)
    assert whole["source"].tolist() == streamed["source"].tolist() and whole["outs"].tolist() == streamed["outs"].tolist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"frequency": torch.ones(5)}, r"`frequency` must be 4 shares .* not a tensor of shape \[5\]"),
        ({"frequency": torch.ones(4, 1)}, r"`frequency` must be 4 shares"),
        ({"frequency": torch.tensor([0.5, 0.5, -0.1, 0.1])}, r"`frequency` must be 4 shares .* other entries"),
        ({"frequency": torch.tensor([0.5, 0.5, math.nan, 0.1])}, r"`frequency` must be 4 shares"),
        ({"n_sources": 0}, "there are 4 source tokens, not 0: pass n_sources=None"),
        ({"n_sources": 5}, "there are 4 source tokens, not 5"),
        ({"k": 0}, "1 to 4 tokens"),
        ({"k": 5}, "1 to 4 tokens"),
    ],
)
def test_bad_input_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        head_dump(by_hand((QK, OV)), **{"frequency": EVEN, "n_sources": 4, "k": 2, **arguments})


def test_a_model_without_layers_has_no_heads():
    no_head = torch.zeros(0, 2, 4, 4)
    weights = Weights(torch.eye(4), torch.zeros(8, 4), no_head, no_head, no_head, no_head, torch.eye(4))
    with pytest.raises(ValueError, match="no layers"):
        head_dump(weights, EVEN, n_sources=4, k=1)
