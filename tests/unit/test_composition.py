"""A random rotation between two heads, and how composition is drawn."""

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


def test_lines_join_writers_to_readers_as_wide_as_the_excess():
    panels = {"keys": [[1.0, 3.0], [2.0, 0.5]], "values": [[1.5, 1.0], [1.0, 1.0]]}
    panels = {side: torch.tensor(ratios) for side, ratios in panels.items()}

    def widths(panel, **options):
        axes = head_graph.network(panels, **{"kinds": {}, "resting": ()} | options).axes
        lines = [line for line in axes[panel].lines if len(line.get_xdata()) == 2]
        return {tuple(line.get_xdata()): line.get_linewidth() for line in lines}

    assert widths(0) == {(1, 0): 9, (0, 1): 4.5}  # (writer, reader); at chance and below there is no line
    assert widths(1) == {(0, 0): 2.25} and widths(1, one_scale=False) == {(0, 0): 9}
    assert widths(0, resting={(1, 0)}) == {(0, 1): 9}  # the widest line led to a resting head
