"""In-context learning: losses against the model's own, heads removed, groups of tokens by a slow loop, milestones by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from transformer_circuits.circuits import in_context
from transformer_circuits.circuits.in_context import Interval, milestone, resampled, share_of_fall, steepest_doubling
from transformer_circuits.circuits.paths import run
from transformer_circuits.circuits.term_importance import Estimate
from transformer_circuits.circuits.weights import Weights
from transformer_circuits.data import BigramCounts
from transformer_circuits.figures import in_context as figures
from transformer_circuits.training.scores import in_context_score

D_VOCAB, N = 20, 12


def random_weights(n_layers: int, seed: int = 0) -> Weights:
    """Large random weights in double precision, so that mistakes of layout cannot hide."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.double) / shape[-2] ** 0.5  # noqa: E731
    heads = (n_layers, 3)
    return Weights(
        W_E=3 * draw(D_VOCAB, 8), W_pos=3 * draw(N, 8), W_U=3 * draw(8, D_VOCAB),
        W_Q=draw(*heads, 8, 4), W_K=draw(*heads, 8, 4), W_V=draw(*heads, 8, 4), W_O=draw(*heads, 4, 8),
    )  # fmt: skip


def random_windows(rows: int = 5, n: int = N) -> Tensor:
    windows = torch.randint(1, D_VOCAB, (rows, n + 1), generator=torch.Generator().manual_seed(1))
    windows[:, 0] = 0
    return windows


def reference_losses(weights: Weights, windows: Tensor) -> Tensor:
    logits = torch.stack([run(weights, row[:-1]).logits for row in windows])
    return -logits.log_softmax(-1).gather(-1, windows[:, 1:, None])[..., 0]


# ---- losses ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_layers", [0, 1, 2, 3])
def test_losses_are_the_models_own(n_layers: int) -> None:
    weights, windows = random_weights(n_layers), random_windows()
    found = in_context.losses_by_position(weights, windows, batch=2)["intact"]
    torch.testing.assert_close(found, reference_losses(weights, windows))


@pytest.mark.parametrize("n_layers", [0, 2])
def test_positions_not_asked_for_have_no_loss(n_layers: int) -> None:
    weights, windows = random_weights(n_layers), random_windows()
    some = torch.tensor([2, 7])
    found = in_context.losses_by_position(weights, windows, some)["intact"]
    torch.testing.assert_close(found[:, some], reference_losses(weights, windows)[:, some])
    assert found.isnan().sum() == (N - 2) * len(windows)


@pytest.mark.parametrize("removed", [[(0, 1)], [(1, 2)], [(0, 0), (1, 1)], [(2, 0), (0, 2), (0, 1)]])
@pytest.mark.parametrize("with_means", [False, True])
def test_a_removed_head_writes_its_mean_and_later_layers_follow(removed: list[tuple[int, int]], with_means: bool) -> None:
    weights, tokens = random_weights(3), random_windows()[0, :-1]
    means = in_context.head_means(weights, [tokens]) if with_means else None
    stream = weights.W_E[tokens]
    for layer in range(3):  # head by head, by definition
        seen = stream + weights.W_pos[: len(tokens)]
        wrote = torch.zeros_like(stream)
        for head in range(3):
            scores = (seen @ weights.W_Q[layer, head]) @ (seen @ weights.W_K[layer, head]).T / 2
            pattern = scores.masked_fill(torch.ones(N, N, dtype=torch.bool).triu(1), -torch.inf).softmax(-1)
            out = pattern @ stream @ weights.W_V[layer, head] @ weights.W_O[layer, head]
            if (layer, head) in removed:
                out = torch.zeros_like(out) if means is None else means[layer, head].expand_as(out)
            wrote = wrote + out
        stream = stream + wrote
    found = in_context.streams_without(weights, tokens, {"some": removed}, means)
    torch.testing.assert_close(found["some"], stream)
    torch.testing.assert_close(found["intact"], run(weights, tokens).residual[-1])
    assert not torch.allclose(found["some"], found["intact"])


