"""Measurements that several chapters and pages ask for, stored in _build/measured, so that each is made once."""

import contextlib
import functools
import hashlib
import importlib.metadata
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from transformer_circuits.models.architecture import Transformer
from transformer_circuits.paths import BUILD, write_atomically

FOLDER = BUILD / "measured"
LIBRARIES = ("torch", "transformer-lens")  # after an upgrade, everything is measured again
ROOMS = ("models", "measures", "circuits")  # after a change of their code too: what a measure calls is in these


@functools.cache
def code_of_rooms() -> bytes:
    """Return the source of the ROOMS of the library."""
    library = Path(__file__).parents[1]
    return b"".join(file.read_bytes() for room in ROOMS for file in sorted(library.glob(f"{room}/*.py")))


def cached_on(model: TransformerBridge, name: str, measure: Callable[[], Tensor], tokens: Tensor) -> Tensor:
    """Return what `measure` returns for a bridge, measured before if weights and `tokens` were the same (`cached`).

    Cached for our own transformer in single precision as its weights define it; any other, or one with hooks of
    TransformerLens or PyTorch or another attention, is measured each time.
    """
    inner = model.original_model
    changed = any(x._forward_hooks or x._forward_pre_hooks or "attend" in vars(x) for x in model.modules())
    if changed or not isinstance(inner, Transformer) or model.W_E.dtype != torch.float32:
        return measure()
    return cached(f"{name} {inner.config}", measure, [tokens, *inner.parameters()])


def cached(name: str, measure: Callable[[], Tensor], inputs: Sequence[Tensor]) -> Tensor:
    """Return what `measure` returns, measured before if nothing that it depends on has changed.

    The key has `name`, which tells the measure and its settings, `inputs`, their device, the source of ROOMS, and the
    releases of LIBRARIES.
    """
    releases, device = [importlib.metadata.version(library) for library in LIBRARIES], inputs[0].device
    key = hashlib.sha256(f"{name} {releases} {device.type}".encode() + code_of_rooms())
    for tensor in inputs:
        key.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode() + tensor.numpy(force=True).tobytes())
    file = FOLDER / f"{key.hexdigest()}.safetensors"
    with contextlib.suppress(FileNotFoundError, SafetensorError):  # a damaged file: measured again
        return load_file(file)["found"].to(device)
    found = measure()
    with contextlib.suppress(OSError):  # a full disk, or another process that stores the same: both go on without
        write_atomically(file, save({"found": found.contiguous()}))
    return found
