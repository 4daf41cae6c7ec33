"""Our transformer as a TransformerLens 4 `TransformerBridge`.

It differs from other bridges where TransformerLens's defaults would give wrong numbers for these models:

- **Positions** enter queries and keys only. `bridge.W_pos` [n_ctx, d_model] and the hook `positions.hook_out` [1, pos,
  d_model] give them. There is no `hook_pos_embed`, which `ActivationCache.decompose_resid` would add to the residual
  stream (there is with `standard_positions`).
- **`hook_attn_scores`** fires on the scores (scaled, masked with -inf) before the softmax, and edits take effect. A
  layer without a hook there or at `hook_pattern` forms no pattern: its attention is fused.
- **`hook_result`** [batch, pos, head, d_model] fires after `bridge.set_use_attn_result(True)`.
- **Smeared keys** are mixed after `hook_k`, which shows each token's own key.
- **Padding masks** are rejected (pad on the right), and so is compatibility mode, which rewrites weights.
- Every hook in `hook_dict` fires (`hook_result` and, with an MLP, `hook_mlp_in` once they are switched on).

TransformerLens itself cuts prompts given as text to the context silently (token ids raise), and its loss of a list of
prompts of unequal length counts the padding. `stop_at_layer=n_layers` returns logits, and `start_at_layer` raises
(`circuits.heads.run_from` does that for attention-only models).
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.architecture_adapter import ArchitectureAdapter
from transformer_lens.model_bridge.generalized_components import AttentionBridge, EmbeddingBridge, LinearBridge
from transformer_lens.model_bridge.sources import build_bridge_from_module
from transformers import PreTrainedTokenizerFast

from .architecture import BOS, ModelConfig, Transformer
from .shards import WeightsError, said

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
    config, parameters = model.original_model.config, dict(model.original_model.named_parameters())
    biased = any(name.endswith("bias") and (".attn." in name or "head." in name) for name in parameters)
    if more := ["biases"] * biased + config.beyond:
        raise ValueError(f"this model has {' and '.join(more)}: it is more than its matrices")
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
    sizes: dict[str, int] = {}
    for (name, axes), W in zip(AXES.items(), (W_E, W_pos, W_Q, W_K, W_V, W_O, W_U)):
        for axis, size in zip(axes, W.shape):
            sizes.setdefault(axis, size)
        if list(W.shape) != [sizes.get(axis) for axis in axes]:
            shape = ", ".join(f"{axis}={sizes[axis]}" if axis in sizes else axis for axis in axes)
            raise ValueError(f"{name} must be [{shape}], got {list(W.shape)}")
        if not W.isfinite().all():
            raise ValueError(f"{name} contains NaN or infinity")
    (d_vocab, d_model), (n_layers, n_heads, _, d_head) = W_E.shape, W_Q.shape
    config = ModelConfig(n_layers, d_model, n_heads, d_head, d_vocab, len(W_pos), standard_positions=standard_positions)
    model = Transformer(config).to(W_E).eval().requires_grad_(False)
    model.tok_embed.weight.copy_(W_E)
    model.pos.weight.copy_(W_pos)
    model.head.weight.copy_(W_U.T)
    for block, Q, K, V, O in zip(model.layers, W_Q, W_K, W_V, W_O):
        for linear, W in ((block.attn.q, Q), (block.attn.k, K), (block.attn.v, V)):
            linear.weight.copy_(W.mT.flatten(0, 1))
        block.attn.o.weight.copy_(O.flatten(0, 1).T)
    return wrap(model, tokenizer)


class _Output(LinearBridge):
    """W_O. If `_result_fn` is set, it gets each head's result, computed separately, before their sum."""

    _result_fn: Callable[[Tensor], Tensor] | None = None

    def forward(self, z: Float[Tensor, "batch pos head_d_head"]) -> Float[Tensor, "batch pos d_model"]:
        if self._result_fn is None:
            return super().forward(z)
        heads = (self.config.n_heads, self.config.d_head)
        W_O, bias = self.original_component.weight.unflatten(1, heads), self.original_component.bias
        results = torch.einsum("bphd,mhd->bphm", self.hook_in(z).unflatten(-1, heads), W_O)
        out = self._result_fn(results).sum(dim=-2)
        return self.hook_out(out if bias is None else out + bias)


