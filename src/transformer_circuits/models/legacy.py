"""Shortformer checkpoints in the layout of TransformerLens before 4.0, which TransformerLens 4 itself declines.

A folder holds the state dict (`*.safetensors`, or `*.pth`, `*.pt`, `*.bin` read with `weights_only=True`, which runs no
code) and `config.json` with the fields of the old `HookedTransformerConfig`. Tensors: `embed.W_E` [d_vocab, d_model],
`pos_embed.W_pos` [n_ctx, d_model], `blocks.i.attn.W_Q`, `W_K`, `W_V` [head, d_model, d_head] and `W_O`
[head, d_head, d_model], `unembed.W_U` [d_model, d_vocab]; with layer normalization also `blocks.i.ln1.w`, `.b` and
`ln_final.w`, `.b`. Biases may be there if they are zero: our model has none.
"""

from __future__ import annotations

import json
import math
import pickle
import re
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from .architecture import ModelConfig, Transformer
from .shards import WeightsError, build

SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")
PUBLISHED_WITHOUT_CONFIG = {  # what the authors' tutorial (ARENA 1.2) says of these
    "callummcdougall/attn_only_2L_half": {
        "positional_embedding_type": "shortformer",
        "normalization_type": None,
        "attn_only": True,
    }
}
_IGNORED = re.compile(r"blocks\.\d+\.attn\.(mask|IGNORE)")  # buffers
_BIAS = re.compile(r"blocks\.\d+\.attn\.b_[QKVO]|unembed\.b_U")


def is_legacy(folder: str | Path) -> bool:
    """Whether `folder` holds one state dict and no manifest of ours."""
    folder = Path(folder)
    return folder.is_dir() and not (folder / "manifest.json").exists() and len(_state_dicts(folder)) > 0


def read_legacy(folder: str | Path, settings: dict[str, Any] | None = None) -> Transformer:
    """The model in `folder`, in float32 on the CPU. `settings` stands in for a missing config.json.

    Raises WeightsError for what our model cannot hold: other positions than Shortformer's, other normalization than none
    or LN, MLPs, biases that are not zero, attention that is not causal or is scaled otherwise, and unknown tensors.
    """
    folder = Path(folder)
    files = _state_dicts(folder)
    if len(files) != 1:
        raise WeightsError(f"{folder} must hold one state dict ({', '.join(SUFFIXES)}), it holds {len(files)}")
    settings = read_settings(folder, settings)
    return convert(_tensors(files[0]), settings, where=str(files[0]))


def read_settings(folder: Path, settings: dict[str, Any] | None = None) -> dict[str, Any]:
    """The fields of config.json, or `settings` where there is none; WeightsError if they ask for what ours cannot do."""
    config_file = folder / "config.json"
    if config_file.is_file():
        try:
            settings = dict(json.loads(config_file.read_text()))
        except (ValueError, TypeError) as error:
            raise WeightsError(f"{config_file} is not a readable configuration: {error}") from error
    if settings is None:
        raise WeightsError(
            f"{folder} has no config.json, so its positions and normalization are unknown; write one with "
            '"positional_embedding_type", "normalization_type" and "attn_only"'
        )
    d_head, scale = settings.get("d_head", -1), settings.get("attn_scale", -1)
    declined = {
        "positional_embedding_type": settings.get("positional_embedding_type") != "shortformer",
        "normalization_type": settings.get("normalization_type") not in (None, "LN"),
        "attn_only": not settings.get("attn_only", False),
        "attention_dir": settings.get("attention_dir", "causal") != "causal",
        "use_attn_scale": not settings.get("use_attn_scale", True),
        "attn_scale": scale > 0 and not (d_head > 0 and math.isclose(scale, math.sqrt(d_head), rel_tol=1e-6)),
        "scale_attn_by_inverse_layer_idx": settings.get("scale_attn_by_inverse_layer_idx", False),
        "eps": not math.isclose(settings.get("eps", 1e-5), 1e-5),
    }
    for field, is_declined in declined.items():
        if is_declined:
            raise WeightsError(
                f"{folder} has {field} = {settings.get(field)!r}; only causal attention-only Shortformer models with no "
                "normalization or LN can be loaded"
            )
    return settings


