"""What an induction head computes: the sums are exact, and own code agrees with the record, and a part is measured again."""

import json

import numpy as np
import pytest
import torch

from book_tools import clamped, competition
from book_tools import matches as command
from transformer_circuits.circuits import heads, matches
from transformer_circuits.measures import repeats
from transformer_circuits.models import load_model
from transformer_circuits.models.architecture import ModelConfig, Transformer
from transformer_circuits.models.bridge import matrices, wrap
from transformer_circuits.paths import DATA

NAME = "attn-only-2l"


@pytest.fixture(scope="module")
def record():
    return json.loads(command.RECORD.read_text())


def small(n_layers=2, n_ctx=24):
    torch.manual_seed(0)
    return wrap(Transformer(ModelConfig(n_layers, 32, 3, 8, 50, n_ctx)).double().eval().requires_grad_(False))


@pytest.mark.parametrize("split", [matches.by_content, matches.by_path])
def test_all_parts_of_queries_and_keys_add_up_to_the_models_scores(split):
    model, tokens = small(), torch.randint(50, (5, 24), generator=torch.Generator().manual_seed(0))
    name = "blocks.1.attn.hook_pattern"
    pattern = model.run_with_cache(tokens, names_filter=[name])[1][name][:, 1]
    parts = split(model, tokens, head=1)
    everything = torch.ones(len(parts.queries), len(parts.queries))
    mine = matches.attend(torch.stack([matches.scores(parts, everything, row) for row in range(5)]))
    torch.testing.assert_close(mine, pattern, rtol=0, atol=1e-10)
    late = torch.stack([matches.attend(matches.scores(parts, everything, row, slice(9, 14)), 9) for row in range(5)])
    torch.testing.assert_close(late, pattern[:, 9:14], rtol=0, atol=1e-10)


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


def test_lengths_count_matching_tokens_up_to_the_one_before_a_source():
    rows = torch.tensor([[0, 5, 6, 7, 9, 5, 6, 7]])
    lengths = matches.match_lengths(rows)[0]
    assert lengths[7].tolist() == [matches.START, 0, 0, 0, 3, 0, 0, 0]  # 5 6 7 occurred before 9
    assert lengths[6].tolist() == [matches.START, 0, 0, 2, 0, 0, 0, 0]
    assert lengths[3].tolist() == [matches.START, 0, 0, 0, 0, 0, 0, 0]
    A = command.pattern_of(lengths[None], torch.tensor([0.0, 0.0, 50.0, 0.0]))
    assert A[0, 7, 4] > 0.99 and A[0, 3].tolist() == [0.25] * 4 + [0.0] * 4


def test_a_greedy_search_takes_what_helps_most_first():
    base, terms = torch.zeros(1, 3), torch.tensor([[[0.0, 1, 0]], [[0.0, 3, 0]], [[2.0, 0, 0]]])
    assert command.grow(base, terms, lambda scores: float(scores.softmax(-1)[0, 1]), 2) == [1, 0]


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
    before, after = (
        competition.losses(model, places, t(places.tokens, places.positions)).mean() for t in (bad, fitted)
    )
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


def test_a_part_of_the_record_is_measured_again(record):
    model, first = load_model(NAME), record[NAME]["first"]
    draw = heads.measured_draws(model)[0]
    parts = matches.by_content(model, draw.tokens, first["head"])
    n = len(parts.queries)
    intact = matches.induction_with(parts, torch.ones(n, n), [draw])
    kept = matches.induction_with(parts, matches.keep(matches.TWO_MATCHES, n), [draw]) / intact
    assert float(kept) == pytest.approx(first["content"]["kept"][0], abs=0.03)
    match, _ = matches.path_circuits(model, first["head"])
    predicted = match.cpu() * matches.overlaps(model, draw.tokens)
    assert command.correlate(predicted.flatten(), torch.tensor(first["paths"]["predicted"])) > 0.999


# ---- the same with own code: a plain forward pass, and nothing of the library but the weights ------------------------


def own_softmax(scores):
    return scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf).softmax(-1)


