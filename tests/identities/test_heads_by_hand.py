"""X1 to X3: heads written by hand do just what is written: copies add up, positions turn, and both circuits do induction."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_models import EXACT, differs, identity, random, same

from transformer_circuits.circuits import by_hand, factored
from transformer_circuits.circuits.by_hand import Head, Stream
from transformer_circuits.circuits.heads import induction_scores, losses, patterns, relative_error
from transformer_circuits.measures.repeats import repeated_random_tokens
from transformer_circuits.models.architecture import sinusoids

VOCAB, CONTEXT = 80, 48
BUILD = [by_hand.pointer_arithmetic, by_hand.k_composition]
STREAM = Stream.of(by_hand.content_vectors(random(VOCAB, 20), 16), CONTEXT, pairs=6)
REPEATED = repeated_random_tokens(VOCAB, CONTEXT, rows=6, shortest=8)

LAYERS = [([0, 1, 2, 3], [8, 9, 10, 11]), ([4, 5, 6, 8], [12, 13, 14, 15])]  # dimensions read and written
N = 9


def run(vectors: torch.Tensor) -> torch.Tensor:
    """What two previous-token heads that copy dimensions make of a row of vectors."""
    unit, none = torch.eye(16, dtype=torch.float64), torch.zeros(16, 1, dtype=torch.float64)
    heads = [[Head(none, none, unit[:, reads], unit[writes])] for reads, writes in LAYERS]
    model = by_hand.assemble(vectors, torch.zeros_like(vectors), vectors.T, heads)
    A = torch.diag(torch.ones(N - 1, dtype=torch.float64), -1)
    with model.hooks(
        fwd_hooks=[(f"blocks.{layer}.attn.hook_pattern", lambda p, hook: A.expand_as(p)) for layer in (0, 1)]
    ):
        return model.run_with_cache(torch.arange(N)[None])[1]["resid_post", 1][0]


def back(x: torch.Tensor, steps: int) -> torch.Tensor:
    return torch.cat([torch.zeros_like(x[:steps]), x[: len(x) - steps]])


def test_x1_each_dimension_is_one_copy():
    x = random(N, 16, seed=3).masked_fill(torch.arange(16) >= 8, 0.0)
    y = run(x)
    assert torch.equal(y[:, :8], x[:, :8])
    same(y[:, 8:15], back(x, 1)[:, :7])  # seven from one back
    same(y[:, 15], back(x, 2)[:, 0])  # one from two back


def test_x1_multiplies_out_in_one_order_only_and_moves_what_fills_its_workspace():
    x, unit = random(N, 16, seed=4), torch.eye(16, dtype=torch.float64)
    one, two = (unit[:, reads] @ unit[writes] for reads, writes in LAYERS)
    expanded = x + back(x, 1) @ (one + two) + back(x, 2) @ one @ two
    same(run(x), expanded)
    differs(run(x), x + back(x, 1) @ (one + two) + back(x, 2) @ two @ one)
    differs(run(x)[:, 15], back(x, 2)[:, 0])  # dimension 8 was not empty


@identity
@given(st.integers(1, 12), st.integers(-30, 30), st.integers(0, 400))
def test_turning_by_steps_is_moving_by_steps(pairs, steps, n):
    turn = by_hand.rates(pairs)
    here, there = (torch.cat([(at * turn).sin(), (at * turn).cos()]) for at in (n, n + steps))
    assert (here @ by_hand.rotation(turn, steps) - there).abs().max() < EXACT


def test_content_is_the_leading_principal_components_at_length_one():
    W_E = random(50, 12) * torch.linspace(3, 0.1, 12, dtype=torch.float64)
    C = by_hand.content_vectors(W_E, 4)
    U, S, _ = torch.linalg.svd(W_E - W_E.mean(0), full_matrices=False)
    expected = torch.nn.functional.normalize(U[:, :4] * S[:4])
    same(C @ C.T, expected @ expected.T)  # up to signs and order of components


@pytest.mark.parametrize("block", [1, 1000, 10_000_000])
def test_the_gap_of_content_is_the_worst_over_all_pairs(monkeypatch, block):
    monkeypatch.setattr(factored, "BLOCK", block)
    expected = 1 - (STREAM.tokens @ STREAM.tokens.T).fill_diagonal_(-9).max()
    assert by_hand.content_gap(STREAM.tokens) == pytest.approx(float(expected))


def test_positions_are_the_fastest_pairs_of_the_models_sinusoids_and_match_by_distance_alone():
    turn = by_hand.rates(6)
    P = by_hand.position_vectors(turn, 30)
    same(P.float(), sinusoids(30, 64)[:, [*range(6), *range(32, 38)]], 1e-6)
    match, product = by_hand.position_match(turn, 30), P @ P.T
    for distance in (0, 1, 17, 29):
        assert torch.allclose(product.diagonal(-distance), match[distance])


def test_sharpness_leaks_exactly_that_much_in_the_worst_case():
    scores = torch.tensor([0.3] + [0.0] * 511, dtype=torch.float64)
    assert (by_hand.sharpness(0.3, 512, leak=0.01) * scores).softmax(dim=0)[0].item() == pytest.approx(0.99)
    with pytest.raises(ValueError, match="no sharpness tells them apart"):  # two tokens alike
        Stream.of(torch.cat([STREAM.tokens, STREAM.tokens[:1]]), CONTEXT)


def test_a_head_scores_and_moves_just_what_is_written():
    x = random(5, 6)
    narrow = Head(random(6, 2, seed=1), random(6, 2, seed=2), random(6, 3, seed=3), random(3, 6, seed=4))
    wide = Head(random(6, 4, seed=5), random(6, 4, seed=6), random(6, 1, seed=7), random(1, 6, seed=8))
    model = by_hand.assemble(x, torch.zeros_like(x), random(6, 5, seed=9), [[narrow, wide]])
    _, cache = model.run_with_cache(torch.arange(5)[None])
    for h, head in enumerate((narrow, wide)):
        same(cache["attn_scores", 0][0, h].tril(), ((x @ head.W_Q) @ (x @ head.W_K).T).tril())
        same(model.OV[0, h].AB, head.W_V @ head.W_O)


@pytest.mark.parametrize("build", BUILD)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_both_circuits_do_induction_and_predict_what_repeats(build, dtype):
    model = build(Stream.of(by_hand.content_vectors(random(VOCAB, 20).to(dtype), 16), CONTEXT, pairs=6))
    scores = induction_scores(model, REPEATED)
    assert scores[1, 0] > 0.99 and scores[0, 0] < 0.01
    first, second = REPEATED.by_copy(losses(model, REPEATED.tokens))
    assert second < 0.01 < math.log(VOCAB) < first


@pytest.mark.parametrize("build", BUILD)
def test_in_the_sharp_limit_all_attention_is_on_the_target(build):
    sharp = {name: 20 * getattr(STREAM, name) for name in ("beta_content", "beta_position", "beta_copy")}
    found = patterns(build(dataclasses.replace(STREAM, **sharp)), REPEATED.tokens)[1]
    on_target = found[REPEATED.rows, 0, REPEATED.destinations, REPEATED.targets]
    assert (1 - on_target).abs().max() < EXACT


def test_the_fetching_heads_leak_no_more_than_they_may():
    fetch = patterns(by_hand.k_composition(STREAM), REPEATED.tokens)[0]
    assert fetch.diagonal(-1, dim1=-2, dim2=-1).min() >= 0.999
    find = patterns(by_hand.pointer_arithmetic(STREAM), REPEATED.tokens)[0]
    assert find[REPEATED.rows, 0, REPEATED.destinations, REPEATED.targets - 1].min() >= 0.999


def test_without_positions_in_values_the_pointer_is_gone_and_attention_is_even():
    caches = {}
    for in_stream in (True, False):
        model = by_hand.pointer_arithmetic(STREAM, standard_positions=in_stream)
        _, caches[in_stream] = model.run_with_cache(REPEATED.tokens)
    found = (caches[True]["resid_pre", 1] @ STREAM.free)[REPEATED.rows, REPEATED.destinations][:, :12]
    meant = by_hand.position_vectors(STREAM.rates, CONTEXT)[REPEATED.targets - 1]
    assert relative_error(found, meant) < 0.01
    same(caches[False]["pattern", 0], caches[True]["pattern", 0])  # it looks at the same place ...
    assert not (caches[False]["resid_pre", 1] @ STREAM.free).any()  # ... and fetches nothing
    even = torch.ones(CONTEXT, CONTEXT, dtype=torch.float64).tril() / torch.arange(1, CONTEXT + 1)[:, None]
    same(caches[False]["pattern", 1][0, 0], even)


def test_k_composition_does_not_care_where_positions_enter():
    same(*(by_hand.k_composition(STREAM, in_stream)(REPEATED.tokens) for in_stream in (False, True)))


def test_each_circuit_composes_in_its_own_way_alone():
    for build, way in zip(BUILD, "QK"):
        model = build(STREAM)
        for side in "QKV":
            found = float(model.all_composition_scores(side)[0, 0, 1, 0])
            assert (found > 0.1) if side == way else (found < 1e-6)
