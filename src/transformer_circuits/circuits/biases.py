"""Biases are weights that read a dimension which is always one (paper: its appendix on biases; claim A4).

Biases go by the letter of what they are added to: "Q", "K", "V" [layer, head, d_head], "O" [layer, d_model], "U" [d_vocab].
Weights are a dict as `models.bridge.matrices` gives it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor


def collect_biases(
    W: Mapping[str, Tensor], b: Mapping[str, Tensor]
) -> tuple[Float[Tensor, "layer head d_head"], Float[Tensor, "d_vocab"]]:
    """What is left of all biases with attention only: one on each query, one on the logits.

    - b_K adds the same amount to every score of a row, and softmax does not see it.
    - Rows of a pattern add up to one, so b_V always writes b_V W_O: with b_O a constant vector per layer.
    - Later queries and values, and the logits at the end, read the constants written so far.
    """
    constant, queries = torch.zeros_like(W["W_U"][:, 0]), torch.empty_like(b["Q"])
    for layer in range(len(queries)):
        queries[layer] = b["Q"][layer] + constant @ W["W_Q"][layer]
        values = b["V"][layer] + constant @ W["W_V"][layer]
        constant = constant + b["O"][layer] + torch.einsum("hd,hdm->m", values, W["W_O"][layer])
    return queries, b["U"] + constant @ W["W_U"]


def with_one(W: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights without biases, for `from_matrices`, that compute the same: dimension d_model of the stream is one for every token.

    Each reader's bias is the row with which it reads that dimension. Output biases are constants, which all later readers' rows
    take along. One more dimension stays empty, as the module asks for an even number.
    """
    # Before each layer, and at the end.
    written = torch.cat([b["O"].new_zeros(1, len(W["W_U"])), b["O"].cumsum(dim=0)])

    def widened(matrix: Tensor, dim: int, row: Tensor | float = 0.0) -> Tensor:
        zeros = torch.zeros_like(matrix.narrow(dim, 0, 1))
        return torch.cat([matrix, zeros + row, zeros], dim=dim)

    def reader(part: str) -> Tensor:
        return widened(W[f"W_{part}"], -2, b[part].unsqueeze(-2) + written[:-1, None, None] @ W[f"W_{part}"])

    wide = {f"W_{part}": reader(part) for part in "QKV"}
    wide |= {
        "W_O": widened(W["W_O"], -1),
        "W_E": widened(W["W_E"], -1, 1.0),
        "W_pos": widened(W["W_pos"], -1),
    }
    return wide | {"W_U": widened(W["W_U"], -2, b["U"] + written[-1:] @ W["W_U"])}
