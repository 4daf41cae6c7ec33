"""Long evaluations, kept on disk: a chapter that has once run on a machine runs again in seconds.

Nothing of this is shipped. The files lie in `_build/evaluations`, each named after all that its numbers depend on: the
function with all that it reads from around it, what it was given, on which kind of device, the package's own mathematics, and
the versions of the libraries. If any of these changes, it is computed anew. Old files stay until `_build` is removed: they are
small.
"""

from __future__ import annotations

import contextlib
import dataclasses
import dis
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import types
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from transformer_circuits.paths import BUILD

FOLDER = BUILD / "evaluations"
PACKAGE = Path(__file__).parent
MATHEMATICS = ("circuits/*.py", "models/*.py", "training/*.py", "data.py")  # the package's code that numbers depend on
LIBRARIES = ("torch", "numpy", "scipy", "transformer-lens")
DEFINED = (types.FunctionType, types.BuiltinFunctionType, type(functools.cache(len)), type)  # what a name and a version settle


def kept(function: Callable[..., Mapping[str, Tensor]], *arguments: object) -> dict[str, Tensor]:
    """`function(*arguments)`, a few tensors by name; from disk if it has been computed before.

    The tensors are on the CPU, in the order in which the function named them. Arguments are tensors, dataclasses of tensors such
    as `Weights`, numbers, strings, and sequences or mappings of these. The function may use the package, libraries, and what it
    finds in its notebook or module: functions, which are looked into in turn, and values, which count as arguments do. What it
    reads from disk is not seen: pass it in.

    Safe beside another notebook that does the same: files are put in place whole. A damaged file is computed anew, and a folder
    that cannot be written to is done without. So is a package that was edited after it was loaded, with a warning: numbers of the
    old code must not be kept under the name of the new one.
    Raises ValueError for an argument of another kind, or a function that reads such a value.
    """
    key = _key(function, arguments)
    if _mathematics() != LOADED:
        warnings.warn("the package was edited after it was loaded: results are not kept until the kernel restarts", stacklevel=2)
        return _computed(function, arguments)
    path = FOLDER / f"{function.__name__.strip('<>')}-{key}.safetensors"
    found = _read(path)
    if found is None:
        found = _computed(function, arguments)
        _write(path, found)
    return found


def _computed(function: Callable[..., Mapping[str, Tensor]], arguments: tuple[object, ...]) -> dict[str, Tensor]:
    # Cloned, because two names for one memory cannot be written.
    return {name: tensor.detach().cpu().clone().contiguous() for name, tensor in function(*arguments).items()}


def _read(path: Path) -> dict[str, Tensor] | None:
    """None if there is no such file, or what it holds is not what was written."""
    if not path.is_file():
        return None
    with contextlib.suppress(SafetensorError, OSError, KeyError, TypeError, ValueError), safe_open(path, "pt") as file:
        about = file.metadata()
        found = {name: file.get_tensor(name) for name in json.loads(about["names"])}  # the file has an order of its own
        if about["sha256"] == _digest(found):
            return found
    return None


def _write(path: Path, found: dict[str, Tensor]) -> None:
    draft = path.with_name(f".{uuid.uuid4().hex}")  # put in place at once, so that no half-written file is ever read
    with contextlib.suppress(OSError, SafetensorError):
        FOLDER.mkdir(parents=True, exist_ok=True)
        save_file(found, draft, {"names": json.dumps(list(found)), "sha256": _digest(found)})
        os.replace(draft, path)
    with contextlib.suppress(OSError):  # left over where the disk was full
        draft.unlink(missing_ok=True)


# ---- what the numbers depend on ----------------------------------------------------------------------------------------


def _mathematics() -> str:
    digest = hashlib.sha256()
    for pattern in MATHEMATICS:
        for path in sorted(PACKAGE.glob(pattern)):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


LOADED = _mathematics()  # what runs is what was on disk when it was imported, not what is there now