def test_head_means_are_over_all_positions_of_all_prompts() -> None:
    weights, prompts = random_weights(2), [random_windows()[0, :5], random_windows()[1, :9]]
    outputs = []
    for tokens in prompts:
        here = run(weights, tokens)
        outputs.append(here.patterns[1, 2] @ here.residual[1] @ weights.W_V[1, 2] @ weights.W_O[1, 2])
    torch.testing.assert_close(in_context.head_means(weights, prompts)[1, 2], torch.cat(outputs).mean(0))


def test_losses_refuse_what_makes_no_sense() -> None:
    weights, windows = random_weights(2), random_windows()
    with pytest.raises(ValueError, match="at least one target"):
        in_context.losses_by_position(weights, windows[:, :1])
    for wrong in ([-1], [N], []):
        with pytest.raises(ValueError, match="positions must be some of 0 to 11"):
            in_context.losses_by_position(weights, windows, torch.tensor(wrong, dtype=torch.long))
    with pytest.raises(ValueError, match="no layer 2"):
        in_context.losses_by_position(weights, windows, removed={"a": [(2, 0)]})
    with pytest.raises(ValueError, match="at least one head"):
        in_context.losses_by_position(weights, windows, removed={"a": []})
    with pytest.raises(ValueError, match="a name of its own"):
        in_context.losses_by_position(weights, windows, removed={"intact": [(0, 0)]})
    with pytest.raises(ValueError, match="no layer 0"):
        in_context.losses_by_position(random_weights(0), windows, removed={"a": [(0, 0)]})
    with pytest.raises(ValueError, match="token ids run"):
        in_context.losses_by_position(random_weights(0), windows + 10)


# ---- scores ----------------------------------------------------------------------------------------------------------------


def test_the_score_takes_ten_tokens_around_each_place_and_is_the_trainers() -> None:
    losses = torch.zeros(3, 512)
    losses[:, 45:55], losses[:, 495:505] = 3.0, 1.0  # ten positions each
    losses[:, 44] = losses[:, 55] = losses[:, 494] = losses[:, 505] = 100.0  # an off-by-one would take these
    assert in_context.scores_by_window(losses).tolist() == [-2, -2, -2]
    noise = torch.randn(4, 512, generator=torch.Generator().manual_seed(0))
    for around in (5, 10):
        expected = in_context_score(noise, around=around)
        assert in_context.scores_by_window(noise, around=around).mean().item() == pytest.approx(expected, abs=1e-6)


def test_the_score_refuses_places_without_losses() -> None:
    losses = torch.zeros(2, 512)
    for early, late, n in [(50, 500, 400), (3, 500, 512), (50, 55, 512), (50, 508, 512)]:
        with pytest.raises(ValueError, match="do not fit"):
            in_context.scores_by_window(losses[:, :n], early, late)
    losses[1, 500] = torch.nan
    with pytest.raises(ValueError, match="have no loss"):
        in_context.scores_by_window(losses)


def test_the_difference_is_paired() -> None:
    luck = torch.tensor([5.0, -5.0, 3.0, 1.0])
    found = in_context.difference(luck + 1, luck)
    assert found.mean == pytest.approx(1) and found.standard_error == pytest.approx(0, abs=1e-6)
    alone = in_context.difference(luck, 0)
    assert alone.mean == pytest.approx(1) and alone.standard_error == pytest.approx(luck.std().item() / 2)


def test_with_less_context_the_same_tokens_are_predicted() -> None:
    windows = torch.arange(1, 514).repeat(2, 1) * torch.tensor([[1], [10]])
    windows[:, 0] = 0
    short = in_context.with_less_context(windows)
    assert short.shape == (2, 56) and (short[:, 0] == 0).all()
    for i in range(45, 55):  # place i of the short row predicts what place i + 450 of the window predicts
        assert torch.equal(short[:, : i + 2][:, 1:], windows[:, 451 : i + 452])
    with pytest.raises(ValueError, match="do not hold"):
        in_context.with_less_context(windows[:, :505])
    with pytest.raises(ValueError, match="do not hold"):
        in_context.with_less_context(windows, early=4)


