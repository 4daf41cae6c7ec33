"""Names of models, and how their weights are found. TransformerLens is imported late: trainers do without."""

from __future__ import annotations

import difflib
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .. import paths
from . import legacy, public, release
from .shards import FILM, MANIFEST, TOKENIZER, WeightsError, read_manifest, read_model, said, sha256, verified
from .tokenizer import as_pretrained

if TYPE_CHECKING:
    import pandas as pd
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import PreTrainedTokenizerFast


# Buffers of old checkpoints that hold no weights: causal masks, masked values, rotations and numbers of positions.
CONSTANT = re.compile(
    r"\.(attn|attention)\.(bias|masked_bias)$|\.rotary_emb\.(inv_freq|cos_cached|sin_cached)$|\.position_ids$"
)

# What libraries say, and what it means for a reader.
CAUSES = {
    "custom code": "it needs code of its own, which is not run here; choose a model of a common architecture",
    "no file named": "it has no weights in a format of the transformers library; fetch it again",
    "rchitecture": "TransformerLens has no bridge for its architecture; choose another one, such as GPT-2's or Llama's",
    "(?i)incomplete|deserializing header": "its weights are incomplete; fetch it again",
    "(?i)offline|connect|resolve": "the hub is not reached; connect to a network",
    "(?i)out of memory": "it does not fit into memory; choose a smaller one",
}


def list_models() -> list[str]:
    """Return the names of the shipped models."""
    return sorted({path.parent.name for path in paths.WEIGHTS.glob(f"*/{MANIFEST}")} | set(release.released()))


def load_model(
    name: str | Path, device: str | torch.device | None = None, dtype: torch.dtype = torch.float32
) -> TransformerBridge:
    """Return the model called `name` as a TransformerBridge with tokenizer, without gradients, weights as published.

    `name`: a model in `weights/` (without a clone, that of the release, fetched once), a public one (`public.MODELS`:
    fetched once), a GGUF file, a folder, or a name on the Hugging Face hub ("gpt2", "owner/name"), with a manifest and
    shards (`shards`), an old TransformerLens checkpoint (Shortformer ones: `legacy`), or a model of the transformers
    library. `device`: None takes CUDA where there is one. The tokenizer of our own formats is the model's or else the
    repository's; None where neither fits (set `bridge.tokenizer`).

    Raises WeightsError, in one sentence, for an unknown name, for missing, unexpected, damaged, or unsuitable weights,
    for NaN and infinity, and for a tokenizer that is not the model's.
    """
    from transformer_lens.model_bridge import TransformerBridge  # slow
    from transformer_lens.model_bridge.sources.tl_legacy import TL_LEGACY_PREFIXES

    from .bridge import wrap

    name, device = str(name), device or ("cuda" if torch.cuda.is_available() else "cpu")
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise WeightsError("there is no GPU that PyTorch can use (CUDA) here; leave `device` out, or pass 'cpu'")
    if (made := public.folder_of(name)) is not None:
        model = _of_transformers(str(made), device, dtype)
        model.cfg.model_name = name
        return model
    local = _folder(name).is_dir()
    folder = _fetched(name, MANIFEST, "config.json", TOKENIZER)  # weights follow once it is known how to load them
    config, old_layout = folder / "config.json", not local and name.startswith(TL_LEGACY_PREFIXES)

    if (folder / MANIFEST).is_file():
        model, description = read_model(_fetched(name, "weights-*.safetensors"))
        title, tokenizer = description["name"], _tokenizer(folder, model.config.d_vocab)
    elif not old_layout and config.is_file() and b'"model_type"' in config.read_bytes():  # transformers'
        return _of_transformers(str(folder) if local else name, device, dtype)
    elif local and (instead := _instead_of_a_model(folder)):
        raise WeightsError(f"{folder} {instead}")
    else:
        try:
            settings = legacy.read_settings(folder, name)
        except WeightsError:  # not a Shortformer
            if not old_layout:
                raise
            return _booted(TransformerBridge.boot_tl_legacy, name, device, dtype)
        folder = _fetched(name, *(f"*{suffix}" for suffix in legacy.SUFFIXES))
        model, title = legacy.read_legacy(folder, settings["normalization_type"]), name
        tokenizer = _tokenizer(folder, model.config.d_vocab) or _named(settings.get("tokenizer_name"))

    return wrap(model.to(device=device, dtype=dtype).eval().requires_grad_(False), tokenizer, title)


