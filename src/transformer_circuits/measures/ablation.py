"""Ablation effects of heads: by how much the loss rises when the output of a head is replaced by its mean."""

import contextlib
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from tqdm.auto import tqdm
from transformer_lens.model_bridge import TransformerBridge

from transformer_circuits.measures import estimates
from transformer_circuits.models.registry import manifest
from transformer_circuits.models.shards import WeightsError
from transformer_circuits.models.view import View, without_heads

WORKS = 0.002  # nats per token: a head whose removal costs less has no effect
WINDOWS = 48  # held-out windows, evenly spaced, behind every cost that the book reports


class AblationEffects(NamedTuple):
    """What removing each head costs on some text, and the standard error of that over windows, in nats per token."""

    cost: Float[Tensor, "layer head"]
    error: Float[Tensor, "layer head"]

    @property
    def working(self) -> Bool[Tensor, "layer head"]:
        """Which heads work: their cost is at least WORKS, and more than two standard errors."""
        return (self.cost >= WORKS) & (self.cost > 2 * self.error)


def effects(costs: Float[Tensor, "layer head window predicted"]) -> AblationEffects:
    """Return the mean of `ablate_heads` of two or more windows, with its standard error."""
    return AblationEffects(*estimates.mean(costs.mean(dim=-1).movedim(-1, 0)))


def recorded_effects(name: str) -> AblationEffects:
    """Return the ablation effect of each head, as our trainer measured it. Raises WeightsError for any other model."""
    with contextlib.suppress(WeightsError):
        if recorded := manifest(name)["training"].get("heads"):
            return AblationEffects(torch.tensor(recorded["cost"]), torch.tensor(recorded["error"]))
    raise WeightsError(f"{name!r} came without the ablation effects of its heads; measure them with `ablate_heads`")


@torch.no_grad()
def ablate_heads(
    model: View | TransformerBridge, rows: Int[Tensor, "window pos"]
) -> Float[Tensor, "layer head window pos-1"]:
    """Return by how much the loss (nats) at each token rises if one head's z becomes its mean over these rows."""
    view = View.of(model)
    intact = view.losses(rows)
    costs = intact.new_zeros(view.cfg.n_layers, view.cfg.n_heads, *intact.shape)
    means = [view.mean_z(rows[:, :-1], layer) for layer in range(view.cfg.n_layers)]
    for head in tqdm([*np.ndindex(costs.shape[:2])], desc="without each head", leave=False, delay=2):
        costs[head] = view.losses(rows, without_heads([head], means)) - intact
    return costs
