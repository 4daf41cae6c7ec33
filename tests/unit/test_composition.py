"""Composition ratios on heads that compose by construction, and against formulas that are often got wrong."""

import pytest
import torch

from transformer_circuits.circuits.composition import composition_ratios, out_of_order, turned_at_random
from transformer_circuits.figures import drawings
from transformer_circuits.figures import head_graph as figures
from transformer_circuits.models.bridge import from_matrices

D_MODEL, D_HEAD, HEADS = 96, 8, 3


def gaussian(seed=0):
    """The matrices of a random model of two layers of three heads, in double precision."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"W_E": (2, D_MODEL), "W_pos": (4, D_MODEL), "W_U": (D_MODEL, 2)}
    shapes |= dict.fromkeys(("W_Q", "W_K", "W_V"), (2, HEADS, D_MODEL, D_HEAD))
    shapes |= {"W_O": (2, HEADS, D_HEAD, D_MODEL)}
    drawn = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes.values())
    return dict(zip(shapes, drawn))


def composing():
    """Head 1.i composes with head 0.i alone: 1.0 by its queries, 1.1 by its keys, 1.2 by its values."""
    weights = gaussian()
    for i, side in enumerate(("W_Q", "W_K", "W_V")):
        weights[side][1, i] = weights["W_O"][0, i].T
    return weights


def ratio(product, *factors):
    norms = [torch.linalg.matrix_norm(matrix) for matrix in (product, *factors)]
    return float(norms[0] / norms[1] / norms[2] * D_MODEL**0.5)


def test_each_head_composes_with_one_other_and_in_one_way():
    ratios = composition_ratios(from_matrices(**composing()))
    for side in range(3):
        assert ratios[side, side, side] > 2
    ratios[range(3), range(3), range(3)] = 1
    assert (ratios - 1).abs().max() < 0.35  # a standard deviation is 0.05 and more at so small a d_head


def test_chance_is_one():
    models = [from_matrices(**gaussian(seed)) for seed in range(5)]
    for measure in (composition_ratios, turned_at_random, out_of_order):
        squares = torch.stack([measure(model).square().mean() for model in models])
        assert abs(squares.mean().sqrt() - 1) < 0.05, measure.__name__
    # This holds whatever composes.
    assert abs(turned_at_random(from_matrices(**composing())).square().mean().sqrt() - 1) < 0.1


def test_turning_at_random_is_a_rotation_between_the_two_heads():
    weights = gaussian(5)
    weights["W_O"][0, :, 1:] *= 1e-3  # heads that write along one direction: their chance varies most
    weights["W_K"][1, :, :, 1:] *= 1e-3
    model = from_matrices(**weights)
    found = torch.stack([turned_at_random(model, seed=seed)[1] for seed in range(40)]).flatten()
    OV, QK, generator, expected = model.OV[0, 2].AB, model.QK[1, 1].AB, torch.Generator().manual_seed(1), []
    for _ in range(200):  # all of the rotation, between all of the matrices
        R = torch.linalg.qr(torch.randn(D_MODEL, D_MODEL, dtype=torch.float64, generator=generator)).Q
        expected.append(ratio(OV @ R @ QK.T, OV, QK))
    expected = torch.tensor(expected)
    assert abs(found.mean() - expected.mean()) < 4 * expected.std() * (1 / 200 + 1 / 360) ** 0.5
    assert abs(found.std() / expected.std() - 1) < 0.2 and found.std() > 0.4


def test_t4_what_each_order_responds_to():
    weights = gaussian(2)
    reads, asks, both = range(3)
    for i in (reads, both):
        weights["W_K"][1, i] = weights["W_O"][0, i].T
    for i in (asks, both):
        weights["W_Q"][1, i] = weights["W_V"][0, i]
    model = from_matrices(**weights)
    right, wrong = composition_ratios(model)[1].diagonal(), out_of_order(model).diagonal()
    assert right[reads] > 2 and right[both] > 2 and right[asks] < 1.4
    assert wrong[reads] > 2 and wrong[asks] > 2 and wrong[both] > 2 * max(wrong[reads], wrong[asks])


def test_lines_are_as_wide_as_the_excess_and_dark_from_the_threshold_on():
    panels = {"keys": [[1.0, 3.0], [2.0, 0.5]], "values": [[1.5, 1.0], [1.0, 1.0]]}
    panels = {side: torch.tensor(ratios) for side, ratios in panels.items()}

    def lines(ax):
        return {tuple(line.get_xdata()): line for line in ax.lines if len(line.get_xdata()) == 2}

    fig = figures.network(panels, kinds={(0, 1): "previous token"})
    keys, values = map(lines, fig.axes)
    assert set(keys) == {(1, 0), (0, 1)}  # (writer, reader); at chance and below there is no line
    assert keys[1, 0].get_linewidth() == pytest.approx(2 * keys[0, 1].get_linewidth())
    assert values[0, 0].get_linewidth() == pytest.approx(keys[0, 1].get_linewidth() / 2)
    assert keys[1, 0].get_color() != values[0, 0].get_color()
    own = lines(figures.network(panels, one_scale=False).axes[1])
    assert own[0, 0].get_linewidth() == keys[1, 0].get_linewidth()
    without = lines(figures.network(panels, resting={(1, 0)}).axes[0])
    assert set(without) == {(0, 1)}  # the widest line led to a resting head
    assert without[0, 1].get_linewidth() == keys[1, 0].get_linewidth()


def test_the_drawing_of_two_layers_can_be_drawn():
    drawings.two_layers().canvas.draw()
