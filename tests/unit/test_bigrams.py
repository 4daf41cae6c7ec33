"""Bigram counts, and tokens of similar frequency."""

import numpy as np
import torch

from transformer_circuits.circuits.bigrams import similarly_frequent, token_frequency
from transformer_circuits.data import BigramCounts
from transformer_circuits.training.corpus import count_bigrams

D_VOCAB = 50


def test_compact_counts_are_the_counts():
    # The last two never occur.
    tokens = np.random.default_rng(0).zipf(1.3, 5_000).clip(max=D_VOCAB - 3).astype(np.uint16)
    dense = np.zeros((D_VOCAB, D_VOCAB), dtype=np.int64)
    np.add.at(dense, (tokens[:-1], tokens[1:]), 1)
    first, second = dense.nonzero()
    row_start = np.concatenate([[0], np.bincount(first, minlength=D_VOCAB).cumsum()])
    counts = BigramCounts(*map(torch.from_numpy, (row_start, second, dense[first, second])))
    stored, dense = count_bigrams(tokens, D_VOCAB), torch.from_numpy(dense)
    assert stored["successors"].tolist() == (dense > 0).sum(1).tolist()
    assert stored["count"].tolist() == counts.count.tolist()
    assert torch.equal(counts.dense(torch.arange(D_VOCAB)), dense.float())
    torch.testing.assert_close(token_frequency(counts), dense.sum(1) / dense.sum())


def test_tokens_of_similar_frequency():
    counts = torch.randperm(100, generator=torch.Generator().manual_seed(0))
    tokens = torch.arange(100).repeat(60, 1)
    steps = counts[similarly_frequent(counts, tokens, within=5)] - counts[tokens]
    # At the ends of the ranking the window is moved inside.
    assert (steps != 0).all() and steps.abs().max() <= 10
    assert steps[:, counts == 50].unique().tolist() == [-5, -4, -3, -2, -1, 1, 2, 3, 4, 5]
