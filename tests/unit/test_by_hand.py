"""Heads written by hand: positions that turn, content that matches itself, enough sharpness, and two induction circuits."""

import dataclasses
import math

import pytest
import torch
from matplotlib.figure import Figure

from transformer_circuits.circuits import by_hand, composition, factored, induction
from transformer_circuits.circuits.by_hand import HandHead, Sharpness
from transformer_circuits.circuits.paths import run
from transformer_circuits.circuits.qk_ov import eigenvalues, full_ov, positivity
from transformer_circuits.circuits.weights import Weights, relative_error
from transformer_circuits.figures import by_hand as figures
from transformer_circuits.models.architecture import BOS, sinusoids
from transformer_circuits.training.scores import attention_patterns, induction_scores

VOCAB, CONTEXT, PAIRS, TABLE = 80, 48, 6, 16


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture(scope="module")
def content():
    return by_hand.content_vectors(random(VOCAB, 20), 16)


@pytest.fixture(scope="module")
def keys(content):
    return by_hand.k_composition(content, CONTEXT, PAIRS, TABLE)


@pytest.fixture(scope="module")
def pointers(content):
    return by_hand.pointer_arithmetic(content, CONTEXT, PAIRS, TABLE)


@pytest.fixture(scope="module")
def repeats():
    return by_hand.distinct_repeats(VOCAB, rows=6, n_ctx=CONTEXT)


# ---- positions ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, -1, 7, 0.5])
def test_a_rotation_moves_every_position_by_the_same_steps(steps):
    n, turn = torch.arange(40, dtype=torch.float64)[:, None], by_hand.rates(TABLE)
    here, there = (torch.cat([(at * turn).sin(), (at * turn).cos()], dim=1) for at in (n, n + steps))
    R = by_hand.rotation(turn, steps)
    assert relative_error(here @ R, there) < 1e-12
    assert relative_error(R @ R.T, torch.eye(2 * TABLE, dtype=torch.float64)) < 1e-12
    assert relative_error(here @ R.T, there) > 0.1  # the transposed matrix goes the other way


def test_rates_and_columns_are_those_of_the_models_sinusoids():
    P = sinusoids(30, 2 * TABLE).double()
    R = by_hand.rotation(by_hand.rates(TABLE), 1)
    assert relative_error(P[:-1] @ R, P[1:]) < 1e-5
    few = P[:, by_hand.fastest(PAIRS, TABLE)]
    assert relative_error(few[:-1] @ by_hand.rotation(by_hand.rates(TABLE)[:PAIRS], 1), few[1:]) < 1e-5
    assert few[1, 0] == pytest.approx(math.sin(1.0)) and few[1, PAIRS] == pytest.approx(math.cos(1.0))


def test_the_kernel_is_the_product_of_positions_and_their_gap_its_distance_to_the_nearest_rival():
    turn = by_hand.rates(TABLE)[:PAIRS]
    P = sinusoids(CONTEXT, 2 * TABLE).double()[:, by_hand.fastest(PAIRS, TABLE)]
    values = by_hand.kernel(turn, CONTEXT)
    product = P @ P.T
    for distance in (0, 1, 17, CONTEXT - 1):
        assert product.diagonal(-distance) == pytest.approx(values[distance].item(), abs=1e-4)
    gaps = [product[i, i] - product[i][torch.arange(CONTEXT) != i].max() for i in range(CONTEXT)]
    assert by_hand.position_gap(turn, CONTEXT) == pytest.approx(min(gaps).item(), abs=1e-4)


def test_few_pairs_meet_again_far_away():
    two, eight = by_hand.rates(32)[:2], by_hand.rates(32)[:8]
    assert by_hand.position_gap(two, 512) < 0.01 * by_hand.position_gap(two, 16)
    assert by_hand.position_gap(eight, 512) == pytest.approx(by_hand.position_gap(eight, 2))  # the neighbor is the rival


