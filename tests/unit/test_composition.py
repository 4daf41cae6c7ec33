"""Composition scores: against TransformerLens, on heads that compose by construction, and against formulas that are often got wrong."""

import math

import pytest
import torch

from transformer_circuits.circuits.composition import (
    SIDES,
    change_basis,
    composing_heads,
    composition_ratios,
    composition_scores,
    directions_used,
    gaussian_like,
    reordered_ratios,
    rotated_expectation,
    token_basis,
)
from transformer_circuits.circuits.weights import Weights
from transformer_circuits.figures import composition as figures
from transformer_circuits.models import load_model

D_MODEL, D_HEAD = 96, 8
BUILT = composing_heads(D_MODEL, D_HEAD, torch.Generator().manual_seed(0))


def dense(weights, layer, head):
    """(W_QK, W_OV), d_model by d_model, in the row convention."""
    return (
        weights.W_Q[layer, head] @ weights.W_K[layer, head].T,
        weights.W_V[layer, head] @ weights.W_O[layer, head],
    )


def ratio(product, *factors, sqrt=True):
    norms = [torch.linalg.norm(matrix) if sqrt else matrix.square().sum() for matrix in (product, *factors)]
    return float(norms[0] / (norms[1] * norms[2]) * math.sqrt(D_MODEL))


@pytest.fixture(scope="module")
def shipped():
    return load_model("attn-only-2l", device="cpu")


def test_scores_are_those_of_transformer_lens(shipped):
    scores = composition_scores(Weights.of(shipped))
    for side, ours in zip(SIDES, scores):
        theirs = shipped.all_composition_scores(side).scores  # [layer, head, layer, head], writers first
        assert (ours - theirs[0, :, 1, :].T).abs().max() < 1e-5
        assert (ours - theirs[0, :, 1, :]).abs().max() > 1e-2  # readers and writers exchanged


def test_each_head_composes_with_one_other_and_in_one_way():
    ratios = composition_ratios(BUILT)
    for side in range(3):
        assert ratios[side, side, side] > 2
    ratios[range(3), range(3), range(3)] = 1
    assert (ratios - 1).abs().max() < 0.35  # a standard deviation is 0.05 and more at so small a d_head


@pytest.mark.parametrize("side", range(3), ids=SIDES)
def test_column_formulas_on_row_matrices_give_chance(side):
    """One reproduction multiplies W_QK W_OV, W_QK^T W_OV, W_OV2 W_OV1, as the paper writes them, with matrices stored for row vectors."""
    W_OV1 = dense(BUILT, 0, side)[1]
    W_QK, W_OV2 = dense(BUILT, 1, side)
    wrong = [ratio(W_QK.T @ W_OV1, W_QK, W_OV1), ratio(W_QK @ W_OV1, W_QK, W_OV1), ratio(W_OV2 @ W_OV1, W_OV2, W_OV1)]
    right = [ratio(W_OV1 @ W_QK, W_QK, W_OV1), ratio(W_OV1 @ W_QK.T, W_QK, W_OV1), ratio(W_OV1 @ W_OV2, W_OV2, W_OV1)]
    assert right[side] > 2 and abs(wrong[side] - 1) < 0.35
    assert abs(right[side] / float(composition_ratios(BUILT)[side, side, side]) - 1) < 1e-10


def test_values_in_the_order_of_columns_give_chance():
    """Another has columns throughout, but multiplies W_OV1 W_OV2: the second head's output into the first."""
    (_, first), (_, second) = dense(BUILT, 0, 2), dense(BUILT, 1, 2)
    assert abs(ratio(first.T @ second.T, first, second) - 1) < 0.35
    assert ratio(second.T @ first.T, first, second) > 2


def test_without_the_root_what_composes_falls_below_chance():
    """A third forgets the square root of the Frobenius norm, and so computes the square of each score."""
    W_OV1, W_QK = dense(BUILT, 0, 1)[1], dense(BUILT, 1, 1)[0]
    right, wrong = ratio(W_OV1 @ W_QK.T, W_QK, W_OV1), ratio(W_OV1 @ W_QK.T, W_QK, W_OV1, sqrt=False)
    assert right > 2 and abs(wrong - right**2 / math.sqrt(D_MODEL)) < 1e-10
    W_OV0, W_QK0 = dense(BUILT, 0, 0)[1], dense(BUILT, 1, 1)[0]
    assert ratio(W_OV0 @ W_QK0.T, W_QK0, W_OV0, sqrt=False) < 0.2  # chance would be 1


