"""Names of models, and how their weights are found."""

import difflib
import io
import json
import re
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pandas as pd
import torch
from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.sources.tl_legacy import TL_LEGACY_PREFIXES
from transformers import PreTrainedTokenizerFast

from .. import paths
from . import booted, public
from .architecture import BEYOND
from .bridge import wrap
from .shards import FILM, MANIFEST, SHARDS, TOKENIZER, WeightsError, read_manifest, read_model, sha256, verified
from .tokenizer import as_pretrained

# What a folder may have in place of a model, and what to do.
INSTEAD = {
    SHARDS: f"has shards of a model without their {MANIFEST}; export or fetch it again",
    "training.jsonl": "is the folder of a training; load its folder `model`, which is written when the training ends",
    "adapter_config.json": "has only an adapter; merge it into its base model (PEFT: merge_and_unload), and save that",
    "ckpt.pt": "has a checkpoint of nanoGPT; copy its tensors into transformers' GPT2LMHeadModel, those of c_attn, "
    "c_proj and c_fc transposed, and load the folder that its save_pretrained writes",
    "*.gguf": "has a GGUF file; load it by its path",
}

# What a comparison may be about.
SHAPE = ("n_layers", *BEYOND)
# What is measured and recorded during training changes no model; precision changes one no more than noise does.
MEASURED = ("snapshots", "evaluate_windows", "few_windows", "repeats", "checkpoint_minutes", "film")


def list_models() -> list[str]:
    """Return the names of the shipped models."""
    return sorted(path.parent.name for path in paths.WEIGHTS.glob(f"*/{MANIFEST}"))


def load_model(
    name: str | Path, device: str | torch.device | None = None, dtype: torch.dtype = torch.float32
) -> TransformerBridge:
    """Return the model called `name` as a TransformerBridge with tokenizer, without gradients, weights as published.

    `name`: a model in `weights/`, a public one (`public.MODELS`: fetched once), a GGUF file, a folder, or a name on the
    Hugging Face hub ("gpt2", "owner/name") of a model with a manifest and shards (`shards`), of the transformers
    library, or among the old checkpoints that TransformerLens loads. `device`: None takes CUDA where there is one. A
    model whose tokenizer is not known has None (set `bridge.tokenizer`).

    Raises WeightsError, in one sentence, for an unknown name or device, for missing, unexpected, damaged, or unsuitable
    weights, for NaN and infinity, and for a tokenizer that is not the model's.
    """
    name, device = str(name), device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.zeros(1, device=device).device
    except Exception:  # another one for each kind of device
        raise WeightsError(f"there is no device '{device}' that PyTorch can use here; pass 'cpu', or none") from None
    if (read := public.folder_of(name)) is not None:
        model = booted.boot(str(read), device, dtype)
        model.cfg.model_name = name
        return model
    folder = _fetched(name, MANIFEST, "config.json", TOKENIZER)  # weights follow once it is known how to load them
    config = folder / "config.json"
    if (folder / MANIFEST).is_file():
        model, about = read_model(_fetched(name, SHARDS))
        name, tokenizer = about["name"], _tokenizer(folder, about)
    elif config.is_file() and b'"model_type"' in config.read_bytes():  # of the transformers library
        return booted.boot(str(folder) if _folder(name).is_dir() else name, device, dtype)
    elif name.startswith(TL_LEGACY_PREFIXES):
        with booted.one_sentence(name):
            return TransformerBridge.boot_tl_legacy(name, device=device, dtype=dtype).eval().requires_grad_(False)
    else:
        known = (todo for pattern, todo in INSTEAD.items() if any(folder.glob(pattern)))
        none = f"has no model (a {MANIFEST} with its shards, or a config.json with its model_type)"
        raise WeightsError(f"{name} {next(known, none)}")
    return wrap(model.to(device=device, dtype=dtype).eval().requires_grad_(False), tokenizer, name)


def manifest(name: str) -> dict[str, Any]:
    """Return the manifest of a model in our own format (`shards`). Raises WeightsError if there is none."""
    return read_manifest(_folder(name))


