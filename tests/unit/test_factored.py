"""Streamed reading of a product of thin factors, compared with the product itself."""

import pytest
import torch
from transformer_lens import FactoredMatrix

from transformer_circuits.circuits import factored


@pytest.mark.parametrize("block", [1, 700, 4_000_000])  # one row at a time, a few, or all
@pytest.mark.parametrize("rows", [None, torch.tensor([7, 7, 29, 0])])
def test_blocks_and_what_is_read_from_them_are_those_of_the_whole_matrix(block, rows, monkeypatch):
    monkeypatch.setattr(factored, "BLOCK", block)
    generator = torch.Generator().manual_seed(0)
    A, B = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((30, 5), (5, 500)))
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