def own_two_matches(W, head, t):
    """Return a head's attention on one row: intact, and by the two matches and the constants alone."""
    E, P = W["W_E"], W["W_pos"][: len(t)]
    mean = E[t].mean(0)
    own = E[t] - mean
    moved = []  # what each first-layer head moves from o tokens back
    x = E[t] + P
    first = [own_softmax(x @ W["W_Q"][0, h] @ (x @ W["W_K"][0, h]).T / 8) for h in range(12)]
    for back in range(3):
        part = torch.zeros_like(own)
        for h, A in enumerate(first):
            here = torch.zeros_like(A)
            here.diagonal(-back).copy_(A.diagonal(-back))
            part += here @ own @ W["W_V"][0, h] @ W["W_O"][0, h]
        moved.append(part)
    moved[0] = moved[0] + own
    stream = E[t] + sum(A @ E[t] @ W["W_V"][0, h] @ W["W_O"][0, h] for h, A in enumerate(first))
    constant = P + mean + sum(mean @ W["W_V"][0, h] @ W["W_O"][0, h] for h in range(12))
    content = stream + P - constant
    Q, K = W["W_Q"][1, head], W["W_K"][1, head]
    pairs = [(constant, constant), (constant, content), (content, constant), (moved[0], moved[1]), (moved[1], moved[2])]
    kept = sum((a @ Q) @ (b @ K).T for a, b in pairs) / 8
    return stream, own_softmax((stream + P) @ Q @ ((stream + P) @ K).T / 8), own_softmax(kept)


def own_logits(W, head, stream, P, A):
    """Return the logits of a row if this head attends by A (None: it writes its mean over the row)."""
    out = stream.clone()
    for h in range(12):
        pattern = own_softmax((stream + P) @ W["W_Q"][1, h] @ ((stream + P) @ W["W_K"][1, h]).T / 8)
        z = (pattern if h != head or A is None else A) @ stream @ W["W_V"][1, h]
        out += (z.mean(0, keepdim=True) if h == head and A is None else z) @ W["W_O"][1, h]
    return out @ W["W_U"]


def own_numbers(t, numbers):
    """Return the softmax of one number each for one, two, three matching tokens and the start token."""
    scores = torch.zeros(len(t), len(t))
    for i in range(len(t)):
        scores[i, 0] = numbers[3]
        for j in range(2, i + 1):
            run = 0
            while run < 3 and j - 1 - run > 0 and t[i - run] == t[j - 1 - run]:
                run += 1
            scores[i, j] = numbers[run - 1] if run else 0.0
    return own_softmax(scores)


def test_own_code_agrees_with_the_record_about_two_matches_and_four_numbers(record):
    first, W = record[NAME]["first"], matrices(load_model(NAME))
    generator, head = torch.Generator().manual_seed(7), first["head"]
    shares = []
    for _ in range(6):  # 150 random tokens, twice
        segment = torch.randperm(4095, generator=generator)[:150] + 1
        t = torch.cat([torch.zeros(1).long(), segment, segment])
        _, *patterns = own_two_matches(W, head, t)
        intact, kept = (A[151:].diagonal(2).mean() for A in patterns)
        shares.append(float(kept / intact))
    assert np.mean(shares) == pytest.approx(first["content"]["kept"][0], abs=0.05)

    numbers = [first["numbers"][name] for name in ("one_token", "two_tokens", "three_tokens", "start_token")]
    text = np.load(DATA / "held_out.npz")["tokens"].astype(np.int64)
    saved, worth = [], []
    for n in range(12):
        t = torch.tensor([0, *text[n * 70_000 + 300 : n * 70_000 + 555]])
        stream, intact, _ = own_two_matches(W, head, t)
        P = W["W_pos"][: len(t)]
        nats = []
        for A in (None, intact, own_numbers(t.tolist(), numbers)):
            logits = own_logits(W, head, stream, P, A)
            nats.append(float(torch.nn.functional.cross_entropy(logits[:-1], t[1:])))
        worth.append(nats[0] - nats[1])
        saved.append(nats[0] - nats[2])
    error = np.std(np.array(saved) - 0.8 * np.array(worth)) * 12**0.5 / sum(worth)
    kept, kept_error = first["numbers"]["kept"]
    assert sum(saved) / sum(worth) == pytest.approx(kept, abs=3 * (error**2 + kept_error**2) ** 0.5)
