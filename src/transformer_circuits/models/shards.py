"""Models on disk: half-precision safetensors shards and a manifest with the SHA-256 of each.

    <folder>/manifest.json
    <folder>/weights-00001-of-0000n.safetensors ...

The manifest names the model, its `ModelConfig`, the stored dtype, per shard its file, size, SHA-256 and tensors, and the SHA-256 of the
`tokenizer.json` that belongs to the model, be it in the folder or the repository's; under `training` it carries whatever the trainer
wants to say. Tensor names are those of `Transformer.state_dict()` without `pos.weight`, which is computed. This file imports only torch, safetensors and the standard library, so that a bare
training machine can write models.
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
MOST_POSITIONS = 1 << 17  # no stored tensor tells the context, so that a manifest could ask for a table of any size


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
) -> dict[str, Any]:
    """Write `model` in float16 to `folder` and return the manifest.

    `tokenizer`: the content of its `tokenizer.json`; written to the folder too, unless `own_tokenizer` is False (it is the repository's).

    The same weights always give the same bytes. Whoever looks into `folder` meanwhile, or after a kill, finds the old
    model, none, or the new one, never a mixture; other files in there (a training log) are left alone.

    Raises ValueError if a weight is not finite in float16, if one tensor alone is larger than `shard_bytes`, or if the
    positions are not the sinusoids that reading would compute.
    """
    folder = Path(folder).resolve()
    if not torch.allclose(model.W_pos.float().cpu(), sinusoids(model.config.n_ctx, model.config.d_model), atol=0.01):
        raise ValueError("this model's positions are not the sinusoids, and would be lost: manifests do not store them")
    tensors = {}
    for key, tensor in model.state_dict().items():
        if key == COMPUTED:
            continue
        tensors[key] = tensor.detach().to("cpu", torch.float16).contiguous()
        if not tensors[key].isfinite().all():
            raise ValueError(f"{key} has values that float16 cannot hold (infinite, not a number, or beyond 65,504)")
        if tensors[key].nbytes > shard_bytes:
            raise ValueError(f"{key} takes {tensors[key].nbytes:,} bytes, more than a shard may; raise shard_bytes")

    groups: list[dict[str, Tensor]] = []
    free = 0
    for key, tensor in tensors.items():
        if tensor.nbytes > free:
            groups.append({})
            free = shard_bytes
        groups[-1][key] = tensor
        free -= tensor.nbytes

    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        shards = []
        for i, group in enumerate(groups, start=1):
            content = safetensors.torch.save(group)
            file = f"weights-{i:05}-of-{len(groups):05}.safetensors"
            _write(partial / file, content)
            digest = hashlib.sha256(content).hexdigest()
            shards.append({"file": file, "bytes": len(content), "sha256": digest, "tensors": list(group)})
        manifest = {"name": name, "config": dataclasses.asdict(model.config), "dtype": "float16", "shards": shards}
        if tokenizer is not None:
            manifest[TOKENIZER] = {"sha256": hashlib.sha256(tokenizer.encode()).hexdigest()}
            if own_tokenizer:
                _write(partial / TOKENIZER, tokenizer.encode())
        manifest["training"] = training
        _write(partial / MANIFEST, (json.dumps(manifest, indent=1, allow_nan=False) + "\n").encode())
        _put_in_place(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return manifest


def read_model(folder: str | Path) -> tuple[Transformer, dict[str, Any]]:
    """The model in `folder`, in float32 on the CPU, and its manifest.

    Every shard's SHA-256 is checked before anything is built. The random number generator is left as it was.
    Raises WeightsError for a missing folder, manifest or shard, a damaged shard, tensors that do not fit the manifest's configuration,
    or weights that are not numbers.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    contents = [_verified(folder, shard) for shard in manifest["shards"]]
    tensors: dict[str, Tensor] = {}
    for shard, content in zip(manifest["shards"], contents, strict=True):
        try:
            found = safetensors.torch.load(content)
        except safetensors.SafetensorError as error:
            raise WeightsError(f"{folder / shard['file']} is not a safetensors file: {error}") from error
        if sorted(found) != sorted(shard["tensors"]):
            raise WeightsError(f"{folder / shard['file']} holds {sorted(found)}, its manifest says {shard['tensors']}")
        wrong = {str(t.dtype).removeprefix("torch.") for t in found.values()} - {manifest["dtype"]}
        if wrong:
            raise WeightsError(
                f"{folder / shard['file']} holds {', '.join(sorted(wrong))}, its manifest says {manifest['dtype']}"
            )
        if twice := tensors.keys() & found.keys():
            raise WeightsError(f"{folder / MANIFEST} has {min(twice)} in two shards; fetch or export the model again")
        tensors |= found
    try:
        config = ModelConfig(**manifest["config"])
    except (TypeError, ValueError) as error:
        raise WeightsError(f"{folder / MANIFEST} has an unusable configuration: {error}") from error
    return build(config, {key: tensor.float() for key, tensor in tensors.items()}, where=str(folder)), manifest


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """The manifest in `folder`; raises WeightsError if it is missing or is not one."""
    folder = Path(folder)
    if not folder.is_dir():
        raise WeightsError(f"there is no folder {folder}; give one that holds a {MANIFEST} and its shards")
    path = folder / MANIFEST
    if not path.is_file():
        raise WeightsError(f"{folder} has no {MANIFEST}; export a model into it with save_model, or fetch it again")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        for shard in manifest["shards"]:
            shard["sha256"], int(shard["bytes"]), sorted(map(str.lower, shard["tensors"]))
            if Path(shard["file"]).name != shard["file"]:
                raise ValueError(f"shard {shard['file']!r} lies outside the folder")
        manifest["name"], dict(manifest["config"]), manifest["dtype"], manifest.get(TOKENIZER, {"sha256": ""})["sha256"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise WeightsError(f"{path} is not a readable manifest ({error!r}); fetch or export the model again") from error
    return manifest


def build(config: ModelConfig, tensors: dict[str, Tensor], where: str) -> Transformer:
    """A Transformer that holds these tensors (not copies). `where` names their origin in the error.

    Raises WeightsError, before any weight is set, if names or shapes do not fit `config`, or if a weight is not a finite number. What is
    allocated depends on the sizes of the tensors, not on those in `config`.
    """
    layers = len({key.split(".")[1] for key in tensors if key.startswith("layers.")})
    checked = dataclasses.replace(config, n_layers=min(config.n_layers, layers + 1))  # one more than there are tells that too many are asked for
    try:
        with torch.device("meta"):  # no memory, and no random initialization, whose draws would disturb the caller's generator
            model = Transformer(checked)
    except (RuntimeError, OverflowError) as error:  # a size that overflows
        raise WeightsError(f"the configuration of {where} has sizes that no model has: {config}") from error
    expected = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items() if key != COMPUTED}
    found = {key: tuple(tensor.shape) for key, tensor in tensors.items()}
    if found != expected:
        differences = [
            f"{key} is {found.get(key, 'missing')}, expected {expected.get(key, 'absent')}"
            for key in sorted(found.keys() | expected.keys())
            if found.get(key) != expected.get(key)
        ]
        more = f" and {len(differences) - 3} more" if len(differences) > 3 else ""
        raise WeightsError(f"the tensors in {where} do not fit its configuration: {'; '.join(differences[:3])}{more}")
    if broken := [key for key, tensor in tensors.items() if not tensor.isfinite().all()]:
        raise WeightsError(f"{broken[0]} in {where} holds values that are not finite numbers; fetch or export the model again")
    if config.n_ctx > MOST_POSITIONS:
        raise WeightsError(f"the configuration of {where} has n_ctx = {config.n_ctx:,}; at most {MOST_POSITIONS:,} positions can be made")
    positions = sinusoids(config.n_ctx, config.d_model).to(tensors["head.weight"])
    model.pos.weight = nn.Parameter(positions, requires_grad=False)
    model.load_state_dict(tensors | {COMPUTED: positions}, assign=True)
    return model


def _verified(folder: Path, shard: dict[str, Any]) -> bytes:
    """The bytes of a shard, whose SHA-256 is the manifest's."""
    path = folder / shard["file"]
    if not path.is_file():
        raise WeightsError(f"{path} is missing, though {MANIFEST} names it; fetch the model's folder again")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise WeightsError(f"{path} cannot be read ({error.strerror}); mend its permissions, or fetch that file again") from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != shard["sha256"]:
        raise WeightsError(
            f"{path} is damaged: its SHA-256 is {digest} ({len(content):,} bytes), expected {shard['sha256']} "
            f"({shard['bytes']:,} bytes); fetch that file again (git checkout, or download)"
        )
    return content


def _write(path: Path, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _put_in_place(partial: Path, folder: Path) -> None:
    """Move a finished model to `folder`; the manifest leaves first and arrives last, so that no mixture is loadable."""
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
