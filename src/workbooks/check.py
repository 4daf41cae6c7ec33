"""Say what is wrong with a function that a reader wrote: it is compared with typical mistakes (exercises.yml)."""

import base64
import dataclasses
import functools
import html
import inspect
import io
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
import yaml
from IPython.display import HTML, Markdown
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from transformer_circuits.models.bridge import SIZES, from_matrices, matrices

# Largest difference, as a fraction of the largest entry, that counts as equal in double and single precision.
TOLERANCE, SINGLE = 1e-5, 1e-3
TITLES = {"Prediction": "Answer to Predict", "Afterward": "Answer to Afterward"}  # of folded answers
SLOW = 60  # seconds that the cells after a check may compute


@dataclasses.dataclass(eq=False)
class Exercise:
    solution: Callable[..., Any]
    cases: Iterable[tuple]  # arguments of each trial
    hints: list[str]
    mistakes: list[dict[str, Any]]  # a message, and parts of the solution with what a reader wrote instead
    afterward: str = ""  # the answer to the exercise's last question, if it contains no numbers
    measure: Callable[..., Tensor] = lambda result, *args: result  # returns what is compared
    labels: tuple[str, ...] = ()  # of what `measure` returns: each is near 0, in between, or near 1
    avoid: tuple[Callable, ...] = ()  # functions that it must not call
    avoids: str = ""  # the message if it does
    calls: int = 50  # with the largest arguments of the trials: what the cells after the check take

    @property
    def code(self) -> str:
        """The solution's code without its decorator."""
        return "def " + inspect.getsource(self.solution).partition("\ndef ")[2]

    @functools.cached_property
    def trials(self) -> list[tuple]:
        return list(self.cases)

    @functools.cached_property
    def mistaken(self) -> list[tuple[str, Callable[..., Any]]]:
        """Each message with the solution that makes this mistake."""
        found = []
        for mistake in self.mistakes:
            for right, wrong in mistake["instead"].items():
                names = dict(self.solution.__globals__)
                exec(self.code.replace(right, wrong), names)
                found.append((mistake["says"], names[self.solution.__name__]))
        return found


TEXTS = yaml.safe_load(Path(__file__).with_name("exercises.yml").read_text(encoding="utf-8"))
EXERCISES: dict[str, Exercise] = {}
PASSED: set[str] = set()


def exercise(cases: Iterable[tuple], **parts: Any) -> Callable[[Callable], Callable]:
    """Register the decorated function as the solution of an exercise."""

    def register(solution: Callable) -> Callable:
        EXERCISES[solution.__name__] = Exercise(solution, cases, **TEXTS[solution.__name__], **parts)
        return solution

    return register


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
    # The first trial also in single precision, as on the page.
    wanted = list(inspect.signature(exercise.solution).parameters)
    found = inspect.signature(function).parameters.values()
    found = [p.name for i, p in enumerate(found) if i < len(wanted) or p.default is p.empty]
    if found != wanted:
        raise Wrong(f"Its parameters must be ({', '.join(wanted)}), got ({', '.join(found)}).")
    seconds, results = [], []  # of each trial
    for i, args in enumerate(exercise.trials):
        result, took = timed(exercise, function, args)
        seconds.append(took)
        if i == 0 and close(result, answer(exercise, exercise.solution, i)):
            result = attempt(exercise, function, args, torch.float32)
        results.append(result)
    right = [i for i, result in enumerate(results) if close(result, answer(exercise, exercise.solution, i))]
    if len(right) == len(results):
        slowest = seconds.index(max(seconds))
        if exercise.calls * seconds[slowest] > SLOW:  # something else may have held it up
            seconds[slowest] = min(seconds[slowest], timed(exercise, function, exercise.trials[slowest])[1])
        return max(seconds)
    wrong = min(set(range(len(results))) - set(right))
    for message, mistaken in exercise.mistaken:
        # A mistake must explain the right results too.
        if all(close(results[i], answer(exercise, mistaken, i)) for i in (wrong, *right)):
            raise Wrong(message)
    others = " Other trials were right." if right else ""
    apart = difference(exercise, results[wrong], answer(exercise, exercise.solution, wrong))
    raise Wrong(f"{apart} {described(exercise, function, exercise.trials[wrong])}{others}")


