"""What a reader's function gives for the arguments of an exercise, or why it gives nothing."""

import functools
import inspect
import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from transformer_circuits.models.bridge import SIZES, from_matrices, matrices
from workbooks.exercises import Exercise


class Wrong(Exception):
    """What is wrong with a function, in one or two sentences."""


def run(exercise: Exercise, function: Callable, args: tuple) -> Any:
    """Return what is compared: the function's result for these arguments, measured."""
    result = function(*args)
    if result is None:
        raise Wrong("It returns nothing. End it with a return statement.")
    result = exercise.measure(result.to_dense() if isinstance(result, Tensor) else result, *args)  # it may be sparse
    return result.cpu() if isinstance(result, Tensor) else result


def attempt(exercise: Exercise, function: Callable, args: tuple) -> Any:
    """Return what a reader's function gives in double precision, or in single if that fails."""
    try:
        return in_precision(exercise, function, args, torch.float64)
    except Wrong:
        return in_precision(exercise, function, args, torch.float32)


def in_precision(exercise: Exercise, function: Callable, args: tuple, dtype: torch.dtype) -> Any:
    """Return what a reader's function gives on copies of the arguments, models in this precision. Raise Wrong if it
    fails, or leaves hooks or changes behind."""
    given = []
    for arg in args:
        arg = arg.clone() if isinstance(arg, Tensor) else arg
        given.append(model_in(arg, dtype) if isinstance(arg, TransformerBridge) else arg)
    try:
        result = run(exercise, function, given)
        for name, now, before in zip(exercise.parameters, given, args):
            if any(point.fwd_hooks for point in getattr(now, "hook_dict", {}).values()):
                raise Wrong("It leaves a hook on the model. Use `run_with_hooks` or `with model.hooks(...)`.")
            if not all(torch.equal(x, old.to(x)) for x, old in zip(tensors_of(now), tensors_of(before))):
                weights = ".W_U" if isinstance(now, TransformerBridge) else ""
                raise Wrong(f"It changes `{name}` in place. Change a copy, such as `{name}{weights}.clone()`.")
        return result
    except Exception as error:
        model_in.cache_clear()  # the function may have left a model changed
        if isinstance(error, Wrong) or isinstance(error, NotImplementedError) and not str(error):  # torch gives a text
            raise
        file, where = inspect.unwrap(function).__code__.co_filename, "The use of its result"
        for frame in traceback.extract_tb(error.__traceback__):
            where = f"Line {frame.lineno}, `{frame.line}`," if frame.filename == file else where
        said, about = str(error).strip().partition("\n")[0].rstrip("."), described(exercise, function, args)
        raise Wrong(f"{where} raises {type(error).__name__}: {said}. {about}") from error


def tensors_of(arg: Any) -> list[Tensor]:
    return list(arg.parameters()) if isinstance(arg, TransformerBridge) else [arg] if isinstance(arg, Tensor) else []


@functools.lru_cache(maxsize=16)
def model_in(model: TransformerBridge, dtype: torch.dtype) -> TransformerBridge:
    """Return a copy of a model, kept while no attempt fails: making one takes longer than most attempts."""
    weights = {name: W.to(dtype, copy=True) for name, W in matrices(model).items()}
    return from_matrices(**weights, tokenizer=model.tokenizer)


def described(exercise: Exercise, function: Callable, args: tuple) -> str:
    """Return a sentence about the arguments of a trial, and one about what it reads from the notebook."""
    words = []
    for name, arg in zip(exercise.parameters, args, strict=True):
        words.append(f"{name} {list(arg.shape)}" if isinstance(arg, Tensor) else f"{name}={arg!r}")
        if isinstance(arg, TransformerBridge):
            words[-1] = f"a model with {', '.join(f'{size} {getattr(arg.cfg, size)}' for size in SIZES[:-1])}"
    read = inspect.getclosurevars(inspect.unwrap(function)).globals.items()
    read = [f"`{name}`" for name, found in read if isinstance(found, Tensor | TransformerBridge)]
    asked = f" It reads {', '.join(read)} from the notebook. Did you mean an argument?" if read else ""
    return f"It was tried with {', '.join(words)}.{asked}"
