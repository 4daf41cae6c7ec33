"""Names of models, and how their weights are found.

TransformerLens is imported when a model is loaded, not before, so that machines that only train need not have it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from . import legacy
from .architecture import Transformer
from .shards import MANIFEST, TOKENIZER, WeightsError, read_manifest, read_model

if TYPE_CHECKING:
    import pandas as pd
    from transformer_lens.model_bridge import TransformerBridge

FOLDER_VARIABLE = "TRANSFORMER_CIRCUITS_WEIGHTS"
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def list_models() -> list[str]:
    """Names that `load_model` finds on this machine: shipped ones, and those in $TRANSFORMER_CIRCUITS_WEIGHTS."""
    return sorted({name for folder in _folders() for name in _names_in(folder)})


def load_model(
    name: str,
    device: str | torch.device | None = None,
    dtype: torch.dtype = torch.float32,
    folder: str | Path | None = None,
) -> TransformerBridge:
    """The model called `name` as a TransformerBridge with tokenizer, ready to read: eval mode, no gradients required.

    Looked for in this order: `weights/` of the repository; the folder in $TRANSFORMER_CIRCUITS_WEIGHTS; for
    "owner/name", the Hugging Face hub. If `folder` is given, only there: as `folder/name`, or `folder` itself.
    A model is a manifest with shards (`shards`), or an old TransformerLens Shortformer checkpoint (`legacy`).

    `device`: None takes CUDA where there is one. The tokenizer is the model's own `tokenizer.json` if it has one, else
    the repository's; it is None where neither fits (set `bridge.tokenizer`).

    Raises WeightsError, in one sentence, for an unknown name and for missing, damaged or unsuitable weights, and for a tokenizer that is not
    the model's; SHA-256 sums are checked before anything is built. Raises ValueError for a device or dtype that cannot be used.
    """
    device = _usable(device)
    if dtype not in _FLOATS:
        raise ValueError(f"dtype must be one of {', '.join(map(str, _FLOATS))}, not {dtype!r}")
    source = _find(name, folder)
    model = _read(source, name).to(device=device, dtype=dtype).eval().requires_grad_(False)

    from .bridge import wrap  # slow: imports TransformerLens

    return wrap(model, _tokenizer(source, model.config.d_vocab), name)


def training_log(name: str) -> pd.DataFrame:
    """The log of a model's training, a row for each snapshot; `Evaluation` in `training.train` says what the columns hold.

    Scores of heads are nested lists [layer][head]. A model without heads lacks their columns.
    Raises WeightsError for an unknown name and for a model that came without its log.
    """
    import pandas as pd  # not needed to load a model

    path = _find(name, None) / "training.jsonl"
    if not path.is_file():
        raise WeightsError(f"{name!r} has no training.jsonl: it came without the log of its training")
    try:
        return pd.DataFrame([json.loads(line) for line in path.read_text(encoding="utf8").splitlines()[1:]])
    except (OSError, ValueError) as error:
        raise WeightsError(f"{path} is not a readable log ({error}); fetch it again (git checkout)") from error


def _folders() -> list[Path]:
    from ..paths import WEIGHTS

    local = os.environ.get(FOLDER_VARIABLE)
    return [WEIGHTS] + ([Path(local).expanduser()] if local else [])


def _holds_model(folder: Path) -> bool:
    return (folder / MANIFEST).is_file() or legacy.is_legacy(folder)


def _names_in(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return [path.name for path in folder.iterdir() if not path.name.startswith(".") and _holds_model(path)]


def _find(name: str, folder: str | Path | None) -> Path:
    """The folder with the weights of `name`, fetched from the hub if need be."""
    if folder is not None:
        folder = Path(folder).expanduser()
        if not folder.is_dir():
            raise WeightsError(f"there is no folder {folder}; give one that holds {name!r}")
        for candidate in (folder / name, folder):
            if _holds_model(candidate):
                return candidate
        raise WeightsError(
            f"{folder} has no model {name!r} (a {MANIFEST} with its shards, or a state dict with config.json); "
            f"it has: {', '.join(sorted(_names_in(folder))) or 'none'}"
        )
    for known in _folders():
        if _holds_model(known / name):
            return known / name
        if (known / name).is_dir() and re.fullmatch(r"[\w.-]+", name):
            raise WeightsError(f"{known / name} has no {MANIFEST}; fetch that folder again, or export a model into it")
    if _HUB_NAME.fullmatch(name):
        return _from_hub(name)
    raise WeightsError(
        f"there is no model {name!r}; there are: {', '.join(list_models()) or 'none'} "
        f"(others: a folder, ${FOLDER_VARIABLE}, or a Hugging Face name like owner/name)"
    )


def _from_hub(name: str) -> Path:
    """A local copy of a hub repository, fetched only after its manifest or config.json says that it can be loaded."""
    from huggingface_hub import snapshot_download

    def fetch(*patterns: str) -> Path:
        try:
            return Path(snapshot_download(name, allow_patterns=list(patterns)))
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


def _read(source: Path, name: str) -> Transformer:
    if (source / MANIFEST).is_file():
        return read_model(source)[0]
    return legacy.read_legacy(source, legacy.PUBLISHED_WITHOUT_CONFIG.get(name))


def _tokenizer(source: Path, d_vocab: int):
    """The tokenizer in the model's folder, else the repository's; None if it is of another family, or of another size than the model."""
    from ..paths import DATA
    from .bridge import as_pretrained

    own = (source / TOKENIZER).is_file()
    file = source / TOKENIZER if own else DATA / TOKENIZER
    if not file.is_file():
        raise WeightsError(f"there is no {file}; fetch it again (git checkout)")
    expected = read_manifest(source).get(TOKENIZER) if (source / MANIFEST).is_file() else None
    try:
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise WeightsError(f"{file} cannot be read ({error.strerror}); mend its permissions, or fetch it again") from error
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
        raise WeightsError(f"{file} has token ids up to {last}, but the model's vocabulary has {d_vocab}; put the model's own tokenizer there")
    return tokenizer if own or len(tokenizer) == d_vocab else None


def _usable(device: str | torch.device | None) -> torch.device:
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(device)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device {str(device)!r} cannot be used here ({reason}); try 'cpu'") from error
    return device
