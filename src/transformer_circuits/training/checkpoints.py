"""What a training run keeps on disk, in one file: a kill at any moment loses no more than the steps since the last
checkpoint."""

import json
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save
from torch import Tensor

from transformer_circuits.models.shards import write_atomically


def save_checkpoint(path: Path, **state: Any) -> None:
    """Write tensors, state dicts, and plain values by name: tensors by number, and all else as JSON beside them."""
    tensors: dict[str, Tensor] = {}

    def numbered(tensor: Tensor) -> dict[str, str]:
        name = str(len(tensors))
        tensors[name] = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {"tensor": name}

    text = json.dumps(state, default=numbered)
    write_atomically(path, save(tensors, {"state": text}))


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Return what was saved, on the CPU; nothing if there is no file. Raises ValueError if it is damaged."""
    if not path.exists():
        return {}
    try:
        with safetensors.safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}
            text = (file.metadata() or {})["state"]
    except (safetensors.SafetensorError, KeyError) as error:
        raise ValueError(f"{path} is damaged ({error}); delete it to start over") from error

    def restored(value: dict[str, Any]) -> Any:
        if "tensor" in value:
            return tensors[value["tensor"]]
        # Optimizers name parameters by whole numbers, which JSON writes as text.
        return {int(key) if key.isdigit() else key: item for key, item in value.items()}

    return json.loads(text, object_hook=restored)
