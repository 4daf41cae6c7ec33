"""How well a model predicts, from its losses (`View.losses`): thresholds, and the in-context score."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transformer_circuits.models.view import BATCH as BATCH  # rows run together

# Thresholds of claims about losses.
HALF = 0.5  # T8: of the attention, of the first guesses, of the loss of a uniform guess
VIRTUAL = 0.15  # T11: what virtual heads reduce the loss by, as a fraction of what single heads do
HELPS = 0.2  # W1: nats by which the in-context scores of one and two layers differ

# Windows of held-out text that a measure reads, by the standard error that they give.
IN_CONTEXT_WINDOWS = 1768  # all there are: 0.03 nats for an in-context score (W1), 0.02 for that of two models
LENS_WINDOWS = 32  # every fourth position: 0.05 nats for the fall of the loss from one layer to the next (W9)


def in_context_places(n: int) -> tuple[Int[Tensor, " early"], Int[Tensor, " late"]]:
    """Return which of n losses of a window the in-context score compares: those within 10 of position 50, and of 500.
    For contexts shorter than 512, all move in proportion."""
    early, late, around = 50, 500, 10
    if n < 511:
        early, late, around = max(1, 50 * n // 512), 500 * n // 512, max(1, 10 * n // 512)
    places = torch.arange(n)
    return places[max(0, early - around) : early + around], places[max(0, late - around) : late + around]


def in_context_score(losses: Float[Tensor, "row pos"]) -> Float[Tensor, " row"]:
    """Return the loss at token 500 minus that at token 50 (`in_context_places`) of each row, in nats (Olsson et al.
    2022)."""
    early, late = in_context_places(losses.shape[1])
    return losses[:, late].mean(dim=1) - losses[:, early].mean(dim=1)
