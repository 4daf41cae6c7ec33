"""Term importance and virtual heads on weights made by hand, statistics on known data, and bad input."""

import dataclasses
import math

import pytest
import torch

from transformer_circuits.circuits.paths import run
from transformer_circuits.circuits.term_importance import (
    Estimate,
    ablations,
    direct_losses,
    log_sum_exp,
    mean_losses,
    reduction,
    reductions,
    token_losses,
    up_to_order,
    without_heads,
)
from transformer_circuits.circuits.virtual_heads import (
    composed_by_offset,
    count_paths,
    mean_composed_attention,
    ov_norms,
    virtual_norms,
    virtual_ov,
)
from transformer_circuits.circuits.weights import Weights
from transformer_circuits.figures import term_importance as figures

WORDS, N_CTX = 6, 24
TOKEN, FIRST, SECOND, PLACE = (slice(a, b) for a, b in ((0, 6), (6, 12), (12, 18), (18, 42)))  # of the residual stream
SHARP = 60.0


def weights_of_two_layers(wiring) -> Weights:
    """Two layers of two heads; the first head of each is wired, the second one is dead. `SECOND` alone is read out.

    Head 0.0 looks one token back and writes what it finds in TOKEN to FIRST. `wiring(W_Q, W_K, W_V, W_O)` sets head 1.0, with
    one matrix each, [d_model, d_head] or [d_head, d_model].
    """
    d_model, d_head = 42, 24
    W_E, W_pos, W_U = torch.zeros(WORDS, d_model), torch.zeros(N_CTX, d_model), torch.zeros(d_model, WORDS)
    W_E[:, TOKEN], W_U[SECOND] = torch.eye(WORDS), 5 * torch.eye(WORDS)
    W_pos[:, PLACE] = torch.eye(N_CTX)
    W = {name: torch.zeros(2, 2, d_model, d_head) for name in ("W_Q", "W_K", "W_V")}
    W["W_O"] = torch.zeros(2, 2, d_head, d_model)
    one_back(W["W_Q"][0, 0], W["W_K"][0, 0])
    W["W_V"][0, 0, TOKEN, :WORDS] = torch.eye(WORDS)
    W["W_O"][0, 0, :WORDS, FIRST] = torch.eye(WORDS)
    wiring(*(W[name][1, 0] for name in ("W_Q", "W_K", "W_V", "W_O")))
    return Weights(W_E, W_pos, W["W_Q"], W["W_K"], W["W_V"], W["W_O"], W_U)


def one_back(W_Q, W_K):
    W_Q[PLACE] = SHARP * torch.eye(N_CTX)
    W_K[PLACE] = torch.eye(N_CTX).roll(1, dims=1)  # the key of place j is what the query of place j + 1 looks for


def virtual_only(W_Q, W_K, W_V, W_O):
    """Looks one token back too, and passes on what the first head put there: the token two back."""
    one_back(W_Q, W_K)
    W_V[FIRST, :WORDS] = torch.eye(WORDS)
    W_O[:WORDS, SECOND] = torch.eye(WORDS)


def induction(W_Q, W_K, W_V, W_O):
    """Queries say which token is here, keys which token was before them: K-composition."""
    W_Q[TOKEN, :WORDS] = SHARP * torch.eye(WORDS)
    W_K[FIRST, :WORDS] = torch.eye(WORDS)
    W_V[TOKEN, :WORDS] = torch.eye(WORDS)
    W_O[:WORDS, SECOND] = torch.eye(WORDS)


def query_side(W_Q, W_K, W_V, W_O):
    """Queries say which token was before, keys which token is there: Q-composition, and the prediction is the token before."""
    W_Q[FIRST, :WORDS] = SHARP * torch.eye(WORDS)
    W_K[TOKEN, :WORDS] = torch.eye(WORDS)
    W_V[TOKEN, :WORDS] = torch.eye(WORDS)
    W_O[:WORDS, SECOND] = torch.eye(WORDS)


def texts(period: int, rows: int = 8) -> torch.Tensor:
    """Texts that repeat after `period` tokens, all different within it; [row, N_CTX + 1]."""
    generator = torch.Generator().manual_seed(0)
    words = torch.stack([torch.randperm(WORDS, generator=generator)[:period] for _ in range(rows)])
    return words.repeat(1, N_CTX)[:, : N_CTX + 1]


def losses_of(weights, windows, sides=("K", "Q", "QK", "V")):
    losses = mean_losses(weights, lambda tokens: ablations(weights, tokens, sides), windows, batch=3)
    return losses | {"order 0": direct_losses(weights, windows)}


