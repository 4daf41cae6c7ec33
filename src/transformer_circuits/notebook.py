"""Prepare a notebook: what every chapter needs besides its subject."""

import importlib.metadata
import inspect
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from IPython import get_ipython
from IPython.display import Markdown, display

from transformer_circuits.figures.style import use_style
from transformer_circuits.paths import chapter_number

TESTED = {"torch": "2.13", "transformer-lens": "4.3"}  # releases that the book's numbers come from


def setup() -> None:
    """Use the book's figure style and no gradients. Print a line only where a library differs from the tested one."""
    use_style()
    torch.set_grad_enabled(False)
    if (shell := get_ipython()) and "JPY_SESSION_NAME" in os.environ:  # in JupyterLab
        shell.events.register("post_run_cell", show_caption)
    here = {name: importlib.metadata.version(name) for name in TESTED}
    other = [f"{name} {here[name]}" for name, tested in TESTED.items() if not here[name].startswith(tested)]
    if other:
        tested = ", ".join(f"{name} {version}" for name, version in TESTED.items())
        print(f"This book was tested with {tested}; here: {', '.join(other)}.")


def show_caption(_: object = None) -> None:
    """In JupyterLab, write below a cell's figure the number and caption that the page takes from the notebook."""
    cell = get_ipython().get_parent().get("metadata", {}).get("cellId")
    path = Path(os.environ["JPY_SESSION_NAME"])
    if cell and path.is_file() and (caption := captions(path).get(cell)):
        display(Markdown(caption))


def captions(path: Path) -> dict[str, str]:
    """Return number and caption of each figure in a notebook, by its cell; numbers are those of the page, whose
    headline stands first."""
    number = f"{chapter_number(path.name)}.".lstrip(".")
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    drawn = [cell for cell in cells if "figure" in cell["metadata"].get("mystnb", {})]
    drawn.sort(key=lambda cell: "headline" not in cell["metadata"].get("tags", []))
    return {
        cell["id"]: f"**Fig. {number}{place}.** {cell['metadata']['mystnb']['figure']['caption']}"
        for place, cell in enumerate(drawn, 1)
    }


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
