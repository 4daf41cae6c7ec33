"""Names of models, and how their weights are found.

TransformerLens is imported when a model is loaded, not before, so that machines that only train need not have it.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from . import legacy
from .shards import FILM, MANIFEST, TOKENIZER, WeightsError, read_manifest, read_model

if TYPE_CHECKING:
    import pandas as pd
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import PreTrainedTokenizerFast

FOLDER_VARIABLE = "TRANSFORMER_CIRCUITS_WEIGHTS"
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def list_models() -> list[str]:
    """Return the names that `load_model` finds on this machine: shipped ones, and those in $TRANSFORMER_CIRCUITS_WEIGHTS."""
    paths = [path for folder in _folders() if folder.is_dir() for path in folder.iterdir()]
    return sorted({path.name for path in paths if not path.name.startswith(".") and is_model(path)})


def is_model(folder: str | Path) -> bool:
    """Return whether `folder` has a manifest, or is an old TransformerLens checkpoint (transformers' folders name a model type)."""
    folder = Path(folder)
    if not legacy.is_legacy(folder):
        return (folder / MANIFEST).is_file()
    config = folder / "config.json"
    return not (config.is_file() and b'"model_type"' in config.read_bytes())


def load_model(
    name: str | Path, device: str | torch.device | None = None, dtype: torch.dtype = torch.float32
) -> TransformerBridge:
    """Return the model called `name` as a TransformerBridge with tokenizer, in eval mode, without gradients.

    `name` is looked for in `weights/` of the repository, then in $TRANSFORMER_CIRCUITS_WEIGHTS; it may also be a folder that the trainer
    wrote (`runs/mine/model`), or "owner/name" on the Hugging Face hub. A model is a manifest with shards (`shards`), or an old
    TransformerLens Shortformer checkpoint (`legacy`). `device`: None takes CUDA where there is one. The tokenizer is the model's own
    `tokenizer.json` if it has one, else the repository's; it is None where neither fits (set `bridge.tokenizer`).

    Raises WeightsError, in one sentence, for an unknown name, for missing, damaged, or unsuitable weights, and for a tokenizer that is
    not the model's; SHA-256 sums are checked before anything is built.
    """
    source = _find(str(name))
    if (source / MANIFEST).is_file():
        model, manifest = read_model(source)
        title, tokenizer = manifest["name"], _tokenizer(source, model.config.d_vocab)
    else:
        settings = legacy.PUBLISHED_WITHOUT_CONFIG.get(str(name))
        model, title = legacy.read_legacy(source, settings), str(name)
        tokenizer = _tokenizer(source, model.config.d_vocab) or _named(
            legacy.read_settings(source, settings).get("tokenizer_name")
        )
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
        raise WeightsError(
            f"{name!r} has no training.jsonl; use a model that came with the log of its training"
        )
    try:
        return pd.DataFrame([json.loads(line) for line in path.read_text(encoding="utf8").splitlines()[1:]])
    except (OSError, ValueError) as error:
        raise WeightsError(
            f"{path} is not a readable log ({error}); fetch it again (git checkout)"
        ) from error


def training_film(name: str) -> dict[str, np.ndarray] | None:
    """Return what the training of a model recorded at each snapshot, by name (`training.film` says what); None if it has no film.

    Raises WeightsError for an unknown name and for a film that is missing or damaged.
    """
    folder = _find(name)
    expected = read_manifest(folder).get("film") if (folder / MANIFEST).is_file() else None
    if expected is None:
        return None
    try:
        content = (folder / FILM).read_bytes()
        if hashlib.sha256(content).hexdigest() != expected["sha256"]:
            raise ValueError("its SHA-256 is not the manifest's")
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            return dict(file)
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise WeightsError(
            f"{folder / FILM} cannot be read ({error}); fetch it again (git checkout)"
        ) from error


def _folders() -> list[Path]:
    from ..paths import WEIGHTS

    local = os.environ.get(FOLDER_VARIABLE)
    return [WEIGHTS] + ([Path(local).expanduser()] if local else [])


def _find(name: str) -> Path:
    """Return the folder with the weights of `name`, fetched from the hub if need be."""
    for folder in [*(known / name for known in _folders()), Path(name).expanduser()]:
        if is_model(folder):
            return folder
        if folder.is_dir():
            raise WeightsError(
                f"{folder} has no model (a {MANIFEST} with its shards, or an old state dict with config.json); fetch that folder again"
            )
    if _HUB_NAME.fullmatch(name):
        return _from_hub(name)
    raise WeightsError(
        f"there is no model {name!r}; there are: {', '.join(list_models()) or 'none'} "
        f"(others: a folder, ${FOLDER_VARIABLE}, or a Hugging Face name like owner/name)"
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
                f"{name!r} is not on this machine ({', '.join(list_models()) or 'no models'} are) and could not be fetched "
                f"from the Hugging Face hub: {first}"
            ) from error

    folder = fetch(MANIFEST, "config.json", TOKENIZER)
    if (folder / MANIFEST).is_file():
        return fetch(MANIFEST, TOKENIZER, *(shard["file"] for shard in read_manifest(folder)["shards"]))
    legacy.read_settings(folder, legacy.PUBLISHED_WITHOUT_CONFIG.get(name))
    return fetch("config.json", TOKENIZER, *(f"*{suffix}" for suffix in legacy.SUFFIXES))


def _tokenizer(source: Path, d_vocab: int) -> PreTrainedTokenizerFast | None:
    """Return the tokenizer in the model's folder, else the repository's; None if it is another family's, or of another size."""
    from ..paths import DATA
    from .tokenizer import as_pretrained

    own = (source / TOKENIZER).is_file()
    file = source / TOKENIZER if own else DATA / TOKENIZER
    if not file.is_file():
        raise WeightsError(f"{file} is missing; fetch it again (git checkout)")
    expected = read_manifest(source).get(TOKENIZER) if (source / MANIFEST).is_file() else None
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    if expected and digest != expected["sha256"]:
        raise WeightsError(
            f"{file} is not the tokenizer that {source} was trained with: its SHA-256 is {digest}, expected {expected['sha256']}; "
            f"fetch it again, or put the right one into the model's folder as {TOKENIZER}"
        )
    try:
        tokenizer = as_pretrained(file)
    except ValueError:  # another family's tokenizer, which starts texts in its own way
        return None
    last = max(tokenizer.get_vocab().values())
    if own and last >= d_vocab:
        raise WeightsError(
            f"{file} has token ids up to {last}, but the model's vocabulary has {d_vocab}; put the model's own tokenizer there"
        )
    return tokenizer if own or len(tokenizer) == d_vocab else None


def _named(name: str | None) -> PreTrainedTokenizerFast | None:
    """Return the tokenizer that an old checkpoint names; None where it names none, or where it is not available."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(name) if name else None
    except (OSError, ValueError):  # no network
        return None
