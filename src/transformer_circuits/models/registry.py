"""Names of models, and how their weights are found.

TransformerLens is imported when a model is loaded, not before, so that machines that only train need not have it.
"""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from .. import paths
from . import legacy
from .shards import FILM, MANIFEST, TOKENIZER, WeightsError, read_manifest, read_model, sha256, verified
from .tokenizer import as_pretrained

if TYPE_CHECKING:
    import pandas as pd
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import PreTrainedTokenizerFast


def list_models() -> list[str]:
    """Return the names of the shipped models."""
    return sorted(path.name for path in paths.WEIGHTS.iterdir() if is_model(path))


def is_model(folder: str | Path) -> bool:
    """Return whether `folder` has a manifest, or is an old TransformerLens checkpoint (transformers' folders name a model type)."""
    folder = Path(folder)
    if (folder / MANIFEST).is_file():
        return True
    config = folder / "config.json"
    of_transformers = config.is_file() and b'"model_type"' in config.read_bytes()
    return bool(legacy.state_dicts(folder)) and not of_transformers


def load_model(
    name: str | Path, device: str | torch.device | None = None, dtype: torch.dtype = torch.float32
) -> TransformerBridge:
    """Return the model called `name` as a TransformerBridge with tokenizer, in eval mode, without gradients.

    `name` is that of a model in `weights/`, a folder that the trainer wrote (`runs/mine/model`), or "owner/name" on the Hugging Face
    hub. A model is a manifest with shards (`shards`), or an old TransformerLens Shortformer checkpoint (`legacy`). `device`: None takes
    CUDA where there is one. The tokenizer is the model's own `tokenizer.json` if it has one, else the repository's; it is None where
    neither fits (set `bridge.tokenizer`).

    Raises WeightsError, in one sentence, for an unknown name, for missing, damaged, or unsuitable weights, and for a tokenizer that is
    not the model's; SHA-256 sums are checked before anything is built.
    """
    source = _find(str(name))
    if (source / MANIFEST).is_file():
        model, manifest = read_model(source)
        title, tokenizer = manifest["name"], _tokenizer(source, model.config.d_vocab)
    else:
        settings = legacy.read_settings(source, str(name))
        model, title = legacy.read_legacy(source, settings["normalization_type"]), str(name)
        tokenizer = _tokenizer(source, model.config.d_vocab) or _named(settings.get("tokenizer_name"))
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    model = model.to(device=device, dtype=dtype).eval().requires_grad_(False)

    from .bridge import wrap  # slow: imports TransformerLens

    return wrap(model, tokenizer, title)


def training_log(name: str) -> pd.DataFrame:
    """Return the log of a model's training, a row for each snapshot; `Evaluation` in `training.evaluation` says what the columns contain.

    Scores of heads are nested lists [layer][head]. A model without heads lacks their columns.
    Raises WeightsError for an unknown name and for a model that came without its log.
    """
    import pandas as pd  # not needed to load a model

    path = _find(name) / "training.jsonl"
    if not path.is_file():
        raise WeightsError(f"{name!r} has no training.jsonl; use a model that came with it")
    return pd.DataFrame([json.loads(line) for line in path.read_text(encoding="utf8").splitlines()[1:]])


def training_film(name: str) -> dict[str, np.ndarray] | None:
    """Return what the training of a model recorded at each snapshot, by name (`training.film` says what); None if it has no film.

    Raises WeightsError for an unknown name and for a film that is missing or damaged.
    """
    folder = _find(name)
    if not (expected := read_manifest(folder).get("film")):
        return None
    with np.load(io.BytesIO(verified(folder / FILM, expected["sha256"]))) as file:
        return dict(file)


def _find(name: str) -> Path:
    """Return the folder with the weights of `name`, fetched from the hub if need be."""
    for folder in (paths.WEIGHTS / name, Path(name).expanduser()):
        if is_model(folder):
            return folder
        if folder.is_dir():
            raise WeightsError(
                f"{folder} has no model (a {MANIFEST} with its shards, or an old state dict with config.json); fetch that folder again"
            )
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        return _from_hub(name)
    raise WeightsError(
        f"there is no model {name!r}; there are: {', '.join(list_models())} "
        "(others: a folder, or a Hugging Face name like owner/name)"
    )


def _from_hub(name: str) -> Path:
    """Return a local copy of a hub repository, fetched only after its manifest or config.json says that it can be loaded."""
    from huggingface_hub import snapshot_download

    def fetch(*patterns: str) -> Path:
        try:  # files of subfolders are other checkpoints
            return Path(snapshot_download(name, allow_patterns=list(patterns), ignore_patterns=["*/*"]))
        except Exception as error:  # the hub's client raises its own, the HTTP library's and OSErrors
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise WeightsError(
                f"{name!r} is not on this machine ({', '.join(list_models())} are) and could not be fetched "
                f"from the Hugging Face hub: {first}"
            ) from error

    folder = fetch(MANIFEST, "config.json", TOKENIZER)
    if (folder / MANIFEST).is_file():
        return fetch("weights-*.safetensors")
    legacy.read_settings(folder, name)
    return fetch(*(f"*{suffix}" for suffix in legacy.SUFFIXES))


def _tokenizer(source: Path, d_vocab: int) -> PreTrainedTokenizerFast | None:
    """Return the tokenizer in the model's folder, else the repository's; None if it is another family's, or of another size."""
    own = (source / TOKENIZER).is_file()
    file = (source if own else paths.DATA) / TOKENIZER
    try:
        tokenizer = as_pretrained(file)
    except ValueError:  # another family's tokenizer, which starts texts in its own way
        return None
    expected = read_manifest(source).get(TOKENIZER) if (source / MANIFEST).is_file() else None
    if expected and sha256(file.read_bytes()) != expected["sha256"]:
        raise WeightsError(
            f"{file} is not the tokenizer that {source} was trained with: its SHA-256 is another; "
            f"fetch it again, or put the right one into the model's folder as {TOKENIZER}"
        )
    if own and len(tokenizer) > d_vocab:
        raise WeightsError(
            f"{file} has {len(tokenizer)} tokens, but the model's vocabulary has {d_vocab}; put the model's own tokenizer there"
        )
    return tokenizer if own or len(tokenizer) == d_vocab else None


def _named(name: str | None) -> PreTrainedTokenizerFast | None:
    """Return the tokenizer that an old checkpoint names; None where it names none, or where it is not available."""
    from transformers import AutoTokenizer  # slow

    try:
        return AutoTokenizer.from_pretrained(name) if name else None
    except (OSError, ValueError):  # no network
        return None
