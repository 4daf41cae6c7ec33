"""The weights of an attention-only transformer, and the transformations that leave the model as it is.

Paper: "Transformer Overview" (residual stream, no privileged basis; W_QK and W_OV) and the appendix on biases.
"""

from __future__ import annotations

import dataclasses

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transformer_circuits.models.architecture import Transformer


@dataclasses.dataclass(frozen=True)
class Weights:
    """All that the circuits need to know of a model; row-vector convention, heads apart.

    Positions are added only to what W_Q and W_K read (Shortformer). An all-zero `W_pos` is a model without positions.
    """

    W_E: Float[Tensor, "d_vocab d_model"]
    W_pos: Float[Tensor, "n_ctx d_model"]
    W_Q: Float[Tensor, "layer head d_model d_head"]
    W_K: Float[Tensor, "layer head d_model d_head"]
    W_V: Float[Tensor, "layer head d_model d_head"]
    W_O: Float[Tensor, "layer head d_head d_model"]
    W_U: Float[Tensor, "d_model d_vocab"]

    @classmethod
    def of(cls, model: object, dtype: torch.dtype | None = None) -> Weights:
        """The weights of a plain `Transformer`, of a TransformerBridge, or of anything that has W_E ... W_U and cfg.

        Raises ValueError if the model has layer normalization, MLPs, biases, smeared keys or standard positions: the
        identities hold without them.
        """
        if isinstance(model, cls):
            weights = model
        else:
            weights = cls._of_plain(model) if isinstance(model, Transformer) else cls._of_attributes(model)
        dtype = dtype or weights.W_E.dtype
        return cls(**{f.name: getattr(weights, f.name).detach().to(dtype) for f in dataclasses.fields(cls)})

    @classmethod
    def _of_plain(cls, model: Transformer) -> Weights:
        config = model.config
        _refuse(config.normalization is not None, "layer normalization", "fold it with `circuits.layer_norm.fold` first (appendix)")
        _refuse(config.d_mlp is not None, "MLPs", "these identities are for attention-only models")
        _refuse(config.smeared_keys, "smeared keys", "a score depends on two source tokens there")
        _refuse(config.standard_positions, "standard positions", "heads move them along with tokens there")
        shape = (config.n_layers, config.n_heads, config.d_head, config.d_model)

        def stack(part: str) -> Tensor:  # nn.Linear stores [out, in]: here in = d_model, out = all heads side by side
            parts = [getattr(block.attn, part) for block in model.layers]
            _refuse(any(linear.bias is not None for linear in parts), "biases", "fold them first with `fold_biases`")
            if not parts:
                return model.tok_embed.weight.new_zeros(shape)
            return torch.stack([linear.weight.T if part == "o" else linear.weight for linear in parts]).reshape(shape)

        q, k, v, o = (stack(part) for part in "qkvo")
        return cls(
            W_E=model.tok_embed.weight, W_pos=model.pos.weight, W_U=model.head.weight.T,
            W_Q=q.mT, W_K=k.mT, W_V=v.mT, W_O=o,
        )  # fmt: skip

    @classmethod
    def _of_attributes(cls, model: object) -> Weights:
        cfg = getattr(model, "cfg", None)
        if cfg is None or not hasattr(model, "W_E"):
            raise ValueError(f"a {type(model).__name__} has no weights: pass a model (see load_model), or Weights")
        _refuse(cfg.normalization_type is not None, "layer normalization", "fold it with `circuits.layer_norm.fold` first (appendix)")
        _refuse(not cfg.attn_only, "MLPs", "these identities are for attention-only models")
        ours = getattr(getattr(model, "original_model", None), "config", None)  # of a bridge around our module
        _refuse(getattr(ours, "smeared_keys", False), "smeared keys", "a score depends on two source tokens there")
        _refuse(getattr(ours, "standard_positions", False), "standard positions", "heads move them along with tokens there")
        biases = (getattr(model, name, None) for name in ("b_Q", "b_K", "b_V", "b_O", "b_U"))
        has_bias = any(isinstance(bias, Tensor) and bool(bias.any()) for bias in biases)
        _refuse(has_bias, "biases", "fold them first with `fold_biases`")
        if cfg.n_layers:
            heads = {name: getattr(model, name) for name in ("W_Q", "W_K", "W_V", "W_O")}
        else:  # a bridge without layers has no such attributes
            W_Q = model.W_E.new_zeros(0, cfg.n_heads, cfg.d_model, cfg.d_head)
            heads = {"W_Q": W_Q, "W_K": W_Q, "W_V": W_Q, "W_O": W_Q.mT}
        return cls(W_E=model.W_E, W_pos=model.W_pos, W_U=model.W_U, **heads)

    @property
    def n_layers(self) -> int:
        return self.W_Q.shape[0]

    @property
    def n_heads(self) -> int:
        return self.W_Q.shape[1]

    @property
    def d_head(self) -> int:
        return self.W_Q.shape[3]

    @property
    def d_model(self) -> int:
        return self.W_E.shape[1]

    @property
    def n_ctx(self) -> int:
        return self.W_pos.shape[0]

    @property
    def heads(self) -> list[tuple[int, int]]:
        """Every (layer, head), first layer first."""
        return [(layer, head) for layer in range(self.n_layers) for head in range(self.n_heads)]

    def check_head(self, layer: int, head: int) -> None:
        """Raises ValueError if the model has no such layer or head (negative numbers included)."""
        if not 0 <= layer < self.n_layers:
            raise ValueError(f"there is no layer {layer}: this model has {_count(self.n_layers, 'layer')}")
        if not 0 <= head < self.n_heads:
            raise ValueError(f"there is no head {head}: each layer has {_count(self.n_heads, 'head')}")

    def check_tokens(self, tokens: Int[Tensor, "*batch position"]) -> None:
        """Raises ValueError for an empty or too long prompt, or for token ids outside the vocabulary."""
        n = tokens.shape[-1] if tokens.ndim else 0
        if not 0 < n <= self.n_ctx or not tokens.numel():
            raise ValueError(f"a prompt must have 1 to {self.n_ctx} tokens, this one has {n}")
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= len(self.W_E):
            wrong = low if low < 0 else high
            raise ValueError(f"token ids run from 0 to {len(self.W_E) - 1}, this prompt has {wrong}")


