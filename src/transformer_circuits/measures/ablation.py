"""What a head is worth: how much the loss rises when its output varies no more."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transformer_circuits.measures.prediction import losses

WORKS = 0.002  # nats per token: a head whose removal costs less has no effect
WINDOWS = 16  # held-out windows behind every cost that the book reports


def standard_error(values: Float[Tensor, "*batch sample"]) -> Float[Tensor, "*batch"]:
    """Return the standard error of the mean over the last axis; infinite for a single sample."""
    n = values.shape[-1]
    return values.std(dim=-1) / n**0.5 if n > 1 else torch.full(values.shape[:-1], torch.inf)


@torch.no_grad()
def head_costs(
    model: Callable[[Tensor], Tensor],
    outputs: Sequence[nn.Module],
    n_heads: int,
    rows: Int[Tensor, "window pos"],
) -> Float[Tensor, "layer head window"]:
    """Return by how much the loss (nats per token) of each window rises when one head's z is replaced by its mean over windows and positions.

    `outputs`: the module of each layer that multiplies z, [row, pos, n_heads * d_head], by W_O: `attn.o` of the plain model and of
    TransformerLens's bridge alike.
    """
    base, means = _losses_and_means(model, outputs, rows)
    costs = base.new_zeros(len(outputs), n_heads, len(rows))
    for layer, (output, mean) in enumerate(zip(outputs, means)):
        for head, own in enumerate(mean.view(n_heads, -1)):
            with _before(output, functools.partial(_replaced, head=head, by=own)):
                costs[layer, head] = losses(model, rows).mean(dim=-1) - base
    return costs


def working(costs: Float[Tensor, "layer head window"]) -> Bool[Tensor, "layer head"]:
    """Return which heads work: without one, the loss rises by at least WORKS, and by more than two standard errors over windows."""
    mean = costs.mean(dim=-1)
    return (mean >= WORKS) & (mean > 2 * standard_error(costs))


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
