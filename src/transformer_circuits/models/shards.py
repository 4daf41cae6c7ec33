"""Models on disk: safetensors shards, in 16 or 8 bits a weight, and a manifest with the SHA-256 of each.

    <folder>/manifest.json
    <folder>/weights-00001-of-0000n.safetensors ...

The manifest has the model's name, its `ModelConfig`, the stored dtype, for each shard its file, size, SHA-256 and
tensors, the SHA-256 of the model's `tokenizer.json`, which is in the folder or is the repository's, and what the
trainer reports. Tensor names are those of `Transformer.state_dict()` without `pos.weight`, which is computed.
"""

import contextlib
import dataclasses
import hashlib
import io
import json
import os
import re
import reprlib
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from jaxtyping import Float
from pydantic import BaseModel, Field, ValidationError
from torch import Tensor, nn

from .. import paths
from .architecture import ModelConfig, Transformer, sinusoids

MANIFEST = "manifest.json"
SHARD_BYTES = 15_000_000  # of a shard at most, or one larger tensor, so that files stay small enough for a repository
COMPUTED = "pos.weight"  # the one tensor of a state dict that is not stored
STEP = ".step"  # of a matrix in 8 bits: what 1 stands for in each row
TOKENIZER = "tokenizer.json"
FILM = "film.npz"  # what a model's training recorded for the page "Watch it learn"


class WeightsError(RuntimeError):
    """Weights on disk that cannot be used, with one sentence that says what is wrong and what to do."""

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows: the sentence, without thirty lines of libraries."""
        return [f"{type(self).__name__}: {self}"]


class _Sum(BaseModel):
    sha256: str


class _Shard(_Sum):
    file: str


class _Costs(BaseModel):
    cost: list[list[float]]  # [layer][head]
    error: list[list[float]]


class _Training(BaseModel):
    heads: _Costs | None = None


class _Manifest(BaseModel):
    """What must be in a manifest, and of which type, for all that reads it; it may have more."""

    name: str
    config: ModelConfig
    shards: list[_Shard]
    training: _Training
    tokenizer: _Sum | None = Field(None, alias=TOKENIZER)
    film: _Sum | None = None


def save_model(
    model: Transformer,
    folder: str | Path,
    name: str,
    training: dict[str, Any],
    tokenizer: str | None = None,
    film: bytes | None = None,
) -> None:
    """Write `model` in float16 to `folder`. Raises ValueError if a weight is not finite in float16.

    `tokenizer`: the content of its `tokenizer.json`, which is written too, unless it is the repository's. `film`: the
    content of its `film.npz`. The same weights always give the same bytes. Another process finds in `folder`, even
    after a kill, the old model, none, or the new one, never a mixture. Other files in there (a training log) stay.
    """
    manifest: dict[str, Any] = {"name": name, "config": dataclasses.asdict(model.config)}
    files = _shards(model, manifest)
    if tokenizer is not None:
        content = tokenizer.encode()
        manifest[TOKENIZER] = {"sha256": sha256(content)}
        shipped = paths.DATA / TOKENIZER
        if not (shipped.is_file() and content == shipped.read_bytes()):
            files[TOKENIZER] = content
    if film is not None:
        manifest["film"] = {"sha256": sha256(film)}
        files[FILM] = film
    manifest["training"] = training
    _write(Path(folder), files, manifest, also=(TOKENIZER, FILM))


def shrink(folder: str | Path) -> None:
    """Rewrite the model in `folder` in 8 bits a weight: for models that are only compared with. Vectors: float16."""
    model, manifest = read_model(folder)
    _write(Path(folder), _shards(model, manifest, quantized=True), manifest)


def eight_bits(matrices: dict[str, Float[Tensor, "row column"]]) -> dict[str, Tensor]:
    """Return matrices in 8 bits: whole numbers from -127 to 127, and as `KEY.step` what 1 stands for in each row."""
    stored = {}
    for key, matrix in matrices.items():
        step = matrix.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / 127
        stored |= {key: (matrix / step).round().to("cpu", torch.int8), key + STEP: step.cpu()}
    return stored


def full_precision(stored: dict[str, Tensor]) -> dict[str, Float[Tensor, "..."]]:
    """Return stored tensors in float32."""
    tensors = {key: tensor.float() for key, tensor in stored.items() if not key.endswith(STEP)}
    return {key: tensor * stored.get(key + STEP, 1) for key, tensor in tensors.items()}


def _shards(model: Transformer, manifest: dict[str, Any], quantized: bool = False) -> dict[str, bytes]:
    """Return the content of a model's shards by file name, and describe them in its manifest."""
    shards: list[dict[str, Tensor]] = []
    free = 0
    weights = model.state_dict()
    del weights[COMPUTED]
    for key, weight in weights.items():
        tensors = {key: weight.to("cpu", torch.float16).contiguous()}
        if not tensors[key].isfinite().all():
            raise ValueError(f"{key} has values that float16 cannot hold: infinite, NaN, or beyond 65,504")
        if quantized and weight.ndim == 2:
            tensors = eight_bits({key: weight})
        size = sum(tensor.nbytes for tensor in tensors.values())
        if size > free:
            shards.append({})
            free = SHARD_BYTES
        shards[-1] |= tensors
        free -= size

    manifest |= {"dtype": "int8" if quantized else "float16", "shards": []}
    files: dict[str, bytes] = {}
    for i, tensors in enumerate(shards, start=1):
        file = f"weights-{i:05}-of-{len(shards):05}.safetensors"
        content = files[file] = safetensors.torch.save(tensors)
        shard = {"file": file, "bytes": len(content), "sha256": sha256(content), "tensors": list(tensors)}
        manifest["shards"].append(shard)
    return files