def convert(state: dict[str, Tensor], settings: dict[str, Any], where: str) -> Transformer:
    """The Transformer with the weights of an old state dict. Sizes are read off the tensors."""
    state = {key: tensor for key, tensor in state.items() if not _IGNORED.fullmatch(key)}
    for key in [key for key in state if _BIAS.fullmatch(key)]:
        if state.pop(key).any():
            raise WeightsError(f"{where} has a bias that is not zero, {key}; these models have no biases")

    def take(key: str) -> Tensor:
        if key not in state:
            raise WeightsError(f"{where} has no tensor {key}; it is not a complete Shortformer state dict")
        return state.pop(key).float()

    def heads_last(weight: Tensor) -> Tensor:  # [head, d_model, d_head] to nn.Linear's [head d_head, d_model]
        return weight.transpose(-2, -1).flatten(0, 1).contiguous()

    tensors = {"tok_embed.weight": take("embed.W_E"), "head.weight": take("unembed.W_U").T.contiguous()}
    positions = take("pos_embed.W_pos")
    n_layers = len({key.split(".")[1] for key in state if key.startswith("blocks.")})
    normalization = "LN" if settings.get("normalization_type") else None
    for i in range(n_layers):
        W_Q = take(f"blocks.{i}.attn.W_Q")
        tensors[f"layers.{i}.attn.q.weight"] = heads_last(W_Q)
        tensors[f"layers.{i}.attn.k.weight"] = heads_last(take(f"blocks.{i}.attn.W_K"))
        tensors[f"layers.{i}.attn.v.weight"] = heads_last(take(f"blocks.{i}.attn.W_V"))
        tensors[f"layers.{i}.attn.o.weight"] = take(f"blocks.{i}.attn.W_O").flatten(0, 1).T.contiguous()
        if normalization:
            tensors[f"layers.{i}.ln1.weight"] = take(f"blocks.{i}.ln1.w")
            tensors[f"layers.{i}.ln1.bias"] = take(f"blocks.{i}.ln1.b")
    if normalization:
        tensors["ln_out.weight"], tensors["ln_out.bias"] = take("ln_final.w"), take("ln_final.b")
    if state:
        raise WeightsError(f"{where} has tensors that this model has no place for: {', '.join(sorted(state)[:5])}")
    n_heads, d_model, d_head = W_Q.shape if n_layers else (1, tensors["tok_embed.weight"].shape[1], 1)
    try:
        config = ModelConfig(
            n_layers=n_layers,
            d_model=d_model,
            n_heads=n_heads,
            d_head=d_head,
            d_vocab=len(tensors["tok_embed.weight"]),
            n_ctx=len(positions),
            normalization=normalization,
        )
    except ValueError as error:
        raise WeightsError(f"{where} does not fit: {error}") from error
    model = build(config, tensors, where)
    if positions.shape != model.pos.weight.shape:
        raise WeightsError(f"the positions in {where} are {tuple(positions.shape)}, expected {tuple(model.W_pos.shape)}")
    model.pos.weight.data = positions  # learned ones, in place of sinusoids
    return model


def _state_dicts(folder: Path) -> list[Path]:
    """Without the shards of ours, which are nothing without their manifest."""
    ours = set(folder.glob("weights-*-of-*.safetensors"))
    return sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES and path not in ours)


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (safetensors.SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise WeightsError(f"{path} is not a state dict of tensors: {first}") from error
    if not isinstance(state, dict) or not all(isinstance(tensor, Tensor) for tensor in state.values()):
        raise WeightsError(f"{path} is not a state dict: it must map names to tensors")
    return state