def test_random_heads_score_one_over_the_root_of_d_model():
    random = gaussian_like(BUILT, torch.Generator().manual_seed(1))
    squares = [composition_scores(gaussian_like(BUILT, torch.Generator().manual_seed(i))).square().mean() for i in range(5)]
    assert abs(torch.stack(squares).mean().sqrt() * math.sqrt(D_MODEL) - 1) < 0.05
    assert torch.equal(random.W_E, BUILT.W_E) and not torch.equal(random.W_Q, BUILT.W_Q)


@pytest.mark.parametrize("order", ["right", "swapped", "rotated", "rotated on"])
def test_every_order_is_one_at_random(order):
    squares = [
        reordered_ratios(gaussian_like(BUILT, torch.Generator().manual_seed(seed)), order).square().mean() for seed in range(5)
    ]
    assert abs(torch.stack(squares).mean().sqrt() - 1) < 0.05


def three_pairs():
    """Head 1.i against 0.i, by keys: reads what 0.0 writes; asks for what 0.1 reads; both of 0.2."""
    weights = gaussian_like(BUILT, torch.Generator().manual_seed(2))
    for i in (0, 2):
        weights.W_K[1, i] = weights.W_O[0, i].T
    for i in (1, 2):
        weights.W_Q[1, i] = weights.W_V[0, i]
    return weights


def test_t4_what_each_order_responds_to():
    reads, asks, both = range(3)
    by_order = {order: reordered_ratios(three_pairs(), order)[1].diagonal() for order in ("right", "swapped", "rotated")}
    right, swapped, rotated = by_order.values()
    assert right[reads] > 2 and right[both] > 2 and right[asks] < 1.4
    assert swapped[asks] > 2 and swapped[both] > 2 and swapped[reads] < 1.4  # misses K-composition, sees what is none
    assert rotated[reads] > 2 and rotated[asks] > 2  # cannot tell the two apart ...
    assert rotated[both] > 2 * max(rotated[reads], rotated[asks])  # ... and is loudest for induction-like pairs


def test_expectation_keeps_singular_values():
    weights = gaussian_like(BUILT, torch.Generator().manual_seed(3))
    weights.W_O[0, 1, 1:] *= 1e-3  # a head that writes along one direction
    weights.W_Q[1, 2, :, 1:] *= 1e-3  # one whose queries read one
    expected = rotated_expectation(weights, torch.Generator().manual_seed(0), samples=400)
    root_mean_square = (expected.mean.square() + expected.std.square()).sqrt()
    assert (root_mean_square - 1).abs().max() < 0.15
    assert expected.std[0, 2, 1] > 3 * expected.std[0, 0, 0]  # the fewer directions, the more chance varies
    assert expected.std[0, 2, 1] == expected.std.max()
    drawn = composition_ratios(weights, at_random=torch.Generator().manual_seed(0))
    assert abs(drawn.square().mean().sqrt() - 1) < 0.1


def test_turning_at_random_is_a_rotation_between_the_two_heads():
    weights = gaussian_like(BUILT, torch.Generator().manual_seed(5))
    found = rotated_expectation(weights, torch.Generator().manual_seed(0), samples=300)
    generator, expected = torch.Generator().manual_seed(1), []
    W_OV, W_QK = dense(weights, 0, 2)[1], dense(weights, 1, 1)[0]
    for _ in range(300):  # all of the rotation, between all of the matrices
        R = torch.linalg.qr(torch.randn(D_MODEL, D_MODEL, dtype=torch.float64, generator=generator)).Q
        expected.append(ratio(W_OV @ R @ W_QK.T, W_OV, W_QK))
    expected = torch.tensor(expected)
    assert abs(found.mean[1, 1, 2] - expected.mean()) < 4 * (2 / 300) ** 0.5 * expected.std()
    assert abs(found.std[1, 1, 2] / expected.std() - 1) < 0.2


def test_directions_used():
    weights = gaussian_like(BUILT, torch.Generator().manual_seed(4))
    weights.W_O[0, 1, 1:] = 0
    basis = torch.linalg.qr(torch.randn(D_MODEL, D_HEAD, dtype=torch.float64)).Q
    weights.W_V[0, 0], weights.W_O[0, 0], weights.W_Q[1, 0], weights.W_K[1, 0] = basis, basis.T, basis, basis
    used = directions_used(weights)
    assert (used[:, :, 1] - 1).abs().max() < 1e-9
    assert (used[:2, 0, 0] - D_HEAD).abs().max() < 1e-9
    assert used.min() > 1 - 1e-9 and used.max() < D_HEAD + 1e-9


