"""What a training run keeps on disk, in one file with its checksum: a kill at any moment loses no more than the steps
since the last checkpoint."""

import hashlib
import json
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save
from torch import Tensor

from transformer_circuits.models.shards import write_atomically


def save_checkpoint(path: Path, **state: Any) -> None:
    """Write tensors, state dicts, and plain values by name."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_without_tensors(state, tensors))
    metadata = {"state": text, "sha256": _checksum(text, tensors)}
    write_atomically(path, save(tensors, metadata))


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Return what was saved, on the CPU; nothing if there is no file. Raises ValueError if it is damaged."""
    if not path.exists():
        return {}
    try:
        with safetensors.safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}
        if metadata["sha256"] != _checksum(metadata["state"], tensors):
            raise ValueError("its content does not have its checksum")
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error}); delete it to start over") from error
    return _with_tensors(json.loads(metadata["state"]), tensors)


def _without_tensors(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return a value as JSON can say it, and put its tensors into `tensors`. A dictionary becomes a list of pairs,
    because optimizers name parameters by whole numbers."""
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {"tensor": name}
    if isinstance(value, dict):
        return {"dict": [[key, _without_tensors(item, tensors)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        return [_without_tensors(item, tensors) for item in value]
    return value


def _with_tensors(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return the value that `_without_tensors` was given."""
    if isinstance(value, list):
        return [_with_tensors(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return tensors[value["tensor"]]
    return {key: _with_tensors(item, tensors) for key, item in value["dict"]}


def _checksum(text: str, tensors: dict[str, Tensor]) -> str:
    total = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        total.update(name.encode() + tensors[name].numpy(force=True).tobytes())
    return total.hexdigest()
