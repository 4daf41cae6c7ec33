"""Layer normalization folded into the weights around it: what stays is one positive number for each token.

Paper: its appendix on layer normalization (claim A3). With C = Id - 1 1^T / d_model, which takes the mean off, a normalization is

    LN(x) = (x C / s) diag(gain) + bias,    s = sqrt(mean((x C)^2) + eps)

and all but the division by s is linear. The centering goes into the matrices that write into the residual stream (or into those
that read from it), gain and bias into those that read. In these models positions are added after the normalization, at the inputs
of W_Q and W_K: they are not centered, scaled or multiplied by the gain, and keep a table of their own in each layer.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from transformer_circuits.circuits.paths import causal_softmax
from transformer_circuits.circuits.weights import Weights
from transformer_circuits.models.architecture import ModelConfig, Transformer

Center = Literal["writing", "reading", "both"]


def readings(n_layers: int, has_mlp: bool = False) -> list[str]:
    """The normalizations of a model in the order in which they act: before heads, before MLPs, before W_U."""
    kinds = ["heads", "MLP"] if has_mlp else ["heads"]
    return [f"{kind} of layer {layer}" for layer in range(n_layers) for kind in kinds] + ["unembedding"]


def centering_matrix(d_model: int, dtype: torch.dtype = torch.float32) -> Float[Tensor, "d_model d_model"]:
    """C = Id - 1 1^T / d_model: the projection that takes the mean off a vector. Of rank d_model - 1."""
    return torch.eye(d_model, dtype=dtype) - 1 / d_model


def centered(rows: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
    """`rows @ centering_matrix(d_model)`, without the matrix."""
    return rows - rows.mean(dim=-1, keepdim=True)


def scale(
    residual: Float[Tensor, "*batch d_model"], eps: float = 1e-5, is_centered: bool = False
) -> Float[Tensor, "*batch"]:
    """The one number by which a normalization divides each token. With `is_centered` the mean is taken to be zero already."""
    rows = residual if is_centered else centered(residual)
    return (rows.square().mean(dim=-1) + eps).sqrt()


@dataclasses.dataclass(frozen=True)
class FoldedMLP:
    """The MLPs of a folded model: GELU(x / s W_in + b_in) W_out + b_out."""

    W_in: Float[Tensor, "layer d_model d_mlp"]
    b_in: Float[Tensor, "layer d_mlp"]
    W_out: Float[Tensor, "layer d_mlp d_model"]
    b_out: Float[Tensor, "layer d_model"]


@dataclasses.dataclass(frozen=True)
class Folded:
    """A model whose normalizations are folded away, up to the division by `scale` before each reading.

    `matrices` are for circuits made of matrices alone (`qk_ov`, `composition`, `copying`). They know neither scales nor
    biases, and their W_pos is zero, so `paths.run` of them is not this model; `run_folded` is.
    """

    matrices: Weights
    at_Q: Float[Tensor, "layer head n_ctx d_head"]  # added to queries: what position and bias give, never scaled
    at_K: Float[Tensor, "layer head n_ctx d_head"]  # added to keys
    b_V: Float[Tensor, "layer head d_head"]
    b_U: Float[Tensor, " d_vocab"]
    mlp: FoldedMLP | None
    eps: float
    is_centered: bool  # the residual stream has mean zero throughout, so that no reading need center

    @property
    def readings(self) -> list[str]:
        return readings(self.matrices.n_layers, self.mlp is not None)

    def scale(self, residual: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch"]:
        return scale(residual, self.eps, self.is_centered)

    def token_scales(self) -> Float[Tensor, " d_vocab"]:
        """The first layer's scale. It reads nothing but the embedding, so this is one number for each token of the vocabulary."""
        return self.scale(self.matrices.W_E)