def test_positions_refuse_what_they_have_not():
    with pytest.raises(ValueError, match="no distances among 0"):
        by_hand.kernel(by_hand.rates(4), 0)
    with pytest.raises(ValueError, match="no other to tell one from"):
        by_hand.position_gap(by_hand.rates(4), 1)


# ---- content -----------------------------------------------------------------------------------------------------------------


def test_content_is_the_leading_principal_components_at_length_one():
    W_E = random(50, 12) * torch.linspace(3, 0.1, 12, dtype=torch.float64)
    C = by_hand.content_vectors(W_E, 4)
    U, S, _ = torch.linalg.svd(W_E - W_E.mean(0), full_matrices=False)
    scores = U[:, :4] * S[:4]
    expected = scores / scores.norm(dim=1, keepdim=True)
    assert relative_error(C @ C.T, expected @ expected.T) < 1e-10  # up to signs of components
    assert relative_error((C[:, 0] * expected[:, 0]).abs(), C[:, 0].square()) < 1e-10
    assert by_hand.content_vectors(W_E.half(), 4).dtype == torch.float16


def test_at_length_one_a_token_matches_itself_best_and_at_its_own_length_another_may_win():
    W_E = torch.tensor([[1.0, 0.1], [3.0, 0.4], [-4.0, -0.5]])  # the second points the same way and is longer
    raw = W_E @ W_E.T
    assert raw[0].argmax() == 1
    C = W_E / W_E.norm(dim=1, keepdim=True)
    assert ((C @ C.T).argmax(dim=1) == torch.arange(3)).all()
    assert by_hand.content_gap(W_E) < 0 < by_hand.content_gap(C)


@pytest.mark.parametrize("block", [1, 50, 10_000])
def test_the_gap_of_content_is_the_worst_over_all_pairs(content, monkeypatch, block):
    monkeypatch.setattr(factored, "BLOCK", block)
    product = content @ content.T
    expected = 1 - product.fill_diagonal_(-9).max()
    assert by_hand.content_gap(content) == pytest.approx(expected.item())


@pytest.mark.parametrize("components", [0, 21])
def test_content_refuses_components_that_are_not_there(components):
    with pytest.raises(ValueError, match="1 to 20 components"):
        by_hand.content_vectors(random(VOCAB, 20), components)


def test_content_refuses_a_token_without_any():
    W_E = torch.eye(4)[[0, 0, 1, 1]] - 0.5 * torch.eye(4)[0] - 0.5 * torch.eye(4)[1]
    with pytest.raises(ValueError, match="nothing in these components"):
        by_hand.content_vectors(torch.cat([W_E, torch.zeros(1, 4)]), 1)
    with pytest.raises(ValueError, match="a vocabulary of one"):
        by_hand.content_gap(torch.ones(1, 3))


# ---- sharpness -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gap", "n", "leak"), [(0.3, 512, 1e-3), (2.0, 2, 0.1)])
def test_sharpness_leaks_exactly_that_much_in_the_worst_case(gap, n, leak):
    scores = torch.zeros(n, dtype=torch.float64)
    scores[0] = gap
    attention = (by_hand.sharpness(gap, n, leak) * scores).softmax(dim=0)
    assert attention[0].item() == pytest.approx(1 - leak, rel=1e-9)


def test_sharpness_refuses_what_it_cannot_reach():
    with pytest.raises(ValueError, match="no sharpness tells them apart"):
        by_hand.sharpness(0.0, 10)
    with pytest.raises(ValueError, match="two sources or more"):
        by_hand.sharpness(1.0, 1)
    with pytest.raises(ValueError, match="leak between 0 and 1"):
        by_hand.sharpness(1.0, 10, leak=1.0)


def test_coinciding_tokens_or_positions_are_named(content):
    turn = by_hand.rates(TABLE)[:PAIRS]
    with pytest.raises(ValueError, match="two tokens have the same content"):
        Sharpness.for_context(torch.cat([content, content[:1]]), turn, CONTEXT)
    with pytest.raises(ValueError, match="two positions look the same"):
        Sharpness.for_context(content, torch.zeros(1, dtype=torch.float64), CONTEXT)


