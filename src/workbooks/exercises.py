"""What an exercise is: its solution, the arguments it is tried with, and its words (exercises.yml)."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import yaml
from torch import Tensor


@dataclasses.dataclass(eq=False)
class Exercise:
    solution: Callable[..., Any]
    cases: Iterable[tuple]  # arguments of each trial
    hints: list[str]
    mistakes: list[dict[str, Any]]  # a message, and parts of the solution with what a reader wrote instead
    afterward: str = ""  # the answer to the exercise's last question, if it contains no numbers
    measure: Callable[..., Tensor] = lambda result, *args: result  # returns what is compared
    labels: tuple[str, ...] = ()  # of what `measure` returns: each is near 0, in between, or near 1
    avoid: frozenset[str] = frozenset()  # names that it must not use
    avoids: str = ""  # the message if it does

    @property
    def code(self) -> str:
        """The solution's code without its decorator."""
        return "def " + inspect.getsource(self.solution).partition("\ndef ")[2]

    @functools.cached_property
    def trials(self) -> list[tuple]:
        return list(self.cases)

    @functools.cached_property
    def parameters(self) -> list[str]:
        return list(inspect.signature(self.solution).parameters)

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


def exercise(cases: Iterable[tuple], **parts: Any) -> Callable[[Callable], Callable]:
    """Register the decorated function as the solution of an exercise."""

    def register(solution: Callable) -> Callable:
        EXERCISES[solution.__name__] = Exercise(solution, cases, **TEXTS[solution.__name__], **parts)
        return solution

    return register
