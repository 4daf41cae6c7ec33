"""Any model as a TransformerBridge: the book's, a folder that the trainer wrote, or one that others trained (claim W7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from transformer_circuits.models import legacy, registry
from transformer_circuits.models.architecture import BOS, Transformer
from transformer_circuits.models.shards import WeightsError

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge


def load_public(
    name: str, device: str | torch.device | None = None, dtype: torch.dtype = torch.float32
) -> TransformerBridge:
    """Return the model called `name`, or in the folder `name`, in eval mode, without gradients.

    `registry.load_model` loads what the book and its trainer wrote, and old Shortformer checkpoints; TransformerLens's
    `boot_tl_legacy` loads other repositories in its old layout (`NeelNanda/...`), and its `boot_transformers` the rest, such as `gpt2`.
    Weights are as published: no layer normalization is folded in, and nothing is centered. `device`: None takes CUDA where there is one.
    Raises WeightsError, in one sentence, for a model that is not available or cannot be read.
    """
    from transformer_lens.model_bridge import TransformerBridge
    from transformer_lens.model_bridge.sources.tl_legacy import TL_LEGACY_PREFIXES

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    ours = name in (*registry.list_models(), *legacy.PUBLISHED_WITHOUT_CONFIG) or registry.is_model(name)
    try:
        if ours:
            model = registry.load_model(name, device, dtype)
        elif name.startswith(TL_LEGACY_PREFIXES):
            try:
                model = TransformerBridge.boot_tl_legacy(name, device=device, dtype=dtype)
            except NotImplementedError:  # Shortformer positions
                model = registry.load_model(name, device, dtype)
        else:
            model = TransformerBridge.boot_transformers(name, device=device, dtype=dtype)
    except Exception as error:  # of the hub's client, the HTTP library, transformers, TransformerLens
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise WeightsError(f"{name!r} could not be loaded: {first}") from error
    return model.eval().requires_grad_(False)


def start_token(model: TransformerBridge) -> int:
    """Return the token that the model's texts begin with, the first one in every prompt of this book. GPT-2's is 50256.

    It comes from the model's own configuration before its tokenizer, because transformers gives a GPT-2 folder without a tokenizer
    an empty one, whose start token is 0. Old Shortformer checkpoints have token 0, as our own models do. A model that names no start
    token has its texts separated by the end token. Raises ValueError if the vocabulary has neither.
    """
    inner = getattr(model, "original_model", None)
    if isinstance(inner, Transformer):
        return BOS
    for name in ("bos_token_id", "eos_token_id"):
        for source in (getattr(inner, "config", None), getattr(model, "tokenizer", None)):
            token = getattr(source, name, None)
            if isinstance(token, int) and 0 <= token < model.cfg.d_vocab:
                return token
    raise ValueError(f"{model.cfg.model_name!r} names no start token; set model.tokenizer to one that does")