def test_with_less_context_a_model_without_layers_loses_nothing_and_others_do() -> None:
    windows = random_windows(6)
    short = in_context.with_less_context(windows, early=4, late=10, around=2)
    change = []
    for n_layers in (0, 1):
        long, cut = (in_context.losses_by_position(random_weights(n_layers), w)["intact"] for w in (windows, short))
        change.append((long[:, 8:12] - cut[:, 2:6]).abs().max().item())
    assert change[0] < 1e-12 < 1e-3 < change[1]


def test_resampled_interval_covers_the_mean_as_often_as_it_says() -> None:
    generator, inside = torch.Generator().manual_seed(0), 0
    for trial in range(200):
        interval = resampled(torch.randn(60, generator=generator) + 2, draws=300, seed=trial)
        inside += bool(interval.low <= 2 <= interval.high)
    assert 180 <= inside <= 200  # 190 expected


def test_resampled_draws_windows_not_tokens() -> None:
    """Ten equal tokens a window are no more evidence than one: treating tokens as independent gives a third of the interval."""
    values = torch.randn(50, generator=torch.Generator().manual_seed(3))
    one, ten = resampled(values), resampled(10 * values, counts=torch.full((50,), 10.0))
    torch.testing.assert_close(ten.high - ten.low, one.high - one.low)
    many = resampled(values.repeat(10))
    assert many.high - many.low < 0.5 * (one.high - one.low)


def test_resampled_with_counts_is_a_mean_over_tokens() -> None:
    found = resampled(torch.tensor([[6.0, 0.0], [2.0, 0.0]]), torch.tensor([[3.0, 0.0], [1.0, 0.0]]))
    assert found.mean[0] == 2 and found.mean[1].isnan() and found.low[0] == found.high[0] == 2
    with pytest.raises(ValueError, match="take more"):
        resampled(torch.ones(1, 3))
    with pytest.raises(ValueError, match="one shape"):
        resampled(torch.ones(4, 3), torch.ones(4))


def test_sum_in_bins_leaves_out_gaps_and_what_is_not_asked_for() -> None:
    values = torch.tensor([[1.0, 2.0, torch.nan, 4.0]])
    sums, counts = in_context.sum_in_bins(values, [0, 1, 4])
    assert sums.tolist() == [[1, 6]] and counts.tolist() == [[1, 2]]
    sums, counts = in_context.sum_in_bins(values, [0, 4], torch.tensor([[False, True, True, False]]))
    assert sums.tolist() == [[2]] and counts.tolist() == [[1]]
    for wrong in ([0], [0, 0], [2, 1], [0, 5], [-1, 2]):
        with pytest.raises(ValueError, match="edges must rise"):
            in_context.sum_in_bins(values, wrong)


# ---- kinds of tokens ------------------------------------------------------------------------------------------------------


def test_groups_by_hand() -> None:
    #                     0  a  b  c  a  b  b  a  c
    row = torch.tensor([[0, 1, 2, 3, 1, 2, 2, 1, 3]])
    #           predicted:    a  b  c  a  b  b  a  c
    assert in_context.kind_of_next(row).tolist() == [[0, 0, 0, 1, 2, 1, 1, 1]]


def test_groups_against_a_slow_loop() -> None:
    windows = torch.randint(0, 6, (8, 40), generator=torch.Generator().manual_seed(2))
    for row, found in zip(windows.tolist(), in_context.kind_of_next(windows).tolist()):
        for i, kind in enumerate(found):
            pairs = set(zip(row[:i], row[1 : i + 1]))  # that stood there before this one
            expected = 2 if (row[i], row[i + 1]) in pairs else 1 if row[i + 1] in row[: i + 1] else 0
            assert kind == expected


def test_a_token_may_complete_its_own_pair() -> None:
    """In `a a a` the last pair has been seen, and its copy overlaps it."""
    assert in_context.kind_of_next(torch.tensor([[0, 5, 5, 5]])).tolist() == [[0, 1, 2]]


