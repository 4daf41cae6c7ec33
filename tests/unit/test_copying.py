"""Copying on matrices made by hand, where the answer is known, and what the wrong formula would say there."""

import pandas as pd
import pytest
import torch
from transformer_lens import FactoredMatrix

from transformer_circuits.circuits import copying
from transformer_circuits.circuits.copying import (
    akin_pairs,
    boost_within,
    centered,
    combined_ov,
    ginibre,
    leading_eigenvectors,
    like_frequency,
    looks,
    mean_square_one,
    ov_eigenvalues,
    self_boost,
    token_sets,
    untrained,
)
from transformer_circuits.circuits.paths import run
from transformer_circuits.circuits.qk_ov import eigenvalues, full_ov, positivity
from transformer_circuits.circuits.weights import Weights
from transformer_circuits.figures import eigenvalues as draw
from transformer_circuits.models.architecture import ModelConfig, Transformer

N = 6  # tokens of the models made by hand


def by_hand(*circuits, scores=None):
    """A one-layer model whose heads have these OV circuits, [source, out]; `scores` are the heads' QK circuits."""
    heads = len(circuits)
    eye, zeros = torch.eye(N), torch.zeros(1, heads, N, N)
    W_Q = zeros if scores is None else torch.stack(scores)[None] * N**0.5
    return Weights(
        W_E=eye, W_pos=torch.zeros(8, N), W_U=eye, W_Q=W_Q, W_K=eye.expand(1, heads, N, N),
        W_V=eye.expand(1, heads, N, N), W_O=torch.stack(circuits)[None],
    )  # fmt: skip


def circuit_of(matrix):
    matrix = torch.as_tensor(matrix, dtype=torch.float64)
    return FactoredMatrix(matrix, torch.eye(matrix.shape[1], dtype=torch.float64))


CYCLE = torch.eye(N).roll(1, dims=1)  # each token raises the next


@pytest.mark.parametrize(
    ("matrix", "sign", "shares"),
    [
        (torch.eye(N), 1.0, (1, 1, 1)),
        (-torch.eye(N), -1.0, (0, 0, 0)),
        (CYCLE, 0.0, (0, 0, 1)),  # of the two that a token raises most (itself not at all: zero, as all others)
        (torch.ones(N, N), 1.0, (1, 1, 1)),  # a set that copies as a whole: ties count as raised most
    ],
)
def test_heads_made_by_hand(matrix, sign, shares):
    w = by_hand(matrix)
    assert positivity(ov_eigenvalues(w))[0, 0] == pytest.approx(sign, abs=1e-5)
    assert self_boost(full_ov(w, 0, 0), k=2) == shares


def test_singular_values_cannot_tell_copying_from_a_cycle():
    identity, cycle = circuit_of(torch.eye(N)), circuit_of(CYCLE)
    assert torch.allclose(torch.linalg.svdvals(identity.AB), torch.linalg.svdvals(cycle.AB))
    assert positivity(eigenvalues(identity)) == 1 and positivity(eigenvalues(cycle)).abs() < 1e-12


def test_a_pair_that_raises_the_other_cancels_and_a_pair_that_raises_both_counts():
    assert positivity(eigenvalues(circuit_of([[0, 1], [1, 0]]))) == pytest.approx(0)
    assert positivity(eigenvalues(circuit_of([[1, 1], [1, 1]]))) == pytest.approx(1)


def test_self_boost_counts_rows_not_columns():
    matrix = torch.tensor([[2.0, 0, 0], [3, 1, 0], [3, 0, 1]])  # rows 1 and 2 raise token 0 most, column maxima are elsewhere
    assert self_boost(circuit_of(matrix), k=2) == pytest.approx((1, 1 / 3, 1))
    assert self_boost(circuit_of(matrix.T), k=1) == pytest.approx((1, 2 / 3, 2 / 3))
    assert self_boost(circuit_of(matrix), k=1, tokens=torch.tensor([0])) == (1, 1, 1)


def test_a_mean_over_all_logits_is_taken_off():
    matrix = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1]]) - 5
    assert positivity(eigenvalues(circuit_of(matrix))) < 0 < positivity(eigenvalues(centered(circuit_of(matrix))))
    assert centered(circuit_of(matrix)).AB.sum(dim=1).abs().max() < 1e-12


@pytest.mark.parametrize(("size", "published"), [(16, 0.097), (32, 0.047), (64, 0.023)])
def test_ginibre_spread(size, published):
    values = ginibre(1500, size)
    found = positivity(values)
    assert found.std().item() == pytest.approx(published, rel=0.08)
    assert found.std().item() == pytest.approx(1.5 / size, rel=0.08)
    assert abs(found.mean().item()) < 4 * published / 1500**0.5
    assert values.abs().square().mean().item() == pytest.approx(size / 2, rel=0.05)  # a disk of radius sqrt(size)


