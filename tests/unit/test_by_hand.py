"""Heads written by hand: content that matches itself, positions that turn, enough sharpness, and two induction circuits."""

import dataclasses
import math

import pytest
import torch

from transformer_circuits.circuits import by_hand, factored
from transformer_circuits.circuits.by_hand import Head, Stream
from transformer_circuits.circuits.heads import induction_scores, losses, patterns, relative_error
from transformer_circuits.measures.repeats import repeated_random_tokens
from transformer_circuits.models.architecture import sinusoids

VOCAB, CONTEXT = 80, 48
BUILD = [by_hand.pointer_arithmetic, by_hand.k_composition]


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture(scope="module")
def stream():
    return Stream.of(by_hand.content_vectors(random(VOCAB, 20), 16), CONTEXT, pairs=6)


@pytest.fixture(scope="module")
def repeated():
    return repeated_random_tokens(VOCAB, CONTEXT, rows=6, shortest=8)


# ---- content, positions, sharpness ---------------------------------------------------------------------------------------


def test_content_is_the_leading_principal_components_at_length_one():
    W_E = random(50, 12) * torch.linspace(3, 0.1, 12, dtype=torch.float64)
    C = by_hand.content_vectors(W_E, 4)
    U, S, _ = torch.linalg.svd(W_E - W_E.mean(0), full_matrices=False)
    expected = U[:, :4] * S[:4] / (U[:, :4] * S[:4]).norm(dim=1, keepdim=True)
    assert relative_error(C @ C.T, expected @ expected.T) < 1e-10  # up to signs and order of components
    with pytest.raises(ValueError, match="1 to 12 components"):
        by_hand.content_vectors(W_E, 13)


@pytest.mark.parametrize("block", [1, 1000, 10_000_000])
def test_the_gap_of_content_is_the_worst_over_all_pairs(stream, monkeypatch, block):
    monkeypatch.setattr(factored, "BLOCK", block)
    expected = 1 - (stream.tokens @ stream.tokens.T).fill_diagonal_(-9).max()
    assert by_hand.content_gap(stream.tokens) == pytest.approx(float(expected))


def test_positions_are_the_fastest_pairs_of_the_models_sinusoids_and_match_by_distance_alone():
    turn = by_hand.rates(6)
    P = by_hand.position_vectors(turn, 30)
    assert relative_error(P.float(), sinusoids(30, 64)[:, [*range(6), *range(32, 38)]]) < 1e-6
    match, product = by_hand.position_match(turn, 30), P @ P.T
    for distance in (0, 1, 17, 29):
        assert torch.allclose(product.diagonal(-distance), match[distance])


def test_few_pairs_meet_again_far_away_and_eight_leave_only_the_neighbor():
    two, eight = (by_hand.position_match(by_hand.rates(pairs), 512)[1:] for pairs in (2, 8))
    assert two.argmax() > 100 and 2 - two.max() < 0.01
    assert eight.argmax() == 0


def test_sharpness_leaks_exactly_that_much_in_the_worst_case():
    scores = torch.tensor([0.3] + [0.0] * 511, dtype=torch.float64)
    assert (by_hand.sharpness(0.3, 512, leak=0.01) * scores).softmax(dim=0)[0].item() == pytest.approx(0.99)
    with pytest.raises(ValueError, match="no sharpness tells them apart"):
        by_hand.sharpness(0.0, 10)


def test_two_tokens_alike_are_declined(stream):
    with pytest.raises(ValueError, match="no sharpness tells them apart"):
        Stream.of(torch.cat([stream.tokens, stream.tokens[:1]]), CONTEXT)


# ---- models of heads ---------------------------------------------------------------------------------------------------