def timed(exercise: Exercise, function: Callable, args: tuple) -> tuple[Any, float]:
    """Return what a function gives in double precision, or in single if that fails; and its seconds."""
    start = time.process_time()
    try:
        result = attempt(exercise, function, args, torch.float64)
    except Wrong:
        result = attempt(exercise, function, args, torch.float32)
    return result, time.process_time() - start


@functools.cache
def answer(exercise: Exercise, function: Callable, trial: int) -> Any:
    """Return what the solution, or the solution with a mistake in it, gives in a trial."""
    return run(exercise, function, exercise.trials[trial])


def described(exercise: Exercise, function: Callable, args: tuple) -> str:
    """Return a sentence about the arguments of a trial, and one about what it reads from the notebook."""
    words = []
    for name, arg in zip(inspect.signature(exercise.solution).parameters, args, strict=True):
        if isinstance(arg, TransformerBridge):
            words.append(f"a model with {', '.join(f'{size} {getattr(arg.cfg, size)}' for size in SIZES[:-1])}")
        else:
            words.append(f"{name} {list(arg.shape)}" if isinstance(arg, Tensor) else f"{name}={arg!r}")
    read = inspect.getclosurevars(inspect.unwrap(function)).globals.items()
    read = [f"`{name}`" for name, found in read if isinstance(found, Tensor | TransformerBridge)]
    asked = f" It reads {', '.join(read)} from the notebook. Did you mean an argument?" if read else ""
    return f"It was tried with {', '.join(words)}.{asked}"


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
    avoided = {inspect.unwrap(other).__code__ for other in exercise.avoid}
    given = tuple(copied(arg, dtype) for arg in args)
    called, profiler = set(), sys.getprofile()
    try:
        sys.setprofile((lambda frame, event, arg: called.add(frame.f_code)) if avoided else profiler)
        result = run(exercise, function, given)
        if called & avoided:
            raise Wrong(exercise.avoids)
        for name, now, before in zip(inspect.signature(exercise.solution).parameters, given, args):
            if any(point.fwd_hooks for point in getattr(now, "hook_dict", {}).values()):
                raise Wrong("It leaves a hook on the model. Use `run_with_hooks` or `with model.hooks(...)`.")
            kept = [(now, before)] if isinstance(now, Tensor) else []
            pairs = zip(now.parameters(), before.parameters()) if isinstance(now, TransformerBridge) else kept
            if not all(torch.equal(x, old.to(x)) for x, old in pairs):
                weights = ".W_U" if isinstance(now, TransformerBridge) else ""
                raise Wrong(f"It changes `{name}` in place. Change a copy, such as `{name}{weights}.clone()`.")
        return result
    except Exception as error:
        in_precision.cache_clear()  # the function may have left a model changed
        # torch raises this type too, with a message
        if isinstance(error, Wrong) or isinstance(error, NotImplementedError) and not str(error):
            raise
        file, where = inspect.unwrap(function).__code__.co_filename, "The use of its result"
        for frame in traceback.extract_tb(error.__traceback__):
            where = f"Line {frame.lineno}, `{frame.line}`," if frame.filename == file else where
        said, about = str(error).strip().partition("\n")[0].rstrip("."), described(exercise, function, args)
        raise Wrong(f"{where} raises {type(error).__name__}: {said}. {about}") from error
    finally:
        sys.setprofile(profiler)


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


def close(result: Any, expected: Tensor) -> bool:
    if not isinstance(result, Tensor) or result.shape != expected.shape:
        return False
    if result.is_complex() or expected.dtype == torch.bool != result.dtype:
        return False
    limit = TOLERANCE if result.dtype == torch.float64 else SINGLE
    result, expected = result.double(), expected.double()  # truth values too
    limit *= float(expected.nan_to_num(0, 0, 0).abs().max())
    return torch.allclose(result, expected, rtol=0, atol=limit, equal_nan=True)


