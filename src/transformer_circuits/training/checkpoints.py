"""What a training run keeps on disk, in one file with checksums: a kill at any moment loses no more than the steps
since the last checkpoint."""

import io
import zipfile
from pathlib import Path
from typing import Any

import torch

from transformer_circuits.models.shards import write_atomically


def save_checkpoint(path: Path, **state: Any) -> None:
    """Write tensors, state dicts, and plain values by name."""
    content = io.BytesIO()
    torch.save(state, content)
    write_atomically(path, content.getvalue())


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Return what was saved, on the CPU; nothing if there is no file. Raises ValueError if it is damaged."""
    if not path.exists():
        return {}
    try:
        with zipfile.ZipFile(path) as archive:  # PyTorch writes the checksums of a zip, but does not compare them
            if damaged := archive.testzip():
                raise zipfile.BadZipFile(f"{damaged} does not have its checksum")
        return torch.load(path, map_location="cpu", weights_only=True)  # runs no code
    except (zipfile.BadZipFile, RuntimeError) as error:
        raise ValueError(f"{path} is damaged ({error}); delete it to start over") from error
