"""Long evaluations, kept on disk: a chapter that has once run on a machine runs again in seconds.

Nothing of this is shipped. The files lie in `_build/evaluations`, each named after all that its numbers depend on: the
function, what it was given, the package's own mathematics, and the version of torch. If any of these changes, it is computed anew.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import inspect
import os
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from transformer_circuits.paths import BUILD

FOLDER = BUILD / "evaluations"
PACKAGE = Path(__file__).parent
MATHEMATICS = ("circuits", "models", "training")  # folders of the package whose code the numbers depend on


def kept(function: Callable[..., Mapping[str, Tensor]], *arguments: object) -> dict[str, Tensor]:
    """`function(*arguments)`, a few tensors by name; from disk if it has been computed before. The tensors are on the CPU.

    All that the function depends on must be in its arguments (tensors, dataclasses of tensors such as `Weights`, numbers, strings)
    or in its own source: what a notebook cell defines elsewhere is not seen. A damaged file is computed anew, and a folder that
    cannot be written to is done without. Raises ValueError for an argument of another kind.
    """
    path = FOLDER / f"{function.__name__}-{_key(function, arguments)}.safetensors"
    if path.is_file():
        with contextlib.suppress(SafetensorError, OSError):
            return load_file(path)
    found = {name: tensor.detach().cpu().contiguous() for name, tensor in function(*arguments).items()}
    draft = path.with_name(f".{uuid.uuid4().hex}")  # put in place at once, so that no half-written file is ever read
    with contextlib.suppress(OSError, SafetensorError):
        FOLDER.mkdir(parents=True, exist_ok=True)
        save_file(found, draft)
        os.replace(draft, path)
    return found


def _key(function: Callable[..., object], arguments: Iterable[object]) -> str:
    digest = hashlib.sha256(torch.__version__.encode())
    for folder in MATHEMATICS:
        for path in sorted((PACKAGE / folder).glob("*.py")):
            digest.update(path.read_bytes())
    digest.update(inspect.getsource(function).encode())
    for argument in arguments:
        _add(digest, argument)
    return digest.hexdigest()[:24]


def _add(digest: hashlib._Hash, value: object) -> None:
    if isinstance(value, Tensor):
        digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            _add(digest, getattr(value, field.name))
    elif isinstance(value, (str, int, float)):
        digest.update(f"{type(value).__name__}{value!r}\0".encode())
    else:
        raise ValueError(f"an evaluation is kept by tensors, dataclasses, numbers and strings, not by a {type(value).__name__}")