def fold(model: object, center: Center = "writing") -> Folded:
    """Fold every layer normalization of a model into its weights (claim A3).

    `model` is a plain `Transformer` or a bridge around one. The centering goes

    - "writing": into W_E, W_O and what MLPs write. The folded residual stream is the original one less its mean at each token.
    - "reading": into W_Q, W_K, W_V, W_U and what MLPs read. The residual stream stays as it was; the scale still has to center.
    - "both": C C = C, so nothing is lost. TransformerLens does this.

    Raises ValueError if there is no normalization to fold, for smeared keys or standard positions, and for another `center`.
    """
    if center not in ("writing", "reading", "both"):
        raise ValueError(f"center is 'writing', 'reading' or 'both', not {center!r}")
    model = _plain(model)
    if model.config.normalization is None:
        raise ValueError("this model has no layer normalization: there is nothing to fold")
    raw, blocks = raw_weights(model), list(model.layers)
    write = centered if center != "reading" else (lambda matrix: matrix)

    def read(matrix: Float[Tensor, "*head d_model out"], norm: nn.LayerNorm) -> Float[Tensor, "*head d_model out"]:
        matrix = norm.weight.detach()[:, None] * matrix
        return matrix if center == "writing" else centered(matrix.mT).mT

    def each(name: str) -> Tensor:
        matrices = [read(W, block.ln1) for W, block in zip(getattr(raw, name), blocks)]
        return torch.stack(matrices) if matrices else getattr(raw, name)

    shift = torch.stack([block.ln1.bias.detach() for block in blocks]) if blocks else raw.W_E.new_zeros(0, raw.d_model)
    added = (raw.W_pos + shift[:, None])[:, None]  # [layer, 1, n_ctx, d_model]: read by the matrices as they were
    matrices = Weights(
        W_E=write(raw.W_E),
        W_pos=torch.zeros_like(raw.W_pos),
        W_Q=each("W_Q"),
        W_K=each("W_K"),
        W_V=each("W_V"),
        W_O=write(raw.W_O),
        W_U=read(raw.W_U, model.ln_out),
    )
    mlp = None
    if model.config.d_mlp and blocks:
        parts = [(block.ln2, *(p.detach() for p in block.mlp.parameters())) for block in blocks]
        mlp = FoldedMLP(
            W_in=torch.stack([read(W_in.T, norm) for norm, W_in, *_ in parts]),
            b_in=torch.stack([b_in + norm.bias.detach() @ W_in.T for norm, W_in, b_in, *_ in parts]),
            W_out=torch.stack([write(W_out.T) for *_, W_out, _ in parts]),
            b_out=torch.stack([write(b_out) for *_, b_out in parts]),
        )
    return Folded(
        matrices=matrices,
        at_Q=added @ raw.W_Q,
        at_K=added @ raw.W_K,
        b_V=torch.einsum("lm,lhmk->lhk", shift, raw.W_V),
        b_U=model.ln_out.bias.detach() @ raw.W_U,
        mlp=mlp,
        eps=model.ln_out.eps,
        is_centered=center != "reading",
    )


@dataclasses.dataclass(frozen=True)
class FoldedRun:
    """What a forward pass of a folded model leaves behind."""

    residual: Float[Tensor, "reading *batch position d_model"]  # what each reading divides by its scale
    scales: Float[Tensor, "reading *batch position"]
    patterns: Float[Tensor, "layer *batch head destination source"]
    logits: Float[Tensor, "*batch position d_vocab"]


