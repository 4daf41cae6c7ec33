"""What every notebook needs besides its subject: versions and device at the top, numbers that the book's prose can quote."""

from __future__ import annotations

import importlib.metadata
import os
import platform

import torch


def in_book() -> bool:
    """True while the book is being built (transformer_circuits.build sets the variable for its kernels)."""
    return os.environ.get("TRANSFORMER_CIRCUITS_BOOK") == "1"


def setup() -> None:
    """Print the versions that results depend on, and the device that models will be loaded to."""
    versions = {
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "TransformerLens": importlib.metadata.version("transformer-lens"),
    }
    print(", ".join(f"{name} {version}" for name, version in versions.items()))
    print("device:", torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu")


def record_number(name: str, value: float) -> None:
    """Keep a number under a name for the book's prose: glued while the book is built, printed otherwise.

    Glued numbers are plain Python floats. (A NumPy scalar would print as `np.float64(...)`, and {glue:text} then drops it
    from the sentence.) Raises ValueError for anything but one number.
    """
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"record_number({name!r}, ...) takes one number, not {type(value).__name__}.") from error
    if in_book():
        from myst_nb import glue  # absent on Colab, which never builds the book

        glue(name, number, display=False)
    else:
        print(f"{name} = {number:.6g}")
