"""circuits.heads, models.bridge's matrices, and training.scores: by patterns made by hand and against the plain module."""

import math

import pytest
import torch
import torch.nn.functional as F
from random_models import BROKEN, EXACT, PLAIN_CASES, build, random

from transformer_circuits.circuits import heads
from transformer_circuits.circuits.heads import relative_error
from transformer_circuits.models.architecture import BOS
from transformer_circuits.models.bridge import from_matrices, matrices
from transformer_circuits.training import scores
from transformer_circuits.training.scores import repeated_random_tokens

REPEATED = repeated_random_tokens(d_vocab=90, n_ctx=60, rows=20, shortest=6)


def looking(rows, destinations, sources, n=60):
    """A head that looks from each destination at one source, elsewhere at the start token: [row, 1, destination, source]."""
    pattern = torch.zeros(20, 1, n, n)
    pattern[..., 0] = 1
    pattern[rows, :, destinations] = 0
    pattern[rows, 0, destinations, sources] = 1
    return pattern


# ---- repeated random tokens ----------------------------------------------------------------------------------------------


def test_rows_are_the_start_token_noise_copies_noise():
    for row, start, length in zip(REPEATED.tokens, REPEATED.start.tolist(), REPEATED.length.tolist()):
        assert row[0] == BOS and not (row[1:] == BOS).any()
        copies = row[start : start + 3 * length].view(3, length)
        assert (copies == copies[0]).all() and len(set(row[:start].tolist()) | set(copies[0].tolist())) == start + length
    assert len(set(REPEATED.length.tolist())) > 5 and len(set(REPEATED.start.tolist())) > 5


def test_destinations_and_targets():
    assert len(REPEATED.targets) == 2 * REPEATED.length.sum()
    for row, destination, target in zip(REPEATED.rows.tolist(), REPEATED.destinations.tolist(), REPEATED.targets.tolist()):
        tokens = REPEATED.tokens[row]
        seen = [i for i in range(destination) if tokens[i] == tokens[destination]]
        assert target == seen[-1] + 1 <= destination


def test_draws_depend_on_the_seed_alone_and_follow_a_frequency():
    again, other = (repeated_random_tokens(90, 60, rows=20, shortest=6, seed=seed) for seed in (0, 1))
    assert torch.equal(again.tokens, REPEATED.tokens) and not torch.equal(other.tokens, REPEATED.tokens)
    even = torch.zeros(90)
    even[::2] = 1
    drawn = repeated_random_tokens(90, 60, shortest=6, frequency=even).tokens
    assert (drawn % 2 == 0).all() and (drawn[:, 1:] != BOS).all()


def test_by_copy_leaves_out_each_copys_first_token():
    losses = torch.zeros(20, 59)
    for row, (start, length) in enumerate(zip(REPEATED.start.tolist(), REPEATED.length.tolist())):
        for copy in range(3):
            first = start + copy * length
            losses[row, first - 1] = 100  # at predicting the first token of a copy, which nothing can
            losses[row, first : first + length - 1] = copy + 1
    assert REPEATED.by_copy(losses).tolist() == [1, 2, 3]


# ---- scores of patterns --------------------------------------------------------------------------------------------------


def test_induction_score_of_heads_made_by_hand():
    rows, destinations, targets = REPEATED.rows, REPEATED.destinations, REPEATED.targets
    assert scores.induction_score(looking(rows, destinations, targets), REPEATED) == 1
    assert scores.induction_score(looking(rows, destinations, targets - 1), REPEATED) == 0  # the earlier copy itself, not the next
    elsewhere = looking(rows, destinations, targets)
    elsewhere[rows, 0, destinations, targets] = 0.25
    assert scores.induction_score(elsewhere, REPEATED) == 0.25
    lag = int(REPEATED.length.float().mean()) - 1  # always as far back
    assert scores.induction_score(looking(rows, destinations, (destinations - lag).clamp(min=0)), REPEATED) < 0.2


def test_previous_and_start_token_scores_of_heads_made_by_hand():
    n = 7
    before = torch.diag(torch.ones(n - 1), -1)
    before[0, 0] = 1
    rest = torch.zeros(n, n)
    rest[:, 0] = 1
    pattern = torch.stack([before, rest, torch.eye(n), torch.ones(n, n).tril() / torch.arange(1, n + 1)[:, None]])
    assert scores.previous_token_score(pattern).tolist() == pytest.approx([1, 0, 0, sum(1 / i for i in range(3, 8)) / 5])
    assert scores.start_token_score(pattern).tolist() == pytest.approx([1 / 6, 1, 0, sum(1 / i for i in range(2, 8)) / 6])


def test_in_context_score_compares_late_with_early_tokens():
    losses = torch.linspace(5, 0, 511).expand(3, -1)
    assert scores.in_context_score(losses) == pytest.approx(-450 * 5 / 510, abs=1e-4)
    assert scores.in_context_score(losses[:, ::2]) == pytest.approx(-450 * 5 / 510, abs=0.05)  # a context of half the length


