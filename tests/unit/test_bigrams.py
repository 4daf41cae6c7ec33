"""Bigram counts, their smoothing, and the measures that chapter 2 takes."""

import numpy as np
import pytest
import torch

from transformer_circuits.circuits.bigrams import SmoothedBigrams, at_pairs, direct_path, mean_divergence, rank_correlation
from transformer_circuits.data import BigramCounts
from transformer_circuits.training.corpus import count_bigrams

D_VOCAB = 50


@pytest.fixture
def tokens():
    return np.random.default_rng(0).zipf(1.3, 5_000).clip(max=D_VOCAB - 3).astype(np.uint16)  # the last two never occur


@pytest.fixture
def counts(tokens):
    dense = np.zeros((D_VOCAB, D_VOCAB), dtype=np.int64)
    np.add.at(dense, (tokens[:-1], tokens[1:]), 1)
    first, second = dense.nonzero()
    row_start = np.concatenate([[0], np.bincount(first, minlength=D_VOCAB).cumsum()])
    return BigramCounts(*map(torch.from_numpy, (row_start, second, dense[first, second]))), torch.from_numpy(dense)


def test_compact_counts_are_the_counts(tokens, counts):
    stored = count_bigrams(tokens, D_VOCAB)
    sparse, dense = counts
    assert stored["successors"].tolist() == (dense > 0).sum(1).tolist()
    assert stored["count"].tolist() == sparse.count.tolist()
    for token in range(D_VOCAB):
        row = slice(int(sparse.row_start[token]), int(sparse.row_start[token + 1]))
        assert np.cumsum(stored["gap"][row].astype(int)).tolist() == sparse.following[row].tolist()


def test_rows_of_the_sparse_table(counts):
    sparse, dense = counts
    assert torch.equal(sparse.dense(torch.arange(D_VOCAB)), dense.float())
    assert torch.equal(sparse.preceding, dense.nonzero()[:, 0])


def test_smoothed_probabilities_sum_to_one_for_every_token_seen_or_not(counts):
    table = SmoothedBigrams.of(counts[0])
    assert 0 < table.discount < 1
    probabilities = table.log_probs(torch.arange(D_VOCAB)).exp()
    assert torch.allclose(probabilities.sum(-1), torch.ones(D_VOCAB), atol=1e-5)
    assert (probabilities > 0).all()
    assert torch.allclose(table.unigram_log_probs(torch.arange(3)).exp().sum(-1), torch.ones(3), atol=1e-5)


def test_smoothing_against_the_formula_for_one_pair(counts):
    sparse, dense = counts
    table = SmoothedBigrams.of(sparse)
    a, b = 1, int(dense[1].argmax())
    n, n_ab, kinds = dense[a].sum(), dense[a, b], (dense[a] > 0).sum()
    continuation = ((dense[:, b] > 0).sum() + 1) / ((dense > 0).sum() + D_VOCAB)
    expected = (n_ab - table.discount) / n + table.discount * kinds / n * continuation
    assert table.log_probs(torch.tensor([a]))[0, b].exp() == pytest.approx(float(expected), rel=1e-5)


def test_measures_against_a_dense_computation(counts):
    table = SmoothedBigrams.of(counts[0])
    generator = torch.Generator().manual_seed(0)
    W_E, W_U = torch.randn(D_VOCAB, 8, generator=generator), torch.randn(8, D_VOCAB, generator=generator)
    rows = direct_path(W_E, W_U)
    log_q, log_p = (W_E @ W_U).log_softmax(-1), table.log_probs(torch.arange(D_VOCAB))
    before, after = torch.randint(D_VOCAB, (2, 400), generator=generator)
    assert torch.allclose(at_pairs(rows, before, after, D_VOCAB), log_q[before, after], atol=1e-5)
    ranks = log_q.argsort(descending=True).argsort()
    assert torch.equal(at_pairs(rows, before, after, D_VOCAB, top=7).bool(), ranks[before, after] < 7)
    expected = (table.frequency[:, None] * log_p.exp() * (log_p - log_q)).sum()
    assert mean_divergence(table.log_probs, rows, table.frequency) == pytest.approx(float(expected), rel=1e-4)
    assert mean_divergence(rows, rows, table.frequency) == pytest.approx(0, abs=1e-7)


def test_rank_correlation_sees_order_only():
    x = torch.tensor([0.1, 5.0, 2.0, 9.0])
    assert rank_correlation(x, x.exp()) == pytest.approx(1)
    assert rank_correlation(x, -x) == pytest.approx(-1)
    with pytest.raises(ValueError, match="at least two"):
        rank_correlation(x[:1], x[:1])
