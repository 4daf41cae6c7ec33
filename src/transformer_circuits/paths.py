"""Where the repository's folders are. Everything that is read or written at run time goes through these names.

ROOT is the repository. An editable install (what `make` does) finds it from this file's own place; others are told by the environment
variable TRANSFORMER_CIRCUITS_ROOT, which wins where both are known.
"""

import os
from pathlib import Path


def find_root() -> Path:
    """The repository's folder; FileNotFoundError where there is none to be found."""
    told = os.environ.get("TRANSFORMER_CIRCUITS_ROOT")
    root = Path(told).expanduser().resolve() if told else Path(__file__).resolve().parents[2]
    if not (root / "pyproject.toml").is_file():
        advice = "set TRANSFORMER_CIRCUITS_ROOT to one, or install with `pip install -e` from one"
        raise FileNotFoundError(f"{root} is not a clone of the book's repository (it has no pyproject.toml): {advice}.")
    return root


ROOT = find_root()
WEIGHTS = ROOT / "weights"  # shipped models
DATA = ROOT / "data"  # tokenizer, held-out sample, counts, passages
BUILD = ROOT / "_build"  # made by `make book`, never committed
