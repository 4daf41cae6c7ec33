"""Our transformer as a TransformerLens 4 `TransformerBridge`.

`wrap` puts TransformerLens's components around our own module, so what is analysed is what was trained. What differs
from other bridges, because TransformerLens's defaults would give wrong numbers for these models:

- **Positions** enter queries and keys only. `bridge.W_pos` [n_ctx, d_model] and the hook `positions.hook_out`
  [1, pos, d_model] give them; there is no `hook_pos_embed`, which `ActivationCache.decompose_resid` would add to the
  residual stream. A model of `standard_positions` has `hook_pos_embed` in their place, as other bridges do.
- **`hook_attn_scores`** fires on the true scores (scaled, masked with -inf) before the softmax, and edits take effect;
  TransformerLens fires it on the pattern, after the fact.
- **`hook_result`** [batch, pos, head, d_model] fires after `bridge.set_use_attn_result(True)`.
- **Smeared keys** are mixed after `hook_k`, which shows each token's own key.
- **Padding masks** are declined (pad on the right), so that no masked batch is computed as if it had no mask; so is
  compatibility mode, which rewrites weights. These models are read as they were trained.
- Every hook in `hook_dict` fires (`hook_result` and, with an MLP, `hook_mlp_in` once they are switched on).

What to know of TransformerLens itself: prompts given as text are cut to the context without a word (token ids raise);
the loss of a list of prompts of unequal length counts the padding; on a model without layers `stop_at_layer=0` returns
logits, and `accumulated_resid` raises KeyError (the residual stream is `cache["hook_embed"]`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens import ActivationCache
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.architecture_adapter import ArchitectureAdapter
from transformer_lens.model_bridge.generalized_components import AttentionBridge, EmbeddingBridge, LinearBridge
from transformer_lens.model_bridge.generalized_components.base import GeneralizedComponent
from transformer_lens.model_bridge.sources import build_bridge_from_module
from transformers import PreTrainedTokenizerFast

from .architecture import BOS, ModelConfig, Transformer
from .shards import WeightsError

START = "<|start|>"  # the text of token BOS


def wrap(
    model: Transformer, tokenizer: PreTrainedTokenizerFast | None = None, name: str = "transformer"
) -> TransformerBridge:
    """A bridge around a copy of `model`, on the same device and with the same dtype; `model` stays as it was.

    `tokenizer` should come from `as_pretrained`; without one the bridge takes token ids only.
    """
    config = model.config
    bridge_config = TransformerBridgeConfig(
        n_layers=config.n_layers,
        d_model=config.d_model,
        n_heads=config.n_heads,
        d_head=config.d_head,
        d_vocab=config.d_vocab,
        d_vocab_out=config.d_vocab,
        n_ctx=config.n_ctx,
        d_mlp=config.d_mlp,
        act_fn="gelu",
        attn_only=not config.d_mlp,
        normalization_type=config.normalization,
        positional_embedding_type="standard" if config.standard_positions else "shortformer",
        default_padding_side="right",
    )
    return build_bridge_from_module(
        copy.deepcopy(model),  # the bridge replaces the submodules of the module it is given
        "TransformerLensNative",
        tl_config=bridge_config,
        tokenizer=tokenizer,
        model_name=name,
        post_adapter_hook=_adapt,
    )


MATRICES = ("W_E", "W_pos", "W_Q", "W_K", "W_V", "W_O", "W_U")


def matrices(model: TransformerBridge) -> dict[str, Tensor]:
    """All that an attention-only model is, under TransformerLens's names, for `from_matrices`.

    Raises ValueError if the model has more than that: layer normalization, MLPs, smeared keys or standard positions.
    """
    config = model.original_model.config
    extra = {"layer normalization": config.normalization, "MLPs": config.d_mlp, "smeared keys": config.smeared_keys,
             "positions in the residual stream": config.standard_positions}  # fmt: skip
    if found := [name for name, present in extra.items() if present]:
        raise ValueError(f"this model has {' and '.join(found)}: it is more than its matrices")
    if config.n_layers:
        return {name: getattr(model, name).detach() for name in MATRICES}
    heads = model.W_E.new_zeros(0, config.n_heads, config.d_model, config.d_head)  # a bridge without layers has no such attributes
    return {"W_E": model.W_E, "W_pos": model.W_pos, "W_U": model.W_U} | dict(W_Q=heads, W_K=heads, W_V=heads, W_O=heads.mT)


def from_matrices(
    W_E: Float[Tensor, "d_vocab d_model"],
    W_pos: Float[Tensor, "n_ctx d_model"],
    W_Q: Float[Tensor, "layer head d_model d_head"],
    W_K: Float[Tensor, "layer head d_model d_head"],
    W_V: Float[Tensor, "layer head d_model d_head"],
    W_O: Float[Tensor, "layer head d_head d_model"],
    W_U: Float[Tensor, "d_model d_vocab"],
    standard_positions: bool = False,
    tokenizer: PreTrainedTokenizerFast | None = None,
) -> TransformerBridge:
    """A hooked attention-only model with these weights: `from_matrices(**{**matrices(model), "W_E": other})` changes one of them."""
    (d_vocab, d_model), (n_layers, n_heads, _, d_head) = W_E.shape, W_Q.shape
    config = ModelConfig(n_layers, d_model, n_heads, d_head, d_vocab, len(W_pos), standard_positions=standard_positions)
    model = Transformer(config).to(W_E).eval().requires_grad_(False)
    model.tok_embed.weight.copy_(W_E), model.pos.weight.copy_(W_pos), model.head.weight.copy_(W_U.T)
    for block, Q, K, V, O in zip(model.layers, W_Q, W_K, W_V, W_O):
        for linear, W in ((block.attn.q, Q), (block.attn.k, K), (block.attn.v, V)):
            linear.weight.copy_(W.mT.flatten(0, 1))
        block.attn.o.weight.copy_(O.flatten(0, 1).T)
    return wrap(model, tokenizer)


def head_results(cache: ActivationCache, layer: int) -> Float[Tensor, "batch pos head d_model"]:
    """What each head of `layer` adds to the residual stream, from a cache that holds that layer's `hook_z`."""
    return torch.einsum("...hd,hdm->...hm", cache["z", layer], cache.model.blocks[layer].attn.W_O)