def difference(exercise: Exercise, result: Any, expected: Tensor) -> str:
    """Return the first of the general descriptions that fits how a result differs."""
    if not isinstance(result, Tensor):
        return f"It must return a tensor, got {type(result).__name__}. See torch.stack or torch.from_numpy."
    if exercise.labels:
        at, levels = int((result != expected).nonzero()[0]), ("near 0", "in between", "near 1")
        found, right = levels[int(2 * result[at])], levels[int(2 * expected[at])]
        return f"It runs, but {exercise.labels[at]} is {found} and should be {right}."
    axes = inspect.signature(exercise.solution).return_annotation.dim_str.split()
    shape, got = list(expected.shape), list(result.shape)
    if got != shape:
        swapped = " The axes are in a different order." if sorted(got) == sorted(shape) else ""
        return f"The shape must be [{', '.join(axes)}], here {shape}, got {got}.{swapped}"
    if result.is_complex() or expected.dtype == torch.bool != result.dtype:
        kind = "True or False" if expected.dtype == torch.bool else "real numbers"
        return f"The entries must be {kind}, got {result.dtype}."
    write = bool if expected.dtype == torch.bool else "{:.3g}".format
    result, expected = (x if x.is_floating_point() else x.float() for x in (result, expected))
    if len(axes) > 1 and shape[-1] == shape[-2] and close(result.mT, expected):
        return f"The result is transposed. Its last two axes must be [{axes[-2]}, {axes[-1]}]."
    factor = (result * expected).sum() / expected.square().sum()
    if 0 < abs(factor) < torch.inf and close(result, factor * expected):
        return f"Every entry is {factor:.3g} times what it should be."
    if shape[0] > 1 and torch.equal(result, result[:1].expand_as(result)):
        cause = "Does every step use its own index? A collected tensor changed in place (`x += y`) changes everywhere."
        return f"It is the same everywhere along the axis `{axes[0]}`. {cause}"
    if (result.isinf() & expected.isfinite()).any():
        cause = "In single precision a small probability becomes 0: use `log_softmax`."
        return f"Some entries are infinite and should not be. {cause}"
    apart = (result - expected).abs().nan_to_num(torch.inf)
    at = torch.unravel_index(apart.argmax(), apart.shape)
    # "pos-1" has one entry less than "pos"
    place = ", ".join(f"{axis.partition('-')[0]} {int(i)}" for axis, i in zip(axes, at))
    right = int(100 * (apart <= SINGLE * expected.abs().max()).double().mean())  # rounded down
    gives, should = write(result[at]), write(expected[at])
    return f"At {place} it gives {gives} and should give {should}. {right}% of all entries are right."


def helped(name: str) -> Markdown:
    """Return an exercise's hints and its solution, each folded."""
    hints = {f"Hint {i}": hint for i, hint in enumerate(EXERCISES[name].hints, start=1)}
    return folded(hints | {"Solution": f"```python\n{EXERCISES[name].code}```"})


def answered(name: str, **texts: str) -> Markdown:
    """Return the answers to a workbook's questions (keys of TITLES), and what exercises.yml answers, folded until the
    check has passed."""
    fixed = EXERCISES[name].afterward
    texts |= {"Afterward": fixed} if fixed else {}
    answers = {TITLES[question]: text for question, text in texts.items()}
    return folded(answers, unfolded=name in PASSED)


def folded(texts: dict[str, str], unfolded: bool = False) -> Markdown:
    fold = f"<details{' open' * unfolded}><summary>{{}}</summary>\n\n{{}}\n\n</details>"
    return Markdown("\n\n".join(fold.format(title, text) for title, text in texts.items()))


def drawn(name: str, alt: str, caption: str) -> HTML:
    """Return the current figure of matplotlib with its caption, folded until the check has passed. The figure is inside
    the fold: JupyterLab opens folded outputs when all cells are run."""
    image = io.BytesIO()
    plt.savefig(image, format="png", bbox_inches="tight")
    plt.close()
    source = f"data:image/png;base64,{base64.b64encode(image.getvalue()).decode()}"
    picture = f'<img src="{source}" alt="{html.escape(alt)}"><p>{html.escape(caption)}</p>'
    return HTML(f"<details{' open' * (name in PASSED)}><summary>What the function finds</summary>{picture}</details>")
