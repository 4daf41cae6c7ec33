"""A random rotation between two heads, and how composition is drawn."""

import pytest
import torch

from transformer_circuits.figures import head_graph
from transformer_circuits.measures.weights import turned

D_MODEL, D_HEAD = 96, 8


def test_turning_at_random_is_a_rotation_between_the_two_heads():
    generator = torch.Generator().manual_seed(5)
    V, O, Q, K = torch.randn(4, D_MODEL, D_HEAD, dtype=torch.float64, generator=generator)
    O[:, 1:] *= 1e-3  # heads that write, and read, along one direction: their chance varies most
    K[:, 1:] *= 1e-3
    OV, QK = V @ O.T, Q @ K.T
    sizes = [torch.linalg.svdvals(M)[:D_HEAD].square().expand(20, -1) for M in (OV, QK)]
    found, expected = turned(*sizes, D_MODEL, generator).flatten(), []
    for _ in range(200):  # all of the rotation, between all of the matrices
        R = torch.linalg.qr(torch.randn(D_MODEL, D_MODEL, dtype=torch.float64, generator=generator)).Q
        expected.append((OV @ R @ QK.T).norm() / OV.norm() / QK.norm() * D_MODEL**0.5)
    expected = torch.stack(expected)
    assert abs(found.mean() - expected.mean()) < 4 * expected.std() * (1 / 200 + 1 / 400) ** 0.5
    assert abs(found.std() / expected.std() - 1) < 0.2 and found.std() > 0.4


def test_lines_are_as_wide_as_the_excess_and_dark_from_the_threshold_on():
    panels = {"keys": [[1.0, 3.0], [2.0, 0.5]], "values": [[1.5, 1.0], [1.0, 1.0]]}
    panels = {side: torch.tensor(ratios) for side, ratios in panels.items()}

    def lines(ax):
        return {tuple(line.get_xdata()): line for line in ax.lines if len(line.get_xdata()) == 2}

    fig = head_graph.network(panels, kinds={(0, 1): "previous token"})
    keys, values = map(lines, fig.axes)
    assert set(keys) == {(1, 0), (0, 1)}  # (writer, reader); at chance and below there is no line
    assert keys[1, 0].get_linewidth() == pytest.approx(2 * keys[0, 1].get_linewidth())
    assert values[0, 0].get_linewidth() == pytest.approx(keys[0, 1].get_linewidth() / 2)
    assert keys[1, 0].get_color() != values[0, 0].get_color()
    own = lines(head_graph.network(panels, one_scale=False).axes[1])
    assert own[0, 0].get_linewidth() == keys[1, 0].get_linewidth()
    without = lines(head_graph.network(panels, resting={(1, 0)}).axes[0])
    assert set(without) == {(0, 1)}  # the widest line led to a resting head
    assert without[0, 1].get_linewidth() == keys[1, 0].get_linewidth()
