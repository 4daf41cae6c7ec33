"""The head dump: known answers on weights written by hand. (That lists are the top of the circuits: tests/identities.)"""

import pytest
import torch

from transformer_circuits.circuits.head_dump import head_dump
from transformer_circuits.models.bridge import from_matrices

# One head over four tokens whose circuits are these, as [destination, source] and [source, out].
QK = torch.tensor([[0.0, 8, -2, 1], [6, 0, -2, 3], [2, 4, -6, 2], [1, 6, -4, 0]])
OV = torch.tensor([[4.0, 0, 0, 0], [1, 2, 9, 0], [0, 0, 0, 8], [5, 1, 1, 5]])
EVEN = torch.full((4,), 0.25)


def by_hand(qk: torch.Tensor, ov: torch.Tensor):
    """A model whose token embeddings are unit vectors, and whose heads of the first layer, two alike, have these circuits."""
    one, head = torch.eye(4), torch.zeros(1, 2, 4, 4)
    heads = {"W_Q": head + qk, "W_K": head + one, "W_V": head + ov, "W_O": head + one}
    return from_matrices(W_E=one, W_pos=torch.zeros(8, 4), W_U=one, **heads)


def test_the_known_answer():
    dump = head_dump(by_hand(QK, OV), EVEN, n_sources=4, k=2)
    # max QK / sqrt(4): 3, 4, -1, 1.5;  max OV above the row's mean: 3, 6, 6, 2;  products 9, 24, -6, 3.
    assert dump["source"].tolist() == 2 * [1, 0, 3, 2] and dump["rank"].tolist() == 2 * [1, 2, 3, 4]
    assert dump["head"].tolist() == [0] * 4 + [1] * 4
    assert dump["score"][:4].tolist() == pytest.approx([x * 0.25**0.1 for x in (24, 9, 3, -6)])
    assert dump["destinations"].tolist()[:2] == [[0, 3], [1, 2]]  # columns of QK, not rows
    assert dump["destination_scores"][0] == pytest.approx([4, 3])
    assert dump["outs"][0] == [2, 1]  # rows of OV, not columns
    assert dump["out_boosts"][0] == pytest.approx([6, -1])


def test_frequent_tokens_come_first_and_unseen_ones_get_zero():
    frequency = torch.tensor([0.0, 0.1, 0.8, 0.1 * 2**-10])
    dump = head_dump(by_hand(torch.eye(4), torch.eye(4)), frequency, n_sources=4, k=1)
    assert dump["source"][:4].tolist() == [2, 1, 3, 0] and dump["score"][3] == 0
    assert dump["score"][1] / dump["score"][2] == pytest.approx(2.0)  # (2^10)^0.1
