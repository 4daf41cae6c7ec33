"""Public models from the Hugging Face hub, for claim W7: the same measurements on models that others trained.

Three kinds, told apart by name or layout and all returned as a TransformerBridge:

- whatever `registry.load_model` knows, old Shortformer checkpoints such as `callummcdougall/attn_only_2L_half` included;
- repositories in TransformerLens's old layout (`NeelNanda/...`), by `TransformerBridge.boot_tl_legacy`;
- the rest, such as `gpt2`, by `TransformerBridge.boot_transformers`; also a folder in the format of transformers.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from transformer_circuits.models import legacy, registry
from transformer_circuits.models.architecture import BOS, Transformer
from transformer_circuits.models.shards import WeightsError

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge


def load_public(name: str, device: str | torch.device | None = None) -> TransformerBridge:
    """The model called `name`, a hub repository or a folder on this machine; eval mode, no gradients required.

    Weights are as published: no layer normalization is folded in and nothing is centered. `device`: None takes CUDA where
    there is one. Raises WeightsError, in one sentence, for a model that cannot be had or not be read.
    """
    try:
        model = _boot(name, device or ("cuda" if torch.cuda.is_available() else "cpu"))
    except Exception as error:  # of the hub's client, the HTTP library, transformers, TransformerLens
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise WeightsError(f"{name!r} could not be loaded: {first}") from error
    return model.eval().requires_grad_(False)


def _boot(name: str, device: str | torch.device) -> TransformerBridge:
    from transformer_lens.model_bridge import TransformerBridge
    from transformer_lens.model_bridge.sources.tl_legacy import TL_LEGACY_PREFIXES

    if name in registry.list_models() or name in legacy.PUBLISHED_WITHOUT_CONFIG:
        return registry.load_model(name, device)
    # Either layout may be a `model.safetensors` beside a `config.json`; only that of transformers names its model type.
    config = Path(name) / "config.json"
    if legacy.is_legacy(name) and '"model_type"' not in config.read_text(encoding="utf-8"):
        return registry.load_model(Path(name).name, device, folder=name)
    if name.startswith(TL_LEGACY_PREFIXES):
        return TransformerBridge.boot_tl_legacy(name, device=device)
    return TransformerBridge.boot_transformers(name, device=device)


def start_token(model: TransformerBridge) -> int:
    """The token that the model's texts begin with, its first in every prompt of this book. GPT-2's is 50256.

    Taken from the model's own configuration before its tokenizer: transformers makes up an empty tokenizer, whose start token
    is 0, for a GPT-2 folder that has none. Old Shortformer checkpoints have token 0, as our own models do.
    Raises ValueError if neither names one that is in the vocabulary.
    """
    inner = getattr(model, "original_model", None)
    if isinstance(inner, Transformer):
        return BOS
    for source in (getattr(inner, "config", None), getattr(model, "tokenizer", None)):
        bos = getattr(source, "bos_token_id", None)
        if bos is not None and 0 <= bos < model.cfg.d_vocab:
            return int(bos)
    raise ValueError(f"{model.cfg.model_name!r} names no start token")
