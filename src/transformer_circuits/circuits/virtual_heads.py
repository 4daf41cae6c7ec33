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
    ways. Positions are the destinations from `offset` on.
    """
    ways = []
    for k in range(offset + 1):
        # From destination `offset` on to k before it, and from there offset - k further back.
        later = second.diagonal(-k, dim1=-2, dim2=-1)[..., offset - k :]
        earlier = first.diagonal(k - offset, dim1=-2, dim2=-1)[..., : first.shape[-1] - offset]
        ways.append(later * earlier)
    return torch.stack(ways)
