"""What a training run keeps on disk, in one file, so that a kill at any moment loses no more than the steps since the
last checkpoint."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import safetensors
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from transformer_circuits.models.shards import write_atomically


def digest(file: BinaryIO) -> str:
    """Return the first 16 digits of a file's SHA-256, which identify the corpus that a model was trained on."""
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def checksum(done: str, tensors: dict[str, Tensor]) -> str:
    total = hashlib.sha256(done.encode())
    for name in sorted(tensors):
        total.update(name.encode() + tensors[name].numpy(force=True).tobytes())
    return total.hexdigest()


def owners(optimizers: Sequence[Optimizer]) -> dict[Tensor, Optimizer]:
    """Return the optimizer of each parameter."""
    return {p: optimizer for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}


def save_checkpoint(
    path: Path, model: nn.Module, optimizers: Sequence[Optimizer], frames: Sequence[dict[str, Tensor]], **done: Any
) -> None:
    """Write trained weights, what the optimizers remember of each (their moments), the film's frames, and `done`."""
    names, tensors = {parameter: name for name, parameter in model.named_parameters()}, {}
    for parameter, optimizer in owners(optimizers).items():
        content = {"model": parameter.detach(), **optimizer.state[parameter]}
        tensors |= {f"{key}.{names[parameter]}": value for key, value in content.items()}
    for name in frames[0] if frames else ():
        tensors[f"film.{name}"] = torch.stack([frame[name] for frame in frames])
    text = json.dumps(done)
    metadata = {"done": text, "sha256": checksum(text, tensors)}
    write_atomically(path, lambda partial: save_file(tensors, partial, metadata=metadata))


def read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the `done` and the tensors of a checkpoint; nothing if there is none. Raises ValueError if it is
    damaged."""
    if not path.exists():
        return {}, {}
    try:
        with safetensors.safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}
        if metadata["sha256"] != checksum(metadata["done"], tensors):
            raise ValueError("its content does not have its checksum")
        return json.loads(metadata["done"]), tensors
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error}); delete it to start over") from error


def restore(tensors: dict[str, Tensor], model: nn.Module, optimizers: Sequence[Optimizer]) -> list[dict[str, Tensor]]:
    """Put a checkpoint's tensors into model and optimizers, and return the film's frames."""
    parameters, owner, film = dict(model.named_parameters()), owners(optimizers), {}
    for place, value in tensors.items():
        key, _, name = place.partition(".")
        if key == "film":
            film[name] = value
        elif key == "model":
            parameters[name].data.copy_(value)
        else:
            owner[parameters[name]].state[parameters[name]][key] = value.to(parameters[name])
    return [dict(zip(film, frame)) for frame in zip(*film.values())]
