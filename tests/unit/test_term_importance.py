"""T11, T12 on models made by hand, of which it is known what carries the loss; statistics on known data."""

import math

import pytest
import torch

from transformer_circuits.circuits.term_importance import (
    estimate,
    logits_up_to_order,
    losses_by_terms,
    reductions,
)
from transformer_circuits.circuits.virtual_heads import composed_diagonal
from transformer_circuits.models.bridge import from_matrices

WORDS, N_CTX = 6, 24
# Slices of the residual stream.
TOKEN, FIRST, SECOND, PLACE = (slice(a, b) for a, b in ((0, 6), (6, 12), (12, 18), (18, 42)))
SHARP = 60.0


def two_layers(query, key, value):
    """Two layers of two heads; the first of each is wired, the other dead. Head 0.0 looks one token back and writes what it finds to
    FIRST; head 1.0 matches `query` with `key`, and writes `value` to SECOND, which alone is read out."""
    W = {name: torch.zeros(2, 2, 42, 24) for name in ("W_Q", "W_K", "W_V")} | {
        "W_O": torch.zeros(2, 2, 24, 42)
    }
    W_E, W_pos, W_U = torch.zeros(WORDS, 42), torch.zeros(N_CTX, 42), torch.zeros(42, WORDS)
    W_E[:, TOKEN], W_pos[:, PLACE], W_U[SECOND] = torch.eye(WORDS), torch.eye(N_CTX), 5 * torch.eye(WORDS)
    for layer, (here, there, content, to) in enumerate(
        ((PLACE, PLACE, TOKEN, FIRST), (query, key, value, SECOND))
    ):
        size = here.stop - here.start
        W["W_Q"][layer, 0, here, :size] = SHARP * torch.eye(size)
        # the key of place j is what the query of place j + 1 looks for; tokens are matched with themselves
        W["W_K"][layer, 0, there, :size] = (
            torch.eye(size).roll(1, dims=1) if there == PLACE else torch.eye(size)
        )
        W["W_V"][layer, 0, content, :WORDS] = torch.eye(WORDS)
        W["W_O"][layer, 0, :WORDS, to] = torch.eye(WORDS)
    return from_matrices(W_E, W_pos, W["W_Q"], W["W_K"], W["W_V"], W["W_O"], W_U)


def texts(period, rows=8):
    """Texts that repeat after `period` tokens, all different within it: [row, N_CTX + 1]."""
    generator = torch.Generator().manual_seed(0)
    words = torch.stack([torch.randperm(WORDS, generator=generator)[:period] for _ in range(rows)])
    return words.repeat(1, N_CTX)[:, : N_CTX + 1]


def measured(model, windows):
    """(reductions, rises without K and Q), all means."""
    losses = losses_by_terms(model, windows)
    gains = {name: float(gain.mean()) for name, gain in reductions(losses, WORDS).items()}
    return gains, *(float((losses[f"without {side}"] - losses["order 2"]).mean()) for side in "KQ")


def test_where_only_a_virtual_head_works_order_two_carries_all():
    # The next token is the one two back.
    gains, K, Q = measured(two_layers(PLACE, PLACE, FIRST), texts(period=3))
    assert gains.pop("order_2") > 1
    assert max(map(abs, gains.values())) < 1e-5 and abs(K) < 1e-5 and abs(Q) < 1e-5


def test_where_k_composition_works_keys_rise_and_frozen_patterns_book_it_under_the_second_layer():
    gains, K, Q = measured(two_layers(TOKEN, FIRST, TOKEN), texts(period=5))  # an induction head
    assert K > 0.5 and abs(Q) < 1e-5
    assert (
        gains["layer_2_alone"] > 0.5 and abs(gains["order_2"]) < 1e-5 and abs(gains["layer_1_alone"]) < 1e-5
    )


def test_where_q_composition_works_queries_rise():
    _, K, Q = measured(two_layers(FIRST, TOKEN, TOKEN), texts(period=2))
    assert Q > 0.5 and abs(K) < 1e-5


def test_two_previous_token_heads_look_two_back_together():
    model, tokens = two_layers(PLACE, PLACE, FIRST), texts(period=3)[:1, :-1]
    _, cache = model.run_with_cache(tokens)
    ways = composed_diagonal(cache["pattern", 0][0, 0], cache["pattern", 1][0, 0])
    assert ways.shape == (3, N_CTX - 2) and ways[1].min() > 0.999 and ways[[0, 2]].max() < 1e-3


def test_estimates_on_known_data():
    found = estimate(torch.tensor([1.0, 3.0, 5.0, 7.0, 9.0, 50.0]).repeat_interleave(17)[:90])
    # The rest counts into the mean only.
    assert math.isclose(found.mean, (17 * 25 + 5 * 50) / 90, rel_tol=1e-6)
    assert math.isclose(found.standard_error, math.sqrt(8 / 5), rel_tol=0.05)  # of the five groups' mean
    assert 2 < found.margins[0] < 2.8 and 2 < found.margins[1] < 2.8


def test_windows_of_one_book_count_once():
    alike = torch.randn(40, generator=torch.Generator().manual_seed(0)).repeat_interleave(10)
    assert estimate(alike, neighbors=10).standard_error > 2.5 * estimate(alike, neighbors=1).standard_error


MODEL = two_layers(TOKEN, FIRST, TOKEN)
ONE_LAYER = from_matrices(
    MODEL.W_E,
    MODEL.W_pos,
    *(getattr(MODEL, name)[:1] for name in ("W_Q", "W_K", "W_V", "W_O")),
    W_U=MODEL.W_U,
)


@pytest.mark.parametrize(
    "says, call",
    [
        ("order must be 0 or more", lambda: logits_up_to_order(MODEL, texts(4)[:, :5], -1)),
        ("must have 2 layers, got 1", lambda: losses_by_terms(ONE_LAYER, texts(4))),
        ("at least 2 groups of 17, got 33", lambda: estimate(torch.zeros(33))),
        ("4 tokens back", lambda: composed_diagonal(torch.eye(4), torch.eye(4), 4)),
        ("-1 tokens back", lambda: composed_diagonal(torch.eye(4), torch.eye(4), -1)),
    ],
)
def test_bad_input_is_refused_with_a_sentence(says, call):
    with pytest.raises(ValueError, match=says):
        call()
