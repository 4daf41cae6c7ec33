"""What a training run keeps on disk, so that a kill at any moment loses no more than the steps since the last
checkpoint."""

import contextlib
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import safetensors
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from transformer_circuits.models.shards import write_atomically


def digest(path: Path) -> str:
    """Return the first 16 digits of a file's SHA-256, which identify the corpus that a model was trained on."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def checksum(tensors: dict[str, Tensor]) -> str:
    total = hashlib.sha256()
    for name in sorted(tensors):
        total.update(name.encode() + tensors[name].numpy(force=True).tobytes())
    return total.hexdigest()


def owners(optimizers: Sequence[Optimizer]) -> dict[Tensor, Optimizer]:
    """Return the optimizer of each parameter."""
    return {p: optimizer for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}


def save_checkpoint(
    path: Path, model: nn.Module, optimizers: Sequence[Optimizer], about: dict[str, Any], **done: Any
) -> None:
    """Write trained weights, what the optimizers remember of each (their moments), `about` and `done` to one file."""
    names, tensors = {parameter: name for name, parameter in model.named_parameters()}, {}
    for parameter, optimizer in owners(optimizers).items():
        content = {"model": parameter.detach(), **optimizer.state[parameter]}
        tensors |= {f"{key}.{names[parameter]}": value for key, value in content.items()}
    metadata = {"about": json.dumps({"about": about, **done}), "sha256": checksum(tensors)}
    write_atomically(path, lambda partial: save_file(tensors, partial, metadata=metadata))


def recorded(path: Path) -> dict[str, Any]:
    """Return the `about` of a checkpoint; nothing if there is none, or none that can be read."""
    try:
        with safetensors.safe_open(path, "pt") as file:
            return json.loads(file.metadata()["about"])["about"]
    except (safetensors.SafetensorError, OSError, KeyError, TypeError, ValueError):
        return {}


def load_checkpoint(
    path: Path, model: nn.Module, optimizers: Sequence[Optimizer], about: dict[str, Any]
) -> dict[str, Any]:
    """Put a checkpoint's content into model and optimizers, and return its `done`. Raises ValueError if it is damaged
    or not about this run."""
    try:
        with safetensors.safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}
        done = json.loads(metadata["about"])
        if metadata["sha256"] != checksum(tensors):
            raise ValueError("its content does not have its checksum")
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error}); delete it to start over") from error
    if done.pop("about") != about:
        raise ValueError(f"{path} belongs to another configuration or corpus; choose another --out")
    parameters, owner = dict(model.named_parameters()), owners(optimizers)
    for place, value in tensors.items():
        key, _, name = place.partition(".")
        if key == "model":
            parameters[name].data.copy_(value)
        else:
            owner[parameters[name]].state[parameters[name]][key] = value.to(parameters[name])
    return done


def read_log(path: Path, step: int, expected: set[int]) -> dict[int, str]:
    """Return the log's lines up to a checkpoint's step, by step. One that a kill cut off is left out, and will be
    written again.

    Raises ValueError if the log is missing a snapshot from before the checkpoint.
    """
    kept: dict[int, str] = {}
    for line in path.read_text(encoding="utf8").splitlines()[1:] if path.exists() else ():
        with contextlib.suppress(ValueError, KeyError, TypeError):
            kept[json.loads(line)["step"]] = line
    if missing := sorted(at for at in expected if at <= step and at not in kept):
        advice = "restore it, or delete the checkpoint to start over"
        raise ValueError(f"{path} is missing the snapshot at step {missing[0]}; {advice}")
    return {at: line for at, line in kept.items() if at <= step}
