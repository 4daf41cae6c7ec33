"""Models on disk: safetensors shards, in 16 or 8 bits a weight, and a manifest with the SHA-256 of each::

    <folder>/manifest.json
    <folder>/weights-00001-of-0000n.safetensors ...

The manifest has the model's name, its `ModelConfig`, the stored dtype, for each shard its file, size, and SHA-256, the
SHA-256 of the model's `tokenizer.json`, which is in the folder or is the repository's, and what the trainer reports.
Tensor names are those of `Transformer.state_dict()` without `pos.weight`, which is computed. We write one shard.
"""

import dataclasses
import hashlib
import json
import re
import reprlib
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from jaxtyping import Float
from pydantic import ValidationError
from torch import Tensor, nn

from ..paths import write_atomically
from .architecture import ModelConfig, Transformer, sinusoids

MANIFEST = "manifest.json"
SHARDS = "weights-*-of-*.safetensors"
COMPUTED = "pos.weight"  # the one tensor of a state dict that is not stored
STEP = ".step"  # of a matrix in 8 bits, as most shipped models have them
TOKENIZER = "tokenizer.json"
FILM = "film.npz"  # what a model's training recorded for the slider of "Follow a name"


class WeightsError(RuntimeError):
    """Weights on disk that cannot be used, with one sentence that says what is wrong and what to do."""

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows: the sentence, without thirty lines of libraries."""
        return [f"{type(self).__name__}: {self}"]


def save_model(
    model: Transformer,
    folder: str | Path,
    name: str,
    training: dict[str, Any],
    tokenizer: str | None = None,
    film: bytes | None = None,
) -> None:
    """Write `model` in float16 to `folder`. Raises ValueError if a weight is not finite in float16.

    `tokenizer`: the content of its `tokenizer.json`, and `film`: of its `film.npz`; both are written too. The same
    weights always give the same bytes. Another process finds in `folder`, even after a kill, the old model, none, or
    the new one, never a mixture. Other files in there (a training log) stay.
    """
    folder, tensors = Path(folder), {key: weight for key, weight in model.state_dict().items() if key != COMPUTED}
    weights = safetensors.torch.save(half_precision(tensors))
    shard = {"file": SHARDS.replace("*", "00001"), "bytes": len(weights), "sha256": sha256(weights)}
    manifest = {"name": name, "config": dataclasses.asdict(model.config), "dtype": "float16", "training": training}
    manifest["shards"] = [shard]
    files = {shard["file"]: weights}
    if tokenizer is not None:
        files[TOKENIZER] = tokenizer.encode()
        manifest[TOKENIZER] = {"sha256": sha256(files[TOKENIZER])}
    if film is not None:
        files[FILM] = film
        manifest["film"] = {"sha256": sha256(film)}
    files[MANIFEST] = (json.dumps(manifest, indent=1, allow_nan=False) + "\n").encode()
    # The manifest leaves first and arrives last, so that no mixture can be loaded.
    for path in [folder / MANIFEST, *folder.glob(SHARDS), folder / TOKENIZER, folder / FILM]:
        path.unlink(missing_ok=True)
    for file, content in files.items():
        write_atomically(folder / file, content)


def full_precision(stored: dict[str, Tensor]) -> dict[str, Float[Tensor, "..."]]:
    """Return stored tensors in float32: a matrix in 8 bits has in `KEY.step` what 1 stands for in each row."""
    tensors = {key: tensor.float() for key, tensor in stored.items() if not key.endswith(STEP)}
    return {key: tensor * stored.get(key + STEP, 1) for key, tensor in tensors.items()}


def half_precision(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return weights in float16, on the CPU. Raises ValueError for one that is not finite there."""
    stored = {key: weight.to("cpu", torch.float16).contiguous() for key, weight in weights.items()}
    for key, weight in stored.items():
        if not weight.isfinite().all():
            raise ValueError(f"{key} has values that float16 cannot hold: infinite, NaN, or beyond 65,504")
    return stored


def read_model(folder: str | Path) -> tuple[Transformer, dict[str, Any]]:
    """Return the model in `folder`, in float32 on the CPU, and its manifest; every shard's SHA-256 is checked first.
    Raises WeightsError for a manifest or shard that is missing, damaged, or does not fit, and for NaN or infinity."""
    folder = Path(folder)
    manifest = read_manifest(folder)
    tensors: dict[str, Tensor] = {}
    for shard in manifest["shards"]:
        tensors |= safetensors.torch.load(verified(folder / shard["file"], shard["sha256"]))
    return build(ModelConfig(**manifest["config"]), full_precision(tensors), str(folder)), manifest


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest in `folder`. Raises WeightsError if it is missing or malformed."""
    path = folder / MANIFEST
    if not path.is_file():
        raise WeightsError(f"{folder} has no {MANIFEST}; export a model into it, or fetch it again")
    try:
        manifest = json.loads(path.read_bytes())
        settings = dataclasses.asdict(ModelConfig(**manifest["config"]))
        # A part that is missing is not guessed: the default of a setting may be another model's.
        _ = manifest["name"], dict(manifest["training"]), [manifest["config"][name] for name in settings]
        _ = [(shard["file"], shard["sha256"]) for shard in manifest["shards"]]
        return manifest
    except (ValueError, KeyError, TypeError) as error:
        why = f"it lacks {error}" if isinstance(error, KeyError) else reason(error)
        raise WeightsError(f"{path} is not a readable manifest ({why}); fetch or export it again") from error


def build(config: ModelConfig, tensors: dict[str, Tensor], where: str) -> Transformer:
    """Return a Transformer with these tensors (not copies), which come from `where`. Raises WeightsError if names or
    shapes do not fit `config`, or if a weight is NaN or infinite."""
    try:
        # No memory, and no random initialization, which would change the generator.
        with torch.device("meta"):
            model = Transformer(config)
        model.load_state_dict({COMPUTED: model.pos.weight} | tensors, assign=True)
    except RuntimeError as error:
        mismatch = " ".join(str(error).split())
        raise WeightsError(f"the tensors in {where} do not fit its configuration: {mismatch[:500]}") from error
    if broken := [key for key, tensor in tensors.items() if not tensor.isfinite().all()]:
        raise WeightsError(f"{broken[0]} in {where} contains NaN or infinity; fetch or export it again")
    # The width is that of the tensors, so this fits into memory.
    if COMPUTED not in tensors:
        model.pos.weight = nn.Parameter(sinusoids(config.n_ctx, config.d_model), requires_grad=False)
    return model


def verified(path: Path, expected: str) -> bytes:
    """Return the bytes of a file with this SHA-256. Raises WeightsError if it is missing, or another one."""
    content = path.read_bytes() if path.is_file() else b""
    if sha256(content) != expected:
        raise WeightsError(f"{path} is missing or damaged (SHA-256 must be {expected}); remove it, and fetch it again")
    return content


def reason(error: Exception) -> str:
    """Return an exception's first line, or its type; of several wrong settings, what the first one must be."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        name, must = ".".join(map(str, first["loc"])), re.sub(r"^\w+ should", "must", first["msg"])
        if first["type"] == "missing":
            return f"{name} is missing"
        return f"{name} {must}, got {reprlib.repr(first['input'])}".strip()
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