def _key(function: Callable[..., object], arguments: tuple[object, ...]) -> str:
    digest = hashlib.sha256()
    versions = [importlib.metadata.version(name) for name in LIBRARIES]
    _note(digest, LOADED, platform.python_version(), torch.get_float32_matmul_precision(), *versions)
    _add_function(digest, function, set())
    for argument in arguments:
        _add(digest, argument)
    return digest.hexdigest()[:24]


def _digest(found: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in found.items():
        _note(digest, name)
        _add(digest, tensor)
    return digest.hexdigest()


def _note(digest: hashlib._Hash, *texts: object) -> None:
    for text in texts:
        digest.update(f"{text}\0".encode())


def _add(digest: hashlib._Hash, value: object) -> None:
    if isinstance(value, Tensor):
        _note(digest, value.dtype, tuple(value.shape), value.device.type)  # the same sum is rounded otherwise on a GPU
        flat = value.detach().cpu().flatten().clone(memory_format=torch.contiguous_format)  # one number may have any stride
        digest.update(flat.view(torch.uint8).numpy())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        _note(digest, type(value).__qualname__)
        for field in dataclasses.fields(value):
            _note(digest, field.name)
            _add(digest, getattr(value, field.name))
    elif value is None or isinstance(value, (str, int, float)):
        _note(digest, type(value).__name__, repr(value))
    elif isinstance(value, (tuple, list, dict)):
        parts = [part for item in value.items() for part in item] if isinstance(value, dict) else value
        _note(digest, type(value).__name__, len(parts))
        for part in parts:
            _add(digest, part)
    else:
        raise ValueError(f"an evaluation is kept by tensors, dataclasses, numbers and strings, not by a {type(value).__name__}")


def _add_function(digest: hashlib._Hash, function: Callable[..., object], seen: set[int]) -> None:
    """Its bytecode, which is what runs (a source on disk may be newer), its defaults, and all that it reads from around it."""
    if not isinstance(function, types.FunctionType):
        raise ValueError(f"an evaluation is kept by a plain function, not by a {type(function).__name__}: write one with `def`")
    if id(function) in seen:
        return
    seen.add(id(function))
    while hasattr(function, "__wrapped__"):  # under a decorator, such as torch.no_grad
        _note(digest, function.__code__.co_code.hex())
        function = function.__wrapped__
    for code in _codes(function.__code__):
        constants = (c for c in code.co_consts if not isinstance(c, types.CodeType))
        # Sets of constants have no order that two processes would share.
        constants = (sorted(map(repr, c)) if isinstance(c, frozenset) else repr(c) for c in constants)
        _note(digest, code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars, *constants)
    for name, value in _around(function):
        _note(digest, name)
        _add_from_around(digest, name, value, function, seen)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a function and of all functions, comprehensions and classes inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _around(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    """Defaults, variables of functions around it, and global names that it or a function inside it reads."""
    yield from enumerate(function.__defaults__ or ())
    yield from sorted((function.__kwdefaults__ or {}).items())
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        with contextlib.suppress(ValueError):  # a variable that has no value yet
            yield name, cell.cell_contents
    reads = (step for code in _codes(function.__code__) for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL")
    for name in sorted({step.argval for step in reads} & function.__globals__.keys()):
        yield name, function.__globals__[name]


def _add_from_around(
    digest: hashlib._Hash, name: object, value: object, function: types.FunctionType, seen: set[int]
) -> None:
    module = getattr(value, "__module__", None)
    own = module in (function.__module__, "__main__")  # from the same notebook or file; others are packages, which have versions
    if isinstance(value, types.ModuleType):
        _note(digest, value.__name__)
    elif isinstance(value, types.FunctionType) and own:
        _add_function(digest, value, seen)
    elif isinstance(value, DEFINED) and not own:  # a model, say, can be called too, but its name does not tell what it computes
        _note(digest, module, value.__qualname__)
    else:
        try:
            _add(digest, value)
        except ValueError as error:
            what = f"{function.__name__} reads {name!r}, a {type(value).__name__}"
            raise ValueError(f"{what}: {error}; hand over what it needs of it as an argument") from None