def training_log(name: str) -> pd.DataFrame:
    """Return the log of a model's training (`training.evaluation.Evaluation`), by snapshot. Raises WeightsError."""
    import pandas as pd  # not needed to load a model

    path = _folder(name) / "training.jsonl"
    try:
        return pd.DataFrame([json.loads(line) for line in path.read_text(encoding="utf8").splitlines()[1:]])
    except (OSError, ValueError) as error:  # a model without one; one that is cut off
        raise WeightsError(f"{path} is not a readable log ({error}); fetch it again") from error


def manifest(name: str) -> dict[str, Any]:
    """Return the manifest of a model in our own format (`shards`). Raises WeightsError if there is none."""
    return read_manifest(_folder(name))


def training_film(name: str) -> dict[str, np.ndarray] | None:
    """Return a model's `training.film`, or None. Raises WeightsError for a damaged one."""
    if not (expected := manifest(name).get("film")):
        return None
    content = verified(_folder(name) / FILM, expected["sha256"])
    with np.load(io.BytesIO(content)) as file:
        return dict(file)


def _folder(name: str) -> Path:
    """Return the folder `name` in `weights/`, fetched if need be, or else the folder `name`, which may not exist."""
    shipped = paths.WEIGHTS / name
    if name in release.released() and not shipped.is_dir():
        release.fetch(name, shipped)
    inside = shipped.parent == paths.WEIGHTS and shipped.name != ".."  # by name: it may be a link to another place
    return shipped if inside and shipped.is_dir() else Path(name).expanduser()


def _fetched(name: str, *patterns: str) -> Path:
    """Return a model's folder; that of a hub repository with these files (in subfolders are other checkpoints)."""
    if (folder := _folder(name)).is_dir():
        return folder
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError

    names = [*list_models(), *public.MODELS]
    if (meant := paths.did_you_mean(folder)) or re.match(r"[./~]|.*/.*/", name):  # no name on the hub
        raise WeightsError(f"there is no folder {name}{meant or '; check each part of the path'}")
    if near := difflib.get_close_matches(name, names, 1):
        meant = f": did you mean {near[0]}?"
    try:
        return Path(snapshot_download(name, allow_patterns=list(patterns), ignore_patterns=["*/*"]))
    except Exception as error:  # the hub's client raises its own, the HTTP library's and OSErrors
        hub = (
            "the hub has none of this name" if isinstance(error, RepositoryNotFoundError) else "the hub is not reached"
        )
        here = meant or f"; there are {', '.join(names)}, folders, and names on the Hugging Face hub"
        raise WeightsError(f"there is no model {name!r} here, and {hub}{here}") from None


def _instead_of_a_model(folder: Path) -> str:
    """Return what a folder without a model in a known format has, and what to do with it; "" for a state dict."""
    own, old = folder / "model", legacy.state_dicts(folder)
    if (folder / "training.jsonl").is_file() and not list(folder.glob("weights-*-of-*.safetensors")):
        todo = f"load {own}" if own.is_dir() else f"{own} is written at the end of the training: let it end"
        return f"is the folder of a training, not of its model; {todo}"
    if (folder / "adapter_config.json").is_file():
        return (
            "has only an adapter (adapter_config.json); merge it into its base model (PEFT: merge_and_unload), save "
            "that, and load its folder"
        )
    if any(legacy.is_nanogpt(file) for file in old):
        return (
            "has a checkpoint of nanoGPT; copy its tensors into transformers' GPT2LMHeadModel, those of c_attn, c_proj "
            "and c_fc transposed, and load the folder that its save_pretrained writes"
        )
    if files := sorted(folder.glob("*.[gG][gG][uU][fF]")):
        return f"has a GGUF file; load it by its path, {files[0]}"
    return "" if old else f"has no model (a {MANIFEST} with its shards, or a state dict with config.json)"


