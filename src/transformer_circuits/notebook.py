"""Prepare a notebook: what every chapter needs besides its subject."""

import importlib.metadata
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from IPython.display import Markdown

from transformer_circuits.figures.style import use_style

TESTED = {"torch": "2.13", "transformer-lens": "4.3"}  # releases that the book's numbers come from


def setup() -> None:
    """Use the book's figure style and no gradients. Print a line only where a library differs from the tested one."""
    use_style()
    torch.set_grad_enabled(False)
    here = {name: importlib.metadata.version(name) for name in TESTED}
    other = [f"{name} {here[name]}" for name, tested in TESTED.items() if not here[name].startswith(tested)]
    if other:
        tested = ", ".join(f"{name} {version}" for name, version in TESTED.items())
        print(f"This book was tested with {tested}; here: {', '.join(other)}.")


def describes(models: Mapping[str, Any]) -> None:
    """Print a line, below the title of a chapter, if it runs on another model than the one that its text describes.

    `models` has, by the name of each model of the text, the one that is loaded in its place.
    """
    names = {described: model.cfg.model_name for described, model in models.items()}
    other = [f"{name} in place of {described}" for described, name in names.items() if name != described]
    if other:
        print(f"The text describes {' and '.join(models)}. The numbers are those of {', and of '.join(other)}.")


def source(*functions: Callable) -> Markdown:
    """Return the source code of functions of a module, to show as the last value of a cell."""
    code = "\n\n".join(map(inspect.getsource, functions))
    return Markdown(f"```python\n{code}```")