class _Attention(AttentionBridge):
    """All heads of a layer, with `hook_attn_scores`, `hook_pattern` and `hook_result` inside the computation."""

    supports_attn_result = True
    supports_split_qkv_fork = False

    def forward(self, residual: Tensor, positions: Tensor) -> tuple[Tensor, Tensor | None]:
        self.o._result_fn = self.hook_result.__call__ if self.config.use_attn_result else None
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
    projections = {name: LinearBridge(name=name) for name in "qkv"}
    projections["o"] = _Output(name="o", config=adapter.cfg)
    blocks = mapping["blocks"]
    blocks.submodules["attn"] = _Attention(name="attn", config=adapter.cfg, submodules=projections)
    # Hooks that would never fire: without them an edit fails by name instead of silently doing nothing.
    never = {"hook_attn_in", "hook_q_input", "hook_k_input", "hook_v_input"}
    blocks.hook_aliases = {name: hook for name, hook in blocks.hook_aliases.items() if name not in never}
    gone = [(blocks.submodules["attn"], "hook_hidden_states"), (blocks, "hook_mlp_in")]
    for component, name in gone if adapter.cfg.attn_only else gone[:1]:
        delattr(component, name)
        del component._hook_registry[name]
    adapter.supports_kv_cache = False  # generation recomputes the whole prompt
    adapter.supports_batched_generation = False  # it would pad prompts of unequal length on the left
    adapter.supports_hf_output_attentions = False  # patterns come through hooks
    adapter.supports_compatibility_mode = False  # its centering changes logits if there is no normalization


SAMPLE = "It was a bright cold day in April, and the clocks were striking thirteen."
MOSTLY = 0.5  # fraction of unknown tokens from which on a tokenizer does not read a text


@dataclass(frozen=True)
class Reading:
    """What a model is given to read, decided once, from its published tokenizer and configuration."""

    start: int | None  # the token that texts begin with; None if neither names one
    drawn: Int[Tensor, " id"]  # the ids that random tokens are drawn from, ascending
    reads_text: bool  # in the tokens of its own tokenizer; otherwise it is given random tokens
    words: str  # all of this, to print

    @property
    def frequency(self) -> Float[Tensor, " d_vocab"]:
        """Return one for each id that random tokens are drawn from, else zero, up to the last one that is drawn."""
        return torch.zeros(int(self.drawn.max()) + 1).index_fill(0, self.drawn, 1.0)


def decide(d_vocab: int, tokenizer: Any = None, config: Any = None, start: int | None = None) -> Reading:
    """Return what a model with `d_vocab` rows of W_E is given to read.

    `tokenizer`: as it was published, before TransformerLens adds tokens to it. `start`: a start token that the reader
    chose. Otherwise the start token is the one that the tokenizer names, else the configuration's, if it is a special
    token of the tokenizer, else an end token. Random tokens are ids of the tokenizer that are not special or added.
    """
    ids, why_random = range(d_vocab), "it has no tokenizer"
    if tokenizer is not None:
        apart = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
        ordinary = sorted({*tokenizer.get_vocab().values()} - apart)
        if ordinary and ordinary[-1] >= d_vocab:
            why_random = f"its tokenizer has {len(tokenizer):,} tokens and its vocabulary {d_vocab:,}"
            tokenizer = None
        else:
            ids, why_random = ordinary or ids, _cannot_read(tokenizer)
    if start is None:
        start = next((token for token in _start_tokens(tokenizer, config) if token in range(d_vocab)), None)
    drawn = [token for token in ids if token != start]
    words = [f"random tokens from {drawn[0]:,} to {drawn[-1]:,}"]
    if missing := drawn[-1] - drawn[0] + 1 - len({*drawn, start} & {*range(drawn[0], drawn[-1] + 1)}):
        words[0] += f" ({missing:,} left out)"
    if start is not None:
        text = "" if tokenizer is None else tokenizer.convert_ids_to_tokens(start)
        words.insert(0, f"starts with {text} ({start:,})" if text else f"starts with token {start:,}")
    words.append(f"reads random tokens, because {why_random}" if why_random else "reads text with its own tokenizer")
    return Reading(start, torch.tensor(drawn), not why_random, "; ".join(words))


def _cannot_read(tokenizer: Any) -> str:
    """Return why a tokenizer cannot read English text; nothing if it can."""
    try:
        ids = tokenizer(SAMPLE, add_special_tokens=False)["input_ids"]
    except Exception:  # the library raises nothing more particular for a word that it does not have
        ids = []
    if not ids:
        return "its tokenizer gives no tokens for English text"
    if ids.count(tokenizer.unk_token_id) > MOSTLY * len(ids):
        return f"its tokenizer gives mostly {tokenizer.unk_token} for English text"
    return ""


