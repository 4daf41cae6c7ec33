"""Say what is wrong with a function that a reader wrote. It is compared with the book's solution, with typical mistakes
in it (exercises.yml), and with what people get wrong in any exercise (`explanations`)."""

import contextlib
import functools
import inspect
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from transformer_circuits.models.bridge import SIZES
from workbooks.exercises import EXERCISES, Exercise

TOLERANCE = 1e-3  # largest difference that counts as equal, as a fraction of the largest entry
PASSED: set[str] = set()


class Wrong(Exception):
    """What is wrong with a function, in one or two sentences."""


def check(function: Callable) -> Callable:
    """Print in one line whether the function is right. Return it if so, else the book's version."""
    name = getattr(function, "__name__", None)
    if name not in EXERCISES:
        got = f"There is no exercise named {name}." if name else f"Got a {type(function).__name__}."
        print(f"{got} Pass one of these functions without calling it: {', '.join(EXERCISES)}.")
        return function
    try:
        judge(EXERCISES[name], function)
        PASSED.add(name)
        print(f"{name} is right. It agrees with the book's version.")
        return function
    except NotImplementedError:
        print(f"{name} is not written yet: it raises NotImplementedError.\nThe cells below use the book's version.")
    except Wrong as wrong:
        print(f"{name} is not right yet. {wrong}")
    return EXERCISES[name].solution


@torch.no_grad()
def judge(exercise: Exercise, function: Callable) -> None:
    """Raise Wrong if the function differs from the solution."""
    wanted, given = exercise.parameters, inspect.signature(function).parameters.values()
    found = [p.name for i, p in enumerate(given) if i < len(wanted) or p.default is p.empty]
    if found != wanted:
        raise Wrong(f"Its parameters must be ({', '.join(wanted)}), got ({', '.join(found)}).")
    if exercise.avoid & set(inspect.unwrap(function).__code__.co_names):
        raise Wrong(exercise.avoids)
    results = [attempt(exercise, function, args) for args in exercise.trials]
    right = [close(result, answer(exercise, exercise.solution, i)) for i, result in enumerate(results)]
    if all(right):
        return
    wrong = right.index(False)
    for message, mistaken in exercise.mistaken:  # it must explain the right trials too
        if all(close(results[i], answer(exercise, mistaken, i)) for i in range(len(right)) if right[i] or i == wrong):
            raise Wrong(message)
    expected, args = answer(exercise, exercise.solution, wrong), exercise.trials[wrong]
    said = next(explanations(exercise, function, args, results[wrong], expected))
    raise Wrong(f"{said} {described(exercise, function, args)}")


@functools.cache
def answer(exercise: Exercise, function: Callable, trial: int) -> Any:
    """Return what the solution, or the solution with a mistake in it, gives in a trial."""
    return run(exercise, function, exercise.trials[trial])


def run(exercise: Exercise, function: Callable, args: tuple) -> Any:
    """Return what is compared: the function's result for these arguments, measured."""
    result = function(*args)
    if result is None:
        raise Wrong("It returns nothing. End it with a return statement.")
    result = exercise.measure(result.to_dense() if isinstance(result, Tensor) else result, *args)  # it may be sparse
    return result.cpu() if isinstance(result, Tensor) else result


def attempt(exercise: Exercise, function: Callable, args: tuple) -> Any:
    """Return what a reader's function gives for these arguments. Raise Wrong if it fails, or leaves hooks or changes
    behind; they are undone."""
    before = [[tensor.clone() for tensor in tensors_of(arg)] for arg in args]
    try:
        result = run(exercise, function, args)
        for name, arg, kept in zip(exercise.parameters, args, before):
            is_model = isinstance(arg, TransformerBridge)
            if is_model and any(point.fwd_hooks for point in arg.hook_dict.values()):
                raise Wrong("It leaves a hook on the model. Use `run_with_hooks` or `with model.hooks(...)`.")
            if not all(map(torch.equal, tensors_of(arg), kept)):
                example = f"{name}.W_U" if is_model else name
                raise Wrong(f"It changes `{name}` in place. Change a copy, such as `{example}.clone()`.")
        return result
    except Exception as error:
        if isinstance(error, Wrong) or isinstance(error, NotImplementedError) and not str(error):  # torch gives a text
            raise
        file, where = inspect.unwrap(function).__code__.co_filename, "The use of its result"
        for frame in traceback.extract_tb(error.__traceback__):
            where = f"Line {frame.lineno}, `{frame.line}`," if frame.filename == file else where
        said, about = str(error).strip().partition("\n")[0].rstrip("."), described(exercise, function, args)
        raise Wrong(f"{where} raises {type(error).__name__}: {said}. {about}") from error
    finally:
        for arg, kept in zip(args, before):
            for tensor, old in zip(tensors_of(arg), kept):
                tensor.data = old
            if isinstance(arg, TransformerBridge):
                arg.reset_hooks()


