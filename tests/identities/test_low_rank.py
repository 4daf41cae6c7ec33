"""E3, E5: low-rank shortcuts, TransformerLens's and ours, and streamed reading, against the dense computation."""

import pytest
import torch
from hypothesis import strategies as st
from random_models import EXACT, identity, random
from scipy.optimize import linear_sum_assignment
from transformer_lens import FactoredMatrix

from transformer_circuits.circuits import factored

sizes = st.tuples(st.integers(6, 20), st.integers(1, 5), st.integers(6, 20), st.integers(0, 2**32 - 1))


@identity(sizes)
def test_e5_nonzero_eigenvalues_of_ab_are_those_of_ba(size):
    left, inner, _, seed = size
    matrix = FactoredMatrix(random(left, inner, seed=seed), random(inner, left, seed=seed + 1))
    dense = torch.linalg.eigvals(matrix.AB)
    dense = dense[dense.abs().argsort(descending=True)[:inner]]
    distance = (matrix.eigenvalues[:, None] - dense).abs()
    assert distance[linear_sum_assignment(distance)].max() < EXACT * dense.abs().max()


@pytest.mark.parametrize("block", [1, 700, 4_000_000])  # one row at a time, a few, or all
@pytest.mark.parametrize("rows", [None, torch.tensor([7, 7, 29, 0])])
def test_blocks_and_what_is_read_from_them_are_those_of_the_whole_matrix(block, rows, monkeypatch):
    monkeypatch.setattr(factored, "BLOCK", block)
    A, B = random(30, 5), random(5, 500, seed=1)
    matrix = FactoredMatrix(A, B)
    dense = matrix.AB if rows is None else matrix.AB[rows]
    blocks = [part for _, part in factored.row_blocks(matrix, rows)]
    assert all(part.numel() <= max(block, 500) for part in blocks)
    torch.testing.assert_close(torch.cat(blocks), dense)
    values, columns = factored.top_k(matrix, 4, rows)
    torch.testing.assert_close(values, dense.topk(4).values)
    assert torch.equal(columns, dense.topk(4).indices)

    ties = FactoredMatrix(A.round(), B.round())  # sums are exact in any order; an equal entry is not larger
    at, columns = torch.arange(20).repeat(5), torch.arange(100) * 3
    own = ties.AB[at, columns]
    assert torch.equal(factored.entries(ties, at, columns), own)
    assert torch.equal(factored.ranks(ties, at, columns), (ties.AB[at] > own[:, None]).sum(1))