def test_where_only_a_virtual_head_works_order_two_carries_all():
    weights = weights_of_two_layers(virtual_only)
    losses = losses_of(weights, texts(period=3), sides=())  # the next token is the one two back
    found = reductions(losses, WORDS)
    for name in ("order_0", "order_1", "layer_1_alone", "layer_1_given_2", "layer_2_alone", "layer_2_given_1"):
        assert abs(found[name].mean) < 1e-5, name
    assert found["order_2"].mean > 1
    assert abs(losses["order 2"].mean() - losses_of(weights, texts(period=3))["order 2"].mean()) < 1e-6


def test_two_previous_token_heads_look_two_back_together():
    weights = weights_of_two_layers(virtual_only)
    splits = mean_composed_attention(weights, texts(period=3)[:, :-1])
    assert splits[1, 0, 0] > 0.999 and splits[[0, 2], 0, 0].max() < 1e-3
    assert splits.sum(dim=0)[1, 1] < 0.3  # dead heads look everywhere
    patterns = run(weights, texts(period=3)[0, :-1]).patterns
    ways = composed_by_offset(patterns[0, 0], patterns[1, 0], 2)
    assert ways.shape == (3, N_CTX - 2)


def test_where_k_composition_works_t12_finds_keys_and_not_queries():
    weights = weights_of_two_layers(induction)
    windows = texts(period=5)
    losses = losses_of(weights, windows)
    rise = {side: reduction(losses[f"without {side}"], losses["order 2"]).mean for side in ("K", "Q", "QK", "V")}
    assert rise["K"] > 0.5 and abs(rise["QK"] - rise["K"]) < 1e-5
    assert abs(rise["Q"]) < 1e-5 and abs(rise["V"]) < 1e-5
    by_order = reductions(losses, WORDS)  # frozen patterns count it all under the second layer
    assert abs(by_order["order_2"].mean) < 1e-5 and by_order["layer_2_alone"].mean > 0.5
    assert abs(by_order["layer_1_alone"].mean) < 1e-5
    heads = mean_losses(weights, lambda tokens: without_heads(weights, tokens), windows)
    assert abs(reduction(heads["0.0"], heads["intact"]).mean - rise["K"]) < 1e-5
    assert abs(reduction(heads["0.1"], heads["intact"]).mean) < 1e-5


def test_where_q_composition_works_t12_finds_queries_and_not_keys():
    weights = weights_of_two_layers(query_side)
    losses = losses_of(weights, texts(period=2))
    rise = {side: reduction(losses[f"without {side}"], losses["order 2"]).mean for side in ("K", "Q")}
    assert rise["Q"] > 0.5 and abs(rise["K"]) < 1e-5


def test_losses_do_not_depend_on_batches_and_are_double():
    weights = weights_of_two_layers(induction)
    windows = texts(period=4, rows=7)
    streams_of = lambda tokens: ablations(weights, tokens)  # noqa: E731
    one, many = (mean_losses(weights, streams_of, windows, batch=batch) for batch in (1, 5))
    assert one.keys() == many.keys() == {"order 1", "order 2", "layer 0", "layer 1"}
    for name in one:
        assert one[name].shape == (7,) and one[name].dtype == torch.float64
        assert torch.allclose(one[name], many[name], atol=1e-5)


def test_losses_at_some_positions_only():
    weights, windows = weights_of_two_layers(induction), texts(period=4, rows=3)
    tokens = windows[:, :-1]
    found = mean_losses(weights, lambda tokens: ablations(weights, tokens), windows, every=5)["order 1"]
    losses = token_losses(weights, ablations(weights, tokens)["order 1"], windows[:, 1:])
    assert torch.allclose(found, losses[:, [0, 5, 10, 15, 20]].double().mean(dim=1), atol=1e-5)


def test_log_sum_exp_in_blocks_and_with_large_logits():
    generator = torch.Generator().manual_seed(1)
    rows, W_U = torch.randn(11, 5, generator=generator), torch.randn(5, 9, generator=generator)
    assert torch.allclose(log_sum_exp(rows, W_U, block=4), (rows @ W_U).logsumexp(dim=-1), atol=1e-5)
    assert torch.allclose(log_sum_exp(1e4 * rows, W_U), (1e4 * rows @ W_U).logsumexp(dim=-1))