def test_no_first_layer_head_leaks_more_than_it_may(keys, pointers, repeats):
    """The worst case is a bound: it holds on every row and position."""
    for row, first, second, n in zip(repeats.tokens, repeats.first, repeats.second, repeats.length):
        fetch = run(keys, row).patterns[0, 0]
        assert fetch.diagonal(-1).min() >= 0.999
        find = by_hand.run_in_stream(pointers, row).patterns[0, 0]
        i = torch.arange(int(n))
        assert find[second + i, first + i].min() >= 0.999


# ---- models from matrices --------------------------------------------------------------------------------------------------


def test_a_hand_written_score_is_just_what_is_written():
    x = random(5, 6)
    narrow = HandHead(random(6, 2, seed=1), random(6, 2, seed=2), random(6, 3, seed=3), random(3, 6, seed=4))
    wide = HandHead(random(6, 4, seed=5), random(6, 4, seed=6), random(6, 1, seed=7), random(1, 6, seed=8))
    weights = by_hand.assemble(x, torch.zeros(5, 6, dtype=torch.float64), [[narrow, wide]], random(6, 5, seed=9))
    assert weights.d_head == 4
    ran = run(weights, torch.arange(5))
    for h, head in enumerate((narrow, wide)):
        assert relative_error(ran.scores[0, h], (x @ head.W_Q) @ (x @ head.W_K).T) < 1e-12
        assert relative_error(weights.W_V[0, h] @ weights.W_O[0, h], head.W_V @ head.W_O) < 1e-12


def test_assembling_refuses_what_does_not_fit():
    x, head = random(5, 6), HandHead(random(6, 2), random(6, 2), random(6, 3), random(3, 6))
    for layers in ([], [[]], [[head], [head, head]]):
        with pytest.raises(ValueError, match="the same number of heads"):
            by_hand.assemble(x, x, layers, x.T)
    with pytest.raises(ValueError, match="residual stream of 6 dimensions"):
        by_hand.assemble(x, x, [[head._replace(W_V=random(7, 3))]], x.T)
    with pytest.raises(ValueError, match="one width"):
        by_hand.assemble(x, x, [[head._replace(W_K=random(6, 1))]], x.T)
    with pytest.raises(ValueError, match="one width"):
        by_hand.assemble(x, x, [[head._replace(W_O=random(2, 6))]], x.T)


def test_the_ordinary_model_has_these_weights_and_this_forward_pass(keys, repeats):
    model = by_hand.to_model(keys)
    again = Weights.of(model)
    for field in dataclasses.fields(Weights):
        assert torch.equal(getattr(again, field.name), getattr(keys, field.name)), field.name
    assert relative_error(model(repeats.tokens[:1])[0], run(keys, repeats.tokens[0]).logits) < 1e-10
    patterns = attention_patterns(model, repeats.tokens)
    assert relative_error(induction_scores(patterns, repeats), by_hand.score(keys, repeats)) < 1e-10


def test_several_heads_become_a_model_too():
    several = composition.composing_heads(8, 4, torch.Generator().manual_seed(0))
    again = Weights.of(by_hand.to_model(several))
    assert all(torch.equal(getattr(again, f.name), getattr(several, f.name)) for f in dataclasses.fields(Weights))
    odd = dataclasses.replace(several, W_E=random(2, 7), W_pos=random(2, 7))
    with pytest.raises(ValueError, match="must be even"):
        by_hand.to_model(odd)


def test_positions_in_the_stream_reach_values_and_are_added_once():
    weights = composition.composing_heads(8, 4, torch.Generator().manual_seed(0))
    placed = dataclasses.replace(weights, W_pos=random(2, 8, seed=5))
    tokens = torch.tensor([1, 0])
    moved = dataclasses.replace(weights, W_E=weights.W_E[tokens] + placed.W_pos)  # one "token" a place
    expected = run(moved, torch.arange(2))
    found = by_hand.run_in_stream(placed, tokens)
    for part in ("residual", "scores", "patterns", "logits"):
        assert relative_error(getattr(found, part), getattr(expected, part)) < 1e-12
    assert relative_error(run(placed, tokens).logits, expected.logits) > 1e-3
    both = by_hand.run_in_stream(placed, torch.stack([tokens, tokens.flip(0)]))
    assert relative_error(both.logits[0], found.logits) < 1e-12
    with pytest.raises(ValueError, match="1 to 2 tokens"):
        by_hand.run_in_stream(placed, torch.tensor([0, 1, 0]))


