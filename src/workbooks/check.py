"""Say what is wrong with a function that a reader wrote: it is compared with the book's solution, with typical mistakes
in it (exercises.yml), and with what people get wrong everywhere (`wrong`)."""

import functools
import inspect
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from transformer_circuits.models.bridge import SIZES, from_matrices, matrices
from workbooks.exercises import EXERCISES, Exercise
from workbooks.wrong import Wrong, close, differences

SLOW = 60  # seconds that the cells after a check may compute
PASSED: set[str] = set()


def check(function: Callable) -> Callable:
    """Print in one line whether the function is right. Return it if so, else the book's version."""
    name = getattr(function, "__name__", None)
    if name not in EXERCISES:
        got = f"There is no exercise named {name}." if name else f"Got a {type(function).__name__}."
        print(f"{got} Pass one of these functions without calling it: {', '.join(EXERCISES)}.")
        return function
    try:
        seconds = EXERCISES[name].calls * judge(EXERCISES[name], function)
        PASSED.add(name)
        if seconds < SLOW:
            print(f"{name} is right. It agrees with the book's version.")
            return function
        slow = f"With it, the cells below would take about {seconds / 60:.0f} minutes: they use the book's version."
        print(f"{name} is right, but slow. {slow} Replace loops, and very large tensors, by matrix products.")
    except NotImplementedError:
        print(f"{name} is not written yet: it raises NotImplementedError.\nThe cells below use the book's version.")
    except Wrong as wrong:
        print(f"{name} is not right yet. {wrong}")
    return EXERCISES[name].solution


@torch.no_grad()
def judge(exercise: Exercise, function: Callable) -> float:
    """Return the seconds of the slowest trial. Raise Wrong if the function differs from the solution."""
    wanted, given = exercise.parameters, inspect.signature(function).parameters.values()
    found = [p.name for i, p in enumerate(given) if i < len(wanted) or p.default is p.empty]
    if found != wanted:
        raise Wrong(f"Its parameters must be ({', '.join(wanted)}), got ({', '.join(found)}).")
    seconds, results = [], []
    for i, args in enumerate(exercise.trials):
        start = time.process_time()
        result = in_any_precision(exercise, function, args)
        seconds.append(time.process_time() - start)
        if i == 0 and close(result, answer(exercise, exercise.solution, i)):  # as on the page too
            result = attempt(exercise, function, args, torch.float32)
        results.append(result)
    right = [i for i, result in enumerate(results) if close(result, answer(exercise, exercise.solution, i))]
    if len(right) == len(results):
        return max(seconds)
    wrong = min(set(range(len(results))) - set(right))
    for message, mistaken in exercise.mistaken:
        if all(close(results[i], answer(exercise, mistaken, i)) for i in (wrong, *right)):  # it explains those too
            raise Wrong(message)
    expected, args = answer(exercise, exercise.solution, wrong), exercise.trials[wrong]
    again = functools.partial(in_any_precision, exercise, function)
    apart = next(differences(exercise, results[wrong], expected, args, again))
    others = " Other trials were right." if right else ""
    raise Wrong(f"{apart} {described(exercise, function, args)}{others}")


def in_any_precision(exercise: Exercise, function: Callable, args: tuple) -> Any:
    """Return what a function gives in double precision, or in single if that fails."""
    try:
        return attempt(exercise, function, args, torch.float64)
    except Wrong:
        return attempt(exercise, function, args, torch.float32)


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


def attempt(exercise: Exercise, function: Callable, args: tuple, dtype: torch.dtype) -> Any:
    """Return what a reader's function gives on copies of the arguments. Raise Wrong if it fails, calls what it must
    not, or leaves hooks or changes behind."""
    avoided, called, profiler = {inspect.unwrap(f).__code__ for f in exercise.avoid}, set(), sys.getprofile()
    given = [copied(arg, dtype) for arg in args]
    try:
        sys.setprofile((lambda frame, event, arg: called.add(frame.f_code)) if avoided else profiler)
        result = run(exercise, function, given)
        if called & avoided:
            raise Wrong(exercise.avoids)
        for name, now, before in zip(exercise.parameters, given, args):
            if any(point.fwd_hooks for point in getattr(now, "hook_dict", {}).values()):
                raise Wrong("It leaves a hook on the model. Use `run_with_hooks` or `with model.hooks(...)`.")
            if not all(torch.equal(x, old.to(x)) for x, old in zip(tensors_of(now), tensors_of(before))):
                weights = ".W_U" if isinstance(now, TransformerBridge) else ""
                raise Wrong(f"It changes `{name}` in place. Change a copy, such as `{name}{weights}.clone()`.")
        return result
    except Exception as error:
        in_precision.cache_clear()  # the function may have left a model changed
        if isinstance(error, Wrong) or isinstance(error, NotImplementedError) and not str(error):  # torch gives a text
            raise
        file, where = inspect.unwrap(function).__code__.co_filename, "The use of its result"
        for frame in traceback.extract_tb(error.__traceback__):
            where = f"Line {frame.lineno}, `{frame.line}`," if frame.filename == file else where
        said, about = str(error).strip().partition("\n")[0].rstrip("."), described(exercise, function, args)
        raise Wrong(f"{where} raises {type(error).__name__}: {said}. {about}") from error
    finally:
        sys.setprofile(profiler)


def tensors_of(arg: Any) -> list[Tensor]:
    return list(arg.parameters()) if isinstance(arg, TransformerBridge) else [arg] if isinstance(arg, Tensor) else []


def copied(arg: Any, dtype: torch.dtype) -> Any:
    """Return a copy of an argument: of a model in this precision, of a tensor as it is."""
    if isinstance(arg, TransformerBridge):
        return in_precision(arg, dtype)
    return arg.clone() if isinstance(arg, Tensor) else arg


@functools.lru_cache(maxsize=16)
def in_precision(model: TransformerBridge, dtype: torch.dtype) -> TransformerBridge:
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