def test_share_in_training() -> None:
    counts = BigramCounts(torch.tensor([0, 2, 3, 3]), torch.tensor([1, 2, 0]), torch.tensor([3, 1, 7]))  # token 2 never seen
    found = in_context.share_in_training(torch.tensor([[0, 1, 0, 2, 2], [0, 0, 1, 1, 2]]), counts)
    torch.testing.assert_close(found, torch.tensor([[0.75, 1, 0.25, 0], [0, 0.75, 0, 0]], dtype=found.dtype))
    for wrong in ([[0, 3]], [[-1, 0]]):
        with pytest.raises(ValueError, match="tokens 0 to 2"):
            in_context.share_in_training(torch.tensor(wrong), counts)


# ---- milestones ----------------------------------------------------------------------------------------------------------


def test_milestones_are_first_reaches_of_shares_of_the_final_value() -> None:
    tokens, score = [0, 1, 2, 4, 8, 16], [0.0, 0.05, 0.3, 0.9, 0.7, 0.5]
    assert milestone(tokens, score, 0.1) == (1, 0)
    assert milestone(tokens, score, 0.5) == (2, 1)  # of 0.5, not of the highest value 0.9
    assert milestone(tokens, score, 0.9) == (4, 2)
    assert milestone([3, 4], [1.0, 1.0], 1) == (3, 3)


def test_milestones_refuse_what_makes_no_sense() -> None:
    for share in (0, -0.1, 1.1):
        with pytest.raises(ValueError, match="share of the final"):
            milestone([1, 2], [0.1, 0.2], share)
    with pytest.raises(ValueError, match="final score is 0"):
        milestone([1, 2], [0.1, 0.0], 0.5)
    for tokens, score in [([], []), ([1, 2], [1.0]), ([2, 1], [1.0, 2.0]), ([1, 1], [1.0, 2.0])]:
        with pytest.raises(ValueError, match="a log needs entries"):
            milestone(tokens, score, 0.5)


def test_share_of_fall() -> None:
    tokens, score = [1, 2, 4, 8], [0.1, 0.0, -0.3, -0.4]
    assert share_of_fall(tokens, score, 2, 4) == pytest.approx(0.6)
    assert share_of_fall(tokens, score, 1, 8) == pytest.approx(1)
    with pytest.raises(ValueError, match="no entry at 3"):
        share_of_fall(tokens, score, 2, 3)
    with pytest.raises(ValueError, match="no fall"):
        share_of_fall(tokens, [0.1, 0.2, 0.3, 0.4], 1, 8)


def test_steepest_doubling() -> None:
    tokens = np.array([0.0, 1, 2, 4, 8, 16])
    assert steepest_doubling(tokens, [9, 0, 0, 1, 1, 1]) == (1, 2)
    change, start = steepest_doubling(tokens, [0, 0, -1, -1, -3, -3])
    assert change == -2 and start == 4
    steady = np.arange(1.0, 33)
    assert steepest_doubling(steady, np.log2(steady))[0] == pytest.approx(1)  # the same everywhere on a logarithmic axis
    assert steepest_doubling([1, 3], [0.0, 1.0])[0] == pytest.approx(np.log(2) / np.log(3))  # between entries
    with pytest.raises(ValueError, match="less than one doubling"):
        steepest_doubling([0, 10, 15], [0.0, 0.0, 1.0])


def test_best_of_heads_is_the_maximum_at_each_entry() -> None:
    scores = [[[0.1, 0.2], [0.0, 0.3]], [[0.5, 0.2], [0.4, 0.1]]]  # the best head changes
    assert in_context.best_of_heads(scores).tolist() == [0.3, 0.5]
    for wrong in ([[]], [[[]]]):
        with pytest.raises(ValueError, match="the model has none"):
            in_context.best_of_heads(wrong)


# ---- figures ----------------------------------------------------------------------------------------------------------------


def a_log(n_layers: int, start: bool = False) -> pd.DataFrame:
    scores = [[[0.1 * entry] * 3] * n_layers for entry in range(4)]
    log = {"tokens": [0, 10, 100, 1000], "induction": scores, "previous_token": scores, "in_context": [0.0, -0.1, -0.2, -0.3],
           "held_out": [9.0, 6.0, 5.0, 4.0]}  # fmt: skip
    return pd.DataFrame(log | ({"start_token": scores} if start else {}))


