"""The logit lens on weights made by hand, where the answers are known, and on bad input."""

import math

import pytest
import torch

from transformer_circuits.circuits import logit_lens
from transformer_circuits.circuits.logit_lens import (
    Interval,
    linear_map,
    novelty,
    read,
    read_by,
    resampled,
    streams,
    weakly_read,
)
from transformer_circuits.circuits.weights import Weights
from transformer_circuits.figures import logit_lens as figures

WORDS, N_CTX = 5, 8
TOKEN, BEFORE, PLACE = slice(0, 5), slice(5, 10), slice(10, 18)  # parts of the residual stream


def hand_made(n_layers: int = 1, read_before: bool = False) -> Weights:
    """One head a layer; that of the first looks one token back and writes what it finds to BEFORE, which only keys read.

    W_U reads TOKEN, with a gain that makes a token predict itself; with `read_before` it reads BEFORE instead.
    """
    d_model, d_head = 18, 8
    W_E, W_pos, W_U = torch.zeros(WORDS, d_model), torch.zeros(N_CTX, d_model), torch.zeros(d_model, WORDS)
    W_E[:, TOKEN], W_pos[:, PLACE] = torch.eye(WORDS), torch.eye(N_CTX)
    W_U[BEFORE if read_before else TOKEN] = 9 * torch.eye(WORDS)
    W = {name: torch.zeros(n_layers, 1, d_model, d_head) for name in ("W_Q", "W_K", "W_V")}
    W_O = torch.zeros(n_layers, 1, d_head, d_model)
    W["W_Q"][0, 0, PLACE], W["W_K"][0, 0, PLACE] = 200 * torch.eye(N_CTX), torch.eye(N_CTX).roll(1, dims=1)
    W["W_V"][0, 0, TOKEN, :WORDS] = torch.eye(WORDS)
    W_O[0, 0, :WORDS, BEFORE] = torch.eye(WORDS)
    if n_layers > 1:  # the second layer's keys look at BEFORE, its queries at TOKEN; it writes nothing
        W["W_K"][1, 0, BEFORE, :WORDS] = torch.eye(WORDS)
        W["W_Q"][1, 0, TOKEN, :WORDS] = torch.eye(WORDS)
    return Weights(W_E, W_pos, W["W_Q"], W["W_K"], W["W_V"], W_O, W_U)


def test_a_token_that_predicts_itself():
    weights = hand_made()
    tokens = torch.tensor([[1, 1, 2, 2]])
    reading = read(weights, streams(weights, tokens[:, :-1]), tokens[:, 1:])
    right, wrong = math.log1p(4 * math.exp(-9)), 9 + math.log1p(4 * math.exp(-9))
    assert reading.loss.shape == (2, 1, 3)
    assert torch.allclose(reading.loss[0, 0], torch.tensor([right, wrong, right]), atol=1e-4)
    assert reading.rank[0, 0].tolist()[0] == 0 and reading.rank[0, 0].tolist()[2] == 0
    assert torch.equal(reading.loss[0], reading.loss[1])  # the head writes where W_U does not read ...
    assert reading.kl.abs().max() < 1e-5  # ... so the two predictions are the same
    assert reading.entropy.min() >= 0 and reading.entropy.max() < 0.01


def test_divergence_is_that_of_the_later_reading_from_the_earlier():
    """And not the other way round: after the layer the reading is sharp, before it is uniform, so KL = ln 5 - entropy."""
    weights = hand_made(read_before=True)
    tokens = torch.tensor([[3, 1, 2, 4]])
    reading = read(weights, streams(weights, tokens[:, :-1]), tokens[:, 1:])
    assert torch.allclose(reading.entropy[0, 0], torch.full((3,), math.log(5)))
    assert torch.allclose(reading.kl[0, 0, 1:], math.log(5) - reading.entropy[1, 0, 1:], atol=1e-5)
    backwards = -math.log(5) - torch.log_softmax(streams(weights, tokens[:, :-1])[1, 0] @ weights.W_U, -1).mean(-1)
    assert (backwards[1:] > 2 * reading.kl[0, 0, 1:]).all()