def test_standard_errors_on_known_data():
    after = torch.zeros(4)
    found = reduction(torch.tensor([1.0, 2.0, 3.0, 4.0]), after)
    assert math.isclose(found.mean, 2.5) and math.isclose(found.standard_error, math.sqrt(5 / 3) / 2, rel_tol=1e-12)
    assert math.isclose(found.margin, 1.96 * found.standard_error)
    pairs = reduction(torch.tensor([1.0, 2.0, 3.0, 4.0]), after, neighbours=2)
    assert math.isclose(pairs.mean, 2.5) and math.isclose(pairs.standard_error, 1.0)
    rest = reduction(torch.tensor([1.0, 2.0, 3.0, 4.0, 10.0]), torch.zeros(5), neighbours=2)
    assert math.isclose(rest.mean, 4.0) and math.isclose(rest.standard_error, 1.0)
    assert reduction(2.0, torch.tensor([1.0, 0.0])).mean == 1.5  # a constant before, as for uniform predictions


def test_pairing_takes_out_what_windows_share_and_groups_count_neighbours_once():
    generator = torch.Generator().manual_seed(0)
    shared = 5 * torch.randn(400, generator=generator)
    own = 0.1 * torch.randn(400, generator=generator)
    assert reduction(shared + own + 1, shared).standard_error < 0.01
    alike = torch.randn(40, generator=generator).repeat_interleave(10)  # ten windows of each of forty books
    naive, grouped = (reduction(alike, torch.zeros(400), neighbours=n).standard_error for n in (1, 10))
    assert math.isclose(grouped, alike[::10].std().item() / math.sqrt(40), rel_tol=1e-6)
    assert grouped > 3 * naive


def test_reductions_add_up_both_ways():
    generator = torch.Generator().manual_seed(0)
    names = ("order 0", "order 1", "order 2", "layer 0", "layer 1")
    losses = {name: 5 + torch.randn(30, generator=generator, dtype=torch.float64) for name in names}
    found = {name: estimate.mean for name, estimate in reductions(losses, 100).items()}
    total = found["order_0"] + found["order_1"] + found["order_2"]
    assert math.isclose(total, math.log(100) - losses["order 2"].mean().item(), rel_tol=1e-9)
    assert math.isclose(found["layer_1_alone"] + found["layer_2_given_1"], found["order_1"], rel_tol=1e-9)
    assert math.isclose(found["layer_2_alone"] + found["layer_1_given_2"], found["order_1"], rel_tol=1e-9)
    assert math.isclose(found["layer_1_alone"], (losses["order 0"] - losses["layer 0"]).mean().item(), rel_tol=1e-9)


def test_paths_by_order():
    assert count_paths(2, 12) == [1, 24, 144]
    assert sum(count_paths(5, 3)) == 4**5
    assert count_paths(0, 12) == [1] and count_paths(1, 12) == [1, 12]


def test_norms_of_matrices_made_by_hand():
    weights = weights_of_two_layers(virtual_only)
    assert math.isclose(ov_norms(weights)[0, 0], math.sqrt(WORDS), rel_tol=1e-6)
    norms = virtual_norms(weights, 0, 1)
    assert math.isclose(norms[0, 0], math.sqrt(WORDS), rel_tol=1e-6) and norms.sum() == norms[0, 0]


ONE_LAYER = dataclasses.replace(
    weights_of_two_layers(induction),
    **{name: getattr(weights_of_two_layers(induction), name)[:1] for name in ("W_Q", "W_K", "W_V", "W_O")},
)
TWO = weights_of_two_layers(induction)
SOME = texts(period=4)
WRONG_TARGET = torch.cat([SOME[:, :-1], torch.full_like(SOME[:, :1], 99)], dim=1)


