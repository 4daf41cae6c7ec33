"""Ablation effects of heads: by how much the loss rises when the output of a head is replaced by its mean."""

import contextlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from tqdm.auto import tqdm

from transformer_circuits.measures.prediction import losses
from transformer_circuits.models.registry import manifest
from transformer_circuits.models.shards import WeightsError

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


def effects(costs: Float[Tensor, "layer head window"]) -> AblationEffects:
    """Return the mean of `ablate_heads` of two or more windows, with its standard error."""
    return AblationEffects(costs.mean(dim=-1), costs.std(dim=-1) / costs.shape[-1] ** 0.5)


def recorded_effects(name: str) -> AblationEffects:
    """Return the ablation effect of each head, as its trainer measured it. Raises WeightsError if it did not."""
    recorded = manifest(name)["training"].get("heads")
    if recorded is None:
        raise WeightsError(f"{name!r} came without the ablation effects of its heads; measure them with `ablate_heads`")
    return AblationEffects(torch.tensor(recorded["cost"]), torch.tensor(recorded["error"]))


@torch.no_grad()
def ablate_heads(
    model: Callable[[Tensor], Tensor], outputs: Sequence[nn.Module], n_heads: int, rows: Int[Tensor, "window pos"]
) -> Float[Tensor, "layer head window pos-1"]:
    """Return by how much the loss (nats) at each token rises when one head's z is replaced by its mean.

    `outputs`: the module of each layer that multiplies z, [row, pos, n_heads * d_head], by W_O: `attn.o`.
    """
    sums = dict.fromkeys(outputs, 0)

    def add(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        sums[module] = sums[module] + inputs[0].flatten(0, 1).double().sum(dim=0)

    with contextlib.ExitStack() as stack:
        for output in outputs:
            stack.enter_context(output.register_forward_pre_hook(add))
        intact = losses(model, rows)
    costs = intact.new_zeros(len(outputs), n_heads, *intact.shape)
    bar = tqdm(total=len(sums) * n_heads, desc="without each head", leave=False, delay=2)
    for layer, (output, total) in enumerate(sums.items()):
        for head, mean in enumerate((total / rows[:, 1:].numel()).view(n_heads, -1)):

            def replace(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
                z = inputs[0].clone()
                z.unflatten(-1, (n_heads, -1))[..., head, :] = mean.to(z)
                return z, *inputs[1:]

            with output.register_forward_pre_hook(replace):
                costs[layer, head] = losses(model, rows) - intact
            bar.update()
    bar.close()
    return costs