def test_scaling_to_mean_square_one():
    scaled = mean_square_one(ginibre(3, 8))
    assert torch.allclose(scaled.abs().square().mean(dim=1), torch.ones(3))


def test_untrained_is_what_the_trainer_starts_from():
    like = Weights.of(Transformer(ModelConfig(2, d_model=16, n_heads=2, d_head=8, d_vocab=30, n_ctx=12)))
    state = torch.random.get_rng_state()
    found = untrained(like, seed=3)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(3)  # as training/train.py does
    expected = Weights.of(Transformer(ModelConfig(1, d_model=16, n_heads=2, d_head=8, d_vocab=30, n_ctx=12)))
    for name in ("W_E", "W_V", "W_O", "W_U"):
        assert torch.equal(getattr(found, name), getattr(expected, name))
    assert not torch.equal(untrained(like, seed=4).W_E, found.W_E)


def test_untrained_heads_do_not_copy():
    like = Weights.of(Transformer(ModelConfig(1, d_model=128, n_heads=8, d_head=16, d_vocab=200)))
    found = torch.cat([positivity(ov_eigenvalues(untrained(like, seed)))[0] for seed in range(20)])
    assert abs(found.mean()) < 4 * found.std() / len(found) ** 0.5
    assert 0.06 < found.std() < 0.14  # 0.1 for heads of 16: there a positivity of 0.2 means little


def test_two_halves_of_a_copying_head():
    left, right = torch.diag(torch.tensor([1.0, 1, 1, 0, 0, 0])), torch.diag(torch.tensor([0.0, 0, 0, 1, 1, 1]))
    w = by_hand(left, right)
    alone = [self_boost(full_ov(w, 0, head), k=1).positive for head in (0, 1)]
    assert alone == [0.5, 0.5] and self_boost(combined_ov(w, [(0, 0), (0, 1)]), k=1) == (1, 1, 1)


def test_looks_without_the_start_token():
    to_one = torch.zeros(N, N)
    to_one[:, 1] = 50.0  # token 1, wherever it is
    to_two = torch.zeros(N, N)
    to_two[:, 2] = 50.0
    to_start = torch.zeros(N, N)
    to_start[:, 0] = 5.0
    w = by_hand(*[torch.eye(N)] * 4, scores=[to_one, to_two, to_start, to_one])
    windows = torch.tensor([[0, 1, 2, 3, 4], [0, 2, 1, 4, 3]])
    found = looks(w, windows)
    patterns = torch.stack([run(w, window).patterns[0] for window in windows])[:, :, 1:]
    assert torch.allclose(found.start, patterns[..., 0].mean(dim=(0, 2)))
    assert found.start[2] > 0.9
    rest = patterns[..., 1:].transpose(0, 1).flatten(1)
    for i in range(4):
        for j in range(4):
            expected = 2 * torch.minimum(rest[i], rest[j]).sum() / (rest[i].sum() + rest[j].sum())
            assert found.shared[i, j].item() == pytest.approx(expected.item(), abs=1e-5)
    assert found.shared[0, 3].item() == pytest.approx(1) and found.shared[0, 1] < 0.5
    double = looks(Weights.of(w, dtype=torch.float64), windows)
    assert double.shared.dtype == double.start.dtype == torch.float64


def test_leading_eigenvectors_are_real_positive_and_in_order():
    rotation = torch.tensor([[0.0, 50], [-50, 0]])  # large, but complex
    matrix = torch.block_diag(torch.diag(torch.tensor([2.0, -9, 5])), rotation)
    found = leading_eigenvectors(circuit_of(matrix), n=10)
    assert found.values.tolist() == pytest.approx([5, 2])
    assert torch.allclose(found.vectors, torch.eye(5, dtype=torch.float64)[[2, 0]])
    assert leading_eigenvectors(circuit_of(matrix), n=1).values.tolist() == pytest.approx([5])
    assert leading_eigenvectors(circuit_of(-torch.eye(3)), n=4).vectors.shape == (0, 3)


def test_the_two_sides_of_an_eigenvector():
    matrix = torch.zeros(3, 3)
    matrix[0, 1] = 5.0  # token 0 raises token 1 ...
    matrix[1, 1] = 1.0  # ... which raises itself
    out, source = (leading_eigenvectors(circuit_of(matrix), 1, side).vectors[0] for side in ("out", "source"))
    assert torch.allclose(out, torch.tensor([0.0, 1, 0], dtype=torch.float64))  # raised together: token 1 alone
    assert source[0] > source[1] > 0  # but token 0 does most of the raising


def test_both_ends_of_a_vector_are_sets():
    vectors = torch.tensor([[0.1, -3.0, 2.0, 0.5]])
    assert token_sets(vectors, k=2).tolist() == [[2, 3], [1, 0]]