@pytest.mark.parametrize(
    "call, says",
    [
        (lambda: up_to_order(TWO, SOME[0, :5], run(TWO, SOME[0, :5]).patterns, -1), "0 or more heads"),
        (lambda: up_to_order(TWO, SOME[0, :5], run(TWO, SOME[0, :4]).patterns, 1), "patterns must have shape"),
        (lambda: up_to_order(TWO, SOME[0, :5] + 99, run(TWO, SOME[0, :5]).patterns, 1), "token ids"),
        (lambda: ablations(TWO, SOME[0, :5], ("O",)), "'K', 'Q', 'QK' and 'V'"),
        (lambda: ablations(ONE_LAYER, SOME[0, :5], ("K",)), "two layers"),
        (lambda: ablations(TWO, SOME[:, :0]), "1 to 24 tokens"),
        (lambda: without_heads(ONE_LAYER, SOME[0, :5]), "two layers"),
        (lambda: without_heads(TWO, SOME[0, :5], "QK"), "'K', 'Q' and 'V'"),
        (lambda: token_losses(TWO, torch.zeros(3, 42), torch.zeros(4, dtype=torch.long)), "do not fit"),
        (lambda: direct_losses(TWO, SOME + 99), "token ids"),
        (lambda: mean_losses(TWO, lambda t: ablations(TWO, t), SOME[:0]), "windows must be"),
        (lambda: mean_losses(TWO, lambda t: ablations(TWO, t), SOME[0]), "windows must be"),
        (lambda: mean_losses(TWO, lambda t: ablations(TWO, t), SOME[:, :1]), "windows must be"),
        (lambda: mean_losses(TWO, lambda t: ablations(TWO, t), WRONG_TARGET), "this prompt has 99"),
        (lambda: mean_losses(TWO, lambda t: ablations(TWO, t), SOME, batch=0), "must be 1 or more"),
        (lambda: mean_losses(TWO, lambda t: ablations(TWO, t), SOME, every=0), "must be 1 or more"),
        (lambda: direct_losses(TWO, WRONG_TARGET), "this prompt has 99"),
        (lambda: direct_losses(TWO, SOME[0]), "windows must be"),
        (lambda: reduction(torch.zeros(3), torch.zeros(4)), "same windows"),
        (lambda: reduction(torch.zeros(3), torch.zeros(3), neighbours=2), "fewer than two groups"),
        (lambda: reduction(torch.zeros(3), torch.zeros(3), neighbours=0), "fewer than two groups"),
        (lambda: reductions({"order 0": torch.zeros(3)}, 10), "lack layer 0"),
        (
            lambda: reductions(
                {n: torch.zeros(3) for n in ("order 0", "order 1", "order 2", "order 3", "layer 0", "layer 1", "layer 2")}, 10
            ),
            "two-layer model",
        ),
        (lambda: count_paths(-1, 3), "no models"),
        (lambda: virtual_ov(TWO, ()), "direct path"),
        (lambda: virtual_ov(TWO, ((1, 0), (0, 0))), "earlier to later"),
        (lambda: virtual_ov(TWO, ((0, 0), (1, 7))), "no head 7"),
        (lambda: virtual_norms(TWO, 1, 1), "earlier to a later"),
        (lambda: virtual_norms(TWO, 0, 2), "no layer 2"),
        (lambda: composed_by_offset(torch.eye(4), torch.eye(5), 1), "one text"),
        (lambda: composed_by_offset(torch.zeros(4, 5), torch.zeros(4, 5), 1), "one text"),
        (lambda: composed_by_offset(torch.eye(4), torch.eye(4), 4), "4 tokens back"),
        (lambda: composed_by_offset(torch.eye(4), torch.eye(4), -1), "-1 tokens back"),
        (lambda: mean_composed_attention(TWO, SOME[:, :5], first=1, second=0), "earlier to a later"),
        (lambda: mean_composed_attention(ONE_LAYER, SOME[:, :5]), "no layer 1"),
        (lambda: mean_composed_attention(TWO, SOME[:0]), "no windows"),
        (lambda: figures.reductions({}, {}), "no number for order_0"),
        (lambda: figures.two_back(torch.zeros(2, 3), ["a", "b", "c"], {}), "three splits"),
        (lambda: figures.two_back(torch.zeros(3, 3), ["a"], {}), "three splits"),
    ],
)
def test_bad_input_is_refused_with_a_sentence(call, says):
    with pytest.raises(ValueError, match=says):
        call()


def test_figures_have_a_bar_for_every_number():
    estimate = Estimate(0.5, 0.01)
    names = [name for group in figures.GROUPS.values() for name in group]
    fig = figures.reductions({name: estimate for name in names}, {name: 1.0 for name in names})
    assert len(fig.axes[0].patches) == 2 * 7
    assert len(figures.rises({"keys": estimate, "queries": estimate}).axes[0].patches) == 2
    by_head = {f"0.{head}": estimate for head in range(3)}
    assert [len(ax.patches) for ax in figures.rises_by_head({"keys": by_head, "queries": by_head}).axes] == [3, 3]
    assert figures.virtual_norms(torch.rand(3, 4), torch.rand(50)).axes[0].images[0].get_array().shape == (3, 4)
    fig = figures.two_back(torch.rand(3, 2), ["a", "b"], {"0.1": 0.2})
    assert len(fig.axes[0].patches) == 3 * 2 + 1
