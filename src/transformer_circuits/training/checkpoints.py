"""What a training run keeps on disk, in one file with its checksum: a kill at any moment loses no more than the steps
since the last checkpoint."""

import hashlib
import io
from pathlib import Path
from typing import Any

import torch

from transformer_circuits.models.shards import write_atomically

DIGEST = hashlib.sha256().digest_size  # bytes, at the start of the file


def save_checkpoint(path: Path, **state: Any) -> None:
    """Write tensors, state dicts, and plain values by name."""
    file = io.BytesIO()
    torch.save(state, file)
    content = file.getvalue()
    write_atomically(path, lambda partial: partial.write_bytes(hashlib.sha256(content).digest() + content))


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Return what was saved, on the CPU; nothing if there is no file. Raises ValueError if it is damaged."""
    if not path.exists():
        return {}
    stored = path.read_bytes()
    digest, content = stored[:DIGEST], stored[DIGEST:]
    if hashlib.sha256(content).digest() != digest:
        raise ValueError(f"{path} is damaged; delete it to start over")
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
