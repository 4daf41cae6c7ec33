"""What a head is worth: how much the loss rises when its output varies no more."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transformer_circuits.measures.prediction import losses
from transformer_circuits.models.registry import manifest
from transformer_circuits.models.shards import WeightsError

WORKS = 0.002  # nats per token: a head whose removal costs less has no effect
WINDOWS = 48  # held-out windows, evenly spaced, behind every cost that the book reports


class Worth(NamedTuple):
    """What each head is worth on some text: what removing it costs, and the standard error of that over windows, in nats per token."""

    cost: Float[Tensor, "layer head"]
    error: Float[Tensor, "layer head"]

    @property
    def working(self) -> Bool[Tensor, "layer head"]:
        """Which heads work: without one, the loss rises by at least WORKS, and by more than two standard errors. The others are without effect."""
        return (self.cost >= WORKS) & (self.cost > 2 * self.error)


def worth(costs: Float[Tensor, "layer head window"]) -> Worth:
    """Return the mean of `head_costs` over two or more windows, with its standard error."""
    return Worth(costs.mean(dim=-1), costs.std(dim=-1) / costs.shape[-1] ** 0.5)


def recorded_worth(name: str) -> Worth:
    """Return what each head of a model is worth, as its trainer measured it on WINDOWS windows, so that a head has one cost everywhere.

    Raises WeightsError for an unknown name and for a model that came without this record.
    """
    recorded = manifest(name)["training"].get("heads")
    if recorded is None:
        raise WeightsError(f"{name!r} came without the costs of its heads; measure them with `head_costs`")
    return Worth(torch.tensor(recorded["cost"]), torch.tensor(recorded["error"]))


@torch.no_grad()
def head_costs(
    model: Callable[[Tensor], Tensor], outputs: Sequence[nn.Module], n_heads: int, rows: Int[Tensor, "window pos"]
) -> Float[Tensor, "layer head window"]:
    """Return by how much the loss (nats per token) of each window rises when one head's z is replaced by its mean over windows and positions.

    Where a head attends says nothing about this: a head may look around and move nothing. `outputs`: the module of each layer that multiplies z, [row, pos, n_heads * d_head], by W_O: `attn.o` of the plain model and of
    TransformerLens's bridge alike.
    """
    base, means = _losses_and_means(model, outputs, rows)
    costs = base.new_zeros(len(outputs), n_heads, len(rows))
    for layer, (output, mean) in enumerate(zip(outputs, means)):
        for head, own in enumerate(mean.view(n_heads, -1)):
            with _before(output, functools.partial(_replaced, head=head, by=own)):
                costs[layer, head] = losses(model, rows).mean(dim=-1) - base
    return costs


def _losses_and_means(
    model: Callable[[Tensor], Tensor], outputs: Sequence[nn.Module], rows: Int[Tensor, "window pos"]
) -> tuple[Float[Tensor, " window"], list[Float[Tensor, " head_d_head"]]]:
    """Return the intact loss of each window, and the mean input of each module in `outputs`."""
    sums = {}

    def add(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        sums[module] = sums.get(module, 0) + inputs[0].flatten(0, 1).double().sum(dim=0)

    with contextlib.ExitStack() as stack:
        for output in outputs:
            stack.enter_context(_before(output, add))
        base = losses(model, rows).mean(dim=-1)
    return base, [sums[output] / rows[:, 1:].numel() for output in outputs]


def _replaced(module: nn.Module, inputs: tuple[Tensor, ...], head: int, by: Tensor) -> tuple[Tensor, ...]:
    z = inputs[0].clone()
    z.unflatten(-1, (-1, len(by)))[..., head, :] = by.to(z)
    return z, *inputs[1:]


@contextlib.contextmanager
def _before(module: nn.Module, hook: Callable) -> Iterator[None]:
    handle = module.register_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()
