"""Read a vocabulary-sized product A B without forming it: a block of rows at a time.

The OV and QK circuits are products of thin factors (paper: "Splitting Attention Head terms into Query-Key and Output-Value
Circuits"). One row costs almost nothing; all of them together would fill 10 GB at a vocabulary of 50,257. Columns are
the rows of `matrix.T`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens import FactoredMatrix

BLOCK = 4_000_000  # entries formed at a time: 16 MB in float32 (from 32 MB on, each block would cost fresh pages from the system)
GROUP = 64  # neighboring columns of which `top_k` first takes only the largest
Ids = Int[Tensor, " n"]


class TopK(NamedTuple):
    """The largest entries of each row, largest first."""

    values: Float[Tensor, "row k"]
    indices: Int[Tensor, "row k"]


def row_blocks(
    matrix: FactoredMatrix, rows: Ids | None = None
) -> Iterator[tuple[slice, Float[Tensor, "part right"]]]:
    """Yield (which of `rows`, their entries), a block at a time; all rows of the matrix if `rows` is None."""
    A = matrix.A if rows is None else matrix.A[rows]
    step = max(1, BLOCK // matrix.rdim)
    for start in range(0, len(A), step):
        yield slice(start, min(start + step, len(A))), A[start : start + step] @ matrix.B


def top_k(matrix: FactoredMatrix, k: int, rows: Ids | None = None) -> TopK:
    """Return the k largest entries of each row; of equal entries, any. For the smallest, negate A.

    Exact in two steps, because sorting costs far more than the product: the k groups of columns with the largest maxima
    hold the k largest entries.
    """
    # Made before the first block: small results kept between large blocks would leave holes in memory, block after block.
    values = matrix.A.new_empty(matrix.ldim if rows is None else len(rows), k)
    found = TopK(values, torch.empty_like(values, dtype=torch.long))
    for part, block in row_blocks(matrix, rows):
        found.values[part], found.indices[part] = _top_k_of(block, k)
    return found


def _top_k_of(block: Float[Tensor, "row right"], k: int) -> TopK:
    columns = block.shape[1]
    n_groups = columns // GROUP
    if n_groups < 2 * k:
        return TopK(*block.topk(k))
    rest = n_groups * GROUP  # the columns from here on do not fill a group: all of them are candidates
    groups = block[:, :rest].unflatten(1, (n_groups, GROUP))
    chosen = groups.amax(dim=2).topk(k, sorted=False).indices
    candidates = groups[torch.arange(len(block), device=block.device)[:, None], chosen].flatten(1)
    values, places = torch.cat([candidates, block[:, rest:]], dim=1).topk(k)
    # The rest comes last, like one more group.
    group = F.pad(chosen, (0, 1), value=n_groups).gather(1, places // GROUP)
    return TopK(values, group * GROUP + places % GROUP)


def entries(matrix: FactoredMatrix, rows: Ids, columns: Ids) -> Float[Tensor, " n"]:
    """Return the entries at (rows[i], columns[i])."""
    return (matrix.A[rows] * matrix.B.T[columns]).sum(dim=-1)


def ranks(matrix: FactoredMatrix, rows: Ids, columns: Ids) -> Ids:
    """Return how many entries of row rows[i] are larger than the one at (rows[i], columns[i]): 0 for the largest of its row."""
    found = torch.empty(len(rows), dtype=torch.long, device=rows.device)
    for part, block in row_blocks(matrix, rows):
        own = block.gather(1, columns[part, None])
        found[part] = (block > own).sum(dim=1)
    return found