def _start_tokens(tokenizer: Any, config: Any) -> list[int]:
    """Return the ids that may be the start token, the likeliest first."""
    names = ("bos_token_id", "eos_token_id")
    by_config = [getattr(config, name, None) for name in names]
    if tokenizer is None:
        tokens = by_config
    else:
        special = tokenizer.all_special_ids or [*tokenizer.get_vocab().values()]
        by_config = [token if token in special else None for token in by_config]
        if by_config[0] == tokenizer.pad_token_id and by_config[0] == getattr(type(config)(), names[0], None):
            by_config[0] = None  # the configuration's class put it there, for another tokenizer
        by_tokenizer = [getattr(tokenizer, name) for name in names]
        tokens = [by_tokenizer[0], by_config[0], by_tokenizer[1], by_config[1]]
    return [token for token in tokens if isinstance(token, int)]


def reading(model: TransformerBridge) -> Reading:
    """Return what a model is given to read, as decided at loading; for a bridge made or changed by hand, now."""
    tokenizer, decided = getattr(model, "decided", (None, None))
    if decided is None or tokenizer is not model.tokenizer:
        original = model.original_model
        ours = BOS if isinstance(original, Transformer) else None
        decided = decide(model.cfg.d_vocab, model.tokenizer, getattr(original, "config", None), ours)
        model.decided = model.tokenizer, decided
    return decided


def set_reading(model: TransformerBridge, tokenizer: Any = None, start: int | None = None) -> None:
    """Decide what a model is given to read. `tokenizer`: if that is not the bridge's. `start`: a start token. Raises
    WeightsError unless the start token is in the vocabulary."""
    if start is not None and start not in range(model.cfg.d_vocab):
        raise WeightsError(f"the start token must be 0 to {model.cfg.d_vocab - 1}, got {start}")
    config = getattr(model.original_model, "config", None)
    decided = decide(model.cfg.d_vocab, tokenizer or model.tokenizer, config, start)
    model.decided = model.tokenizer, decided


def start_token(model: TransformerBridge) -> int:
    """Return the token that the model's texts begin with (`reading`). Raises WeightsError if there is none."""
    if (start := reading(model).start) is None:
        raise WeightsError(
            f"{model.cfg.model_name!r} names no start token; pass one to models.bridge.set_reading (START in "
            f"chapter 19)"
        )
    return start


# How far logits (as a fraction of the largest) and patterns may be from those of transformers: 100 times rounding.
ROUNDING = {torch.float64: 1e-8, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}
COMPARED = 16  # tokens of each of two rows


@torch.no_grad()
def computed(model: Any) -> tuple[Tensor, Tensor, list[Tensor]] | None:
    """Return a few tokens [row, pos], and what a model of the transformers library computes for them: logits, and the
    pattern [row, head, dest, src] of each layer (none where it does not give them). None for an encoder with a decoder.
    """
    config = model.config.get_text_config()
    if config.is_encoder_decoder:
        return None
    positions = getattr(config, "max_position_embeddings", None) or COMPARED
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(config.vocab_size, (2, min(COMPARED, positions)), generator=generator).to(model.device)
    out = model.eval()(tokens, output_attentions=True)
    return tokens, out.logits, [pattern for pattern in getattr(out, "attentions", None) or () if pattern is not None]


@torch.no_grad()
def check_against(
    model: TransformerBridge,
    tokens: Int[Tensor, "row pos"],
    expected: Float[Tensor, "row pos d_vocab"],
    patterns: list[Float[Tensor, "row head dest src"]],
) -> None:
    """Raise WeightsError unless a bridge computes the logits and patterns that transformers computes (`computed`)."""
    names = [name for name in model.hook_dict if name.endswith("attn.hook_pattern")]
    try:
        logits, cache = model.run_with_cache(tokens, names_filter=names)
    except Exception as error:  # of a part that this model lacks and the bridge expects
        name = model.cfg.model_name
        raise WeightsError(f"{name!r} cannot be run by TransformerLens ({said(error)}); choose another model") from None
    limit, expected = ROUNDING[expected.dtype], expected.float()
    differences = {"logits": (logits.float() - expected).abs().max() / (expected - expected.mean()).abs().max()}
    if names and len(names) == len(patterns):
        apart = [(cache[name] - A).abs().max() for name, A in zip(names, patterns)]
        differences["attention patterns"] = torch.stack(apart).max()
    for what, difference in differences.items():
        if not difference <= limit:  # nor NaN
            raise WeightsError(
                f"{model.cfg.model_name!r} is not computed as the transformers library computes it: "
                f"on {len(tokens)} rows {what} differ by {difference:.2g} (at most {limit:g} is rounding); "
                "TransformerLens does not support a setting of its config.json: choose another model"
            )