@pytest.mark.parametrize("start", [False, True])
def test_training_figure_has_a_row_for_the_start_token_where_a_log_has_it(start: bool) -> None:
    control = a_log(1).drop(columns=["induction", "previous_token"])
    fig = figures.over_training({"a": a_log(1), "b": a_log(2, start)}, control)
    assert len(fig.axes) == 2 * (5 if start else 4)
    labels = [ax.get_ylabel() for ax in fig.axes]
    assert ("attention to start" in labels) == start
    assert all(ax.get_ylim()[1] >= 0.3 for ax in fig.axes[:2])  # no head's line is cut off
    with pytest.raises(ValueError, match="pass it as `control`"):
        figures.over_training({"a": control})


def test_figures_draw_and_refuse_what_does_not_fit() -> None:
    line = Interval(*(torch.tensor([1.0, 2.0]) + d for d in (0, -1, 1)))
    assert len(figures.by_position([0, 4, 8], {"a": {"x": line}, "b": {"x": line}}, marked=[(1, 2)]).axes) == 2
    with pytest.raises(ValueError, match="2 numbers for 3 bins"):
        figures.by_position([0, 2, 4, 8], {"a": {"x": line}})
    point = Interval(torch.tensor(1.0), torch.tensor(0.5), torch.tensor(1.5))
    assert figures.kinds({"prose": {"first": point, "second": point}}, "nats").axes
    parts = torch.tensor([[1.0, -1.0], [0.5, 0.5]])
    assert len(figures.contributions([0, 4, 8], {"gap": parts}, parts.abs(), ["a", "b"]).axes) == 2
    with pytest.raises(ValueError, match="'gap' must have a row"):
        figures.contributions([0, 4, 8], {"gap": parts[:1]}, parts, ["a", "b"])
    heads = {f"0.{h}": Estimate(0.1, 0.01) for h in range(3)}
    assert len(figures.heads_removed(heads, heads, 3, {"0.1": "previous-token head"}).axes) == 1
    for late, early, n in [(heads, {}, 3), (heads, heads, 2), ({}, {}, 3)]:
        with pytest.raises(ValueError, match="heads: both need"):
            figures.heads_removed(late, early, n, {})
    assert len(figures.race([0, 1, 10], {"a": [0, 0.5, 1]}, {"t10": 1.0, "t90": 9.0}).axes) == 2
    with pytest.raises(ValueError, match="one number for each of 3"):
        figures.race([0, 1, 10], {"a": [0, 1]}, {"t10": 1.0})
    with pytest.raises(ValueError, match="no moments"):
        figures.race([0, 1, 10], {"a": [0, 0.5, 1]}, {})


def test_contributions_add_up_to_the_gap() -> None:
    """What the chapter stacks: sums over groups, each over the count of all tokens, are the mean gap exactly."""
    windows = torch.randint(1, 6, (9, 41), generator=torch.Generator().manual_seed(5))
    gap = torch.randn(9, 40, generator=torch.Generator().manual_seed(6))
    group, edges = in_context.kind_of_next(windows), [0, 10, 40]
    counts = in_context.sum_in_bins(gap, edges)[1].sum(0)
    parts = torch.stack([in_context.sum_in_bins(gap, edges, group == g)[0].sum(0) for g in range(3)]) / counts
    expected = torch.stack([gap[:, :10].mean(), gap[:, 10:].mean()]).double()
    torch.testing.assert_close(parts.sum(0), expected)


def test_weights_helper_is_not_degenerate() -> None:
    """The tests above would be weak if heads wrote next to nothing."""
    weights = random_weights(2)
    silent = dataclasses.replace(weights, W_O=torch.zeros_like(weights.W_O))
    with_heads, without = (reference_losses(w, random_windows()) for w in (weights, silent))
    assert (with_heads - without).abs().mean() > 0.1