def test_a_head_scores_and_moves_just_what_is_written():
    x = random(5, 6)
    narrow = Head(random(6, 2, seed=1), random(6, 2, seed=2), random(6, 3, seed=3), random(3, 6, seed=4))
    wide = Head(random(6, 4, seed=5), random(6, 4, seed=6), random(6, 1, seed=7), random(1, 6, seed=8))
    model = by_hand.assemble(
        x, torch.zeros(5, 6, dtype=torch.float64), random(6, 5, seed=9), [[narrow, wide]]
    )
    _, cache = model.run_with_cache(torch.arange(5)[None])
    for h, head in enumerate((narrow, wide)):
        scores = (x @ head.W_Q) @ (x @ head.W_K).T
        assert relative_error(cache["attn_scores", 0][0, h].tril(), scores.tril()) < 1e-12
        assert relative_error(model.OV[0, h].AB, head.W_V @ head.W_O) < 1e-12
    for layers in ([], [[]], [[narrow], [narrow, wide]]):
        with pytest.raises(ValueError, match="the same number of heads"):
            by_hand.assemble(x, x, x.T, layers)


def test_blocks_do_not_overlap(stream):
    together = torch.cat([stream.content, stream.position, stream.free, stream.out], dim=1)
    assert torch.equal(together, torch.eye(len(together), dtype=torch.float64))


# ---- the two circuits ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", BUILD)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_both_circuits_do_induction_and_predict_what_repeats(build, dtype, repeated):
    model = build(Stream.of(by_hand.content_vectors(random(VOCAB, 20).to(dtype), 16), CONTEXT, pairs=6))
    scores = induction_scores(model, repeated)
    assert scores[1, 0] > 0.99 and scores[0, 0] < 0.01
    first, second = repeated.by_copy(losses(model, repeated.tokens))
    assert second < 0.01 < math.log(VOCAB) < first


@pytest.mark.parametrize("build", BUILD)
def test_blunt_or_turned_the_wrong_way_they_fail(build, stream, repeated):
    betas = [field.name for field in dataclasses.fields(stream) if "beta" in field.name]
    blunt = build(dataclasses.replace(stream, **{name: getattr(stream, name) / 50 for name in betas}))
    # Clocks that run backwards do as well ...
    wrong = build(dataclasses.replace(stream, rates=-stream.rates))
    assert induction_scores(wrong, repeated)[1, 0] > 0.99
    wrong.W_pos.copy_(build(stream).W_pos)  # ... unless only the heads believe it
    for broken in (blunt, wrong):
        assert induction_scores(broken, repeated)[1, 0] < 0.3


def test_without_positions_in_values_the_pointer_is_gone_and_attention_is_even(stream, repeated):
    caches = {}
    for in_stream in (True, False):
        model = by_hand.pointer_arithmetic(stream, standard_positions=in_stream)
        _, caches[in_stream] = model.run_with_cache(repeated.tokens)
    at = repeated.rows, repeated.destinations
    found = (caches[True]["resid_pre", 1] @ stream.free)[at][:, :12]
    meant = by_hand.position_vectors(stream.rates, CONTEXT)[repeated.targets - 1]
    assert relative_error(found, meant) < 0.01
    # It looks at the same place ...
    assert relative_error(caches[False]["pattern", 0], caches[True]["pattern", 0]) < 1e-10
    assert not (caches[False]["resid_pre", 1] @ stream.free).any()  # ... and fetches nothing
    even = torch.ones(CONTEXT, CONTEXT, dtype=torch.float64).tril() / torch.arange(1, CONTEXT + 1)[:, None]
    assert relative_error(caches[False]["pattern", 1][0, 0], even) < 1e-12


def test_k_composition_does_not_care_where_positions_enter(stream, repeated):
    logits = [by_hand.k_composition(stream, in_stream)(repeated.tokens) for in_stream in (False, True)]
    assert relative_error(*logits) < 1e-12


def test_each_circuit_composes_in_its_own_way_alone(stream):
    for build, way in zip(BUILD, "QK"):
        model = build(stream)
        for side in "QKV":
            found = float(model.all_composition_scores(side)[0, 0, 1, 0])
            assert (found > 0.1) if side == way else (found < 1e-6)


def test_the_fetching_heads_leak_no_more_than_they_may(stream, repeated):
    fetch = patterns(by_hand.k_composition(stream), repeated.tokens)[0]
    assert fetch.diagonal(-1, dim1=-2, dim2=-1).min() >= 0.999
    find = patterns(by_hand.pointer_arithmetic(stream), repeated.tokens)[0]
    assert find[repeated.rows, 0, repeated.destinations, repeated.targets - 1].min() >= 0.999
