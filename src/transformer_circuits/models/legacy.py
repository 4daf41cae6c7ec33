"""Attention-only Shortformer checkpoints in the layout of TransformerLens before 4.0, which TransformerLens 4 does not load.

Public ones are `callummcdougall/attn_only_2L_half` and `NeelNanda/Attn-Only-2L512W-Shortformer-6B-big-lr`. TransformerLens's own
`boot_tl_legacy` loads the other models of that layout.

A folder contains one state dict (`*.safetensors`, or `*.pth`, `*.pt`, `*.bin` read with `weights_only=True`, which runs no code) and
`config.json`. Tensors: `embed.W_E` [d_vocab, d_model], `pos_embed.W_pos` [n_ctx, d_model], `unembed.W_U` [d_model, d_vocab], and in
each block `attn.W_Q`, `W_K`, `W_V` [head, d_model, d_head] and `W_O` [head, d_head, d_model], with biases `b_...`; with layer
normalization also `ln1.w`, `ln1.b`, and `ln_final.w`, `ln_final.b`.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from .architecture import ModelConfig, Transformer
from .shards import WeightsError, build

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
_SUPPORTED = {  # settings that change what a model computes, and the values at which it computes what ours does
    "positional_embedding_type": ("shortformer",),
    "normalization_type": (None, "LN", "LNPre"),
    "attn_only": (True,),
    "attention_dir": ("causal",),
    "use_attn_scale": (True,),
    "eps": (1e-5,),
    "ln_eps": (1e-5,),
    "attn_scores_soft_cap": (None, 0, -1),
    "output_logits_soft_cap": (None, 0, -1),
    "scale_attn_by_inverse_layer_idx": (False,),
    "use_local_attn": (False,),
    "use_qk_norm": (False,),
    "final_rms": (False,),
    "post_embedding_ln": (False,),
    "use_normalization_before_and_after": (False,),
}
_BUFFERS = re.compile(r"blocks\.\d+\.attn\.(mask|IGNORE)")


def is_legacy(folder: str | Path) -> bool:
    """Return whether `folder` has a state dict and no manifest of ours."""
    folder = Path(folder)
    return folder.is_dir() and not (folder / "manifest.json").exists() and bool(_state_dicts(folder))


def read_legacy(folder: str | Path, settings: dict[str, Any] | None = None) -> Transformer:
    """Return the model in `folder`, in float32 on the CPU. `settings` stands in for a missing config.json.

    Raises WeightsError, in one sentence, for settings under which a model computes something else than ours, for a state dict that
    is not complete, and for tensors that ours has no place for.
    """
    folder = Path(folder)
    files = _state_dicts(folder)
    if len(files) != 1:
        raise WeightsError(
            f"{folder} must contain one state dict ({', '.join(SUFFIXES)}), got {len(files)}; leave one"
        )
    settings = read_settings(folder, settings)
    return _convert(_tensors(files[0]), settings, where=str(files[0]))


def read_settings(folder: Path, settings: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the settings in config.json, or `settings` where there is none, with the old class's defaults.

    Raises WeightsError if a setting changes the mathematics to something that our model does not compute.
    """
    path = folder / "config.json"
    if path.is_file():
        try:
            settings = dict(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise WeightsError(f"{path} is not a readable configuration: {error}") from error
    if settings is None:
        raise WeightsError(
            f"{folder} has no config.json, so its positions and normalization are unknown; write one with "
            '"positional_embedding_type", "normalization_type" and "attn_only"'
        )
    if "normalization" in settings:  # the training code's own names for the two
        settings["normalization_type"] = settings["normalization"]
    if settings.get("shortformer_pos"):
        settings["positional_embedding_type"] = "shortformer"
    settings = _DEFAULTS | settings
    wrong = [name for name, values in _SUPPORTED.items() if name in settings and settings[name] not in values]
    scale, d_head = settings.get("attn_scale", -1), settings.get("d_head")
    if scale not in (-1, None) and not _is_root(scale, d_head):
        wrong.append("attn_scale")
    if wrong:
        raise WeightsError(
            f"{folder} has {wrong[0]} = {settings[wrong[0]]!r}; the loader supports only causal attention-only Shortformer "
            "models with no normalization or LN"
        )
    return settings


def _is_root(scale: Any, d_head: Any) -> bool:
    numbers = isinstance(scale, (int, float)) and isinstance(d_head, (int, float)) and d_head > 0
    return numbers and math.isclose(scale, d_head**0.5, rel_tol=1e-6)


def _convert(state: dict[str, Tensor], settings: dict[str, Any], where: str) -> Transformer:
    """Return the Transformer with the weights of an old state dict, which is emptied. Sizes are read from the tensors."""
    for key in [key for key in state if _BUFFERS.fullmatch(key)]:
        del state[key]
    for key, tensor in state.items():
        if not (tensor.is_floating_point() and tensor.layout == torch.strided and tensor.isfinite().all()):
            raise WeightsError(
                f"{key} in {where} must be a floating-point tensor without NaN or infinity; download the checkpoint again"
            )

    def take(key: str, axes: str) -> Tensor:
        if key not in state:
            raise WeightsError(f"{where} is missing {key}; it is not a complete Shortformer state dict")
        if state[key].ndim != len(axes.split()):
            raise WeightsError(
                f"{key} in {where} must be [{', '.join(axes.split())}], got {tuple(state[key].shape)}"
            )
        return state.pop(key).float()

    W_E, W_U = take("embed.W_E", "d_vocab d_model"), take("unembed.W_U", "d_model d_vocab")
    positions = take("pos_embed.W_pos", "n_ctx d_model")
    tensors = {"tok_embed.weight": W_E, "head.weight": W_U.T.contiguous()}
    biases = {"head": state.pop("unembed.b_U", None)}
    normalized, d_model = settings["normalization_type"], W_E.shape[1]
    heads, d_head = 1, 1

    def take_norm(ours: str, theirs: str) -> None:
        learned = normalized == "LN"
        tensors[f"{ours}.weight"] = take(f"{theirs}.w", "d_model") if learned else torch.ones(d_model)
        tensors[f"{ours}.bias"] = take(f"{theirs}.b", "d_model") if learned else torch.zeros(d_model)

    n_layers = len({key.split(".")[1] for key in state if key.startswith("blocks.")})
    for i in range(n_layers):
        for name in "QKV":
            W = take(f"blocks.{i}.attn.W_{name}", "head d_model d_head")
            heads, d_head = W.shape[0], W.shape[2]
            tensors[f"layers.{i}.attn.{name.lower()}.weight"] = W.mT.flatten(0, 1).contiguous()
        W = take(f"blocks.{i}.attn.W_O", "head d_head d_model")
        tensors[f"layers.{i}.attn.o.weight"] = W.flatten(0, 1).T.contiguous()
        biases |= {
            f"layers.{i}.attn.{name.lower()}": state.pop(f"blocks.{i}.attn.b_{name}", None) for name in "QKVO"
        }
        if normalized:
            take_norm(f"layers.{i}.ln1", f"blocks.{i}.ln1")
    if normalized:
        take_norm("ln_out", "ln_final")
    if state:
        raise WeightsError(
            f"{where} has tensors that this model has no place for: {', '.join(sorted(state)[:5])}"
        )
    if positions.shape[1] != d_model:
        raise WeightsError(
            f"the positions in {where} are {tuple(positions.shape)}, expected {(len(positions), d_model)}"
        )
    normalization = "LN" if normalized else None
    try:
        config = ModelConfig(n_layers, d_model, heads, d_head, len(W_E), len(positions), normalization)
    except ValueError as error:
        raise WeightsError(f"{where} does not fit: {error}") from error
    model = build(config, tensors, where)
    model.pos.weight.data = positions  # learned, where ours computes sinusoids
    for name, bias in biases.items():
        if bias is not None and bias.any():
            _add_bias(model.get_submodule(name), bias.float().flatten(), f"the bias of {name} in {where}")
    return model


def _add_bias(linear: nn.Linear, bias: Tensor, what: str) -> None:
    """Give a projection the bias that ours do without."""
    if len(bias) != linear.out_features:
        raise WeightsError(f"{what} must have {linear.out_features} entries, got {len(bias)}")
    linear.bias = nn.Parameter(bias)


def _state_dicts(folder: Path) -> list[Path]:
    """Return the state dicts in a folder: the final one if a training run left others beside it; not the shards of our format."""
    ours = set(folder.glob("weights-*-of-*.safetensors"))
    found = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES and path not in ours)
    return [path for path in found if path.stem.endswith("_final")] or found


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # unpickling a malformed file can raise any exception
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise WeightsError(f"{path} is not a state dict of tensors: {first}") from error
    if not isinstance(state, dict) or not all(
        isinstance(key, str) and isinstance(tensor, Tensor) for key, tensor in state.items()
    ):
        raise WeightsError(f"{path} is not a state dict of tensors: it must map names to tensors")
    return state
