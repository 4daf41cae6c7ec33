"""What every chapter needs besides its subject."""

from __future__ import annotations

import importlib.metadata
import os

import torch

from transformer_circuits.figures.style import use_style


def in_book() -> bool:
    """True while the book is being built (transformer_circuits.build sets the variable for its kernels)."""
    return os.environ.get("TRANSFORMER_CIRCUITS_BOOK") == "1"


TESTED = {"torch": "2.13", "transformer-lens": "4.3"}  # releases that the book's numbers come from


def setup() -> None:
    """What every chapter starts with: the book's figure style, no gradients, and a word only where a library differs from the tested one."""
    use_style()
    torch.set_grad_enabled(False)
    other = [f"{name} {found}" for name, tested in TESTED.items() if not (found := importlib.metadata.version(name)).startswith(tested)]
    if other:
        print(f"This book was tested with {', '.join(f'{n} {v}' for n, v in TESTED.items())}; here: {', '.join(other)}.")
