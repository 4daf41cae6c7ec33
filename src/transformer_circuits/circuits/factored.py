"""Read a vocabulary-sized product A B without forming it: a block of rows at a time.

Paper: "Splitting Attention Head terms into Query-Key and Output-Value Circuits". All rows of GPT-2 would fill 10 GB.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens import FactoredMatrix

# entries formed at a time: 16 MB in float32 (from 32 MB on, each block would cost fresh pages from the system)
BLOCK = 4_000_000
Ids = Int[Tensor, " n"]


def row_blocks(matrix: FactoredMatrix, rows: Ids | None = None) -> Iterator[tuple[slice, Float[Tensor, "part right"]]]:
    """Yield (which of `rows`, their entries), a block at a time; all rows of the matrix if `rows` is None."""
    A = matrix.A if rows is None else matrix.A[rows]
    step = max(1, BLOCK // matrix.rdim)
    for start in range(0, max(1, len(A)), step):
        part = slice(start, start + step)
        yield part, A[part] @ matrix.B


def top_k(matrix: FactoredMatrix, k: int, rows: Ids | None = None) -> tuple[Tensor, Tensor]:
    """Return the k largest entries of each row, largest first, and their columns, [row, k]."""
    values, columns = zip(*(block.topk(k) for _, block in row_blocks(matrix, rows)))
    return torch.cat(values), torch.cat(columns)


def ranks(matrix: FactoredMatrix, rows: Ids, columns: Ids) -> Ids:
    """Return how many entries of row rows[i] exceed the one at (rows[i], columns[i]): 0 for the largest."""
    blocks = row_blocks(matrix, rows)
    return torch.cat([(block > block.gather(1, columns[part, None])).sum(dim=1) for part, block in blocks])