def run_folded(
    folded: Folded,
    tokens: Int[Tensor, "*batch position"],
    patterns: Float[Tensor, "layer *batch head destination source"] | None = None,
    scales: Sequence[Float[Tensor, "*batch position"] | None] | None = None,
) -> FoldedRun:
    """The forward pass of a folded model, written out.

    `patterns` and `scales` freeze those of another run; an entry of `scales` that is None is computed. With both frozen an
    attention-only model is linear in its tokens, up to constants. A head whose pattern is all zero is ablated.
    Raises ValueError for a prompt that is empty, too long or outside the vocabulary, and for patterns or scales of another shape.
    """
    w = folded.matrices
    w.check_tokens(tokens)
    n = tokens.shape[-1]
    shape = (w.n_layers, *tokens.shape[:-1], w.n_heads, n, n)
    if patterns is not None and patterns.shape != shape:
        raise ValueError(f"patterns must have shape {shape} for this prompt, not {tuple(patterns.shape)}")
    given = [None] * len(folded.readings) if scales is None else list(scales)
    if len(given) != len(folded.readings) or any(s is not None and s.shape != tokens.shape for s in given):
        raise ValueError(f"scales must be {len(folded.readings)} of shape {tuple(tokens.shape)}, one for each reading")
    stages: list[Tensor] = []
    used: list[Tensor] = []

    def normalized(residual: Tensor) -> Tensor:
        """x / s: all that a normalization still does."""
        here = given[len(used)]
        stages.append(residual)
        used.append(folded.scale(residual) if here is None else here)
        return residual / used[-1].unsqueeze(-1)

    residual = w.W_E[tokens]
    looks = residual.new_zeros(shape)
    for layer in range(w.n_layers):
        x = normalized(residual).unsqueeze(-3)
        q = x @ w.W_Q[layer] + folded.at_Q[layer, :, :n]
        k = x @ w.W_K[layer] + folded.at_K[layer, :, :n]
        v = x @ w.W_V[layer] + folded.b_V[layer].unsqueeze(-2)
        looks[layer] = causal_softmax(q @ k.mT / math.sqrt(w.d_head)) if patterns is None else patterns[layer]
        residual = residual + (looks[layer] @ v @ w.W_O[layer]).sum(dim=-3)
        if folded.mlp is not None:
            m = folded.mlp
            hidden = F.gelu(normalized(residual) @ m.W_in[layer] + m.b_in[layer])
            residual = residual + hidden @ m.W_out[layer] + m.b_out[layer]
    logits = normalized(residual) @ w.W_U + folded.b_U
    return FoldedRun(torch.stack(stages), torch.stack(used), looks, logits)


def frozen(
    folded: Folded, result: FoldedRun
) -> tuple[Weights, Float[Tensor, "layer head+1 destination source"]]:
    """Weights and patterns for `paths.expand`, with which the path expansion is exact again: the scales of a run are frozen.

    Dividing what a source token holds by its scale s_j is the same as dividing column j of every pattern by it. The biases of
    values become one more head in each layer, which looks at itself and reads a dimension that is always one (as in claims A2 and
    A4). With s the scales of the last reading, the model's logits are

        expand(weights, tokens, patterns).total() / s[:, None] @ weights.W_U + folded.b_U

    Patterns must be those of a model that runs freely, so that their rows add up to one. Raises ValueError for a model with MLPs,
    which no path expansion passes, and for a batch.
    """
    if folded.mlp is not None:
        raise ValueError("this model has MLPs: with scales frozen it is still not linear, and has no path expansion")
    if result.patterns.ndim != 4:
        raise ValueError("give the run of a single prompt: tokens of shape [position]")
    w = folded.matrices
    n = result.patterns.shape[-1]
    constant = torch.einsum("lhk,lhkm->lm", folded.b_V, w.W_O)  # what the biases of values write, in each layer

    def wider(matrix: Tensor, dim: int, value: float = 0.0) -> Tensor:
        shape = list(matrix.shape)
        shape[dim] = 1
        return torch.cat([matrix, matrix.new_full(shape, value)], dim=dim)

    W_Q, W_K, W_V = (wider(wider(getattr(w, name), 2), 1) for name in ("W_Q", "W_K", "W_V"))
    W_O = wider(wider(w.W_O, 3), 1)
    W_V[:, -1, -1, 0] = 1.0  # the head of the biases reads the dimension that is always one ...
    W_O[:, -1, 0, :-1] = constant  # ... and writes the constant
    weights = Weights(W_E=wider(w.W_E, 1, 1.0), W_pos=wider(w.W_pos, 1), W_Q=W_Q, W_K=W_K, W_V=W_V, W_O=W_O, W_U=wider(w.W_U, 0))
    itself = torch.eye(n).to(result.patterns).expand(w.n_layers, 1, n, n)
    before_heads = result.scales[: w.n_layers]  # [layer, source]; without MLPs these readings come first
    return weights, torch.cat([result.patterns / before_heads[:, None, None], itself], dim=1)


