"""Virtual attention heads: two heads in a row, with a pattern and an OV circuit of their own.

Paper: "Virtual Attention Heads" (two-layer models); claim T13. With A2 of a later layer and A1 of an earlier one,

    (A2 x W_OV^2) (A1 x W_OV^1) = (A2 A1) x (W_OV^2 W_OV^1)

so that the pair attends with A2 A1, and what it moves goes through both OV matrices. (Row convention: W_OV^1 W_OV^2.)
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens import FactoredMatrix

from transformer_circuits.circuits.paths import Path, run
from transformer_circuits.circuits.qk_ov import ov
from transformer_circuits.circuits.subspaces import frobenius_norm
from transformer_circuits.circuits.weights import Weights


def count_paths(n_layers: int, n_heads: int) -> list[int]:
    """Paths through 0, 1, 2, ... heads; all beyond the second number are virtual heads.

    A path picks some of the layers and a head in each of these, so there are C(n_layers, k) n_heads^k through k heads: together
    (1 + n_heads)^n_layers. Raises ValueError for negative numbers.
    """
    if n_layers < 0 or n_heads < 0:
        raise ValueError(f"there are no models of {n_layers} layers with {n_heads} heads")
    return [math.comb(n_layers, k) * n_heads**k for k in range(n_layers + 1)]


def virtual_ov(weights: Weights, path: Path) -> FactoredMatrix:
    """W_OV^h1 ... W_OV^hk, [d_model, d_model]: what a path writes for each direction that it reads; of rank d_head at most.

    Raises ValueError if the path is empty, a head does not exist, or the layers do not increase along it.
    """
    if not path:
        raise ValueError("the direct path has no OV matrix: name at least one head")
    if any(first[0] >= second[0] for first, second in zip(path, path[1:])):
        raise ValueError(f"a path passes from earlier to later layers, not {path}")
    product = ov(weights, *path[0])
    for head in path[1:]:
        circuit = ov(weights, *head)
        product = FactoredMatrix(product.A @ (product.B @ circuit.A), circuit.B)
    return product


def ov_norms(weights: Weights) -> Float[Tensor, "layer head"]:
    """Frobenius norm of every head's W_OV."""
    norms = [frobenius_norm(ov(weights, *head)) for head in weights.heads]
    return torch.stack(norms).view(weights.n_layers, weights.n_heads)


def virtual_norms(weights: Weights, first: int, second: int) -> Float[Tensor, "second_head first_head"]:
    """Frobenius norm of W_OV^1 W_OV^2 for every pair of heads of two layers, from d_head-sized factors.

    Divided by `ov_norms` of both, times sqrt(d_model), it is a multiple of chance: `composition.composition_ratios` has that.
    Raises ValueError for layers that do not exist or are in the wrong order.
    """
    _check_layers(weights, first, second)
    n = weights.n_heads
    norms = [frobenius_norm(virtual_ov(weights, ((first, i), (second, j)))) for j in range(n) for i in range(n)]
    return torch.stack(norms).view(n, n)


def composed_by_offset(
    first: Float[Tensor, "*batch destination source"], second: Float[Tensor, "*batch destination source"], offset: int
) -> Float[Tensor, "split *batch position"]:
    """The diagonal of A2 A1 that looks `offset` tokens back, as a sum over the ways to share the distance.

    Split k: the second head looks k tokens back and the first one, from there, offset - k. Attention is causal, so that these
    offset + 1 ways are all there are, and no product of patterns is formed. Positions are the destinations from `offset` on.
    Raises ValueError for patterns of different or non-square shape, or an offset that does not fit.
    """
    n = first.shape[-1]
    if first.shape[-2:] != second.shape[-2:] or first.shape[-2] != n:
        raise ValueError(f"two patterns of one text are needed, not {tuple(first.shape)} and {tuple(second.shape)}")
    if not 0 <= offset < n:
        raise ValueError(f"nothing lies {offset} tokens back in a text of {n} tokens")
    ways = []
    for k in range(offset + 1):
        later = second.diagonal(-k, dim1=-2, dim2=-1)[..., offset - k :]  # from destination `offset` on, to k before it
        earlier = first.diagonal(k - offset, dim1=-2, dim2=-1)[..., : n - offset]  # from there, offset - k further back
        ways.append(later * earlier)
    return torch.stack(ways)


def mean_composed_attention(
    weights: Weights, windows: Int[Tensor, "window position"], offset: int = 2, first: int = 0, second: int = 1
) -> Float[Tensor, "split second_head first_head"]:
    """Mean weight in A2 A1 on the token `offset` back, for every pair of heads of two layers, by split (claim T13).

    Sum over splits for the whole; with offset 2, split 1 is one step and one step. The start-of-text token is no destination.
    Raises ValueError for layers that do not exist or are in the wrong order, no windows, an offset that does not fit, and as
    `run` does.
    """
    _check_layers(weights, first, second)
    if not len(windows):
        raise ValueError("there are no windows to take a mean over")
    total = 0.0
    for window in windows:
        patterns = run(weights, window).patterns
        ways = composed_by_offset(patterns[first][None], patterns[second][:, None], offset)
        total = total + ways[..., 1 if offset == 0 else 0 :].mean(dim=-1)
    return total / len(windows)


def _check_layers(weights: Weights, first: int, second: int) -> None:
    for layer in (first, second):
        weights.check_head(layer, 0)
    if second <= first:
        raise ValueError(f"a virtual head joins an earlier to a later layer, not {first} to {second}")
