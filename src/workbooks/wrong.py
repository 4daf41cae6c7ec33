"""What people get wrong in any exercise, the most telling first. What is typical of one is in exercises.yml."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from workbooks.exercises import Exercise

# Largest difference, as a fraction of the largest entry, that counts as equal in double and single precision.
TOLERANCE, SINGLE = 1e-5, 1e-3
SIDES = {"q": "k", "k": "v", "v": "q", "Q": "K", "K": "V", "V": "Q"}  # another one for each


class Wrong(Exception):
    """What is wrong with a function, in one or two sentences."""


def close(result: Any, expected: Tensor) -> bool:
    if not isinstance(result, Tensor) or result.shape != expected.shape or result.is_complex():
        return False
    if expected.dtype == torch.bool != result.dtype:
        return False
    limit = TOLERANCE if result.dtype == torch.float64 else SINGLE
    result, expected = result.double(), expected.double()  # truth values too
    limit *= float(expected.nan_to_num(0, 0, 0).abs().max())
    return torch.allclose(result, expected, rtol=0, atol=limit, equal_nan=True)


def differences(
    exercise: Exercise, result: Any, expected: Tensor, args: tuple, again: Callable[[tuple], Any]
) -> Iterator[str]:
    """Yield what may be wrong with the result for these arguments; the first one is said. `again` runs the function on
    others."""
    if not isinstance(result, Tensor):
        yield f"It must return a tensor, got {type(result).__name__}. See torch.stack or torch.from_numpy."
    if exercise.labels:
        at, levels = int((result != expected).nonzero()[0]), ("near 0", "in between", "near 1")
        found, right = levels[int(2 * result[at])], levels[int(2 * expected[at])]
        yield f"It runs, but {exercise.labels[at]} is {found} and should be {right}."
    axes = inspect.signature(exercise.solution).return_annotation.dim_str.split()
    shape, got = list(expected.shape), list(result.shape)
    if got != shape:
        swapped = " The axes are in a different order." if sorted(got) == sorted(shape) else ""
        yield f"The shape must be [{', '.join(axes)}], here {shape}, got {got}.{swapped}"
    if result.is_complex() or expected.dtype == torch.bool != result.dtype:
        kind = "True or False" if expected.dtype == torch.bool else "real numbers"
        yield f"The entries must be {kind}, got {result.dtype}."
    for name in ignored(exercise, result, args, again):
        yield f"It gives the same for every {name}. Use `{name}`."
    write = bool if expected.dtype == torch.bool else "{:.3g}".format
    result, expected = (x if x.is_floating_point() else x.float() for x in (result, expected))
    if len(axes) > 1 and shape[-1] == shape[-2] and close(result.mT, expected):
        yield f"The result is transposed. Its last two axes must be [{axes[-2]}, {axes[-1]}]."
    factor = (result * expected).sum() / expected.square().sum()
    if 0 < abs(factor) < torch.inf and close(result, factor * expected):
        yield f"Every entry is {factor:.3g} times what it should be."
    if shape[0] > 1 and torch.equal(result, result[:1].expand_as(result)):
        cause = "Does every step use its own index? A collected tensor changed in place (`x += y`) changes everywhere."
        yield f"It is the same everywhere along the axis `{axes[0]}`. {cause}"
    if (result.isinf() & expected.isfinite()).any():
        yield (
            "Some entries are infinite and should not be. In single precision a small probability becomes 0: use "
            "`log_softmax`."
        )
    apart = (result - expected).abs().nan_to_num(torch.inf)
    at = torch.unravel_index(apart.argmax(), apart.shape)
    # "pos-1" has one entry less than "pos"
    place = ", ".join(f"{axis.partition('-')[0]} {int(i)}" for axis, i in zip(axes, at))
    right = int(100 * (apart <= SINGLE * expected.abs().max()).double().mean())  # rounded down
    gives, should = write(result[at]), write(expected[at])
    yield f"At {place} it gives {gives} and should give {should}. {right}% of all entries are right."


def ignored(exercise: Exercise, result: Tensor, args: tuple, again: Callable[[tuple], Any]) -> Iterator[str]:
    """Yield the arguments that make no difference."""
    for i, (name, arg) in enumerate(zip(exercise.parameters, args)):
        if isinstance(arg, int | str) and not result.isnan().any():
            other = SIDES[arg] if isinstance(arg, str) else abs(arg - 1)
            try:
                if close(again((*args[:i], other, *args[i + 1 :])), result):
                    yield name
            except Wrong:  # it does make a difference
                continue
