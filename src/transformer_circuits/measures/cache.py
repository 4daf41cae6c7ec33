"""Measurements that several chapters and pages ask for, stored in _build/measured, so that each is made once."""

import contextlib
import functools
import hashlib
import importlib.metadata
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from transformer_circuits.models.architecture import Transformer, causal_attention
from transformer_circuits.models.shards import write_atomically
from transformer_circuits.paths import BUILD

FOLDER = BUILD / "measured"
LIBRARIES = ("torch", "transformer-lens")  # after an upgrade, everything is measured again
ROOMS = ("models", "measures", "circuits")  # after a change of their code too: what a measure calls is in these


@functools.cache
def code_of_rooms() -> bytes:
    """Return the source of the ROOMS of the library."""
    library = Path(__file__).parents[1]
    return b"".join(file.read_bytes() for room in ROOMS for file in sorted(library.glob(f"{room}/*.py")))


def cached(model: TransformerBridge, measure: Callable[[], Sequence[Tensor]], tokens: Tensor) -> list[Tensor]:
    """Return what `measure` returns for a bridge, measured before if weights and `tokens` were the same (`cached_for`).

    Cached for our own transformer in single precision as its weights define it; any other, or one with hooks, is
    measured each time.
    """
    inner = model.original_model
    if not isinstance(inner, Transformer) or model.W_E.dtype != torch.float32 or changed(model):
        return list(measure())
    return cached_for(dict(inner.named_parameters()) | {"tokens": tokens}, measure, str(inner.config))


def changed(model: TransformerBridge) -> bool:
    """Return whether hooks, of TransformerLens or of PyTorch, or another attention change what the weights compute."""
    return any(
        module._forward_hooks
        or module._forward_pre_hooks
        or getattr(module, "attend", causal_attention) is not causal_attention
        for module in model.modules()
    )


def cached_for(inputs: dict[str, Tensor], measure: Callable[[], Sequence[Tensor]], settings: str = "") -> list[Tensor]:
    """Return what `measure` returns, measured before if nothing that it depends on has changed.

    The key has the measure, `inputs`, their device, `settings`, the source of ROOMS, and the releases of LIBRARIES.
    """
    device = next(iter(inputs.values())).device
    name = f"{measure.__module__}.{measure.__qualname__}"
    versions = [importlib.metadata.version(library) for library in LIBRARIES]
    key = hashlib.sha256(f"{name} {versions} {device.type} {settings}".encode())
    key.update(inspect.getsource(measure).encode() + code_of_rooms())
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
        write_atomically(file, save(tensors))
    return found