def test_blocks_do_not_overlap_and_make_an_even_width():
    for components, pairs in ((16, 16), (5, 4), (9, 2), (3, 3)):
        at = by_hand.blocks(components, pairs)
        together = torch.cat(at, dim=1)
        assert torch.equal(together, torch.eye(len(together))) and len(together) % 2 == 0
        assert at.content.shape[1] == at.out.shape[1] == components and at.position.shape[1] == 2 * pairs
        assert at.free.shape[1] >= max(components, 2 * pairs)
    with pytest.raises(ValueError, match="a dimension each"):
        by_hand.blocks(0, 4)


# ---- the two circuits ----------------------------------------------------------------------------------------------------------


def test_both_circuits_do_induction(keys, pointers, repeats):
    assert by_hand.score(keys, repeats)[1, 0] > 0.99
    assert by_hand.score(pointers, repeats, in_stream=True)[1, 0] > 0.99
    assert by_hand.score(keys, repeats)[0, 0] < 0.01  # the first layer does none


def test_single_precision_is_enough(content, repeats):
    for build, in_stream in ((by_hand.k_composition, False), (by_hand.pointer_arithmetic, True)):
        weights = build(content.float(), CONTEXT, PAIRS, TABLE)
        assert weights.W_Q.dtype == torch.float32
        assert by_hand.score(weights, repeats, in_stream)[1, 0] > 0.99


def test_without_positions_in_values_the_pointer_is_gone_and_attention_is_even(pointers, repeats):
    at, row = by_hand.blocks(16, TABLE), repeats.tokens[0]
    there, gone = by_hand.run_in_stream(pointers, row), run(pointers, row)
    read = by_hand.fastest(PAIRS, TABLE)
    first, second, n = int(repeats.first[0]), int(repeats.second[0]), int(repeats.length[0])
    held = there.residual[1, second : second + n] @ at.free.double()[:, : 2 * PAIRS]
    assert relative_error(held, pointers.W_pos[first : first + n] @ at.position.double()[:, read]) < 0.01
    assert relative_error(gone.patterns[0], there.patterns[0]) < 1e-10  # it looks at the same place ...
    assert not (gone.residual[1] @ torch.cat([at.free, at.position], dim=1).double()).any()  # ... and fetches nothing
    even = torch.ones(len(row), len(row), dtype=torch.float64).tril() / torch.arange(1, len(row) + 1)[:, None]
    assert relative_error(gone.patterns[1, 0], even) < 1e-12


def test_k_composition_does_not_care_where_positions_enter(keys, repeats):
    row = repeats.tokens[0]
    assert relative_error(by_hand.run_in_stream(keys, row).logits, run(keys, row).logits) < 1e-12


def test_each_circuit_composes_in_its_own_way_alone(keys, pointers):
    Q, K, V = composition.SIDES
    for weights, way, dimensions in ((keys, K, 16), (pointers, Q, 2 * PAIRS)):
        ratios = dict(zip(composition.SIDES, composition.composition_ratios(weights)[:, 0, 0].tolist()))
        assert ratios.pop(way) == pytest.approx(math.sqrt(weights.d_model / dimensions))
        assert max(ratios.values()) == 0


def test_the_keys_circuit_sits_in_the_corner_and_the_pointer_circuit_has_no_place(keys, pointers):
    circuit = induction.k_composition_circuit(keys, (0, 0), (1, 0))
    for matrix in (circuit, full_ov(keys, 1, 0), full_ov(pointers, 1, 0)):
        assert positivity(eigenvalues(matrix)).item() == pytest.approx(1)
    assert induction.self_match_share(circuit) == 1
    assert not induction.k_composition_circuit(pointers, (0, 0), (1, 0)).AB.any()


