"""Measurements that several chapters and pages ask for, stored in _build/measured, so that each is made once."""

import contextlib
import hashlib
import importlib.metadata
import inspect
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from transformer_circuits.models.architecture import Transformer
from transformer_circuits.models.shards import write_atomically
from transformer_circuits.paths import BUILD

FOLDER = BUILD / "measured"
LIBRARIES = ("torch", "transformer-lens")  # after an upgrade, everything is measured again


def cached(
    model: Any, measure: Callable[[], Sequence[Tensor]], code: Sequence[ModuleType], tokens: Tensor | None = None
) -> list[Tensor]:
    """Return what `measure` returns for a bridge, measured before if weights and `tokens` were the same (`cached_for`).

    Cached for our own transformer in single precision, without hooks; any other is measured each time.
    """
    inner, hooked = model.original_model, any(point.fwd_hooks for point in model.hook_dict.values())
    ours = isinstance(inner, Transformer) and model.W_E.dtype == torch.float32
    if not ours or hooked:
        return list(measure())
    inputs = {} if tokens is None else {"tokens": tokens}
    return cached_for(dict(inner.named_parameters()) | inputs, measure, code, str(inner.config))


def cached_for(
    inputs: dict[str, Tensor], measure: Callable[[], Sequence[Tensor]], code: Sequence[ModuleType], settings: str = ""
) -> list[Tensor]:
    """Return what `measure` returns, measured before if nothing that it depends on has changed.

    The key has the measure, `inputs`, their device, `settings`, the source of `code`, and the releases of LIBRARIES.
    """
    device = next(iter(inputs.values())).device
    name = f"{measure.__module__}.{measure.__qualname__}"
    versions = [importlib.metadata.version(library) for library in LIBRARIES]
    key = hashlib.sha256(f"{name} {versions} {device.type} {settings}".encode())
    for part in (measure, *code):
        key.update(inspect.getsource(part).encode())
    for name, tensor in inputs.items():
        key.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        key.update(tensor.detach().cpu().flatten().view(torch.uint8).numpy().tobytes())
    file = FOLDER / f"{key.hexdigest()}.safetensors"
    with contextlib.suppress(FileNotFoundError, SafetensorError):  # a damaged file: measured again
        stored = load_file(file)
        return [stored[str(i)].to(device) for i in range(len(stored))]
    found = list(measure())
    tensors = {str(i): tensor.contiguous() for i, tensor in enumerate(found)}
    with contextlib.suppress(OSError):  # a full disk, or another process that stores the same: both go on without
        write_atomically(file, lambda partial: save_file(tensors, partial))
    return found
