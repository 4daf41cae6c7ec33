"""Shortformer checkpoints in the layout of TransformerLens before 4.0, which TransformerLens 4 itself declines.

A folder holds the state dict (`*.safetensors`, or `*.pth`, `*.pt`, `*.bin` read with `weights_only=True`, which runs no
code) and `config.json` with the fields of the old `HookedTransformerConfig`. Tensors: `embed.W_E` [d_vocab, d_model],
`pos_embed.W_pos` [n_ctx, d_model], `blocks.i.attn.W_Q`, `W_K`, `W_V` [head, d_model, d_head] and `W_O`
[head, d_head, d_model], `unembed.W_U` [d_model, d_vocab]; with layer normalization also `blocks.i.ln1.w`, `.b` and
`ln_final.w`, `.b`. Biases may be there if they are zero: our model has none. A field that asks for other mathematics than ours, or that is
not known here, is declined by its name.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

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
_SIZES = ("n_layers", "d_model", "n_heads", "d_head", "d_vocab", "d_vocab_out", "n_ctx", "n_key_value_heads")  # -1 or null: not said
_ONLY = {  # fields that change what the model computes, and the values at which it is what ours computes
    "positional_embedding_type": ("shortformer",),
    "normalization_type": (None, "LN"),
    "attn_only": (True,),
    "attention_dir": ("causal",),
    "use_attn_scale": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "use_local_attn": (False,),
    "use_qk_norm": (False,),
    "final_rms": (False,),
    "post_embedding_ln": (False,),
    "use_normalization_before_and_after": (False,),
    "attn_scores_soft_cap": (-1, 0, None),
    "output_logits_soft_cap": (-1, 0, None),
    "scale_embedding": (False, None),
    "load_in_4bit": (False,),
}
_DEFAULTS = {"positional_embedding_type": "standard", "normalization_type": "LN", "attn_only": False}  # the old class's, where ours differ
_WITHOUT_EFFECT = {  # on what an attention-only Shortformer computes: names, settings of a run, and fields of MLPs, rotary and local attention
    *("model_name", "original_architecture", "architecture", "tokenizer_name", "tokenizer_prepends_bos", "default_prepend_bos", "trust_remote_code"),
    *("default_padding_side", "from_checkpoint", "checkpoint_index", "checkpoint_label_type", "checkpoint_value", "n_params", "dtype", "device"),
    *("n_devices", "seed", "init_mode", "init_weights", "initializer_range", "use_attn_result", "use_attn_in", "use_hook_mlp_in", "use_hook_tokens"),
    *("use_split_qkv_input", "ungroup_grouped_query_attention", "tie_word_embeddings", "act_fn", "d_mlp", "gated_mlp", "parallel_attn_mlp"),
    *("num_experts", "experts_per_token", "rotary_dim", "rotary_base", "rotary_adjacent_pairs", "window_size", "attn_types", "eps", "attn_scale"),
    *("decoder_start_token_id", "relative_attention_max_distance", "relative_attention_num_buckets", "use_NTK_by_parts_rope"),
    *("NTK_by_parts_low_freq_factor", "NTK_by_parts_high_freq_factor", "NTK_by_parts_factor", "NTK_original_ctx_len", "rmsnorm_uses_offset"),
}  # eps and attn_scale are looked at by their value
_IGNORED = re.compile(r"blocks\.\d+\.attn\.(mask|IGNORE)")  # buffers
_BIAS = re.compile(r"blocks\.\d+\.attn\.b_[QKVO]|unembed\.b_U")


def is_legacy(folder: str | Path) -> bool:
    """Whether `folder` holds one state dict and no manifest of ours."""
    folder = Path(folder)
    return folder.is_dir() and not (folder / "manifest.json").exists() and len(_state_dicts(folder)) > 0


def read_legacy(folder: str | Path, settings: dict[str, Any] | None = None) -> Transformer:
    """The model in `folder`, in float32 on the CPU. `settings` stands in for a missing config.json.

    Raises WeightsError for what our model cannot hold: other positions than Shortformer's, other normalization than none
    or LN, MLPs, biases that are not zero, attention that is not causal, is local or is scaled otherwise; and for unknown fields and tensors.
    """
    folder = Path(folder)
    files = _state_dicts(folder)
    if len(files) != 1:
        raise WeightsError(f"{folder} must hold one state dict ({', '.join(SUFFIXES)}), it holds {len(files)}")
    settings = read_settings(folder, settings)
    return convert(_tensors(files[0]), settings, where=str(files[0]))


def read_settings(folder: Path, settings: dict[str, Any] | None = None) -> dict[str, Any]:
    """The fields of config.json, or `settings` where there is none, with the old class's defaults; WeightsError if they ask for what ours cannot do."""
    config_file = folder / "config.json"
    if config_file.is_file():
        try:
            settings = dict(json.loads(config_file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise WeightsError(f"{config_file} is not a readable configuration: {error}") from error
    if settings is None:
        raise WeightsError(
            f"{folder} has no config.json, so its positions and normalization are unknown; write one with "
            '"positional_embedding_type", "normalization_type" and "attn_only"'
        )
    said = _DEFAULTS | settings
    wrong = [name for name, values in _ONLY.items() if name in said and said[name] not in values]
    wrong += [] if _is_close(said.get("eps", 1e-5), 1e-5) else ["eps"]
    d_head, scale = said.get("d_head"), said.get("attn_scale", -1)
    wrong += [] if scale in (-1, None) or _is_close(scale, d_head, power=0.5) else ["attn_scale"]
    if wrong:
        raise WeightsError(
            f"{folder} has {wrong[0]} = {said.get(wrong[0])!r}; only causal attention-only Shortformer models with no "
            "normalization or LN can be loaded"
        )
    if unknown := sorted(set(settings) - set(_ONLY) - set(_SIZES) - _WITHOUT_EFFECT):
        raise WeightsError(f"{folder} has settings that are not known here ({', '.join(unknown)}); remove them if the model is the same without them")
    return said


def _is_close(value: Any, target: Any, power: float = 1) -> bool:
    """Whether what a file gave are numbers, and the first is that power of the other."""
    try:
        return math.isclose(value, target**power, rel_tol=1e-6)
    except (TypeError, OverflowError):
        return False


def convert(state: dict[str, Tensor], settings: dict[str, Any], where: str) -> Transformer:
    """The Transformer with the weights of an old state dict. Sizes are read off the tensors."""
    state = {key: tensor for key, tensor in state.items() if not _IGNORED.fullmatch(key)}
    unusable = [key for key, tensor in state.items() if not (tensor.is_floating_point() and tensor.layout == torch.strided and tensor.isfinite().all())]
    if unusable:
        raise WeightsError(f"{unusable[0]} in {where} is no table of finite numbers; fetch the checkpoint again")
    for key in [key for key in state if _BIAS.fullmatch(key)]:
        if state.pop(key).any():
            raise WeightsError(f"{where} has a bias that is not zero, {key}; these models have no biases")

    def take(key: str, *dimensions: str) -> Tensor:
        if key not in state:
            raise WeightsError(f"{where} has no tensor {key}; it is not a complete Shortformer state dict")
        if state[key].ndim != len(dimensions):
            raise WeightsError(f"{key} in {where} is {tuple(state[key].shape)}, expected [{', '.join(dimensions)}]; it is no Shortformer state dict")
        return state.pop(key).float()

    def heads_last(weight: Tensor) -> Tensor:  # [head, d_model, d_head] to nn.Linear's [head d_head, d_model]
        return weight.transpose(-2, -1).flatten(0, 1).contiguous()

    tensors = {"tok_embed.weight": take("embed.W_E", "d_vocab", "d_model"), "head.weight": take("unembed.W_U", "d_model", "d_vocab").T.contiguous()}
    positions = take("pos_embed.W_pos", "n_ctx", "d_model")
    n_layers = len({key.split(".")[1] for key in state if key.startswith("blocks.")})
    normalization = "LN" if settings.get("normalization_type") else None
    for i in range(n_layers):
        W_Q, W_K, W_V = (take(f"blocks.{i}.attn.W_{name}", "head", "d_model", "d_head") for name in "QKV")
        for name, weight in (("q", W_Q), ("k", W_K), ("v", W_V)):
            tensors[f"layers.{i}.attn.{name}.weight"] = heads_last(weight)
        tensors[f"layers.{i}.attn.o.weight"] = take(f"blocks.{i}.attn.W_O", "head", "d_head", "d_model").flatten(0, 1).T.contiguous()
        if normalization:
            tensors[f"layers.{i}.ln1.weight"] = take(f"blocks.{i}.ln1.w", "d_model")
            tensors[f"layers.{i}.ln1.bias"] = take(f"blocks.{i}.ln1.b", "d_model")
    if normalization:
        tensors["ln_out.weight"], tensors["ln_out.bias"] = take("ln_final.w", "d_model"), take("ln_final.b", "d_model")
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
    sizes = dataclasses.asdict(config) | {"d_vocab_out": config.d_vocab, "n_key_value_heads": config.n_heads}
    for name in _SIZES if n_layers else set(_SIZES) - {"n_heads", "d_head", "n_key_value_heads"}:
        if settings.get(name, -1) not in (-1, None, sizes[name]):
            raise WeightsError(f"{where} has {name} = {sizes[name]}, its configuration says {settings[name]!r}: they do not belong together")
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
    except Exception as error:  # what garbage makes of unpickling can be any of them
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise WeightsError(f"{path} is not a state dict of tensors: {first}") from error
    if not isinstance(state, dict) or not all(isinstance(key, str) and isinstance(tensor, Tensor) for key, tensor in state.items()):
        raise WeightsError(f"{path} is not a state dict: it must map names to tensors")
    return state
