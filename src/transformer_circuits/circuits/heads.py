"""What several chapters ask of a hooked model: scores of its heads, its losses, and hooks that freeze or remove.

All take a TransformerBridge (`load_model`) and go through its hooks; `hooks` is a list as for `run_with_hooks`. A head is (layer, head).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Complex, Float, Int
from torch import Tensor
from transformer_lens.utilities import get_act_name

from transformer_circuits.training.scores import Repeated, induction_score, previous_token_score, start_token_score

Head = tuple[int, int]
Hook = tuple[str, Callable[..., Any]]  # a hook point's name, and what is done to the activation there
BATCH = 8  # rows run together: patterns of 12 heads at 512 tokens take 100 MB a layer


def head_name(head: Head) -> str:
    return f"{head[0]}.{head[1]}"


def check_head(model: Any, layer: int, head: int) -> None:
    """Raises ValueError if the model has no such head."""
    layers, heads = model.cfg.n_layers, model.cfg.n_heads
    if not (0 <= layer < layers and 0 <= head < heads):
        raise ValueError(f"there is no head {layer}.{head}: this model has {layers} layers of {heads} heads, both counted from 0")


def relative_error(measured: Tensor, expected: Tensor) -> float:
    """Largest absolute difference over the largest absolute expected entry.

    Raises ValueError if the shapes differ, because broadcasting would compare something else.
    """
    if measured.shape != expected.shape:
        raise ValueError(f"shapes differ: {tuple(measured.shape)} and {tuple(expected.shape)}")
    if torch.equal(measured, expected):
        return 0.0
    return float((measured - expected).abs().max() / expected.abs().max())


def positivity(eigenvalues: Complex[Tensor, "*batch n"]) -> Float[Tensor, "*batch"]:
    """Sum of the eigenvalues over the sum of their moduli: 1 if all are positive, -1 if all are negative, 0 at random (claims E1, T10)."""
    return eigenvalues.real.sum(-1) / eigenvalues.abs().sum(-1)


# ---- measuring a running model ------------------------------------------------------------------------------------------


def patterns(model: Any, tokens: Int[Tensor, "row pos"], hooks: Iterable[Hook] = ()) -> Float[Tensor, "layer row head dest src"]:
    """Attention patterns of all heads, with the model's other hooks in place. For a few rows: 12 MB each at 12 heads of 512 tokens."""
    with model.hooks(fwd_hooks=list(hooks)):
        _, cache = model.run_with_cache(tokens, names_filter=lambda name: name.endswith("hook_pattern"), stop_at_layer=model.cfg.n_layers)
    return torch.stack([cache["pattern", layer] for layer in range(model.cfg.n_layers)])


def losses(model: Any, windows: Int[Tensor, "row pos"], hooks: Iterable[Hook] = ()) -> Float[Tensor, "row pos-1"]:
    """Nats at predicting each token of a window after its first."""
    with model.hooks(fwd_hooks=list(hooks)):
        found = [
            F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten(), reduction="none").view_as(rows[:, 1:])
            for rows in windows.split(BATCH)
        ]
    return torch.cat(found)


def induction_scores(model: Any, repeated: Repeated, hooks: Iterable[Hook] = ()) -> Float[Tensor, "layer head"]:
    """Induction score of every head: mean attention from a repeated token to the one after its last occurrence."""
    total = 0.0
    for rows in torch.arange(len(repeated.tokens)).split(BATCH):
        part = Repeated(repeated.tokens[rows], repeated.start[rows], repeated.length[rows], repeated.copies)
        each = torch.stack([induction_score(layer, part) for layer in patterns(model, part.tokens, hooks)])
        total = total + each * len(part.targets)
    return total / len(repeated.targets)


def previous_token_scores(model: Any, windows: Int[Tensor, "row pos"], hooks: Iterable[Hook] = ()) -> Float[Tensor, "layer head"]:
    """Previous-token score of every head: mean attention to the token before on these windows, the first two positions left out."""
    return torch.cat([previous_token_score(patterns(model, rows, hooks)) for rows in windows.split(BATCH)], dim=1).mean(dim=1)


def start_token_scores(model: Any, windows: Int[Tensor, "row pos"], hooks: Iterable[Hook] = ()) -> Float[Tensor, "layer head"]:
    """Mean attention to the start token of every head; one with 0.95 or more is at rest."""
    return torch.cat([start_token_score(patterns(model, rows, hooks)) for rows in windows.split(BATCH)], dim=1).mean(dim=1)


# ---- hooks --------------------------------------------------------------------------------------------------------------


def freeze(cache: Any) -> list[Hook]:
    """Hooks that put the attention patterns of a cached run in place: with them the model is linear in what it embeds (claim P3)."""
    return [
        (name, lambda pattern, hook: cache[hook.name])
        for name in (get_act_name("pattern", layer) for layer in range(cache.model.cfg.n_layers))
    ]


def mean_z(model: Any, tokens: Int[Tensor, "row pos"], layer: int) -> Float[Tensor, "head d_head"]:
    """What each head of a layer mixes from its values on average, over all positions of these rows."""
    name = get_act_name("z", layer)
    found = [model.run_with_cache(rows, names_filter=name)[1][name].sum((0, 1)) for rows in tokens.split(BATCH)]
    return torch.stack(found).sum(0) / tokens.numel()


def without_heads(heads: Sequence[Head], means: Sequence[Float[Tensor, "head d_head"]] | None = None) -> list[Hook]:
    """Hooks that take heads out: what they mixed gives way to their mean (`means[layer]`, as `mean_z` gives it), or to zero."""

    def take_out(layer: int) -> Hook:
        mine = [head for at, head in heads if at == layer]

        def replace(z: Float[Tensor, "row pos head d_head"], hook: Any) -> Tensor:
            z = z.clone()
            z[:, :, mine] = 0.0 if means is None else means[layer][mine]
            return z

        return get_act_name("z", layer), replace

    return [take_out(layer) for layer in sorted({layer for layer, _ in heads})]
