"""The paper's transformer in plain PyTorch (section "Transformer Overview").

- attention only, any number of layers (zero included), no biases, no normalization; separate W_E and W_U
- sinusoidal positions added only to the inputs of W_Q and W_K (Shortformer, Press et al. 2021)

Fields of `ModelConfig` add layer normalization and more for chapter 12. Module names are those of TransformerLens's
native model, so that `models.bridge` can wrap this very module: one implementation is trained and analyzed.
"""

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import ConfigDict, Field, NonNegativeInt, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

BOS = 0  # the start-of-text token, first in every context and before every document

# What a model may have beyond the matrices of an attention-only transformer: fields of `ModelConfig` in words.
BEYOND = {
    "normalization": "layer normalization",
    "d_mlp": "MLPs",
    "smeared_keys": "smeared keys",
    "standard_positions": "positions in the residual stream",
}


@dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid"))
class ModelConfig:
    """Shape of a model; by default the paper's main model, but for vocabulary and context."""

    # No stored tensor has the first and the last size, so they have limits: a manifest could make a model endless.
    n_layers: Annotated[int, Field(ge=0, le=1_000)] = Field(description="layers")
    d_model: PositiveInt = Field(768, description="width of the residual stream")
    n_heads: PositiveInt = Field(12, description="heads per layer")
    d_head: PositiveInt = Field(64, description="width of a head")
    d_vocab: PositiveInt = Field(8192, description="tokens of the vocabulary")
    n_ctx: Annotated[int, Field(gt=0, le=1 << 17)] = Field(512, description="tokens of a window, the context")
    normalization: Literal["LN"] | None = Field(None, description="layer normalization (LN), or none")
    d_mlp: NonNegativeInt | None = Field(None, description="width of the MLPs; none or 0: attention only")
    smeared_keys: bool = Field(False, description="each head mixes into a key the key of the previous token")
    standard_positions: bool = Field(False, description="positions are added to the embedding: heads move them")

    @property
    def beyond(self) -> list[str]:
        """Return what the model has beyond its matrices, in words; nothing for the paper's models."""
        return [words for name, words in BEYOND.items() if getattr(self, name)]

    @property
    def has_plain_circuits(self) -> bool:
        """Return whether its OV circuits, and its composition, are products of matrices (smeared keys: OV only)."""
        return not self.beyond or (self.n_layers == 1 and self.beyond == [BEYOND["smeared_keys"]])


def sinusoids(n_ctx: int, d_model: int) -> Tensor:
    """Return sinusoids [n_ctx, d_model] (Vaswani et al. 2017): sines, then cosines, of 2 pi to 10,000 * 2 pi tokens."""
    pairs = (d_model + 1) // 2
    rates = torch.exp(torch.arange(pairs, dtype=torch.float64) * (-2 * math.log(10_000) / d_model))
    angles = torch.arange(n_ctx, dtype=torch.float64)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=-1)[:, :d_model].float()


