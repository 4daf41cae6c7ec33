"""Models on disk: half-precision safetensors shards and a manifest with the SHA-256 of each.

    <folder>/manifest.json
    <folder>/weights-00001-of-0000n.safetensors ...

The manifest has the model's name, its `ModelConfig`, the stored dtype, for each shard its file, size, SHA-256 and tensors, and the SHA-256
of the model's `tokenizer.json`, which is in the folder or is the repository's. `training` contains what the trainer reports. Tensor names
are those of `Transformer.state_dict()` without `pos.weight`, which is computed. This file imports only torch, safetensors and the standard
library, so that a machine that only trains can write models.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from .architecture import ModelConfig, Transformer, sinusoids

MANIFEST = "manifest.json"
SHARD_BYTES = 15_000_000  # of a shard at most, so that files stay small enough for a repository
COMPUTED = "pos.weight"  # the one tensor of a state dict that is not stored
TOKENIZER = "tokenizer.json"
FILM = "film.npz"  # what a model's training recorded for the page "Watch it learn"
MOST_POSITIONS = 1 << 17  # no stored tensor has the size of the context, which a manifest could make endless


class WeightsError(RuntimeError):
    """Weights on disk that cannot be used, with one sentence that says what is wrong and what to do."""


def save_model(
    model: Transformer,
    folder: str | Path,
    name: str,
    training: dict[str, Any],
    shard_bytes: int = SHARD_BYTES,
    tokenizer: str | None = None,
    own_tokenizer: bool = True,
    film: bytes | None = None,
) -> dict[str, Any]:
    """Write `model` in float16 to `folder` and return the manifest.

    `tokenizer`: the content of its `tokenizer.json`, which is written to the folder too, unless `own_tokenizer` is False (it is the
    repository's). `film`: the content of its `film.npz`; the manifest has its SHA-256 under "film".

    The same weights always give the same bytes. Another process finds in `folder`, even after a kill, the old model, none,
    or the new one, never a mixture. Other files in there (a training log) stay.

    Raises ValueError if a weight is not finite in float16, if one tensor alone is larger than `shard_bytes`, or if the positions are not
    the sinusoids that reading would compute.
    """
    folder = Path(folder).resolve()
    positions = sinusoids(model.config.n_ctx, model.config.d_model)
    if not torch.allclose(model.W_pos.float().cpu(), positions, atol=0.01):
        raise ValueError(
            "this model's positions must be the sinusoids, since manifests do not store positions"
        )
    shards: list[dict[str, Tensor]] = []
    free = 0
    for key, weight in model.state_dict().items():
        if key == COMPUTED:
            continue
        tensor = weight.detach().to("cpu", torch.float16).contiguous()
        if not tensor.isfinite().all():
            raise ValueError(f"{key} has values that float16 cannot hold: infinite, NaN, or beyond 65,504")
        if tensor.nbytes > shard_bytes:
            raise ValueError(f"{key} takes {tensor.nbytes:,} bytes, more than a shard may; raise shard_bytes")
        if tensor.nbytes > free:
            shards.append({})
            free = shard_bytes
        shards[-1][key] = tensor
        free -= tensor.nbytes

    manifest = {"name": name, "config": dataclasses.asdict(model.config), "dtype": "float16", "shards": []}
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        for i, tensors in enumerate(shards, start=1):
            file = f"weights-{i:05}-of-{len(shards):05}.safetensors"
            content = safetensors.torch.save(tensors)
            write(partial / file, content)
            manifest["shards"].append(
                {"file": file, "bytes": len(content), "sha256": sha256(content), "tensors": list(tensors)}
            )
        if tokenizer is not None:
            manifest[TOKENIZER] = {"sha256": sha256(tokenizer.encode())}
            if own_tokenizer:
                write(partial / TOKENIZER, tokenizer.encode())
        if film is not None:
            manifest["film"] = {"sha256": sha256(film)}
            write(partial / FILM, film)
        manifest["training"] = training
        write(partial / MANIFEST, (json.dumps(manifest, indent=1, allow_nan=False) + "\n").encode())
        put_in_place(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return manifest


def read_model(folder: str | Path) -> tuple[Transformer, dict[str, Any]]:
    """Return the model in `folder`, in float32 on the CPU, and its manifest.

    Every shard's SHA-256 is checked before anything is built. The state of the random number generator does not change.
    Raises WeightsError for a missing folder, manifest or shard, a damaged shard, tensors that do not fit the manifest, and NaN or infinity.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    contents = [verified(folder, shard) for shard in manifest["shards"]]
    tensors: dict[str, Tensor] = {}
    for shard, content in zip(manifest["shards"], contents, strict=True):
        path = folder / shard["file"]
        try:
            found = safetensors.torch.load(content)
        except safetensors.SafetensorError as error:
            raise WeightsError(f"{path} is not a safetensors file: {error}") from error
        dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in found.values()}
        for here, listed in (
            (sorted(found), sorted(shard["tensors"])),
            (sorted(dtypes), [manifest["dtype"]]),
        ):
            if here != listed:
                raise WeightsError(
                    f"{path} contains {', '.join(here)}; its manifest lists {', '.join(listed)}"
                )
        if twice := tensors.keys() & found.keys():
            raise WeightsError(
                f"{folder / MANIFEST} has {min(twice)} in two shards; fetch or export the model again"
            )
        tensors |= {key: tensor.float() for key, tensor in found.items()}
    try:
        config = ModelConfig(**manifest["config"])
    except (TypeError, ValueError) as error:
        raise WeightsError(f"{folder / MANIFEST} has an unusable configuration: {error}") from error
    return build(config, tensors, where=str(folder)), manifest


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """Return the manifest in `folder`. Raises WeightsError if it is missing or malformed."""
    folder = Path(folder)
    path = folder / MANIFEST
    if not folder.is_dir():
        raise WeightsError(f"there is no folder {folder}; give one that has a {MANIFEST} and its shards")
    if not path.is_file():
        raise WeightsError(
            f"{folder} has no {MANIFEST}; export a model into it with save_model, or fetch it again"
        )
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        manifest["name"], dict(manifest["config"]), manifest["dtype"].lower()
        manifest.get(TOKENIZER, {"sha256": ""})["sha256"].lower()
        for shard in manifest["shards"]:
            shard["sha256"].lower(), int(shard["bytes"]), sorted(map(str.lower, shard["tensors"]))
            if Path(shard["file"]).name != shard["file"]:
                raise ValueError(f"shard {shard['file']!r} is outside the folder")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise WeightsError(
            f"{path} is not a readable manifest ({error!r}); fetch or export the model again"
        ) from error
    return manifest


