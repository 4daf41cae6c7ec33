"""What a training run keeps on disk, so that a kill at any moment loses no more than the steps since the last checkpoint."""

import contextlib
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save_file
from torch import Tensor

from transformer_circuits.models.architecture import Transformer
from transformer_circuits.models.shards import write_atomically

MOMENTS = ("momentum", "step", "exp_avg", "exp_avg_sq")  # what HeadMuon and AdamW remember of a parameter


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


Optimizers = Sequence[torch.optim.Optimizer]  # each parameter belongs to one of them


def save_checkpoint(path: Path, model: Transformer, optimizers: Optimizers, about: dict[str, Any]) -> None:
    """Write weights, what the optimizers remember of each (their moments), and `about` to one file."""
    remembered = {parameter: state for optimizer in optimizers for parameter, state in optimizer.state.items()}
    tensors = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            tensors[f"model.{name}"] = parameter.detach()
            tensors |= {f"{key}.{name}": value for key, value in remembered[parameter].items()}
    metadata = {"about": json.dumps(about), "sha256": checksum(tensors)}
    write_atomically(path, lambda partial: save_file(tensors, partial, metadata=metadata))


def load_checkpoint(path: Path, model: Transformer, optimizers: Optimizers) -> dict[str, Any]:
    """Put a checkpoint's content into model and optimizers, and return its `about`. Raises ValueError if it is damaged."""
    try:
        with safetensors.safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}
        about = json.loads(metadata["about"])
        if metadata["sha256"] != checksum(tensors):
            raise ValueError("its content does not have its checksum")
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error}); delete it to start over") from error
    names = {parameter: name for name, parameter in model.named_parameters()}
    for optimizer in optimizers:
        for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
            name = names[parameter]
            parameter.data.copy_(tensors[f"model.{name}"])
            moments = {key: tensors[f"{key}.{name}"] for key in MOMENTS if f"{key}.{name}" in tensors}
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
