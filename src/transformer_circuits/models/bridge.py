"""Our transformer as a TransformerLens 4 `TransformerBridge`.

It differs from other bridges where TransformerLens's defaults would give wrong numbers for these models:

- **Positions** enter queries and keys only. `bridge.W_pos` [n_ctx, d_model] and the hook `positions.hook_out` [1, pos,
  d_model] give them. There is no `hook_pos_embed`, which `ActivationCache.decompose_resid` would add to the residual
  stream (there is with `standard_positions`).
- **hook_attn_scores** fires on the scores (scaled, masked with -inf) before the softmax, and edits take effect. A
  layer without a hook there or at `hook_pattern` forms no pattern: its attention is fused.
- There is no **hook_result**: `ActivationCache.stack_head_results` makes the results of heads from `hook_z`.
- **Smeared keys** are mixed after `hook_k`, which shows each token's own key.
- **Padding masks** are rejected (pad on the right), and so is compatibility mode, which rewrites weights.
- Every hook in `hook_dict` fires (with an MLP, `hook_mlp_in` once it is switched on).

TransformerLens itself cuts prompts given as text to the context silently (token ids raise), and its loss of a list of
prompts of unequal length counts the padding. `stop_at_layer=n_layers` returns logits, and `start_at_layer` raises.
"""

import copy
from typing import Any

from jaxtyping import Float
from torch import Tensor
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.architecture_adapter import ArchitectureAdapter
from transformer_lens.model_bridge.generalized_components import AttentionBridge, EmbeddingBridge, LinearBridge
from transformer_lens.model_bridge.sources import build_bridge_from_module
from transformers import PreTrainedTokenizerFast

from .architecture import ModelConfig, Transformer
from .shards import build

SIZES = ("n_layers", "d_model", "n_heads", "d_head", "d_vocab", "n_ctx", "d_mlp")
AXES = {  # of each matrix
    "W_E": ["d_vocab", "d_model"],
    "W_pos": ["n_ctx", "d_model"],
    "W_Q": ["layer", "head", "d_model", "d_head"],
    "W_K": ["layer", "head", "d_model", "d_head"],
    "W_V": ["layer", "head", "d_model", "d_head"],
    "W_O": ["layer", "head", "d_head", "d_model"],
    "W_U": ["d_model", "d_vocab"],
}


def wrap(
    model: Transformer,
    tokenizer: PreTrainedTokenizerFast | None = None,
    name: str = "transformer",
    shared: bool = False,
) -> TransformerBridge:
    """Return a bridge around a copy of `model`, on its device. Without a tokenizer it takes token ids only. `shared`:
    the copy has the same parameters, and so is trained with the model."""
    config, same = model.config, {id(parameter): parameter for parameter in model.parameters()}
    bridge_config = TransformerBridgeConfig(
        **{size: getattr(config, size) for size in SIZES},
        d_vocab_out=config.d_vocab,
        attn_scale=config.d_head**0.5,
        act_fn="gelu",
        attn_only=not config.d_mlp,
        normalization_type=config.normalization,
        positional_embedding_type="standard" if config.standard_positions else "shortformer",
        default_padding_side="right",
    )
    return build_bridge_from_module(
        # The bridge replaces the submodules of the module it is given.
        copy.deepcopy(model, same if shared else None),
        "TransformerLensNative",
        tl_config=bridge_config,
        tokenizer=tokenizer,
        model_name=name,
        post_adapter_hook=_adapt,
    )


def matrices(model: TransformerBridge) -> dict[str, Tensor]:
    """Return all weights of an attention-only model, for `from_matrices`. Raises ValueError if it has more."""
    config = model.original_model.config
    if config.beyond:
        raise ValueError(f"this model has {' and '.join(config.beyond)}: it is more than its matrices")
    if config.n_layers:
        return {name: getattr(model, name).detach() for name in AXES}
    # A bridge without layers has no attributes W_Q, W_K, W_V, W_O.
    W_Q = model.W_E.new_zeros(0, config.n_heads, config.d_model, config.d_head)
    heads = {"W_Q": W_Q, "W_K": W_Q, "W_V": W_Q, "W_O": W_Q.mT}
    return {"W_E": model.W_E, "W_pos": model.W_pos, "W_U": model.W_U} | heads


