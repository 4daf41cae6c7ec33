"""The trainings of chapter 15: two small layers that learn to copy within seconds. `make small-runs` runs all, and
stores what the chapter reads."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy
from tqdm import trange

from transformer_circuits.models.architecture import ModelConfig, Transformer
from transformer_circuits.training.muon import optimizers_for
from transformer_circuits.training.settings import TrainingConfig

N_VOCAB, N_CTX = 64, 32  # tokens to choose from, and tokens in a row
STEPS, WARMUP = 500, 50
History = Float[np.ndarray, "step 2"]  # loss, right first guesses


def draw_rows(
    generator: torch.Generator, n_rows: int = 64, distance: int | None = None, share: float = 1.0
) -> tuple[Int[Tensor, "row pos"], Bool[Tensor, "row pos"]]:
    """Return rows of random tokens, and which of them the first copy of a segment predicts.

    `distance`: between the beginnings of both copies; None for any.
    `share`: the fraction of rows that have a second copy.
    """
    length = torch.randint(4, N_CTX // 2, (n_rows, 1), generator=generator)
    room = N_CTX - length - (distance or length) + 1
    starts = torch.rand(n_rows, 2, generator=generator) * room
    earlier, later = starts.long().sort(dim=1).values.split(1, dim=1)
    second = earlier + distance if distance else later + length
    place = torch.arange(N_CTX)
    in_first = (place >= earlier) & (place < earlier + length)
    in_second = (place >= second) & (place < second + length)
    in_second &= torch.rand(n_rows, 1, generator=generator) < share
    names = torch.rand(n_rows, N_VOCAB, generator=generator).argsort(dim=1)
    noise = torch.rand(n_rows, N_CTX, generator=generator) * (N_VOCAB - length)
    which = (length + noise).long()  # the first names are those of the segment
    which = torch.where(in_first, place - earlier, which)
    which = torch.where(in_second, place - second, which)
    return names.gather(1, which), in_second & (place > second)


def new_model(seed: int = 0, n_layers: int = 2, n_heads: int = 4, d_head: int = 16, **more: Any) -> Transformer:
    """Return a model with random weights; `more` are other settings of `ModelConfig`."""
    torch.manual_seed(seed)
    return Transformer(ModelConfig(n_layers, 64, n_heads, d_head, N_VOCAB, N_CTX, **more))


def learning_step(
    model: Transformer, optimizers: list[torch.optim.Optimizer], rate: float, tokens: Int[Tensor, "row pos"]
) -> tuple[float, Float[Tensor, "row pos-1 d_vocab"]]:
    """Change the weights once; return the loss (nats per token) and the logits."""
    logits = model(tokens)[:, :-1]
    loss = cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()
    return loss.item(), logits


def first_guesses(
    logits: Float[Tensor, "row predicted d_vocab"], tokens: Int[Tensor, "row pos"], known: Bool[Tensor, "row pos"]
) -> float:
    """Return the fraction of known tokens for which the first guess is right."""
    right = logits.argmax(dim=-1) == tokens[:, 1:]
    return right[known[:, 1:]].float().mean().item()


@torch.enable_grad()
def train(
    model: Transformer,
    seed: int = 0,
    steps: int = STEPS,
    rate: float = 0.02,
    watch: Callable[[list[tuple[float, float]]], None] | None = None,
    **rows: Any,
) -> History:
    """Train a model until it has learned; return loss and right first guesses.

    `watch` is called with the history every 100 steps. `rows` are options of `draw_rows`.
    """
    generator = torch.Generator().manual_seed(seed)
    settings = TrainingConfig(tokens=steps * 64 * N_CTX, lr=rate, weight_decay=0.0)
    optimizers = optimizers_for(model, settings)
    history = []
    for step in trange(steps):
        tokens, known = draw_rows(generator, **rows)
        now = rate * min(1, (step + 1) / WARMUP)
        loss, logits = learning_step(model, optimizers, now, tokens)
        history.append((loss, first_guesses(logits, tokens, known)))
        if watch and (step + 1) % 100 == 0:
            watch(history)
        if np.mean(history[-20:], axis=0)[1] > 0.98:  # learned
            break
    return np.array(history)


def cut(model: Transformer, side: str) -> Transformer:
    """Let the "q", "k" or "v" of the second layer read what the first layer's reads."""
    first, second = (getattr(block.attn, side) for block in model.layers)
    seen = {}
    first.register_forward_pre_hook(lambda module, inputs: seen.update(first=inputs))
    second.register_forward_pre_hook(lambda module, inputs: seen["first"])
    return model


def experiments() -> dict[str, tuple[Transformer, dict[str, Any]]]:
    """Return a new model for each experiment, and how it is trained."""
    no_positions = new_model()
    no_positions.pos.weight.data.zero_()
    runs = {
        "keys cut": (cut(new_model(), "k"), {}),
        "queries cut": (cut(new_model(), "q"), {}),
        "no positions": (no_positions, {}),
        "smeared keys, one layer": (new_model(n_layers=1, smeared_keys=True), {}),
        "always 16 apart": (new_model(), {"distance": 16}),
        "half the rows": (new_model(), {"share": 0.5}),
        "two heads": (new_model(n_heads=2), {}),
        "eight heads of 8": (new_model(n_heads=8, d_head=8), {}),
        "eight heads of 16": (new_model(n_heads=8), {}),
    }
    return runs | {f"seed {seed}": (new_model(seed), {"seed": seed}) for seed in range(1, 5)}
