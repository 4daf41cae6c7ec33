"""Say what is wrong with a function that a reader wrote.

An exercise is a solution, the arguments it is tried with, and from exercises.yml its hints and typical mistakes: each a message, and what
stands in the solution with what a reader wrote in its place. A result that differs from the solution's is compared with what the solution
gives with each mistake in it.
"""

import dataclasses
import inspect
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import yaml
from IPython.display import Markdown
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

TOLERANCE = 1e-5  # largest difference, as a fraction of the largest entry, that counts as equal
# axes along which a result can be one place late
IN_ORDER = ("pos", "pos-1", "dest", "src", "stage", "order")


@dataclasses.dataclass
class Exercise:
    solution: Callable[..., Any]
    cases: Callable[[], Iterable[tuple]]  # arguments of each trial
    hints: list[str]
    mistakes: list[dict[str, Any]]
    # returns what is compared, of a result and the arguments that gave it
    measure: Callable[..., Tensor] = lambda result, *args: result
    labels: tuple[str, ...] = ()  # names of what `measure` returns: each is near 0, in between, or near 1

    @property
    def code(self) -> str:
        """The solution's code without its decorator."""
        return "def " + inspect.getsource(self.solution).partition("\ndef ")[2]

    def mistaken(self) -> Iterator[tuple[str, Callable[..., Any]]]:
        """Yield each message with the solution that makes this mistake."""
        for mistake in self.mistakes:
            for right, wrong in mistake["instead"].items():
                names = dict(self.solution.__globals__)
                exec(self.code.replace(right, wrong), names)
                yield mistake["says"], names[self.solution.__name__]


TEXTS = yaml.safe_load(Path(__file__).with_name("exercises.yml").read_text(encoding="utf-8"))
EXERCISES: dict[str, Exercise] = {}


def exercise(cases: Callable[[], Iterable[tuple]], **parts: Any) -> Callable[[Callable], Callable]:
    """Register the decorated function as the solution of an exercise."""

    def register(solution: Callable) -> Callable:
        name = solution.__name__
        EXERCISES[name] = Exercise(solution, cases, **TEXTS[name], **parts)
        return solution

    return register


class Wrong(Exception):
    """What is wrong with a function, in one or two sentences."""


def check(function: Callable) -> Callable:
    """Print in one line whether the function is right. Return it if so, and otherwise the book's version, so that the page goes on."""
    name = getattr(function, "__name__", str(function))
    if name not in EXERCISES:
        print(f"There is no exercise named {name}. The names are {', '.join(EXERCISES)}.")
        return function
    try:
        judge(EXERCISES[name], function)
    except NotImplementedError:
        print(f"{name} is not written yet. The cells below use the book's version.")
    except Wrong as wrong:
        print(f"{name} is not right yet. {wrong}")
    else:
        print(f"{name} is right. It agrees with the book's version.")
        return function
    return EXERCISES[name].solution


@torch.no_grad()
def judge(exercise: Exercise, function: Callable) -> None:
    """Raise Wrong, or NotImplementedError for an empty stub, unless the function agrees with the solution."""
    wanted = list(inspect.signature(exercise.solution).parameters)
    found = inspect.signature(function).parameters.values()
    found = [p.name for i, p in enumerate(found) if i < len(wanted) or p.default is p.empty]
    if found != wanted:
        raise Wrong(f"Its parameters must be ({', '.join(wanted)}), got ({', '.join(found)}).")
    for trial, args in enumerate(exercise.cases()):
        result, expected = attempt(exercise, function, args), run(exercise, exercise.solution, args)
        if close(result, expected):
            continue
        for message, mistaken in exercise.mistaken():
            if close(result, run(exercise, mistaken, args)):
                raise Wrong(message)
        found = difference(exercise, result, expected)
        raise Wrong(f"{found} {described(wanted, args)}Earlier trials were right." if trial else found)


def described(names: list[str], args: tuple) -> str:
    """Return a sentence about the arguments of a trial, leaving out tensors."""
    words = []
    for name, arg in zip(names, args, strict=True):
        if isinstance(arg, TransformerBridge):
            n = arg.cfg.n_layers
            words.append(f"a model of {n} layer{'' if n == 1 else 's'}")
        elif not isinstance(arg, Tensor):
            words.append(f"{name}={arg!r}")
    return f"It was tried with {', '.join(words)}. " if words else ""


def run(exercise: Exercise, function: Callable, args: tuple) -> Any:
    """Return what is compared: the function's result for copies of these arguments, measured."""
    result = function(*(arg.clone() if isinstance(arg, Tensor) else arg for arg in args))
    if result is None:
        raise Wrong("It returns nothing. End it with a return statement.")
    result = exercise.measure(result, *args)
    return result.cpu() if isinstance(result, Tensor) else result