def raw_weights(model: object) -> Weights:
    """The matrices of a model as they are stored, its normalizations, MLPs and biases left out of account.

    They are what `fold` starts from, and what circuits should not be read from: the gains are missing in them.
    Raises ValueError for anything but a plain `Transformer` or a bridge around one, and for smeared keys or standard positions.
    """
    bare = copy.copy(_plain(model))  # shares the tensors; only its configuration is another
    bare.config = dataclasses.replace(bare.config, normalization=None, d_mlp=None)
    return Weights.of(bare)


def with_normalization(
    weights: Weights,
    gains: Float[Tensor, "reading d_model"],
    biases: Float[Tensor, "reading d_model"],
    d_mlp: int | None = None,
    generator: torch.Generator | None = None,
) -> Transformer:
    """A model with these matrices, and layer normalization of these gains and biases before each of its `readings`.

    With `d_mlp`, each layer also gets an MLP of random weights and biases. Nothing here is trained: matrices that were learned
    without normalization are not what they would be with it. Raises ValueError for gains or biases of another shape.
    """
    shape = (len(readings(weights.n_layers, bool(d_mlp))), weights.d_model)
    if gains.shape != shape or biases.shape != shape:
        raise ValueError(f"gains and biases must have shape {shape}, not {tuple(gains.shape)} and {tuple(biases.shape)}")
    d_vocab, n_ctx = len(weights.W_E), weights.n_ctx
    sizes = (weights.n_layers, weights.d_model, weights.n_heads, weights.d_head, d_vocab, n_ctx)
    with torch.device("meta"):  # every parameter is written below, so none is drawn here
        model = Transformer(ModelConfig(*sizes, normalization="LN", d_mlp=d_mlp))
    model = model.to_empty(device=weights.W_E.device).to(weights.W_E.dtype).eval().requires_grad_(False)
    model.tok_embed.weight.copy_(weights.W_E)
    model.pos.weight.copy_(weights.W_pos)
    model.head.weight.copy_(weights.W_U.T)
    norms: list[nn.LayerNorm] = []
    for layer, block in enumerate(model.layers):
        for part in "QKV":
            getattr(block.attn, part.lower()).weight.copy_(getattr(weights, f"W_{part}")[layer].mT.flatten(0, 1))
        block.attn.o.weight.copy_(weights.W_O[layer].flatten(0, 1).T)
        norms.append(block.ln1)
        if d_mlp:
            norms.append(block.ln2)
            for name, parameter in block.mlp.named_parameters():
                drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.copy_(drawn / math.sqrt(parameter.shape[1]) if name.endswith("weight") else drawn / 2)
    for norm, gain, bias in zip([*norms, model.ln_out], gains, biases, strict=True):
        norm.weight.copy_(gain)
        norm.bias.copy_(bias)
    return model


def _plain(model: object) -> Transformer:
    """The plain `Transformer`, or a copy of the one that a bridge wraps."""
    inner = getattr(model, "original_model", model)
    if not isinstance(inner, Transformer):
        raise ValueError(f"a {type(model).__name__} cannot be folded: pass a Transformer, or a bridge around one")
    if inner.config.smeared_keys:
        raise ValueError("this model has smeared keys: a score depends on two source tokens there")
    if inner.config.standard_positions:
        raise ValueError("this model has standard positions: heads move them along with tokens there")
    if inner is model:
        return inner
    ours = {"embed": "tok_embed", "positions": "pos", "blocks": "layers", "ln_final": "ln_out", "unembed": "head"}
    parameters = {}
    for name, tensor in model.state_dict().items():
        first, _, rest = name.partition(".")
        name = f"{ours.get(first, first)}.{rest}".replace(".mlp.in.", ".mlp.fc_in.").replace(".mlp.out.", ".mlp.fc_out.")
        parameters[name] = tensor
    with torch.device("meta"):
        plain = Transformer(inner.config)
    if extra := [name for name in parameters.keys() - plain.state_dict().keys() if parameters.pop(name).any()]:
        raise ValueError(f"this model has parameters that its module has not: {', '.join(sorted(extra))}")
    plain.load_state_dict(parameters, assign=True)
    return plain.eval()