def test_wrong_input():
    for call in (composition_scores, composition_ratios, directions_used):
        with pytest.raises(ValueError, match="layer 1 cannot read what layer 1 writes after it or beside it"):
            call(BUILT, 1, 1)
        with pytest.raises(ValueError, match="there is no layer 2"):
            call(BUILT, 0, 2)
    with pytest.raises(ValueError, match="layer 0 cannot read"):
        rotated_expectation(BUILT, torch.Generator(), writer_layer=1, reader_layer=0)
    with pytest.raises(ValueError, match="there is no layer 2"):
        rotated_expectation(BUILT, torch.Generator(), writer_layer=2, reader_layer=3)
    with pytest.raises(ValueError, match="there is no layer 2"):
        composition_ratios(BUILT, 2, 3, at_random=torch.Generator())
    with pytest.raises(ValueError, match="at least 2 samples, not 1"):
        rotated_expectation(BUILT, torch.Generator(), samples=1)
    with pytest.raises(ValueError, match="the order is 'right', 'swapped', 'rotated' or 'rotated on', not 'left'"):
        reordered_ratios(BUILT, "left")
    for matrix in (torch.zeros(D_MODEL, D_MODEL, dtype=torch.float64), torch.eye(3, dtype=torch.float64)):
        with pytest.raises(ValueError, match="a change of basis is an invertible 96 by 96 matrix"):
            change_basis(BUILT, matrix)
    with pytest.raises(ValueError, match="the embeddings do not span the residual stream"):
        token_basis(BUILT)  # two tokens


# Figures


def test_lines_are_as_wide_as_the_excess_and_dark_from_the_threshold_on():
    panel = torch.tensor([[1.0, 3.0], [2.0, 0.5]])
    fig = figures.network({"keys": panel}, (0, 1), {(0, 1): "previous token"})
    lines = {tuple(line.get_xdata()): line for line in fig.axes[0].lines if len(line.get_xdata()) == 2}
    assert set(lines) == {(1, 0), (0, 1)}  # (writer, reader); at chance and below there is no line
    assert lines[1, 0].get_linewidth() == pytest.approx(2 * lines[0, 1].get_linewidth())
    assert lines[1, 0].get_color() == lines[0, 1].get_color() == "C0"
    assert [text.get_text() for text in fig.legends[0].get_texts()] == ["previous token"]
    paler = figures.network({"keys": panel}, (0, 1), threshold=2.5)
    assert {line.get_color() for line in paler.axes[0].lines if len(line.get_xdata()) == 2} == {"C0", "0.65"}
    assert not paler.legends
    many = figures.network({"keys": torch.full((20, 20), 0.9)}, (0, 1))  # all below chance, and labels that have to stand upright
    assert not [line for line in many.axes[0].lines if len(line.get_xdata()) == 2]
    assert {text.get_rotation() for text in many.axes[0].texts} == {90.0}


def test_panels_have_a_scale_together_or_each_its_own():
    panels = {"a": torch.tensor([[2.0]]), "b": torch.tensor([[5.0]])}
    widths = [
        [[line.get_linewidth() for line in ax.lines if len(line.get_xdata()) == 2] for ax in fig.axes]
        for fig in (figures.network(panels, (0, 1)), figures.network(panels, (0, 1), one_scale=False))
    ]
    assert widths == [[[pytest.approx(9 / 4)], [9]], [[9], [9]]]


def test_figures_refuse_what_they_cannot_draw():
    kinds = {(0, head): str(head) for head in range(6)}
    wrong = {
        "panels of one shape": lambda: figures.network({"a": torch.ones(2, 2), "b": torch.ones(3, 2)}, (0, 1)),
        "one or more panels": lambda: figures.ratio_maps({}, (0, 1)),
        "marks for 5 kinds of heads, not for 6": lambda: figures.network({"a": torch.ones(6, 6)}, (0, 1), kinds),
        "2 components have 2 by 2 terms, not 3 by 3": lambda: figures.term_map(torch.ones(3, 3), ["token", "position"], "1.0"),
    }
    for message, call in wrong.items():
        with pytest.raises(ValueError, match=message):
            call()


def test_maps_write_their_numbers():
    fig = figures.ratio_maps({"keys": torch.tensor([[1.0, 2.5], [0.5, 1.26]])}, (0, 1))
    assert [text.get_text() for text in fig.axes[0].texts] == ["1.0", "2.5", "0.5", "1.3"]
    assert [label.get_text() for label in fig.axes[0].get_yticklabels()] == ["1.0", "1.1"]


def test_other_figures_draw():
    panel = torch.rand(4, 4, generator=torch.Generator().manual_seed(0)) + 0.5
    figures.three_ways().canvas.draw()
    fig = figures.distribution({"Q": panel, "K": panel}, torch.ones(100))
    assert sum(patch.get_height() for patch in fig.axes[0].patches[: len(fig.axes[0].containers[0])]) == pytest.approx(16)
    figures.before_and_after({"a": (panel, panel)}, panel > 1).canvas.draw()
    figures.term_map(panel, ["token", "position", "0.0", "0.1"], "1.0").canvas.draw()