def test_a_model_without_layers_has_one_stage():
    weights = hand_made()
    heads = (W[:0] for W in (weights.W_Q, weights.W_K, weights.W_V, weights.W_O))
    none = Weights(weights.W_E, weights.W_pos, *heads, weights.W_U)
    tokens = torch.tensor([[0, 1, 2]])
    reading = read(none, streams(none, tokens[:, :-1]), tokens[:, 1:])
    assert reading.loss.shape == (1, 1, 2) and reading.kl.shape == (0, 1, 2)


def test_the_key_lens_finds_what_the_logit_lens_cannot():
    weights = hand_made(n_layers=2)
    tokens = torch.tensor([4, 2, 0, 3, 1])
    x = streams(weights, tokens)
    through_keys = logit_lens.key_lens(weights, x[1], layer=1, head=0)
    assert through_keys.argmax(dim=-1)[1:].tolist() == tokens[:-1].tolist()  # the token before
    assert (x[1] @ weights.W_U).argmax(dim=-1).tolist() == tokens.tolist()  # the token itself
    assert logit_lens.key_lens(weights, x[0], 1, 0).abs().max() == 0  # the first layer had to put it there


def test_how_strongly_an_output_is_read():
    weights = hand_made(n_layers=2)
    windows = torch.tensor([[0, 1, 2, 3, 4, 0], [4, 2, 0, 1, 3, 3]])
    written = weights.W_O[0].mT @ logit_lens.output_covariance(weights, windows, 0) @ weights.W_O[0]
    assert read_by(written, weights.W_U).item() == 0
    assert weakly_read(written, weights.W_U, part=0.5).item() == pytest.approx(1, abs=1e-5)
    assert read_by(written, weights.W_K[1, 0]).item() == pytest.approx((18 / 5) ** 0.5, abs=1e-5)
    isotropic = torch.eye(18)[None]
    assert read_by(isotropic, weights.W_U).item() == pytest.approx(1, abs=1e-5)
    assert weakly_read(isotropic, weights.W_U, part=0.5).item() == pytest.approx(0.5, abs=1e-5)


def test_a_head_at_rest_writes_a_constant_that_counts_for_nothing():
    weights = hand_made()
    constant = torch.tensor([[2, 2, 2, 2, 2]])
    assert logit_lens.output_covariance(weights, constant, 0).abs().max() < 1e-6


def test_novelty():
    windows = torch.tensor([[0, 1, 2, 1, 2, 2, 1, 3]])
    #            next token:   1  2  1  2  2  1  3
    assert novelty(windows).tolist() == [[0, 0, 1, 2, 1, 2, 0]]


def test_novelty_does_not_look_ahead_or_at_the_pair_itself():
    assert novelty(torch.tensor([[5, 6, 7, 5, 6]])).tolist() == [[0, 0, 1, 2]]
    assert novelty(torch.tensor([[5, 5, 5]])).tolist() == [[1, 2]]


def test_resampled_mean_and_interval():
    values = torch.arange(40.0).view(8, 5)
    interval = resampled(values)
    assert interval.mean == pytest.approx(19.5)
    assert interval.low < 19.5 < interval.high
    assert resampled(torch.full((8, 5), 3.0)) == Interval(3, 3, 3)
    assert resampled(values) == resampled(values)  # the seed is fixed


def test_the_interval_is_over_windows_and_not_over_tokens():
    """Tokens of one window are all alike here: 1,600 of them say no more than sixteen would."""
    values = torch.arange(16.0)[:, None].expand(16, 100)
    wide = resampled(values)
    by_window, by_token = values.std() / 16**0.5, values.std() / 1600**0.5
    assert wide.high - wide.low > 3 * by_window > 6 * 1.96 * by_token


def test_a_mask_weighs_windows_by_what_it_chooses():
    values = torch.tensor([[1.0, 1.0, 1.0], [5.0, 9.0, 9.0]])
    mask = torch.tensor([[True, True, True], [True, False, False]])
    assert resampled(values, mask).mean == pytest.approx(2.0)  # and not (1 + 5) / 2


def test_linear_map_finds_a_map():
    generator = torch.Generator().manual_seed(0)
    x, M, b = (torch.randn(*shape, generator=generator) for shape in ((50, 4), (4, 4), (4,)))
    found, offset = linear_map(x, x @ M + b)
    assert torch.allclose(found, M, atol=1e-4) and torch.allclose(offset, b, atol=1e-4)


