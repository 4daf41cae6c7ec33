"""Streamed reading of a product of thin factors, compared with the product itself."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformer_lens import FactoredMatrix

from transformer_circuits.circuits import factored
from transformer_circuits.circuits.factored import GROUP, entries, ranks, row_blocks, top_k

quick = settings(max_examples=60, deadline=None, derandomize=True)


def product(rows: int, columns: int, inner: int = 5, seed: int = 0, whole: bool = False):
    """Return random factors; with `whole` of small integers, so that sums are exact in any order, and many entries are equal."""
    generator = torch.Generator().manual_seed(seed)
    A = torch.randn(rows, inner, generator=generator, dtype=torch.float64)
    B = torch.randn(inner, columns, generator=generator, dtype=torch.float64)
    return FactoredMatrix(A.round(), B.round()) if whole else FactoredMatrix(A, B)


@pytest.fixture(params=[1, 700, 4_000_000])
def block(request, monkeypatch):
    """Read one row at a time, a few, or all: results must not depend on it."""
    monkeypatch.setattr(factored, "BLOCK", request.param)


# Widths on both sides of every border: fewer groups than 2k, whole groups, one column more or less, a rest of GROUP - 1.
BORDERS = st.integers(1, 60).flatmap(lambda n: st.sampled_from([n * GROUP - 1, n * GROUP, n * GROUP + 1]))
WIDTHS, SEEDS = st.one_of(st.integers(1, 400), BORDERS), st.integers(0, 2**32 - 1)


@quick
@given(columns=WIDTHS, k=st.integers(1, 20), whole=st.booleans(), seed=SEEDS)
def test_top_k_is_that_of_the_whole_matrix(columns, k, whole, seed):
    matrix, k = product(7, columns, seed=seed, whole=whole), min(k, columns)
    found, dense = top_k(matrix, k), matrix.AB
    torch.testing.assert_close(found.values, dense.topk(k).values)  # sorted, ties in any order
    torch.testing.assert_close(dense.gather(1, found.indices), found.values)
    assert all(len(set(row)) == k for row in found.indices.tolist()), "a column is named twice"


@pytest.mark.parametrize("rows", [None, torch.tensor([7, 7, 29, 0])])
def test_blocks_top_k_and_ranks_of_chosen_rows_in_their_order(rows, block):
    matrix = product(30, 500)
    dense = matrix.AB if rows is None else matrix.AB[rows]
    torch.testing.assert_close(torch.cat([part for _, part in row_blocks(matrix, rows)]), dense)
    assert all(part.numel() <= max(factored.BLOCK, 500) for _, part in row_blocks(matrix, rows))
    assert torch.equal(top_k(matrix, 4, rows).indices, dense.topk(4).indices)
    ties = product(20, 300, whole=True)  # an equal entry is not larger
    at, columns = torch.arange(20).repeat(5), torch.arange(100) * 3
    expected = [(ties.AB[r] > ties.AB[r, c]).sum().item() for r, c in zip(at.tolist(), columns.tolist())]
    assert ranks(ties, at, columns).tolist() == expected


@quick
@given(n=st.integers(1, 40), whole=st.booleans(), seed=st.integers(0, 2**32 - 1))
def test_entries(n, whole, seed):
    matrix, generator = product(n, n, seed=seed, whole=whole), torch.Generator().manual_seed(seed)
    rows, columns = (torch.randint(n, (9,), generator=generator) for _ in range(2))
    torch.testing.assert_close(entries(matrix, rows, columns), matrix.AB[rows, columns])