def attempt(exercise: Exercise, function: Callable, args: tuple) -> Any:
    """Run a reader's function. Raise Wrong if it fails, or if it leaves hooks or changed weights on the model, which are undone."""
    models = [arg for arg in args if isinstance(arg, TransformerBridge)]
    weights = [W for model in models for W in model.parameters()]
    before = [W.clone() for W in weights]
    try:
        result = run(exercise, function, args)
        if any(point.fwd_hooks for model in models for point in model.hook_dict.values()):
            raise Wrong("It leaves a hook on the model. Use `run_with_hooks` or `with model.hooks(...)`.")
        if not all(map(torch.equal, weights, before)):
            raise Wrong("It changes the model's own weights. Change a copy, such as `model.W_E.clone()`.")
        return result
    except Exception as error:
        # torch raises this type too, with a message
        stub = isinstance(error, NotImplementedError) and not str(error)
        if stub or isinstance(error, Wrong):
            raise
        file, where = function.__code__.co_filename, "The use of its result"
        for frame in traceback.extract_tb(error.__traceback__):
            where = f"Line {frame.lineno}" if frame.filename == file else where
        message = str(error).strip().partition("\n")[0]
        raise Wrong(f"{where} raises {type(error).__name__}: {message}") from error
    finally:
        for model in models:
            model.reset_hooks()
        for W, old in zip(weights, before):
            W.data.copy_(old)


def close(result: Any, expected: Tensor) -> bool:
    if not isinstance(result, Tensor) or result.shape != expected.shape or result.is_complex():
        return False
    if expected.dtype == torch.bool and result.dtype != torch.bool:
        return False
    expected = expected.double()  # truth values become numbers, which can be subtracted
    return bool((result.double() - expected).abs().max() <= TOLERANCE * expected.abs().max())


def difference(exercise: Exercise, result: Any, expected: Tensor) -> str:
    """Return the first of the general descriptions that fits how a result differs."""
    if not isinstance(result, Tensor):
        stack = " `torch.stack` joins a list of tensors." if isinstance(result, list) else ""
        return f"It must return a tensor, got {type(result).__name__}.{stack}"
    if exercise.labels:
        at, levels = int((result != expected).nonzero()[0]), ("near 0", "in between", "near 1")
        found, right = levels[int(2 * result[at])], levels[int(2 * expected[at])]
        return f"It runs, but {exercise.labels[at]} is {found} and should be {right}."
    axes = inspect.signature(exercise.solution).return_annotation.dim_str.split()
    shape, got = list(expected.shape), list(result.shape)
    if got != shape:
        swapped = " The axes are in a different order." if sorted(got) == sorted(shape) else ""
        return f"The shape must be [{', '.join(axes)}], here {shape}, got {got}.{swapped}"
    if result.is_complex():
        return "The result must be real, got complex numbers. Take the real part with `.real`."
    if expected.dtype == torch.bool and result.dtype != torch.bool:
        return f"The entries must be True or False, got {result.dtype}. End with a comparison, such as `> 0`."
    result, expected = result.double(), expected.double()
    names = [axis.partition("-")[0] for axis in axes]  # "pos-1" has one entry less than "pos"
    if not result.isfinite().all():
        first = (~result.isfinite()).nonzero()[0]
        return f"The result contains NaN or infinity, first at {place(names, first)}."
    if not result.any():
        return "The result is all zeros."
    if len(axes) > 1 and shape[-1] == shape[-2] and close(result.mT, expected):
        return f"The result is transposed. Its last two axes must be [{axes[-2]}, {axes[-1]}]."
    factor = float((result * expected).sum() / expected.square().sum())
    if close(result, factor * expected):
        return f"Every entry is {factor:.3g} times what it should be."
    for axis in (axis for axis, name in enumerate(axes) if name in IN_ORDER):
        n = shape[axis] - 1
        for late, start in (("late", 1), ("early", 0)):
            if close(result.narrow(axis, start, n), expected.narrow(axis, 1 - start, n)):
                return f"The result is one place {late} along the axis `{axes[axis]}`."
    if reordered(result, expected):
        return f"The entries are right, but they are in a different order along the axis `{axes[0]}`."
    apart = (result - expected).abs()
    at = torch.unravel_index(apart.argmax(), apart.shape)
    right = (apart <= TOLERANCE * expected.abs().max()).double()
    whole = [str(i) for i, part in enumerate(right) if part.ndim and part.all()]
    rest = f" Everything at {names[0]} {', '.join(whole)} is right." if whole else ""
    return (
        f"At {place(names, at)} it gives {result[at]:.3g} and should give {expected[at]:.3g}. "
        f"{right.mean():.0%} of all entries are right.{rest}"
    )


def place(names: list[str], at: Any) -> str:
    """Return an index in words: the names of the axes with the index along each."""
    return ", ".join(f"{name} {int(i)}" for name, i in zip(names, at, strict=True))


def reordered(result: Tensor, expected: Tensor) -> bool:
    """Return whether the entries along the first axis are those of the solution, in another order."""
    same = torch.tensor([[close(part, other) for other in expected] for part in result])
    return bool(same.any(dim=0).all() and same.any(dim=1).all())


def helped(function: Callable, answer: str = "") -> Markdown:
    """Return an exercise's hints, its solution, and the answer to its last question, each folded."""
    exercise = EXERCISES[function.__name__]
    folds = {f"Hint {i}": hint for i, hint in enumerate(exercise.hints, start=1)}
    folds["Solution"] = f"```python\n{exercise.code}```"
    folds |= {"Answer to the last question": answer} if answer else {}
    folded = (f"<details><summary>{title}</summary>\n\n{text}\n\n</details>" for title, text in folds.items())
    return Markdown("\n\n".join(folded))
