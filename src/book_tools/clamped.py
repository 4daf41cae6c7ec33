"""What must go right for an induction head to form? Half of it given from the first step (claim W11).

After Singh et al. 2024 (arXiv 2404.07129): in chapter 15's small model, one head's pattern is clamped during training.
"""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from transformer_circuits.measures.repeats import last_target
from transformer_circuits.models.architecture import Attention, Transformer
from transformer_circuits.training.small_runs import History, new_model, train

STEPS = 1000
SEEDS = (0, 1, 2)
Pattern = Float[Tensor, "row dest src"]


def previous_token(tokens: Int[Tensor, "row pos"]) -> Pattern:
    """Return all attention on the previous token."""
    before = (torch.arange(tokens.shape[1]) - 1).clamp(min=0)
    return one_hot(before.expand_as(tokens), tokens.shape[1]).float()


def match(tokens: Int[Tensor, "row pos"]) -> Pattern:
    """Return all attention on what followed the last earlier occurrence, or on the first token of the row."""
    return one_hot(last_target(tokens).clamp(min=0), tokens.shape[1]).float()


def clamp(model: Transformer, layer: int, pattern: Callable[[Tensor], Pattern]) -> Transformer:
    """Let head 0 of a layer attend by this pattern, whatever its queries and keys are."""
    seen = {}

    def remember(module: Transformer, inputs: tuple[Tensor]) -> None:
        seen["tokens"] = inputs[0]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        given = pattern(seen["tokens"]) @ v[:, 0]
        return torch.cat([given[:, None], Attention.attend(q, k, v)[:, 1:]], dim=1)

    model.register_forward_pre_hook(remember)
    model.layers[layer].attn.attend = attend
    return model


def experiments(seed: int) -> dict[str, Transformer]:
    """Return a new model of a seed for each case."""
    return {
        "none": new_model(seed),
        "previous": clamp(new_model(seed), 0, previous_token),
        "match": clamp(new_model(seed), 1, match),
    }


def half_right(history: History) -> int:
    """Return the step after which half of the first guesses of the last twenty steps are right, or STEPS."""
    means = np.convolve(history[:, 1], np.ones(20) / 20, mode="valid")
    above = np.flatnonzero(means > 0.5)
    return int(above[0]) + 20 if len(above) else STEPS


def measure() -> dict[str, list[int]]:
    """Return that step for each case and seed."""
    steps: dict[str, list[int]] = {}
    for seed in SEEDS:
        for name, model in experiments(seed).items():
            steps.setdefault(name, []).append(half_right(train(model, seed, steps=STEPS)))
    return steps