def test_boost_within_leaves_out_a_tokens_own():
    matrix = torch.full((5, 5), 1.0)
    matrix[1, 3], matrix[3, 1] = 4.0, 8.0
    matrix.fill_diagonal_(1000.0)
    found = boost_within(circuit_of(matrix), torch.tensor([[1, 3], [0, 2]]))
    assert found.tolist() == pytest.approx([6, 1])


def test_akin_pairs():
    akin = [frozenset({1}), frozenset({0}), frozenset(), frozenset()]
    assert akin_pairs(torch.tensor([[0, 1, 2], [1, 2, 3]]), akin) == pytest.approx(1 / 6)


def test_tokens_of_like_frequency():
    frequency = torch.arange(100).float()[torch.randperm(100, generator=torch.Generator().manual_seed(0))]
    tokens = torch.arange(100).repeat(60, 1)
    drawn = like_frequency(frequency, tokens, torch.Generator().manual_seed(1), within=5)
    distance = (frequency[drawn] - frequency[tokens]).abs()
    assert (distance > 0).all() and distance.max() <= 10  # at the ends of the ranking the window is moved inside
    inner = (frequency[tokens] >= 5) & (frequency[tokens] < 95)
    assert distance[inner].max() == 5
    steps = (frequency[drawn] - frequency[tokens])[:, frequency == 50].unique()
    assert steps.tolist() == [-5, -4, -3, -2, -1, 1, 2, 3, 4, 5]


def test_bad_input():
    w, wide = by_hand(torch.eye(N)), FactoredMatrix(torch.ones(4, 2), torch.ones(2, 5))
    square = circuit_of(torch.eye(3))
    wrong = {
        "only a square circuit has a diagonal": lambda: self_boost(wide),
        "k must be 1 to 3": lambda: self_boost(square, k=4),
        "name at least one token": lambda: self_boost(square, k=1, tokens=torch.tensor([], dtype=torch.long)),
        "at least one matrix": lambda: ginibre(0, 4),
        "one or more different heads": lambda: combined_ov(w, [(0, 0), (0, 0)]),
        "there is no head 7": lambda: combined_ov(w, [(0, 7)]),
        "needs at least two tokens": lambda: looks(w, torch.zeros(2, 1, dtype=torch.long)),
        'side must be "out" or "source"': lambda: copying.eigenvectors(square, "left"),
        "only a square circuit has eigenvectors": lambda: copying.eigenvectors(wide),
        "at least one eigenvector, not -1": lambda: leading_eigenvectors(square, -1),
        "a set holds 1 to 3 tokens": lambda: token_sets(torch.eye(3), k=4),
        "a set of one token": lambda: boost_within(square, torch.tensor([[1]])),
        "there must be sets": lambda: akin_pairs(torch.zeros(0, 10, dtype=torch.long), []),
        "below half of the 4 tokens": lambda: like_frequency(torch.ones(4), torch.tensor([0]), torch.Generator(), within=2),
    }
    for message, call in wrong.items():
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(ValueError, match="one or more different heads"):
        combined_ov(w, [])


def test_numbers_in_words():
    assert draw.in_words(torch.tensor([-1.0, 2.0, -1e-9])) == "2, 0, -1"
    rotation = torch.linalg.eigvals(torch.eye(3).roll(1, dims=1).double())
    assert draw.in_words(rotation) == "1, -0.5+0.87i, -0.5-0.87i"


def test_figures_need_a_name_for_each_head():
    values = ginibre(4, 8)
    names, at_work = ["a", "b", "c", "d"], torch.tensor([True, False, True, True])
    table = pd.DataFrame({"positivity": [0.1, 0.2, 0.9, -0.3], "positive": 0.5, "top_1": 0.0, "top_k": 0.01})
    bars = {"positivity": 0.5, "positive": 0.6, "top_1": 0.001, "top_k": 0.01}
    assert len(draw.polar_panels(values, names, names).axes) == 6  # two rows of three, two of them empty
    assert [ax.get_title() for ax in draw.polar_panels(values, names).axes[:4]] == names
    assert len(draw.measures(table, bars, names, at_work).axes) == 3
    draw.histogram(positivity(values), at_work, positivity(values), positivity(values), 0.1, 0.5)
    draw.disk(values, values, values)
    with pytest.raises(ValueError, match="4 heads need as many names"):
        draw.polar_panels(values, names[:3])
    with pytest.raises(ValueError, match="4 heads need as many names and titles, not 4 and 2"):
        draw.polar_panels(values, names, ["x", "y"])
    with pytest.raises(ValueError, match="4 heads need as many names"):
        draw.measures(table, bars, names[:3], at_work)