# ---- on a hooked model ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def case():
    return build(n_layers=2, n_heads=3, d_vocab=90, length=60, seed=3)


def test_scores_of_a_model_are_those_of_its_patterns(case):
    tokens = REPEATED.tokens  # more rows than run together
    _, cache = case.model.run_with_cache(tokens)
    pattern = torch.stack([cache["pattern", layer] for layer in (0, 1)])
    assert relative_error(heads.patterns(case.model, tokens), pattern) < EXACT
    expected = torch.stack([scores.induction_score(layer, REPEATED) for layer in pattern])
    assert relative_error(heads.induction_scores(case.model, REPEATED), expected) < EXACT
    assert relative_error(heads.previous_token_scores(case.model, tokens), scores.previous_token_score(pattern).mean(1)) < EXACT
    assert relative_error(heads.start_token_scores(case.model, tokens), scores.start_token_score(pattern).mean(1)) < EXACT


def test_losses_are_the_plain_modules(case):
    tokens = REPEATED.tokens
    expected = F.cross_entropy(case.plain(tokens[:, :-1]).mT, tokens[:, 1:], reduction="none")
    assert relative_error(heads.losses(case.model, tokens), expected) < EXACT
    assert relative_error(scores.losses(case.plain, tokens), expected.float()) < 1e-5


def test_hooks_reach_scores_and_losses_and_are_gone_afterwards(case):
    tokens, silent = REPEATED.tokens[:3], heads.without_heads([(0, 0), (0, 1), (0, 2)])
    before = heads.losses(case.model, tokens)
    assert relative_error(heads.losses(case.model, tokens, silent), before) > BROKEN
    with_hooks, without = heads.patterns(case.model, tokens, silent), heads.patterns(case.model, tokens)
    assert torch.equal(with_hooks[0], without[0]) and relative_error(with_hooks[1], without[1]) > BROKEN
    assert torch.equal(heads.losses(case.model, tokens), before)


def test_taking_heads_out_is_a_model_without_their_output(case):
    gone, tokens = [(0, 2), (1, 0), (1, 1)], case.tokens
    W = matrices(case.model)
    W_O = W["W_O"].clone()
    for layer, head in gone:
        W_O[layer, head] = 0
    logits = case.model.run_with_hooks(tokens, fwd_hooks=heads.without_heads(gone))
    assert relative_error(logits, from_matrices(**W | {"W_O": W_O})(tokens)) < EXACT
    assert relative_error(logits, case.logits) > BROKEN


def test_heads_give_way_to_their_mean(case):
    tokens = REPEATED.tokens
    z = case.model.run_with_cache(tokens)[1]["z", 1]
    means = [heads.mean_z(case.model, tokens, layer) for layer in (0, 1)]
    assert relative_error(means[1], z.mean((0, 1))) < EXACT
    _, cache = run_with(case.model, tokens, heads.without_heads([(1, 2)], means))
    assert relative_error(cache["z", 1][:, :, 2], means[1][2].expand_as(z[:, :, 2])) < EXACT
    assert torch.equal(cache["z", 1][:, :, :2], z[:, :, :2])


def run_with(model, tokens, hooks):
    with model.hooks(fwd_hooks=hooks):
        return model.run_with_cache(tokens)


def test_frozen_patterns_stay_when_the_text_changes(case):
    _, cache = case.model.run_with_cache(REPEATED.tokens[:2])
    _, frozen = run_with(case.model, REPEATED.tokens[2:4], heads.freeze(cache))
    for layer in (0, 1):
        assert relative_error(frozen["z", layer][:, :, 0], cache["pattern", layer][:, 0] @ frozen["v", layer][:, :, 0]) < EXACT


@pytest.mark.parametrize("case_", PLAIN_CASES + [build(n_layers=0)])
def test_matrices_and_back(case_):
    again = matrices(from_matrices(**matrices(case_.model)))
    for name, W in matrices(case_.model).items():
        assert torch.equal(again[name], W), name


def test_positions_may_enter_the_stream_as_in_most_transformers():
    case = PLAIN_CASES[1]
    standard = from_matrices(**matrices(case.model), standard_positions=True)
    _, cache = standard.run_with_cache(case.tokens)
    expected = case.model.W_E[case.tokens] + case.model.W_pos[: case.tokens.shape[1]]
    assert relative_error(cache["resid_pre", 0], expected) < EXACT


def test_names_and_relative_error():
    assert heads.head_name((1, 11)) == "1.11"
    assert relative_error(torch.zeros(2), torch.zeros(2)) == 0
    assert relative_error(torch.tensor([1.0, 3.0]), torch.tensor([1.0, 4.0])) == 0.25
    assert math.isnan(float(heads.positivity(torch.zeros(3, dtype=torch.complex64))))
    assert relative_error(random(3), random(3, seed=1)) > BROKEN