def build(config: ModelConfig, tensors: dict[str, Tensor], where: str) -> Transformer:
    """Return a Transformer with these tensors (not copies). `where` is their origin, for the error message.

    Raises WeightsError, before any weight is set, if names or shapes do not fit `config`, or if a weight is NaN or infinite. How much
    memory this takes depends on the sizes of the tensors, not on those in `config`.
    """
    layers = len({key.split(".")[1] for key in tensors if key.startswith("layers.")})
    # One layer more than there are tensors for is enough to see that there are too few.
    checked = dataclasses.replace(config, n_layers=min(config.n_layers, layers + 1))
    try:
        # No memory, and no random initialization, which would change the generator.
        with torch.device("meta"):
            model = Transformer(checked)
    except (RuntimeError, OverflowError) as error:
        raise WeightsError(f"the configuration of {where} has sizes that no model has: {config}") from error
    expected = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items() if key != COMPUTED}
    found = {key: tuple(tensor.shape) for key, tensor in tensors.items()}
    differences = [
        f"{key} is {found.get(key, 'missing')}, expected {expected.get(key, 'absent')}"
        for key in sorted(found.keys() | expected.keys())
        if found.get(key) != expected.get(key)
    ]
    if differences:
        more = f" and {len(differences) - 3} more" if len(differences) > 3 else ""
        raise WeightsError(
            f"the tensors in {where} do not fit its configuration: {'; '.join(differences[:3])}{more}"
        )
    if broken := [key for key, tensor in tensors.items() if not tensor.isfinite().all()]:
        raise WeightsError(
            f"{broken[0]} in {where} contains NaN or infinity; fetch or export the model again"
        )
    if config.n_ctx > MOST_POSITIONS:
        raise WeightsError(f"n_ctx in {where} must be at most {MOST_POSITIONS:,}, got {config.n_ctx:,}")
    positions = sinusoids(config.n_ctx, config.d_model).to(tensors["head.weight"])
    model.pos.weight = nn.Parameter(positions, requires_grad=False)
    model.load_state_dict(tensors | {COMPUTED: positions}, assign=True)
    return model


def verified(folder: Path, shard: dict[str, Any]) -> bytes:
    """Return the bytes of a shard, whose SHA-256 is the manifest's. Raises WeightsError otherwise."""
    path = folder / shard["file"]
    if not path.is_file():
        raise WeightsError(f"{path} is missing, though {MANIFEST} lists it; fetch the model's folder again")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise WeightsError(
            f"{path} cannot be read ({error.strerror}); fix its permissions, or fetch that file again"
        ) from error
    if (digest := sha256(content)) != shard["sha256"]:
        raise WeightsError(
            f"{path} is damaged: its SHA-256 is {digest} ({len(content):,} bytes), expected {shard['sha256']} "
            f"({shard['bytes']:,} bytes); fetch that file again (git checkout, or download)"
        )
    return content


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def write(path: Path, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def put_in_place(partial: Path, folder: Path) -> None:
    """Move a finished model to `folder`. The manifest leaves first and arrives last, so that no mixture can be loaded."""
    if not folder.exists():
        partial.chmod(0o755)  # mkdtemp's folders are private
        partial.rename(folder)
        return
    (folder / MANIFEST).unlink(missing_ok=True)
    new = {path.name for path in partial.iterdir()}
    for path in folder.glob("weights-*-of-*.safetensors"):
        if path.name not in new:
            path.unlink()
    for name in sorted(new - {MANIFEST}) + [MANIFEST]:
        (partial / name).replace(folder / name)
