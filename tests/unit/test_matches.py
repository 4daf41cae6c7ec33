"""What an induction head computes: the sums are exact, and a part of the record is measured again."""

import numpy as np
import pytest
import torch
from random_models import build

from book_tools import clamped, competition
from book_tools import matches as command
from book_tools.worth import Worth
from transformer_circuits import data
from transformer_circuits.circuits import heads, matches
from transformer_circuits.measures import repeats
from transformer_circuits.models import load_model


def small(n_layers=2):
    return build(n_layers, d_model=32, n_heads=3, d_head=8, d_vocab=50, length=24).model


@pytest.mark.parametrize("split", [matches.by_content, matches.by_path])
def test_all_parts_of_queries_and_keys_add_up_to_the_models_scores(split):
    model, tokens = small(), torch.randint(50, (5, 24), generator=torch.Generator().manual_seed(0))
    pattern = model.run_with_cache(tokens)[1]["pattern", 1][:, 1]
    parts = split(model, tokens, head=1)
    everything = torch.ones(len(parts.queries), len(parts.queries))
    for first, end in ((0, 24), (9, 14)):
        scores = [matches.scores_with(parts, everything, row, slice(first, end)) for row in range(5)]
        mine = matches.causal_softmax(torch.stack(scores), first)
        torch.testing.assert_close(mine, pattern[:, first:end], rtol=0, atol=1e-10)


def test_leaving_a_pair_out_is_the_same_as_keeping_all_others():
    model = small()
    draw = repeats.repeated_random_tokens(50, 24, rows=2, shortest=4)
    parts = matches.by_path(model, draw.tokens, head=0)
    n = len(parts.queries)
    mask = torch.ones(n, n)
    mask[2, 3] = 0
    without = command.induction_without_each(parts, [draw])
    torch.testing.assert_close(without[2, 3], matches.induction_with(parts, mask, [draw]))
    assert without.shape == (n - 1, n - 1, 1)


def test_a_table_recovers_denominators_without_competition_and_a_fit_lowers_the_loss():
    model = small(n_layers=1)
    tokens = torch.randint(50, (400, 25), generator=torch.Generator().manual_seed(0))
    places = competition.at_places(model, tokens, every=1)
    tokens_alone, at = torch.randn(50, 3).double(), torch.randn(24, 3).double()
    true = tokens_alone[places.tokens] + at[places.positions]
    table = competition.least_squares(places._replace(log_D=true.float()), 50, 24)
    assert (table(places.tokens, places.positions) - true).abs().max() < 0.3
    plain = competition.losses(model, places, places.log_D).mean()
    logits = model(tokens[:, :-1])[:, 1:]
    direct = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 2:].flatten())
    torch.testing.assert_close(plain, direct, rtol=0, atol=1e-6)
    bad = competition.Table(table.of_token, table.of_position + 2.0, table.slope)  # too little of every head
    fitted = competition.fit_to_loss(model, places, bad)
    log_Ds = (table(places.tokens, places.positions) for table in (bad, fitted))
    before, after = (competition.losses(model, places, log_D).mean() for log_D in log_Ds)
    assert after < before


def test_a_clamped_head_attends_by_the_given_pattern_alone():
    rows = torch.tensor([[4, 5, 6, 4, 5]])
    assert clamped.previous_token(rows)[0].argmax(-1).tolist() == [0, 0, 1, 2, 3]
    assert clamped.match(rows)[0].argmax(-1).tolist() == [0, 0, 0, 1, 2]
    model = clamped.experiments(0)["match"]
    before = model(rows)
    model.layers[1].attn.q.weight.data[:16] += 1.0  # head 0: its queries no longer matter
    torch.testing.assert_close(model(rows), before)
    model.layers[1].attn.q.weight.data[16:32] += 1.0
    assert not torch.allclose(model(rows), before)
    assert clamped.half_right(np.array([[0, 0.0]] * 30 + [[0, 1.0]] * 30)) == 41
    assert clamped.half_right(np.zeros((50, 2))) == clamped.STEPS


def test_a_part_of_the_record_is_measured_again():
    model, first = load_model("attn-only-2l"), matches.recorded()["attn-only-2l"]["first"]
    draw = heads.measured_draws(model)[0]
    parts = matches.by_content(model, draw.tokens, first["head"])
    n = len(parts.queries)
    intact = matches.induction_with(parts, torch.ones(n, n), [draw])
    kept = matches.induction_with(parts, matches.mask_of(matches.TWO_MATCHES, n), [draw]) / intact
    assert float(kept) == pytest.approx(first["content"]["kept"][0], abs=0.03)
    match, _ = matches.path_circuits(model, first["head"])
    predicted = match.cpu() * matches.overlaps(model, draw.tokens)
    assert command.correlate(predicted.flatten(), torch.tensor(first["paths"]["predicted"])) > 0.999
    windows = data.held_out_windows(command.TEST_WINDOWS + command.FIT_WINDOWS, 512)[: command.TEST_WINDOWS]
    worth = Worth.of(model, windows, first["head"])
    numbers = [first["numbers"][name] for name in ("one_token", "two_tokens", "three_tokens", "start_token")]
    again, _ = worth.kept(command.pattern_of(matches.match_lengths(worth.tokens), torch.tensor(numbers)))
    assert again == pytest.approx(first["numbers"]["kept"][0], abs=0.002)
