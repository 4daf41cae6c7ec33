"""Public models from the Hugging Face hub, for claim W7: the same measurements on models that others trained.

Three kinds, told apart by name and all returned as a TransformerBridge:

- whatever `registry.load_model` knows, old Shortformer checkpoints such as `callummcdougall/attn_only_2L_half` included;
- repositories in TransformerLens's old layout (`NeelNanda/...`), by `TransformerBridge.boot_tl_legacy`;
- the rest, such as `gpt2`, by `TransformerBridge.boot_transformers`; also a folder in the format of transformers.

Nothing here reaches for the network by itself: a notebook asks `hub_answers` once and hands the answer on.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from . import registry
from .architecture import BOS, Transformer
from .shards import WeightsError

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge


def hub_answers(timeout: float = 3.0) -> bool:
    """Whether the hub can be reached, within `timeout` seconds. False where Hugging Face's offline mode is switched on.

    One request without retries, in a thread of its own: looking up a name can hang for longer than any HTTP timeout.
    """
    import huggingface_hub
    from huggingface_hub import constants

    answers: list[bool] = []

    def ask() -> None:
        with contextlib.suppress(Exception):  # whatever the HTTP library raises: it does not answer
            answers.append(huggingface_hub.get_session().head(constants.ENDPOINT, timeout=timeout).status_code < 500)

    if constants.is_offline_mode():
        return False
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(timeout)
    return any(answers)


def load_public(
    name: str, online: bool, device: str | torch.device | None = None, dtype: torch.dtype = torch.float32
) -> TransformerBridge:
    """The model called `name`, a hub repository or a folder on this machine; eval mode, no gradients required.

    With `online` false nothing is asked of the network, and only what is on this machine is found (earlier downloads too).
    Weights are as published: no layer normalization is folded in and nothing is centered. `device`: None takes CUDA where
    there is one.

    Raises WeightsError, in one sentence, for a model that cannot be had or not be read; ValueError for a device that cannot
    be used.
    """
    device = registry._usable(device)
    with contextlib.nullcontext() if online else _without_network():
        try:
            model = _boot(name, device, dtype)
        except Exception as error:  # of the hub's client, the HTTP library, transformers, TransformerLens
            if not online and not _on_disk(name):
                raise WeightsError(
                    f"{name!r} was left out: there is no network, and this machine holds no copy that can be read without it"
                ) from error
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise WeightsError(f"{name!r} could not be loaded: {first}") from error
    return model.eval().requires_grad_(False)


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
    raise ValueError(f"{model.cfg.model_name!r} names no start token: hand one to `repeated_random_tokens(start=...)`")


def _boot(name: str, device: torch.device, dtype: torch.dtype) -> TransformerBridge:
    from transformer_lens.model_bridge import TransformerBridge
    from transformer_lens.model_bridge.sources.tl_legacy import TL_LEGACY_PREFIXES

    if name in registry.list_models() or name in registry.legacy.PUBLISHED_WITHOUT_CONFIG:
        return registry.load_model(name, device, dtype)
    if Path(name).is_dir() and registry.legacy.is_legacy(name) and not _of_transformers(name):
        return registry.load_model(Path(name).name, device, dtype, folder=name)
    if name.startswith(TL_LEGACY_PREFIXES):
        return TransformerBridge.boot_tl_legacy(name, device=device, dtype=dtype)
    return TransformerBridge.boot_transformers(name, device=device, dtype=dtype)


def _of_transformers(folder: str) -> bool:
    """Both layouts may be a `model.safetensors` beside a `config.json`; only that of transformers names its model type."""
    config = Path(folder) / "config.json"
    return config.is_file() and '"model_type"' in config.read_text(encoding="utf-8")


def _on_disk(name: str) -> bool:
    return Path(name).is_dir() or name in registry.list_models()


@contextlib.contextmanager
def _without_network() -> Iterator[None]:
    """Hugging Face's offline mode for a while: what has been fetched is found, all else fails at once and is not retried.

    The switch is the client library's own (HF_HUB_OFFLINE), which it reads from the environment only when it is imported.
    """
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