def recipe(name: str) -> dict[str, Any]:
    """Return the settings with which a shipped model was trained: without seed, shape, and measures."""
    run = manifest(name)["training"]["run"]
    # Models from before the trainer had a choice were trained with AdamW alone.
    settings = {**run["model"], "optimizer": "adamw", **run["training"], "corpus": run.get("corpus")}
    return {key: value for key, value in settings.items() if key not in ("seed", "precision", *SHAPE, *MEASURED)}


def differing_settings(*names: str) -> dict[str, tuple[Any, ...]]:
    """Return each setting in which these models' recipes differ, with its value (or None) for each model."""
    recipes = [recipe(name) for name in names]
    keys = dict.fromkeys(key for settings in recipes for key in settings)
    values = {key: tuple(settings.get(key) for settings in recipes) for key in keys}
    return {key: found for key, found in values.items() if any(value != found[0] for value in found)}


def training_log(name: str) -> pd.DataFrame:
    """Return the log of a model's training (`training.evaluation.Evaluation`), by snapshot. Raises WeightsError if
    there is none."""
    file = _folder(name) / "training.jsonl"
    if not file.is_file():
        raise WeightsError(f"there is no {file}; training logs are those of {', '.join(list_models())}")
    header, *rows = file.read_text(encoding="utf8").splitlines()
    return pd.DataFrame([json.loads(row) for row in rows])


def training_film(name: str) -> dict[str, np.ndarray] | None:
    """Return a model's `training.film`, or None. Raises WeightsError for a damaged one."""
    if not (expected := manifest(name).get("film")):
        return None
    content = verified(_folder(name) / FILM, expected["sha256"])
    with np.load(io.BytesIO(content)) as file:
        return dict(file)


def _folder(name: str) -> Path:
    """Return the folder `name` in `weights/`, or else the folder `name`, which may not exist."""
    shipped = {folder.name: folder for folder in paths.WEIGHTS.glob("*/")}
    return shipped.get(name, Path(name).expanduser())


def _fetched(name: str, *patterns: str) -> Path:
    """Return a model's folder; that of a hub repository with these files (in subfolders are other checkpoints)."""
    if (folder := _folder(name)).is_dir():
        return folder
    if Path(name).is_absolute() or re.match(r"[.~]|.*[/\\].*[/\\]", name):  # no name on the hub
        raise WeightsError(f"there is no folder {name}{paths.did_you_mean(folder) or '; check each part of the path'}")
    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=list(patterns), ignore_patterns=["*/*"]))
    except Exception as error:  # the hub's client raises its own, the HTTP library's and OSErrors
        if isinstance(error, GatedRepoError):
            todo = "accept its license there, and log in (`hf auth login`)"
            raise WeightsError(f"{name!r} is behind a license on the hub; {todo}") from None
        not_there = isinstance(error, (RepositoryNotFoundError, HFValidationError))
        hub = "the hub has none of this name" if not_there else "the hub is not reached"
        names = [*list_models(), *public.MODELS]
        near = difflib.get_close_matches(name, names, 1)
        known = f"; there are {', '.join(names)}, folders, and names on the hub"
        meant = paths.did_you_mean(folder) or (f": did you mean {near[0]}?" if near else known)
        clone = "" if paths.CLONE else " (the book's own: set TRANSFORMER_CIRCUITS_ROOT to a clone of its repository)"
        raise WeightsError(f"there is no model {name!r} here, and {hub}{meant}{clone}") from None


def _tokenizer(folder: Path, about: dict[str, Any]) -> PreTrainedTokenizerFast | None:
    """Return the tokenizer that a manifest names, from the model's folder or else the book's. Raises WeightsError for
    another one."""
    if TOKENIZER not in about:
        return None
    own = folder / TOKENIZER
    file = own if own.is_file() else paths.data_file(TOKENIZER)
    tokenizer = as_pretrained(file)
    if sha256(file.read_bytes()) != about[TOKENIZER]["sha256"]:
        todo = "fetch it again, or put the right one into that folder"
        raise WeightsError(f"{file} is not the tokenizer that {folder} was trained with; {todo}")
    return tokenizer