def as_pretrained(tokenizer_file: str | Path) -> PreTrainedTokenizerFast:
    """The tokenizer in a `tokenizer.json`, which prepends `<|start|>` exactly once. Never looks on the network.

    `<|start|>` also separates documents and pads, so it is the bos, eos and pad token; a byte-level vocabulary needs no
    unknown token. Raises ValueError for a missing file or one in which token 0 is not `<|start|>`, and WeightsError for one that
    holds no tokenizer.
    """
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing

    path = Path(tokenizer_file)
    if not path.is_file():
        raise ValueError(f"there is no tokenizer file {path}")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more particular
        raise WeightsError(f"{path} is not a readable tokenizer ({str(error).splitlines()[0]}); fetch it again") from error
    if tokenizer.token_to_id(START) != BOS:
        raise ValueError(f"{path} does not have {START} as token {BOS}, which these models start every context with")
    tokenizer.post_processor = TemplateProcessing(single=f"{START} $A", special_tokens=[(START, BOS)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=START,
        eos_token=START,
        pad_token=START,
        padding_side="right",
        clean_up_tokenization_spaces=False,
        name_or_path=path.name,  # TransformerLens reads this, and asks the Hugging Face hub for that name unless ...
        add_bos_token=True,  # ... the tokenizer says that it prepends its start token
    )


class _Output(LinearBridge):
    """W_O. Where `result_fn` is set, each head's result is computed apart, shown to it, and then summed."""

    _result_fn: Callable[[Tensor], Tensor] | None = None

    def forward(self, z: Float[Tensor, "batch pos head_d_head"]) -> Float[Tensor, "batch pos d_model"]:
        if self._result_fn is None:
            return super().forward(z)
        z = self.hook_in(z)
        heads = (self.config.n_heads, self.config.d_head)
        W_O = self.original_component.weight.unflatten(1, heads)
        results = torch.einsum("bphd,mhd->bphm", z.unflatten(-1, heads), W_O)
        return self.hook_out(self._result_fn(results).sum(dim=-2))


class _Attention(AttentionBridge):
    """All heads of a layer, with `hook_attn_scores`, `hook_pattern` and `hook_result` inside the computation."""

    supports_attn_result = True
    supports_split_qkv_fork = False

    def forward(self, residual: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        self.o._result_fn = self.hook_result.__call__ if self.config.use_attn_result else None
        out, pattern = self.original_component(
            self.hook_in(residual), positions, pattern_fn=self.hook_pattern, scores_fn=self.hook_attn_scores
        )
        return self.hook_out(out), pattern


def _adapt(adapter: ArchitectureAdapter) -> None:
    """Fit TransformerLens's component map of its native model to ours, and declare what ours cannot do."""
    mapping: dict[str, Any] = adapter.component_mapping
    if adapter.cfg.positional_embedding_type != "standard":
        del mapping["pos_embed"]
        mapping["positions"] = EmbeddingBridge(name="pos")
    projections = {name: LinearBridge(name=name) for name in "qkv"} | {"o": _Output(name="o", config=adapter.cfg)}
    blocks = mapping["blocks"]
    blocks.submodules["attn"] = _Attention(name="attn", config=adapter.cfg, submodules=projections)
    # Hooks that would never fire, so that an edit there fails by name instead of silently doing nothing:
    never = {"hook_attn_in", "hook_q_input", "hook_k_input", "hook_v_input"}
    blocks.hook_aliases = {alias: target for alias, target in blocks.hook_aliases.items() if alias not in never}
    _remove_hook(blocks.submodules["attn"], "hook_hidden_states")
    if adapter.cfg.attn_only:
        _remove_hook(blocks, "hook_mlp_in")
    adapter.supports_kv_cache = False  # generation recomputes the whole prompt
    adapter.supports_batched_generation = False  # for prompts of unequal length, which it would pad on the left
    adapter.supports_hf_output_attentions = False  # patterns come through hooks
    adapter.supports_compatibility_mode = False  # its centering changes the logits of a model without normalization


def _remove_hook(component: GeneralizedComponent, name: str) -> None:
    delattr(component, name)
    del component._hook_registry[name]
