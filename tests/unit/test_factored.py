"""Streamed reading of a product of thin factors, beside the product itself."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformer_lens import FactoredMatrix

from transformer_circuits.circuits import factored
from transformer_circuits.circuits.factored import GROUP, diagonal, entries, ranks, row_blocks, top_k

quick = settings(max_examples=60, deadline=None, derandomize=True)
DTYPES = (torch.float32, torch.float64)


def product(rows: int, columns: int, inner: int = 5, dtype: torch.dtype = torch.float64, seed: int = 0, whole: bool = False):
    """Random factors; with `whole` of small integers, so that entries are exact in any order of summation, and many are equal."""
    generator = torch.Generator().manual_seed(seed)
    A, B = (torch.randn(*shape, generator=generator, dtype=dtype) for shape in ((rows, inner), (inner, columns)))
    return FactoredMatrix(A.round(), B.round()) if whole else FactoredMatrix(A, B)


@pytest.fixture(params=[1, 700, 4_000_000])
def block(request, monkeypatch):
    """One row at a time, a few, all: what a block is must not show."""
    monkeypatch.setattr(factored, "BLOCK", request.param)


# Widths on both sides of every border: fewer groups than 2k, whole groups, one column more or less, a rest of GROUP - 1.
BORDERS = st.integers(1, 60).flatmap(lambda n: st.sampled_from([n * GROUP - 1, n * GROUP, n * GROUP + 1]))
WIDTHS = st.one_of(st.integers(1, 400), BORDERS)


@quick
@given(columns=WIDTHS, k=st.integers(1, 20), whole=st.booleans(), dtype=st.sampled_from(DTYPES), seed=st.integers(0, 2**32 - 1))
def test_top_k_is_that_of_the_whole_matrix(columns, k, whole, dtype, seed):
    matrix = product(7, columns, dtype=dtype, seed=seed, whole=whole)
    k = min(k, columns)
    found, dense = top_k(matrix, k), matrix.AB
    assert found.values.dtype == dtype and found.indices.dtype == torch.long
    expected = dense.topk(k).values
    torch.testing.assert_close(found.values, expected)  # sorted, and ties of equal value whatever their columns
    torch.testing.assert_close(dense.gather(1, found.indices), found.values)
    assert all(len(set(row)) == k for row in found.indices.tolist()), "a column is named twice"


@pytest.mark.parametrize("columns", [1, 5, 2 * GROUP, 40 * GROUP + 3])
def test_top_k_may_be_every_column(columns, block):
    matrix = product(3, columns)
    found = top_k(matrix, columns)
    assert found.indices.sort().values.tolist() == [list(range(columns))] * 3
    assert bool((found.values.diff() <= 0).all())


@pytest.mark.parametrize("place", [0, GROUP - 1, GROUP, 19 * GROUP + 5, 20 * GROUP - 1, 20 * GROUP, 20 * GROUP + 6])
def test_top_k_finds_a_single_largest_entry_wherever_it_stands(place):
    B = torch.zeros(1, 20 * GROUP + 7)
    B[0, place] = 1.0
    found = top_k(FactoredMatrix(torch.tensor([[2.0], [3.0]]), B), 1)
    assert found.indices.tolist() == [[place], [place]] and found.values.tolist() == [[2.0], [3.0]]


def test_top_k_finds_entries_that_all_stand_in_one_group():
    B = torch.zeros(1, 40 * GROUP)
    B[0, 3 * GROUP : 3 * GROUP + 10] = torch.arange(10.0, 0, -1)
    found = top_k(FactoredMatrix(torch.ones(1, 1), B), 10)
    assert found.indices.tolist() == [list(range(3 * GROUP, 3 * GROUP + 10))]


def test_top_k_of_chosen_rows_in_their_order(block):
    matrix = product(30, 500)
    rows = torch.tensor([7, 7, 29, 0])
    found, dense = top_k(matrix, 4, rows), matrix.AB[rows].topk(4)
    torch.testing.assert_close(found.values, dense.values)
    assert torch.equal(found.indices, dense.indices)


@pytest.mark.parametrize("k", [0, -1, 12])
def test_top_k_refuses_more_than_there_are(k):
    with pytest.raises(ValueError, match=f"a row of 11 entries has no {k} largest"):
        top_k(product(3, 11), k)


@pytest.mark.parametrize("rows", [None, torch.tensor([4, 0, 4, 19])])
def test_row_blocks_are_the_rows(rows, block):
    matrix = product(20, 50)
    dense = matrix.AB if rows is None else matrix.AB[rows]
    parts = list(row_blocks(matrix, rows))
    torch.testing.assert_close(torch.cat([part for _, part in parts]), dense)
    for where, part in parts:
        torch.testing.assert_close(dense[where], part)


def test_a_block_is_no_larger_than_it_may_be(monkeypatch):
    monkeypatch.setattr(factored, "BLOCK", 700)
    sizes = [part.numel() for _, part in row_blocks(product(100, 50))]
    assert max(sizes) == 700 and sum(sizes) == 5000


@quick
@given(n=st.integers(1, 40), whole=st.booleans(), dtype=st.sampled_from(DTYPES), seed=st.integers(0, 2**32 - 1))
def test_entries_and_diagonal(n, whole, dtype, seed):
    matrix, generator = product(n, n, dtype=dtype, seed=seed, whole=whole), torch.Generator().manual_seed(seed)
    rows, columns = (torch.randint(n, (9,), generator=generator) for _ in range(2))
    torch.testing.assert_close(entries(matrix, rows, columns), matrix.AB[rows, columns])
    torch.testing.assert_close(diagonal(matrix), matrix.AB.diagonal())


def test_ranks_count_the_larger_entries(block):
    matrix = product(20, 300, whole=True)  # full of ties: an equal entry is not larger
    rows, columns = torch.arange(20).repeat(5), torch.arange(100) * 3
    dense = matrix.AB
    expected = [(dense[r] > dense[r, c]).sum().item() for r, c in zip(rows.tolist(), columns.tolist())]
    assert ranks(matrix, rows, columns).tolist() == expected
    assert ranks(matrix, torch.arange(20), dense.argmax(dim=1)).tolist() == [0] * 20
def test_a_matrix_that_is_not_square_has_no_diagonal():
    with pytest.raises(ValueError, match="only a square matrix has a diagonal, this one is 4 by 3"):
        diagonal(product(4, 3))