def from_matrices(
    W_E: Float[Tensor, "..."],
    W_pos: Float[Tensor, "..."],
    W_Q: Float[Tensor, "..."],
    W_K: Float[Tensor, "..."],
    W_V: Float[Tensor, "..."],
    W_O: Float[Tensor, "..."],
    W_U: Float[Tensor, "..."],
    standard_positions: bool = False,
    tokenizer: PreTrainedTokenizerFast | None = None,
) -> TransformerBridge:
    """Return a hooked attention-only model of these weights: `from_matrices(**matrices(model) | {"W_E": W})` edits one.
    AXES has their shapes. Raises ValueError for shapes that do not fit together, and for NaN or infinity."""
    given = dict(zip(AXES, (W_E, W_pos, W_Q, W_K, W_V, W_O, W_U)))
    sizes = {axis: size for name in ("W_Q", "W_pos", "W_E") for axis, size in zip(AXES[name], given[name].shape)}
    for name, W in given.items():
        if list(W.shape) != [sizes.get(axis) for axis in AXES[name]]:
            raise ValueError(f"{name} must be [{', '.join(AXES[name])}] with {sizes}, got {list(W.shape)}")
        if not W.isfinite().all():
            raise ValueError(f"{name} contains NaN or infinity")
    (d_vocab, d_model), (n_layers, n_heads, _, d_head) = W_E.shape, W_Q.shape
    config = ModelConfig(n_layers, d_model, n_heads, d_head, d_vocab, len(W_pos), standard_positions=standard_positions)
    tensors = {"tok_embed.weight": W_E, "pos.weight": W_pos, "head.weight": W_U.T}
    for layer, (Q, K, V, O) in enumerate(zip(W_Q, W_K, W_V, W_O)):
        attn = f"layers.{layer}.attn"
        tensors |= {f"{attn}.{name}.weight": W.mT.flatten(0, 1) for name, W in zip("qkv", (Q, K, V))}
        tensors[f"{attn}.o.weight"] = O.flatten(0, 1).T
    model = build(config, {name: tensor.to(W_E).contiguous() for name, tensor in tensors.items()}, "the matrices")
    return wrap(model.eval().requires_grad_(False), tokenizer)


class _Attention(AttentionBridge):
    """All heads of a layer, with `hook_attn_scores` and `hook_pattern` inside the computation."""

    supports_split_qkv_fork = False

    def forward(self, residual: Tensor, positions: Tensor) -> tuple[Tensor, Tensor | None]:
        hooks = {"pattern_fn": self.hook_pattern, "scores_fn": self.hook_attn_scores}
        if not any(point.has_hooks() for point in hooks.values()):
            hooks = {}  # fused attention takes less time
        out, pattern = self.original_component(self.hook_in(residual), positions, **hooks)
        return self.hook_out(out), pattern


def _adapt(adapter: ArchitectureAdapter) -> None:
    """Fit TransformerLens's component map of its native model to ours, and declare what ours does not support."""
    mapping: dict[str, Any] = adapter.component_mapping
    if adapter.cfg.positional_embedding_type != "standard":
        del mapping["pos_embed"]
        mapping["positions"] = EmbeddingBridge(name="pos")
    blocks, projections = mapping["blocks"], {name: LinearBridge(name=name) for name in "qkvo"}
    blocks.submodules["attn"] = attention = _Attention(name="attn", config=adapter.cfg, submodules=projections)
    # Hooks that would never fire: without them an edit fails by name instead of silently doing nothing.
    never = {"hook_attn_in", "hook_q_input", "hook_k_input", "hook_v_input"}
    blocks.hook_aliases = {name: hook for name, hook in blocks.hook_aliases.items() if name not in never}
    gone = [(attention, "hook_hidden_states"), (attention, "hook_result"), (blocks, "hook_mlp_in")]
    for component, name in gone if adapter.cfg.attn_only else gone[:2]:
        delattr(component, name)
        del component._hook_registry[name]
    adapter.supports_kv_cache = False  # generation recomputes the whole prompt
    adapter.supports_batched_generation = False  # it would pad prompts of unequal length on the left
    adapter.supports_hf_output_attentions = False  # patterns come through hooks
    adapter.supports_compatibility_mode = False  # its centering changes logits if there is no normalization
