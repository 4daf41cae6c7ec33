"""Bigram counts, their smoothing, and the measures that chapter 2 takes."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from transformer_circuits.circuits.bigrams import (
    SmoothedBigrams,
    at_pairs,
    direct_path,
    mean_divergence,
    similarly_frequent,
)
from transformer_circuits.data import BigramCounts
from transformer_circuits.training.corpus import count_bigrams

D_VOCAB = 50


@pytest.fixture
def tokens():
    # The last two never occur.
    return np.random.default_rng(0).zipf(1.3, 5_000).clip(max=D_VOCAB - 3).astype(np.uint16)


@pytest.fixture
def counts(tokens):
    dense = np.zeros((D_VOCAB, D_VOCAB), dtype=np.int64)
    np.add.at(dense, (tokens[:-1], tokens[1:]), 1)
    first, second = dense.nonzero()
    row_start = np.concatenate([[0], np.bincount(first, minlength=D_VOCAB).cumsum()])
    compact = map(torch.from_numpy, (row_start, second, dense[first, second]))
    return BigramCounts(*compact), torch.from_numpy(dense)


def test_compact_counts_are_the_counts(tokens, counts):
    stored, (sparse, dense) = count_bigrams(tokens, D_VOCAB), counts
    assert stored["successors"].tolist() == (dense > 0).sum(1).tolist()
    assert stored["count"].tolist() == sparse.count.tolist()
    assert torch.equal(sparse.dense(torch.arange(D_VOCAB)), dense.float())


def test_smoothing_is_the_formula_and_sums_to_one_for_every_token_seen_or_not(counts):
    sparse, dense = counts
    table = SmoothedBigrams.of(sparse)
    probabilities = table.log_probs(torch.arange(D_VOCAB)).exp()
    assert torch.allclose(probabilities.sum(-1), torch.ones(D_VOCAB), atol=1e-5) and (probabilities > 0).all()
    assert torch.allclose(table.unigram_log_probs(torch.arange(3)).exp().sum(-1), torch.ones(3), atol=1e-5)
    a, b = 1, int(dense[1].argmax())
    n, n_ab, kinds = dense[a].sum(), dense[a, b], (dense[a] > 0).sum()
    continuation = ((dense[:, b] > 0).sum() + 1) / ((dense > 0).sum() + D_VOCAB)
    expected = (n_ab - table.discount) / n + table.discount * kinds / n * continuation
    assert probabilities[a, b] == pytest.approx(float(expected), rel=1e-5)


def test_measures_against_a_dense_computation(counts, monkeypatch):
    monkeypatch.setattr("transformer_circuits.circuits.bigrams.BLOCK", 7)
    W_E, W_U = torch.randn(2, D_VOCAB, 8, generator=torch.Generator().manual_seed(1))
    table, rows = SmoothedBigrams.of(counts[0]), direct_path(SimpleNamespace(W_E=W_E, W_U=W_U.T))
    log_q, log_p = (W_E @ W_U.T).log_softmax(-1), table.log_probs(torch.arange(D_VOCAB))
    before, after = torch.randint(D_VOCAB, (2, 400), generator=torch.Generator().manual_seed(0))
    assert torch.allclose(at_pairs(rows, before, after), log_q[before, after], atol=1e-5)
    ranks = log_q.argsort(descending=True).argsort()
    assert torch.equal(at_pairs(rows, before, after, top=7).bool(), ranks[before, after] < 7)
    expected = (table.frequency[:, None] * log_p.exp() * (log_p - log_q)).sum()
    assert mean_divergence(table.log_probs, rows, table.frequency) == pytest.approx(float(expected), rel=1e-4)
    assert mean_divergence(rows, rows, table.frequency) == pytest.approx(0, abs=1e-7)


def test_tokens_of_similar_frequency():
    counts = torch.randperm(100, generator=torch.Generator().manual_seed(0))
    tokens = torch.arange(100).repeat(60, 1)
    steps = counts[similarly_frequent(counts, tokens, within=5)] - counts[tokens]
    # At the ends of the ranking the window is moved inside.
    assert (steps != 0).all() and steps.abs().max() <= 10
    assert steps[:, counts == 50].unique().tolist() == [-5, -4, -3, -2, -1, 1, 2, 3, 4, 5]
    with pytest.raises(ValueError, match="below half of the 4 tokens"):
        similarly_frequent(torch.ones(4), torch.tensor([0]), within=2)