def _booted(
    boot: Callable[..., TransformerBridge], name: str, device: str | torch.device, dtype: torch.dtype, **options: Any
) -> TransformerBridge:
    """Return a model that TransformerLens itself loads. Raises WeightsError if it cannot, or for NaN."""
    try:
        model = boot(name, device=device, dtype=dtype, **options).eval().requires_grad_(False)
    except WeightsError:
        raise
    except Exception as error:  # of the hub's client, the HTTP library, transformers, TransformerLens
        known = (advice for words, advice in CAUSES.items() if re.search(words, str(error)))
        todo = next(known, f"its files cannot be read ({said(error)}); fetch it again")
        raise WeightsError(f"{name!r} could not be loaded: {todo}") from None
    for tensor, weight in model.original_model.named_parameters():
        if not weight.isfinite().all():
            tensor = tensor.replace("_original_component.", "")
            raise WeightsError(f"{tensor} in {name} contains NaN or infinity; fetch or export it again")
    return model


def _of_transformers(name: str, device: str | torch.device, dtype: torch.dtype) -> TransformerBridge:
    """Return a model of the transformers library. Raises WeightsError for other tensors."""
    from transformer_lens.model_bridge import TransformerBridge
    from transformer_lens.model_bridge.sources import transformers as source
    from transformers import AutoTokenizer

    from .bridge import check_against, computed, set_reading

    expected = None

    def read(name: str, **options: Any) -> Any:
        nonlocal expected
        kind = source.determine_architecture_from_hf_config(options["config"])
        loader = source.get_hf_model_class_for_architecture(kind)
        model, report = loader.from_pretrained(name, output_loading_info=True, ignore_mismatched_sizes=True, **options)
        report["mismatched_keys"] = {key for key, *_ in report["mismatched_keys"]}
        report["unexpected_keys"] = {key for key in report["unexpected_keys"] if not CONSTANT.search(key)}
        if any(key.startswith("_orig_mod.") for key in report["unexpected_keys"]):
            kind = "those of a compiled model, named _orig_mod.*"
            raise WeightsError(f"the weights of {name} are {kind}; save model._orig_mod instead")
        for what in ("missing", "unexpected", "mismatched"):
            if keys := sorted(report[f"{what}_keys"]):
                more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
                trouble = f"do not fit its configuration: {what} {', '.join(keys[:3])}{more}"
                raise WeightsError(f"the weights of {name} {trouble}; fetch or export it again")
        expected = computed(model.to(device))
        return model

    folder = Path(name)
    bare = folder.is_dir() and not [*folder.glob("*token*"), *folder.glob("vocab*"), *folder.glob("*.model")]
    # transformers would make an empty tokenizer, or fail
    options = {"tokenizer": as_pretrained(release.data_file(TOKENIZER))} if bare else {}
    loader = SimpleNamespace(from_pretrained=read)
    model = _booted(TransformerBridge.boot_transformers, name, device, dtype, model_class=loader, **options)
    if bare:
        model.tokenizer = None
    # TransformerLens gives its own copy of the tokenizer more tokens.
    set_reading(model, None if bare else AutoTokenizer.from_pretrained(name))
    if expected is not None:
        check_against(model, *expected)
    return model


def _tokenizer(source: Path, d_vocab: int) -> PreTrainedTokenizerFast | None:
    """Return the tokenizer in the model's folder, else the repository's; None if it is another's."""
    own = (source / TOKENIZER).is_file()
    file = source / TOKENIZER if own else release.data_file(TOKENIZER)
    try:
        tokenizer = as_pretrained(file)
    except ValueError:  # another family's tokenizer, which starts texts in its own way
        return None
    expected = read_manifest(source).get(TOKENIZER) if (source / MANIFEST).is_file() else None
    if expected and sha256(file.read_bytes()) != expected["sha256"]:
        todo = "fetch it again, or put the right one into that folder"
        raise WeightsError(f"{file} is not the tokenizer that {source} was trained with; {todo}")
    if own and len(tokenizer) > d_vocab:
        trouble = f"has {len(tokenizer)} tokens, but the model's vocabulary has {d_vocab}"
        raise WeightsError(f"{file} {trouble}; put the model's own tokenizer there")
    return tokenizer if own or len(tokenizer) == d_vocab else None


def _named(name: str | None) -> PreTrainedTokenizerFast | None:
    """Return the tokenizer that an old checkpoint names; None where it names none, or where it is not available."""
    from transformers import AutoTokenizer  # slow

    try:
        return AutoTokenizer.from_pretrained(name) if name else None
    except (OSError, ValueError):  # no network
        return None
