"""What a training run keeps on disk, so that a kill at any moment loses no more than the steps since the last checkpoint."""

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save_file
from torch import Tensor

from transformer_circuits.models.architecture import Transformer
from transformer_circuits.models.shards import write_atomically


def digest(path: Path) -> str:
    """Return the first 16 digits of a file's SHA-256, which identify the corpus that a model was trained on."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def checksum(tensors: dict[str, Tensor]) -> str:
    found = hashlib.sha256()
    for name in sorted(tensors):
        found.update(name.encode())
        found.update(tensors[name].detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def save_checkpoint(
    path: Path, model: Transformer, optimizer: torch.optim.Optimizer, about: dict[str, Any]
) -> None:
    """Write weights, optimizer moments and `about` to one file."""
    tensors = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            tensors[f"model.{name}"] = parameter.detach()
            tensors |= {f"{key}.{name}": value for key, value in optimizer.state[parameter].items()}
    metadata = {"about": json.dumps(about), "sha256": checksum(tensors)}
    write_atomically(path, lambda partial: save_file(tensors, partial, metadata=metadata))


def load_checkpoint(path: Path, model: Transformer, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Put a checkpoint's content into model and optimizer, and return its `about`. Raises ValueError if it is damaged."""
    try:
        with safetensors.safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}
        about = json.loads(metadata["about"])
        if metadata["sha256"] != checksum(tensors):
            raise ValueError("its content does not have its checksum")
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error}); delete it to start over") from error
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(tensors[f"model.{name}"])
                moments = {key: tensors[f"{key}.{name}"] for key in ("step", "exp_avg", "exp_avg_sq")}
                optimizer.state[parameter] = {key: value.to(parameter) for key, value in moments.items()}
    return about


def read_log(path: Path, step: int, expected: set[int]) -> dict[int, str]:
    """Return the log's lines up to a checkpoint's step, by step. One that a kill cut off is left out, and will be written again.

    Raises ValueError if the log is missing a snapshot from before the checkpoint.
    """
    kept: dict[int, str] = {}
    for line in path.read_text(encoding="utf8").splitlines()[1:] if path.exists() else ():
        with contextlib.suppress(ValueError, KeyError, TypeError):
            kept[json.loads(line)["step"]] = line
    if missing := sorted(at for at in expected if at <= step and at not in kept):
        raise ValueError(
            f"{path} is missing the snapshot at step {missing[0]}; restore it, or delete the checkpoint to start over"
        )
    return {at: line for at, line in kept.items() if at <= step}
