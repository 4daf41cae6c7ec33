"""Attention-only Shortformer checkpoints of TransformerLens before 4.0, which TransformerLens 4 does not load.

Public ones are `callummcdougall/attn_only_2L_half` and `NeelNanda/Attn-Only-2L512W-Shortformer-6B-big-lr`. A folder
contains `config.json` and one state dict; those that are not safetensors are read with `weights_only=True`, which runs
no code. TransformerLens's `convert_tl_checkpoint` names the tensors and their shapes.
"""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import safetensors.torch
import torch

from .architecture import ModelConfig, Transformer
from .shards import SHARDS, WeightsError, build, reason

SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")
PUBLISHED_WITHOUT_CONFIG = {  # what the authors' tutorial (ARENA 1.2) says of it
    "callummcdougall/attn_only_2L_half": {
        "positional_embedding_type": "shortformer",
        "normalization_type": None,
        "attn_only": True,
        "tokenizer_name": "EleutherAI/gpt-neox-20b",
    }
}
_DEFAULTS = {"positional_embedding_type": "standard", "normalization_type": "LN", "attn_only": False}
_OFF = (False, None, 0, -1)
# Settings that change what a model computes, and the values at which it computes what ours does.
_SUPPORTED = {
    "positional_embedding_type": ("shortformer",),
    "normalization_type": (None, "LN", "LNPre"),
    "attn_only": (True,),
    "attention_dir": ("causal",),
    "use_attn_scale": (True,),
    "eps": (1e-5,),
    "use_local_attn": _OFF,
    "attn_scores_soft_cap": _OFF,
    "output_logits_soft_cap": _OFF,
    "scale_attn_by_inverse_layer_idx": _OFF,
}
_OUR_NAMES = dict(embed="tok_embed", pos_embed="pos", blocks="layers", ln_final="ln_out", unembed="head")


def read_settings(folder: Path, name: str) -> dict[str, Any]:
    """Return the settings in config.json, or what is known of the model called `name`, with the old class's defaults.
    Raises WeightsError if there are none, or one changes the mathematics to something that our model does not compute.
    """
    settings, path = PUBLISHED_WITHOUT_CONFIG.get(name), folder / "config.json"
    if path.is_file():
        settings = json.loads(path.read_text(encoding="utf-8"))
    if settings is None:
        todo = "write one with positional_embedding_type, normalization_type, and attn_only"
        raise WeightsError(f"{folder} has no config.json; {todo}")
    if "normalization" in settings:  # the training code's own names for the two
        settings["normalization_type"] = settings["normalization"]
    if settings.get("shortformer_pos"):
        settings["positional_embedding_type"] = "shortformer"
    settings = _DEFAULTS | settings
    scale = math.sqrt(settings.get("d_head", 0))
    for setting, values in (_SUPPORTED | {"attn_scale": (None, -1, scale)}).items():
        if setting in settings and settings[setting] not in values:
            supports = "the loader supports only causal attention-only Shortformer models with LN or none"
            raise WeightsError(f"{folder} has {setting} = {settings[setting]!r}; {supports}")
    return settings


def read(folder: Path, normalization: str | None) -> Transformer:
    """Return the model in `folder`, in float32 on the CPU. `normalization` is the `normalization_type` of its settings.
    Raises WeightsError for a state dict that is not complete, or has tensors that ours has no place for."""
    from transformer_lens.utilities.tl_checkpoint_conversion import convert_tl_checkpoint  # slow

    files = [path for path in folder.glob("*") if path.suffix in SUFFIXES and not path.match(SHARDS)]
    files = [path for path in files if path.stem.endswith("_final")] or files  # beside others of the same training
    if len(files) != 1:
        raise WeightsError(f"{folder} must contain one state dict ({', '.join(SUFFIXES)}), got {len(files)}")
    (file,) = files
    try:
        if file.suffix == ".safetensors":
            state = safetensors.torch.load_file(file)
        else:
            state = torch.load(file, map_location="cpu", weights_only=True)
        (d_vocab, d_model), n_ctx = state["embed.W_E"].shape, len(state["pos_embed.W_pos"])
        n_layers = len({key.split(".")[1] for key in state if key.startswith("blocks.")})
        n_heads, _, d_head = state["blocks.0.attn.W_Q"].shape if n_layers else (1, d_model, 1)
        sizes = SimpleNamespace(n_heads=n_heads, n_key_value_heads=n_heads, d_model=d_model, d_head=d_head)
        converted = convert_tl_checkpoint(state, sizes)
    except Exception as error:  # unpickling a malformed file can raise any exception
        raise WeightsError(f"{file} is not a Shortformer's state dict of tensors: {reason(error)}") from error
    tensors = {}
    for key, tensor in converted.items():
        part, _, rest = key.partition(".")
        if rest.endswith("bias") and "ln" not in key and not tensor.any():
            continue  # ours has no such bias; `build` adds it where it is not zero
        tensors[f"{_OUR_NAMES.get(part, part)}.{rest}"] = tensor.float()
    if normalization == "LNPre":  # without gain and bias
        for name in [*(f"layers.{i}.ln1" for i in range(n_layers)), "ln_out"]:
            tensors |= {f"{name}.weight": torch.ones(d_model), f"{name}.bias": torch.zeros(d_model)}
    config = ModelConfig(n_layers, d_model, n_heads, d_head, d_vocab, n_ctx, "LN" if normalization else None)
    return build(config, tensors, str(file))