class Attention(nn.Module):
    """All heads of one layer: the sum over heads of A^h (x) W_O^h W_V^h. With smeared keys, k_j <- s k_j + (1 - s)
    k_(j-1), one s a head (Primer, So et al. 2021; claim W4)."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.n_heads, self.d_head = config.n_heads, config.d_head
        d_heads = config.n_heads * config.d_head
        self.q, self.k, self.v = (nn.Linear(config.d_model, d_heads, bias=False) for _ in "qkv")
        self.o = nn.Linear(d_heads, config.d_model, bias=False)
        self.smear = nn.Parameter(torch.zeros(config.n_heads)) if config.smeared_keys else None

    @staticmethod
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return z: values averaged by causal softmax attention; q, k, v, and z: [batch, head, position, d_head].
        An experiment may put another one in its place."""
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def forward(
        self,
        residual: Tensor,
        positions: Tensor,
        pattern_fn: Callable[[Tensor], Tensor] | None = None,
        scores_fn: Callable[[Tensor], Tensor] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return what the heads add to the stream [batch, position, d_model], and the pattern [batch, head, dest, src].

        `pattern_fn` may replace the pattern, and beside it, `scores_fn` the scaled scores (-inf where the source lies
        ahead); without a `pattern_fn`, no pattern is formed, and None returned. `positions`: [position, d_model].
        """
        heads = (self.n_heads, self.d_head)
        with_positions = residual + positions
        q = self.q(with_positions).unflatten(-1, heads).transpose(1, 2)
        k = self.k(with_positions).unflatten(-1, heads).transpose(1, 2)
        if self.smear is not None:
            before = torch.cat([k[..., :1, :], k[..., :-1, :]], dim=-2)  # the first key stays as it is
            k = torch.lerp(before, k, self.smear.sigmoid()[:, None, None].to(k.dtype))
        pattern = None
        if pattern_fn is not None:
            n = q.shape[-2]
            ahead = torch.full((n, n), -math.inf, dtype=q.dtype, device=q.device).triu(1)
            # In place: a third of the time of attention would go into copies.
            scores = (q @ k.mT).mul_(self.d_head**-0.5).add_(ahead)
            if scores_fn is not None:
                scores = scores_fn(scores)
            pattern = pattern_fn(scores.softmax(dim=-1))
        # After the pattern: a run that only wants patterns ends before it.
        v = self.v(residual).unflatten(-1, heads).transpose(1, 2)
        z = self.attend(q, k, v) if pattern is None else pattern @ v
        return self.o(z.transpose(1, 2).flatten(-2)), pattern


def normalization(config: ModelConfig) -> nn.Module:
    return nn.LayerNorm(config.d_model) if config.normalization else nn.Identity()


class Block(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        self.ln1 = normalization(config)
        self.attn = Attention(config)
        if config.d_mlp:
            self.ln2 = normalization(config)
            fc_in, fc_out = nn.Linear(config.d_model, config.d_mlp), nn.Linear(config.d_mlp, config.d_model)
            self.mlp = nn.Sequential(OrderedDict(fc_in=fc_in, gelu=nn.GELU(), fc_out=fc_out))
        self.attn_only = not config.d_mlp

    def forward(self, residual: Tensor, positions: Tensor) -> tuple[Tensor]:
        residual = residual + self.attn(self.ln1(residual), positions=positions)[0]
        if not self.attn_only:
            residual = residual + self.mlp(self.ln2(residual))
        return (residual,)


class Transformer(nn.Module):
    """Token ids [batch, position] -> logits [batch, position, d_vocab]."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.tok_embed = nn.Embedding(config.d_vocab, config.d_model)
        self.pos = nn.Embedding.from_pretrained(sinusoids(config.n_ctx, config.d_model), freeze=True)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        self.ln_out = normalization(config)
        self.head = nn.Linear(config.d_model, config.d_vocab, bias=False)
        # Weights are drawn at scales at which induction heads form early; embeddings are as large as the sinusoids.
        std = dict(tok_embed=0.3, q=0.5, k=0.5, v=0.5, o=0.3, head=0.02, fc_in=1.0, fc_out=0.3)
        for name, module in self.named_modules():
            kind = name.rpartition(".")[2]
            if kind in std:
                scale = module.weight.shape[1] ** -0.5 if name.startswith("layers.") else 1.0  # relative to the width
                nn.init.normal_(module.weight, std=std[kind] * scale)
                if getattr(module, "bias", None) is not None:
                    nn.init.zeros_(module.bias)

    @property
    def W_pos(self) -> Tensor:
        """Return position embeddings [n_ctx, d_model]."""
        return self.pos.weight

    def residual_stream(self, tokens: Tensor) -> Tensor:
        """Return the final stream [batch, position, d_model], before W_U. Raises ValueError for a bad length."""
        n = tokens.shape[-1]
        if not 0 < n <= self.config.n_ctx:
            raise ValueError(f"a prompt must have 1 to {self.config.n_ctx} tokens, this one has {n}")
        residual = self.tok_embed(tokens)
        positions = self.pos(torch.arange(n, device=tokens.device)[None])  # what W_Q and W_K see added in each layer
        if self.config.standard_positions:
            residual, positions = residual + positions, torch.zeros_like(positions)
        for block in self.layers:
            (residual,) = block(residual, positions=positions)
        return self.ln_out(residual)

    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None, inputs_embeds: Tensor | None = None
    ) -> Tensor:
        """Return the logits. TransformerLens passes the last two arguments: ValueError where they would matter."""
        if input_ids is None:
            raise ValueError(f"a prompt must be 1 to {self.config.n_ctx} token ids, not empty, nor floats")
        if attention_mask is not None and not attention_mask.all():
            raise ValueError("this model takes no padding mask: pad on the right, or give prompts of one length")
        return self.head(self.residual_stream(input_ids))