def test_bad_input():
    weights = hand_made(n_layers=2)
    x = streams(weights, torch.tensor([[0, 1, 2]]))
    with pytest.raises(ValueError, match="targets do not fit"):
        read(weights, x, torch.zeros(1, 2, dtype=torch.long))
    with pytest.raises(ValueError, match="targets do not fit"):
        read(weights, x[:, 0], torch.zeros(3, dtype=torch.long))
    with pytest.raises(ValueError, match="token ids"):
        streams(weights, torch.tensor([WORDS]))
    with pytest.raises(ValueError, match="1 to 8 tokens"):
        streams(weights, torch.zeros(9, dtype=torch.long))
    with pytest.raises(ValueError, match="at least one target"):
        novelty(torch.zeros(3, 1, dtype=torch.long))
    with pytest.raises(ValueError, match="two windows"):
        resampled(torch.zeros(1, 4))
    for mask in (torch.zeros(2, 4, dtype=torch.bool), torch.ones(2, 3, dtype=torch.bool)):
        with pytest.raises(ValueError, match="choose at least one"):
            resampled(torch.zeros(2, 4), mask)
    with pytest.raises(ValueError, match="no layer 2"):
        logit_lens.output_covariance(weights, torch.tensor([[0, 1]]), 2)
    with pytest.raises(ValueError, match="at least two tokens"):
        logit_lens.output_covariance(weights, torch.tensor([[0]]), 0)
    with pytest.raises(ValueError, match="between 0 and 1"):
        weakly_read(torch.eye(18), weights.W_U, part=1)
    with pytest.raises(ValueError, match="no head 1"):
        logit_lens.key_lens(weights, x[1], 1, 1)
    with pytest.raises(ValueError, match="more rows than dimensions"):
        linear_map(torch.zeros(4, 4), torch.zeros(4, 4))


# Figures


def test_lens_grid_shows_tokens_as_they_are():
    tokens = ["a", " $x$", "<td", "\n"]
    probabilities, ranks = torch.tensor([[0.1, 0.5, 0.9]]), torch.tensor([[0, 3, 1]])
    fig = figures.lens_grid(tokens, [["$y", "b", " c"]], probabilities, ranks, ["embedding"])
    texts = [text.get_text() for text in fig.axes[0].texts]
    assert texts == ["$y", "1", "b", "4", "·c", "2"]
    assert [label.get_text() for label in fig.axes[0].get_yticklabels()] == ["a → ·$x$", "·$x$ → <td", "<td → ↵"]
    fig.canvas.draw()  # dollar signs must not be read as mathematics
    assert len(fig.axes[0].patches) == 1  # one right prediction


def test_figures_refuse_numbers_that_do_not_fit():
    one = Interval(1, 0.5, 1.5)
    with pytest.raises(ValueError, match="1 stages of 2 predictions"):
        figures.lens_grid(["a", "b", "c"], [["x"]], torch.zeros(1, 2), torch.zeros(1, 2), ["embedding"])
    with pytest.raises(ValueError, match="2 stages"):
        figures.losses_by_depth({"all": [one]}, ["embedding", "layer 1"])
    with pytest.raises(ValueError, match="2 steps"):
        figures.gains({"kinds": {"all": [one]}}, ["layer 1", "layer 2"])
    with pytest.raises(ValueError, match="1 names"):
        figures.readers(torch.ones(2), torch.ones(2), ["0.0"])
    with pytest.raises(ValueError, match="no ranks"):
        figures.found_within({}, 10)


def test_figures_draw():
    one = Interval(1, 0.5, 1.5)
    assert figures.losses_by_depth({"all": [one, one], "new": [one, one]}, ["embedding", "layer 1"]).axes
    assert figures.gains({"a": {"x": [one]}, "b": {"y": [one], "z": [one]}}, ["layer 1"]).axes
    assert figures.readers(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0]), ["0.0", "0.1"], marked=[1]).axes
    ranks = {"other": torch.tensor([5, 3]), "keys": torch.tensor([0, 1])}
    fig = figures.found_within(ranks, 10, others=1)
    k, share = fig.axes[0].lines[1].get_data()
    assert share[0] == 50 and share[-1] == 100  # one of the two at rank 0