def test_the_repeated_token_is_predicted(keys, repeats):
    for row, start, n in zip(repeats.tokens, repeats.second, repeats.length):
        logits = run(keys, row).logits
        assert (logits[start : start + n - 1].argmax(dim=-1) == row[start + 1 : start + n]).all()


def test_a_head_can_be_written_for_any_distance(content):
    at, turn = by_hand.blocks(16, TABLE), by_hand.rates(TABLE)[:PAIRS]
    match = at.position.double()[:, by_hand.fastest(PAIRS, TABLE)]
    two = by_hand.previous_token_head(match, turn, 40.0, at.content.double(), at.free.double()[:, :16].T, back=2)
    W_pos = sinusoids(CONTEXT, 2 * TABLE).double() @ at.position.double().T
    weights = by_hand.assemble(content @ at.content.double().T, W_pos, [[two]], at.out.double() @ content.T)
    A = run(weights, torch.arange(1, CONTEXT + 1)).patterns[0, 0]
    assert A.diagonal(-2).min() > 0.99


def test_a_context_too_blunt_or_too_many_pairs(content, repeats):
    turn = by_hand.rates(TABLE)[:PAIRS]
    sharp = Sharpness.for_context(content, turn, CONTEXT)
    weak = Sharpness(*(factor / 50 for factor in dataclasses.astuple(sharp)))
    weights = by_hand.k_composition(content, CONTEXT, PAIRS, TABLE, sharp=weak)
    assert by_hand.score(weights, repeats)[1, 0] < 0.2
    with pytest.raises(ValueError, match="1 to 16 pairs"):
        by_hand.k_composition(content, CONTEXT, TABLE + 1, TABLE)


# ---- the test itself -----------------------------------------------------------------------------------------------------------


def test_nothing_comes_twice_but_the_segment(repeats):
    assert repeats.ceiling() == 1
    assert (repeats.tokens[:, 0] == BOS).all()
    for row, first, second, n in zip(repeats.tokens, repeats.first, repeats.second, repeats.length):
        assert torch.equal(row[first : first + n], row[second : second + n])
        assert len(row.unique()) == len(row) - n
    assert len({*(repeats.second - repeats.first).tolist()}) > 1  # no fixed distance
    assert not torch.equal(repeats.tokens, by_hand.distinct_repeats(VOCAB, 6, CONTEXT, seed=1).tokens)
    with pytest.raises(ValueError, match="take a shorter context"):
        by_hand.distinct_repeats(CONTEXT, 2, CONTEXT)


def test_the_score_does_not_depend_on_how_many_rows_run_at_a_time(keys, repeats):
    whole = by_hand.score(keys, repeats)
    for entries in (1, 10_000):
        assert relative_error(by_hand.score(keys, repeats, entries=entries), whole) < 1e-10


# ---- figures -------------------------------------------------------------------------------------------------------------------


def test_figures_draw_and_refuse():
    A, words = torch.eye(3), ["a", " b", "$"]
    assert isinstance(figures.patterns({"x": A, "y": A, "z": A}, words, {"x": A.bool()}), Figure)
    with pytest.raises(ValueError, match="the text has 2 tokens"):
        figures.patterns({"x": A}, words[:2])
    assert isinstance(figures.copies({"one": A, "two": A, "three": A}, ["C0"] * 3, [1]), Figure)
    with pytest.raises(ValueError, match="give one for each"):
        figures.copies({"one": A}, [], [1])
    assert isinstance(figures.rivals({"two": by_hand.kernel(by_hand.rates(4), 20)}), Figure)
    lines = {"n": {"a": ([1, 2, 4], [0.1, 0.5, 0.9])}}
    assert isinstance(figures.sweeps(lines | {"m": lines["n"], "k": lines["n"]}, {"n": 2.0}), Figure)