def rotate_basis(weights: Weights, rotation: Float[Tensor, "d_model d_model"]) -> Weights:
    """The same model in another basis of the residual stream (claim O3).

    Everything that writes into the stream is multiplied by the rotation, everything that reads from it by its inverse.
    Positions count as writers. Raises ValueError if `rotation` is not orthogonal.
    """
    identity = torch.eye(weights.d_model, dtype=rotation.dtype, device=rotation.device)
    tolerance = 100 * torch.finfo(rotation.dtype).eps * weights.d_model
    if rotation.shape != identity.shape or (rotation @ rotation.T - identity).abs().max() > tolerance:
        raise ValueError(f"the rotation must be an orthogonal {weights.d_model} by {weights.d_model} matrix")
    reads = {name: rotation.T @ getattr(weights, name) for name in ("W_Q", "W_K", "W_V", "W_U")}
    writes = {name: getattr(weights, name) @ rotation for name in ("W_E", "W_pos", "W_O")}
    return Weights(**reads, **writes)


def reparametrize_heads(
    weights: Weights,
    R_QK: Float[Tensor, "*layer_head d_head d_head"],
    R_OV: Float[Tensor, "*layer_head d_head d_head"],
) -> Weights:
    """The same model with other queries, keys and values: W_Q R and W_K R^-T, W_V R and R^-1 W_O (claim O4).

    The matrices must be invertible; they may differ by layer and head (leading dimensions) or be shared.
    """
    return dataclasses.replace(
        weights,
        W_Q=weights.W_Q @ R_QK,
        W_K=weights.W_K @ torch.linalg.inv(R_QK).mT,
        W_V=weights.W_V @ R_OV,
        W_O=torch.linalg.inv(R_OV) @ weights.W_O,
    )


@dataclasses.dataclass(frozen=True)
class Biases:
    """The biases that a model might have beside its `Weights` (claim A4)."""

    b_Q: Float[Tensor, "layer head d_head"]
    b_K: Float[Tensor, "layer head d_head"]
    b_V: Float[Tensor, "layer head d_head"]
    b_O: Float[Tensor, "layer d_model"]
    b_U: Float[Tensor, " d_vocab"]


def collect_biases(
    weights: Weights, biases: Biases
) -> tuple[Float[Tensor, "layer head d_head"], Float[Tensor, " d_vocab"]]:
    """What is left of all biases in an attention-only model: one on each query, one on the logits.

    - b_K adds the same amount to every score of a row, and softmax does not see it: it drops out.
    - Rows of a pattern add up to one, so b_V always writes b_V W_O: together with b_O a constant vector per layer.
    - The constants written so far shift what later queries read, keys and values likewise, and the logits at the end.
    """
    constant = torch.zeros_like(biases.b_O[0]) if weights.n_layers else weights.W_E.new_zeros(weights.d_model)
    queries = []
    for layer in range(weights.n_layers):
        queries.append(biases.b_Q[layer] + constant @ weights.W_Q[layer])
        values = biases.b_V[layer] + constant @ weights.W_V[layer]
        constant = constant + biases.b_O[layer] + torch.einsum("hk,hkm->m", values, weights.W_O[layer])
    b_Q = torch.stack(queries) if queries else biases.b_Q
    return b_Q, biases.b_U + constant @ weights.W_U


def fold_biases(weights: Weights, biases: Biases) -> Weights:
    """A model without biases and with one more dimension, always one, that computes the same logits (claim A4)."""
    b_Q, b_U = collect_biases(weights, biases)

    def widen(matrix: Tensor, dim: int, last: Tensor | float) -> Tensor:
        shape = list(matrix.shape)
        shape[dim] = 1
        last = last.reshape(shape) if isinstance(last, Tensor) else matrix.new_full(shape, last)
        return torch.cat([matrix, last], dim=dim)

    return Weights(
        W_E=widen(weights.W_E, -1, 1.0),  # every token writes a one into the new dimension ...
        W_pos=widen(weights.W_pos, -1, 0.0),
        W_Q=widen(weights.W_Q, -2, b_Q),  # ... queries and logits read it, nothing else does
        W_K=widen(weights.W_K, -2, 0.0),
        W_V=widen(weights.W_V, -2, 0.0),
        W_O=widen(weights.W_O, -1, 0.0),
        W_U=widen(weights.W_U, -2, b_U),
    )


def relative_error(measured: Tensor, expected: Tensor) -> float:
    """Largest absolute difference over the largest absolute expected entry; NaN if either has one.

    Raises ValueError if the shapes differ, because broadcasting would compare something else.
    """
    if measured.shape != expected.shape:
        raise ValueError(f"shapes differ: {tuple(measured.shape)} and {tuple(expected.shape)}")
    if not measured.numel() or torch.equal(measured, expected):
        return 0.0
    return ((measured - expected).abs().max() / expected.abs().max()).item()


def _refuse(condition: bool, what: str, advice: str) -> None:
    if condition:
        raise ValueError(f"this model has {what}: {advice}")


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s, counted from 0" if n else f"no {noun}s"