def _write(folder: Path, files: dict[str, bytes], manifest: dict[str, Any], also: Sequence[str] = ()) -> None:
    """Replace a model's files; what `also` names belongs to the model that was here before. The manifest leaves first
    and arrives last, so that no mixture can be loaded."""
    files = files | {MANIFEST: (json.dumps(manifest, indent=1, allow_nan=False) + "\n").encode()}
    old = [folder / MANIFEST, *folder.glob("weights-*-of-*.safetensors"), *(folder / file for file in also)]
    _replace({folder / file: content for file, content in files.items()}, Path.write_bytes, old)


def write_atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """Replace a file by what `write` writes. After a kill it is the old file or the new one. Raises OSError, in one
    sentence, if it cannot be written; the old file is then as it was."""
    _replace({path: write}, lambda partial, write: write(partial))


def _replace(files: dict[Path, Any], write: Callable[[Path, Any], Any], old: Iterable[Path] = ()) -> None:
    """Replace files, and delete old ones, once all are written beside their places: a full disk changes nothing."""
    partials = {path.with_name(f".{path.name}.partial"): path for path in files}
    try:
        for partial, path in partials.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write(partial, files[path])
            with open(partial, "rb+") as file:
                os.fsync(file.fileno())
        for path in old:
            path.unlink(missing_ok=True)
        for partial, path in partials.items():
            partial.replace(path)
    except (OSError, safetensors.SafetensorError) as error:
        reason = getattr(error, "strerror", None) or said(error)
        todo = "make room on its disk, or choose a folder of your own"
        raise OSError(f"{path} could not be written ({reason}); {todo}") from None
    finally:
        for partial in partials:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)


def read_model(folder: str | Path) -> tuple[Transformer, dict[str, Any]]:
    """Return the model in `folder`, in float32 on the CPU, and its manifest; every shard's SHA-256 is checked first.
    Raises WeightsError for a manifest or shard that is missing, damaged, or does not fit, and for NaN or infinity."""
    folder = Path(folder)
    manifest = read_manifest(folder)
    contents = [verified(folder / shard["file"], shard["sha256"]) for shard in manifest["shards"]]
    tensors: dict[str, Tensor] = {}
    try:
        for content in contents:
            tensors |= safetensors.torch.load(content)
        weights = full_precision(tensors)
    except (safetensors.SafetensorError, ValueError) as error:  # exported like this: the checksums are right
        raise WeightsError(f"{folder} has {said(error)}; fetch or export it again") from None
    return build(ModelConfig(**manifest["config"]), weights, str(folder)), manifest


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest in `folder`. Raises WeightsError if it is missing or malformed."""
    path = folder / MANIFEST
    if not path.is_file():
        raise WeightsError(f"{folder} has no {MANIFEST}; export a model into it, or fetch it again")
    try:
        _Manifest.model_validate_json(content := path.read_bytes())
        return json.loads(content)
    except (OSError, ValueError) as error:
        raise WeightsError(f"{path} is not a readable manifest ({said(error)}); fetch or export it again") from error


def build(config: ModelConfig, tensors: dict[str, Tensor], where: str) -> Transformer:
    """Return a Transformer with these tensors (not copies), biases of projections included, which come from `where`.
    Raises WeightsError if names or shapes do not fit `config`, or if a weight is NaN or infinite."""
    try:
        # No memory, and no random initialization, which would change the generator.
        with torch.device("meta"):
            model = Transformer(config)
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear) and f"{name}.bias" in tensors:
                module.bias = nn.Parameter(torch.empty(module.out_features, device="meta"))
        model.load_state_dict({COMPUTED: model.pos.weight} | tensors, assign=True)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise WeightsError(f"the tensors in {where} do not fit its configuration: {reason[:500]}") from error
    if broken := [key for key, tensor in tensors.items() if not tensor.isfinite().all()]:
        raise WeightsError(f"{broken[0]} in {where} contains NaN or infinity; fetch or export it again")
    # Old checkpoints bring theirs. The width is that of the tensors, so this fits into memory.
    if COMPUTED not in tensors:
        model.pos.weight = nn.Parameter(sinusoids(config.n_ctx, config.d_model), requires_grad=False)
    return model


def verified(path: Path, expected: str) -> bytes:
    """Return the bytes of a file with this SHA-256. Raises WeightsError for another one."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise WeightsError(f"{path} cannot be read ({error.strerror}); fetch it again") from error
    if (checksum := sha256(content)) != expected:
        raise WeightsError(f"{path} is damaged: its SHA-256 is {checksum}, expected {expected}; fetch it again")
    return content


def said(error: Exception) -> str:
    """Return an exception's first line, or its type; of several settings, what the first wrong one must be."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        name, must = ".".join(map(str, first["loc"])), re.sub(r"^\w+ should", "must", first["msg"])
        if first["type"] == "missing":
            return f"{name} is missing"
        return f"{name} {must}, got {reprlib.repr(first['input'])}".strip()
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def save_arrays(file: Path | io.IOBase, **arrays: np.ndarray) -> None:
    """Write an .npz that `np.load` reads, with LZMA a quarter smaller than `np.savez_compressed`; equal arrays give
    equal bytes."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_LZMA) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)
