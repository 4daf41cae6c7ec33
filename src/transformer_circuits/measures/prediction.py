"""How well a model predicts, from its losses (`View.losses`): the in-context score, and paths by order."""

import itertools

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from transformer_circuits.models.view import View

HELPS = 0.2  # nats by which the in-context scores of one and two layers differ (claim W1)

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
    """Return the loss at token 500 minus that at token 50 of each row, in nats (Olsson et al. 2022)."""
    early, late = in_context_places(losses.shape[1])
    return losses[:, late].mean(dim=1) - losses[:, early].mean(dim=1)


@torch.no_grad()
def losses_by_order(model: View | TransformerBridge, rows: Int[Tensor, "row pos"]) -> list[float]:
    """Return the mean loss (nats) over rows with frozen patterns and only paths through at most 0, 1, ... heads (claim
    T11): the algorithm of "Term Importance Analysis" in one pass, for attention-only models of any depth."""
    view, tokens = View.of(model), rows[:, :-1]
    orders = [view.W_E[tokens]]  # entry n: what all paths through exactly n heads have written so far
    for pattern, V, O in zip(view.patterns(tokens), view.OV.A, view.OV.B):
        wrote = []
        for x in orders:
            values = (x @ V.transpose(0, 1).flatten(1)).unflatten(-1, V.shape[::2]).transpose(1, 2)
            wrote.append((pattern @ values).transpose(1, 2).flatten(-2) @ O.flatten(0, 1))
        orders = [a + b for a, b in zip([*orders, 0.0], [0.0, *wrote])]
    streams = itertools.accumulate(orders)
    return [float(F.cross_entropy((x @ view.W_U).float().flatten(0, 1), rows[:, 1:].flatten())) for x in streams]