def tensors_of(arg: Any) -> list[Tensor]:
    return list(arg.parameters()) if isinstance(arg, TransformerBridge) else [arg] if isinstance(arg, Tensor) else []


def described(exercise: Exercise, function: Callable, args: tuple) -> str:
    """Return a sentence about the arguments of a trial, and one about what the function reads from the notebook."""
    words = []
    for name, arg in zip(exercise.parameters, args, strict=True):
        if isinstance(arg, TransformerBridge):
            words.append(f"a model with {', '.join(f'{size} {getattr(arg.cfg, size)}' for size in SIZES[:-1])}")
        else:
            words.append(f"{name} {list(arg.shape)}" if isinstance(arg, Tensor) else f"{name}={arg!r}")
    read = inspect.getclosurevars(inspect.unwrap(function)).globals.items()
    read = [f"`{name}`" for name, found in read if isinstance(found, Tensor | TransformerBridge)]
    asked = f" It reads {', '.join(read)} from the notebook. Did you mean an argument?" if read else ""
    return f"It was tried with {', '.join(words)}.{asked}"


def close(result: Any, expected: Tensor) -> bool:
    if not isinstance(result, Tensor) or result.shape != expected.shape or result.is_complex():
        return False
    if expected.dtype == torch.bool != result.dtype:
        return False
    result, expected = result.double(), expected.double()  # truth values too
    limit = TOLERANCE * float(expected.nan_to_num(0, 0, 0).abs().max())
    return torch.allclose(result, expected, rtol=0, atol=limit, equal_nan=True)


def explanations(exercise: Exercise, function: Callable, args: tuple, result: Any, expected: Tensor) -> Iterator[str]:
    """Yield what people get wrong in any exercise and what would explain this result, the most telling first."""
    if not isinstance(result, Tensor):
        yield f"It must return a tensor, got {type(result).__name__}. See torch.stack or torch.from_numpy."
    if exercise.labels:
        at, levels = int((result != expected).nonzero()[0]), ("near 0", "in between", "near 1")
        found, should = levels[int(2 * result[at])], levels[int(2 * expected[at])]
        yield f"It runs, but {exercise.labels[at]} is {found} and should be {should}."
    axes = inspect.signature(exercise.solution).return_annotation.dim_str.split()
    shape, got = list(expected.shape), list(result.shape)
    if got != shape:
        swapped = " The axes are in a different order." if sorted(got) == sorted(shape) else ""
        yield f"The shape must be [{', '.join(axes)}], here {shape}, got {got}.{swapped}"
    if result.is_complex() or expected.dtype == torch.bool != result.dtype:
        kind = "True or False" if expected.dtype == torch.bool else "real numbers"
        yield f"The entries must be {kind}, got {result.dtype}."
    for i, (name, arg) in enumerate(zip(exercise.parameters, args)):
        if isinstance(arg, int) and not result.isnan().any():
            with contextlib.suppress(Wrong):  # another layer, head, or token may not do
                if close(attempt(exercise, function, (*args[:i], abs(arg - 1), *args[i + 1 :])), result):
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
        cause = "In single precision a small probability becomes 0: use `log_softmax`."
        yield f"Some entries are infinite and should not be. {cause}"
    apart = (result - expected).abs().nan_to_num(torch.inf)
    at = torch.unravel_index(apart.argmax(), apart.shape)
    # "pos-1" has one entry less than "pos"
    place = ", ".join(f"{axis.partition('-')[0]} {int(i)}" for axis, i in zip(axes, at))
    right = int(100 * (apart <= TOLERANCE * expected.abs().max()).double().mean())  # rounded down
    gives, should = write(result[at]), write(expected[at])
    yield f"At {place} it gives {gives} and should give {should}. {right}% of all entries are right."
