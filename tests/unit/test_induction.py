"""T6 to T10, T14, T15: hand-made heads whose scores are known, and the mistakes that such scores invite."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from transformer_circuits.circuits import induction
from transformer_circuits.circuits.induction import (
    Repeated,
    after_earlier,
    attention_to_any,
    attention_to_last,
    copy_losses,
    excess_by_source,
    head_output,
    k_composition_circuit,
    key_effect,
    last_target,
    logit_effect,
    mean_outputs,
    next_token_losses,
    patterns_without,
    repeated_random_tokens,
    score_by_source,
    self_match_share,
    value_sizes,
    value_weighted,
    without_unembedding,
)
from transformer_circuits.circuits.paths import run
from transformer_circuits.circuits.qk_ov import eigenvalues, full_ov, positivity
from transformer_circuits.circuits.weights import Weights, relative_error
from transformer_circuits.figures import induction as figures

D_VOCAB, N_CTX, OFFSET = 40, 64, 9


def hand_made(sharpness: float = 60.0, dtype: torch.dtype = torch.float64) -> Weights:
    """Induction by K-composition, on a stream of [content | what came before | position], all one-hot.

    0.0 previous-token head: fetches the content of the token before into the second part
    0.1 a head that does nothing
    1.0 induction head: queries read content, keys read what came before; copies content to the logits
    1.1 a head that looks OFFSET tokens back, whatever is there; copies likewise
    """
    V, n = D_VOCAB, N_CTX
    content, before, position = torch.eye(2 * V + n, dtype=dtype).split([V, V, n])  # [part, d_model]
    d_head = n  # at least V
    shape = (2, 2, 2 * V + n, d_head)
    W_Q, W_K, W_V = (torch.zeros(shape, dtype=dtype) for _ in range(3))
    W_O = torch.zeros(2, 2, d_head, 2 * V + n, dtype=dtype)
    gain = sharpness * math.sqrt(d_head)
    back = lambda k: torch.diag(torch.ones(n - k, dtype=dtype), k)  # key of position j is that of query j + k

    W_Q[0, 0], W_K[0, 0] = gain * position.T, position.T @ back(1)
    W_V[0, 0, :, :V], W_O[0, 0, :V] = content.T, before
    W_Q[1, 0, :, :V], W_K[1, 0, :, :V] = gain * content.T, before.T
    W_Q[1, 1], W_K[1, 1] = gain * position.T, position.T @ back(OFFSET)
    for head in (0, 1):
        W_V[1, head, :, :V], W_O[1, head, :V] = content.T, 10 * content
    zeros = torch.zeros_like(position)
    return Weights(W_E=content, W_pos=zeros + position, W_Q=W_Q, W_K=W_K, W_V=W_V, W_O=W_O, W_U=content.T)


WEIGHTS = hand_made()
RANDOM = repeated_random_tokens(D_VOCAB, N_CTX, rows=30, copies=3, shortest=5)
FIXED = repeated_random_tokens(D_VOCAB, N_CTX, rows=30, copies=3, shortest=OFFSET + 1, longest=OFFSET + 1)
PREVIOUS, IDLE, INDUCTION, POSITIONAL = (0, 0), (0, 1), (1, 0), (1, 1)


def score(sequences, head, measure=attention_to_last, weights=WEIGHTS):
    parts = [measure(run(weights, s.tokens).patterns, s).mean(-1)[head] for s in sequences]
    return torch.stack(parts).mean().item()


# The data.


def test_repeats_are_what_t8_says():
    sequences = repeated_random_tokens(8192, 512)
    assert len(sequences) >= 100
    for s in sequences:
        start, segments = s.tokens[0], s.tokens[1:].view(3, -1)
        assert start == 0 and (segments == segments[0]).all()
        assert len(segments[0].unique()) == s.length == segments.shape[1]  # without replacement
        assert (segments > 0).all() and segments.max() < 8192 and 20 <= s.length <= 512 // 3
    assert len({s.length for s in sequences}) > 30


def test_the_same_seed_gives_the_same_data_and_another_does_not():
    first, again, other = (repeated_random_tokens(100, 64, rows=4, shortest=4, seed=seed) for seed in (0, 0, 1))
    assert all(torch.equal(a.tokens, b.tokens) for a, b in zip(first, again))
    assert any(not torch.equal(a.tokens, b.tokens) for a, b in zip(first, other))


def test_tokens_may_be_drawn_from_some_only():
    some = torch.arange(0, 100, 2)
    for s in repeated_random_tokens(1000, 64, rows=5, shortest=4, choose_from=some):
        assert (s.tokens % 2 == 0).all() and (s.tokens[1:] > 0).all() and (s.tokens < 100).all()


def test_targets_follow_the_last_occurrence():
    s = Repeated(torch.tensor([0, 5, 6, 7, 5, 6, 7, 5, 6, 7]), length=3, copies=3)
    assert s.destinations.tolist() == [4, 5, 6, 7, 8, 9] and s.targets.tolist() == [2, 3, 4, 5, 6, 7]
    assert s.following.tolist() == [6, 7, 5, 6, 7, 5]
    assert last_target(s.tokens).tolist() == [-1, -1, -1, -1, 2, 3, 4, 5, 6, 7]
    assert after_earlier(s.tokens)[7].nonzero().flatten().tolist() == [2, 5]


def test_a_token_twice_in_a_row_is_its_own_target():
    assert after_earlier(torch.tensor([0, 4, 4])).nonzero().tolist() == [[2, 2]]


# Scores of heads that are known.


def test_a_perfect_induction_head_scores_one():
    """With two copies. In the third, two places match, and a head that knows only one token back must share."""
    two = repeated_random_tokens(D_VOCAB, N_CTX, rows=10, copies=2, shortest=5)
    assert score(two, INDUCTION) == pytest.approx(1, abs=1e-6)
    assert score(RANDOM, INDUCTION, attention_to_any) == pytest.approx(1, abs=1e-6)
    assert score(RANDOM, INDUCTION) == pytest.approx(0.75, abs=1e-6)


def test_a_positional_head_passes_only_if_the_distance_is_fixed():
    assert score(FIXED, POSITIONAL) == pytest.approx(1, abs=1e-6)
    assert score(RANDOM, POSITIONAL) < 0.15  # right where a segment happens to have its length
    for head in (PREVIOUS, IDLE):
        assert score(RANDOM, head) < 0.1


def test_losses_are_told_apart_by_copy_without_first_tokens():
    s = RANDOM[0]
    losses = torch.arange(3 * s.length).double()
    expected = [losses[c * s.length + 1 : (c + 1) * s.length].mean().item() for c in range(3)]
    assert copy_losses(losses, s).tolist() == pytest.approx(expected)
    logits = run(WEIGHTS, s.tokens).logits
    first, second, third = copy_losses(next_token_losses(logits, s.tokens), s).tolist()
    assert third < first and second < math.log(s.length) < first  # it predicts the order, not only the tokens


def test_losses_are_those_of_the_next_token():
    logits = torch.full((3, 4), -100.0)
    logits[0, 2] = logits[1, 1] = 0.0
    assert next_token_losses(logits, torch.tensor([3, 2, 1])).tolist() == pytest.approx([0, 0])


# What heads move.


def test_weighting_by_values_takes_out_a_source_without_value():
    patterns = torch.tensor([[[1.0, 0, 0], [0.9, 0.1, 0], [0.8, 0.1, 0.1]]])
    sizes = torch.tensor([[0.0, 1.0, 3.0]])
    assert value_weighted(patterns, sizes)[0].tolist()[2] == pytest.approx([0, 0.1, 0.3])
    assert value_weighted(patterns, sizes, rows_sum_to_one=True)[0, 2].tolist() == pytest.approx([0, 0.25, 0.75])


def test_rows_that_move_nothing_stay_faint_unless_scaled_to_one():
    """A head that rests on one source keeps all of its row there when rows are scaled, however small the value."""
    patterns = torch.tensor([[[1.0, 0], [1.0, 0]]])
    sizes = torch.tensor([[0.01, 1.0]])
    assert value_weighted(patterns, sizes)[0, 1, 0] == pytest.approx(0.01)
    assert value_weighted(patterns, sizes, rows_sum_to_one=True)[0, 1, 0] == pytest.approx(1)


def test_the_induction_head_raises_what_followed():
    s = RANDOM[0]
    here = run(WEIGHTS, s.tokens)
    effect = logit_effect(WEIGHTS, head_output(WEIGHTS, here, *INDUCTION)[s.destinations], s.following)
    assert effect == pytest.approx(torch.full_like(effect, 10 * (1 - 1 / D_VOCAB)))


# Its mechanism.


def excess(sequences, head, weights=WEIGHTS):
    total = 0.0
    for s in sequences:
        patterns = run(weights, s.tokens).patterns
        total = total + excess_by_source(weights, s.tokens, patterns, *head, s.destinations, s.targets).mean(-1)
    return total / total.sum()


def test_the_key_comes_from_the_token_before():
    shares = excess(RANDOM, INDUCTION)
    assert shares[0, 1] == pytest.approx(1, abs=1e-6)  # query: own token; key: the one before
    assert shares[:, 0].sum() == pytest.approx(0, abs=1e-6)


def test_a_head_that_matches_the_target_itself_has_no_such_share():
    """Keys that read their own content: the score at the target is then of the wrong token, here by way of a shifted query."""
    W_K = WEIGHTS.W_K.clone()
    W_K[1, 0] = WEIGHTS.W_V[1, 0]  # reads content instead of what came before
    W_Q = WEIGHTS.W_Q.clone()
    W_Q[1, 0, :D_VOCAB] = W_Q[1, 0, :D_VOCAB].roll(1, 0)  # looks for the token with the next number
    weights = dataclasses.replace(WEIGHTS, W_K=W_K, W_Q=W_Q)
    counting = [Repeated(torch.tensor([0] + 3 * list(range(n, n + 12))), 12, 3) for n in (3, 9)]
    shares = excess(counting, INDUCTION, weights)
    assert shares[0, 0] == pytest.approx(1, abs=1e-6) and shares[:, 1].sum() == pytest.approx(0, abs=1e-6)


def test_the_score_of_one_pair_comes_from_one_cell():
    s = RANDOM[1]
    patterns = run(WEIGHTS, s.tokens).patterns
    i, j = int(s.destinations[3]), int(s.targets[3])
    split = score_by_source(WEIGHTS, s.tokens, patterns, *INDUCTION, i, j)
    assert split[i, j - 1] == pytest.approx(split.sum()) and split.argmax() == i * split.shape[1] + j - 1


def test_the_composition_circuit_of_the_right_pair_is_positive():
    right = k_composition_circuit(WEIGHTS, PREVIOUS, INDUCTION)
    assert positivity(eigenvalues(right)) == pytest.approx(1) and self_match_share(right) == 1
    assert positivity(eigenvalues(full_ov(WEIGHTS, *INDUCTION))) == pytest.approx(1)
    assert right.AB == pytest.approx(WEIGHTS.W_Q[1, 0, 0, 0] * torch.eye(D_VOCAB, dtype=torch.float64))
    assert (k_composition_circuit(WEIGHTS, IDLE, INDUCTION).AB == 0).all()


def test_the_composition_circuit_keeps_query_and_key_apart():
    """Transposed factors (the paper's formula on row-convention matrices) give another matrix: here the roll shows."""
    W_Q = WEIGHTS.W_Q.clone()
    W_Q[1, 0, :D_VOCAB] = W_Q[1, 0, :D_VOCAB].roll(1, 0)
    circuit = k_composition_circuit(dataclasses.replace(WEIGHTS, W_Q=W_Q), PREVIOUS, INDUCTION).AB
    assert circuit[5, 4] > 0 and circuit[4, 5] == 0  # token 5 looks for places that come after token 4


# What breaks it.


def test_without_the_previous_token_head_induction_collapses():
    means = mean_outputs(WEIGHTS, [s.tokens for s in RANDOM], 0)
    intact = score(RANDOM, INDUCTION)
    scores = {}
    for head in (PREVIOUS, IDLE):
        found = []
        for s in RANDOM:
            here = run(WEIGHTS, s.tokens)
            found.append(attention_to_last(patterns_without(WEIGHTS, here, head, means[head[1]]), s).mean(-1)[INDUCTION])
        scores[head] = torch.stack(found).mean().item()
    assert scores[PREVIOUS] < 0.1 * intact and scores[IDLE] == pytest.approx(intact)


def test_the_mean_output_is_one_vector_over_all_positions_and_prompts():
    prompts = [s.tokens for s in RANDOM[:3]]
    found = mean_outputs(WEIGHTS, prompts, 0)
    outputs = torch.cat([head_output(WEIGHTS, run(WEIGHTS, t), *PREVIOUS) for t in prompts])
    assert relative_error(found[0], outputs.mean(0)) < 1e-12


def test_gradients_vanish_where_the_head_is_certain_and_ablation_does_not():
    two = repeated_random_tokens(D_VOCAB, N_CTX, rows=1, copies=2, shortest=10)[0]
    for sharpness, small in ((60.0, True), (0.5, False)):
        weights = hand_made(sharpness)
        here = run(weights, two.tokens)
        effect = key_effect(
            weights, here, INDUCTION, head_output(weights, here, *PREVIOUS), two.destinations, two.targets, two.following
        )
        if small:
            assert effect.attention.min() > 0.99 and effect.ablation.min() > 5
            assert effect.gradient.abs().max() < 1e-6
        else:
            ratio = effect.gradient / effect.ablation
            assert effect.attention.max() < 0.1 and 0.5 < ratio.min() and ratio.max() < 1.5


# Bad input.

S = RANDOM[0]
HERE = run(WEIGHTS, S.tokens)
A = HERE.patterns

BAD = [
    ("do not fit", lambda: repeated_random_tokens(100, 30, shortest=20)),
    ("do not fit", lambda: repeated_random_tokens(100, 64, shortest=1)),
    ("do not fit", lambda: repeated_random_tokens(100, 64, shortest=10, longest=9)),
    ("do not fit", lambda: repeated_random_tokens(100, 64, shortest=10, longest=22)),
    ("cannot be drawn", lambda: repeated_random_tokens(10, 64, shortest=10, longest=10)),
    ("are not those of", lambda: attention_to_last(A[..., :-1, :-1], S)),
    ("are not those of", lambda: attention_to_any(A[..., :-1, :-1], S)),
    ("one is needed for each but the first", lambda: copy_losses(torch.zeros(len(S.tokens)), S)),
    ("no layer 2", lambda: value_sizes(WEIGHTS, HERE.residual[0], 2)),
    ("do not belong", lambda: value_weighted(A[0], torch.ones(2, 3))),
    ("token ids", lambda: logit_effect(WEIGHTS, HERE.residual[0], torch.full_like(S.tokens, D_VOCAB))),
    ("no head 2", lambda: head_output(WEIGHTS, HERE, 0, 2)),
    ("no layer 3", lambda: induction.contents(WEIGHTS, S.tokens, A, 3)),
    ("1 to 64 tokens", lambda: induction.contents(WEIGHTS, S.tokens[:0], A, 1)),
    ("no head 5", lambda: score_by_source(WEIGHTS, S.tokens, A, 1, 5, 0, 0)),
    ("not both among", lambda: score_by_source(WEIGHTS, S.tokens, A, 1, 0, len(S.tokens), 0)),
    ("no head 2", lambda: excess_by_source(WEIGHTS, S.tokens, A, 1, 2, S.destinations, S.targets)),
    ("cannot read", lambda: k_composition_circuit(WEIGHTS, (1, 0), (1, 1))),
    ("no head 7", lambda: k_composition_circuit(WEIGHTS, (0, 7), (1, 1))),
    ("square", lambda: self_match_share(full_ov(dataclasses.replace(WEIGHTS, W_U=WEIGHTS.W_U[:, :5]), 1, 0))),
    ("no prompts", lambda: mean_outputs(WEIGHTS, [], 0)),
    ("no layer 2", lambda: mean_outputs(WEIGHTS, [S.tokens], 2)),
    ("no head 3", lambda: patterns_without(WEIGHTS, HERE, (0, 3), WEIGHTS.W_E[0])),
    ("no layer 5", lambda: patterns_without(WEIGHTS, HERE, (5, 0), WEIGHTS.W_E[0])),
    ("repeat nothing", lambda: repeated_random_tokens(100, 64, copies=1)),
    ("repeat nothing", lambda: repeated_random_tokens(100, 64, copies=0)),
    ("name each once", lambda: repeated_random_tokens(100, 64, shortest=3, choose_from=torch.tensor([1, 2, 3, 3]))),
    ("no head 3", lambda: key_effect(WEIGHTS, HERE, (1, 3), HERE.residual[0], S.destinations, S.targets, S.following)),
    ("as many targets", lambda: key_effect(WEIGHTS, HERE, (1, 0), HERE.residual[0], S.destinations, S.targets[1:], S.following)),
    ("same tokens", lambda: figures.weighted_maps({"plain": A[0, 0]}, torch.zeros(3, 3, dtype=torch.bool))),
    ("one for each", lambda: figures.moved_grid(A[0], ["0.0"], torch.zeros(A.shape[-2:], dtype=torch.bool))),
    ("same tokens", lambda: figures.moved_grid(A[0], ["0.0", "0.1"], torch.zeros(3, 3, dtype=torch.bool))),
    ("but the scores are induction", lambda: figures.head_scores({"induction": A[:, :, 0, 0]}, {"previous": 0.4})),
    ("for each row and column", lambda: figures.source_map(A[0, 0], ["a"], ["b"], "score")),
]


@pytest.mark.parametrize("message, call", BAD, ids=range(len(BAD)))
def test_bad_input_is_declined_in_a_sentence(message, call):
    with pytest.raises(ValueError, match=message):
        call()


def test_runs_without_unembedding_attend_alike():
    blind = run(without_unembedding(WEIGHTS), S.tokens)
    assert torch.equal(blind.patterns, A) and blind.logits.shape == (len(S.tokens), 0)


# Figures draw what they are given.


def test_figures_are_drawn():
    n = 6
    square = torch.rand(n, n)
    drawn = [
        figures.moved_grid(torch.rand(4, n, n), [f"1.{h}" for h in range(4)], square > 0.5),
        figures.weighted_maps({"plain": square, "weighted": square}, square > 0.5),
        figures.copy_curves({"one layer": torch.rand(3, 8) + 5, "two layers": torch.rand(3, 8)}, bag=3.0, uniform=9.0),
        figures.head_scores({"previous": torch.rand(2, n), "induction": torch.rand(2, n)}, {"previous": 0.4}),
        figures.source_map(square, ["<td", "$\\", "$x$", "$$"] + ["a"] * 2, ["b"] * n, "score"),
        figures.part_map(torch.randn(4, 4), induction.KEY_PARTS),
        figures.corner(torch.ones(n), torch.ones(n), [f"1.{h}" for h in range(n)], torch.rand(n)),
        figures.ablation_bars([f"0.{h}" for h in range(n)], torch.rand(n), 0.9, special=2),
        figures.attribution(torch.rand(100), {"ablation": torch.rand(100), "gradient": torch.rand(100)}, 0.9),
        figures.where_it_looks({"copy 2": ([20, 60], [0.5, 0.4])}, {"copy 2": ([0, 4000], [0.5, 0.4])}),
    ]
    for figure in drawn:
        figure.canvas.draw()
