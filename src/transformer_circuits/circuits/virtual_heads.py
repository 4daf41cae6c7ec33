"""Virtual attention heads: two heads in a row attend with A2 A1 (paper: "Virtual Attention Heads"; claim T13)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def composed_diagonal(
    first: Float[Tensor, "*batch dest src"], second: Float[Tensor, "*batch dest src"], offset: int = 2
) -> Float[Tensor, "split *batch pos"]:
    """The entries of A2 A1 that look `offset` tokens back, as a sum over the ways to share the distance; the product is not formed.

    Split k: the second head looks k tokens back, and the first one, from there, offset - k. Attention is causal, so there are no other
    ways. Positions are the destinations from `offset` on. Raises ValueError for an offset that does not fit.
    """
    n = first.shape[-1]
    if not 0 <= offset < n:
        raise ValueError(f"nothing lies {offset} tokens back in a text of {n} tokens")
    ways = []
    for k in range(offset + 1):
        later = second.diagonal(-k, dim1=-2, dim2=-1)[
            ..., offset - k :
        ]  # from destination `offset` on, to k before it
        earlier = first.diagonal(k - offset, dim1=-2, dim2=-1)[
            ..., : n - offset
        ]  # from there, offset - k further back
        ways.append(later * earlier)
    return torch.stack(ways)
