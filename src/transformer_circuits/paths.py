"""Where the book's files are: in a clone of its repository.

An editable install (what `make` does) finds the clone from this file's own place; others are told by the environment
variable TRANSFORMER_CIRCUITS_ROOT, which wins where both are known. A package without a clone has the library alone.
"""

import difflib
import os
import re
from pathlib import Path


def find_clone() -> Path | None:
    """Return the repository's folder; None for a package without one. Raises FileNotFoundError if
    TRANSFORMER_CIRCUITS_ROOT names another folder."""
    if told := os.environ.get("TRANSFORMER_CIRCUITS_ROOT"):
        root = Path(told).expanduser().resolve()
        if not (root / "pyproject.toml").is_file():
            todo = "set TRANSFORMER_CIRCUITS_ROOT to one, or unset it"
            raise FileNotFoundError(f"{root} is not a clone of the book's repository (no pyproject.toml): {todo}")
        return root
    package = Path(__file__).resolve().parent
    root = package.parents[1]
    return root if root / "src" / package.name == package and (root / "pyproject.toml").is_file() else None


def cache() -> Path:
    """Return the book's folder in the user's cache, where the Hugging Face libraries keep theirs too."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "transformer-circuits-reproduced"


def data_file(name: str | Path) -> Path:
    """Return a file of the book's data. Raises FileNotFoundError for a package without a clone."""
    if not DATA.is_dir():
        todo = "set TRANSFORMER_CIRCUITS_ROOT to a clone of the book's repository"
        raise FileNotFoundError(f"the book's data is not in the package; {todo}")
    return DATA / name


def chapter_number(file: str) -> str:
    """Return the number of a chapter by its file's name: "7" of 07_induction_heads.ipynb, "0", "A1", "E1"; else ""."""
    return "".join(re.findall(r"^0?(\d+|[ae]\d+)_", file)).upper()


def did_you_mean(path: Path) -> str:
    """Return ": did you mean X?" for a path that is not there, if a folder or file of nearly this name is, or one of
    this name in the book's folder; else nothing."""
    if not path.is_absolute() and (ROOT / path).exists():
        return f": did you mean {os.path.relpath(ROOT / path)}?"
    if not path.parent.is_dir():
        return did_you_mean(path.parent)
    near = difflib.get_close_matches(path.name, [beside.name for beside in path.parent.iterdir()], 1)
    return f": did you mean {path.parent / near[0]}?" if near else ""


def write_atomically(path: Path, content: bytes) -> None:
    """Replace what is in a file. After a kill it is the old file or the new one. Raises OSError, in one sentence, if
    it cannot be written; the old file is then as it was."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(partial, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        todo = "make room on its disk, or choose a folder of your own"
        raise OSError(f"{path} could not be written ({error.strerror}); {todo}") from None
    finally:
        partial.unlink(missing_ok=True)


CLONE = find_clone()
ROOT = CLONE or cache()
WEIGHTS = ROOT / "weights"  # shipped models
DATA = ROOT / "data"  # tokenizer, held-out sample, counts, passages
BUILD = ROOT / "_build"  # made by `make book`, never committed
