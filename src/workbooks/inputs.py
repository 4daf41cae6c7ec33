"""What functions are tried with: random models first, as mistakes change them more, then a shipped one."""

import functools
from collections.abc import Iterator

import torch
from jaxtyping import Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from transformer_circuits.data import held_out_windows
from transformer_circuits.models import load_model
from transformer_circuits.models.bridge import AXES, from_matrices

# Of random models. No two are alike, so that axes can be told apart.
SIZES = {"d_vocab": 19, "n_ctx": 24, "head": 5, "d_head": 6, "d_model": 12}


@functools.cache
def random_model(n_layers: int, seed: int = 0) -> TransformerBridge:
    """Return a random model."""
    generator, sizes, matrices = torch.Generator().manual_seed(seed), SIZES | {"layer": n_layers}, {}
    for name, axes in AXES.items():
        drawn = torch.randn([sizes[axis] for axis in axes], generator=generator)
        matrices[name] = drawn if name in ("W_E", "W_pos") else 0.5 * drawn
    return from_matrices(**matrices)


@functools.cache
def shipped() -> TransformerBridge:
    """Return a trained model that is small enough for a slow function."""
    return load_model("small-2l")


def models(*layers: int) -> Iterator[tuple[TransformerBridge]]:
    """Yield random models of these depths, then the shipped model."""
    yield from ((random_model(n_layers, seed),) for seed, n_layers in enumerate(layers))
    yield (shipped(),)


def texts(*layers: int) -> Iterator[tuple[TransformerBridge, Tensor]]:
    """Yield random models with random tokens, then the shipped model with held-out text."""
    for seed, (model,) in enumerate(models(*layers)):
        tokens = torch.randint(SIZES["d_vocab"], (7, 17 - seed), generator=torch.Generator().manual_seed(seed))
        if model is shipped():
            tokens = held_out_windows(2, 32, model.cfg.d_vocab)
        yield model, tokens.to(model.W_E.device)


def twins(*layers: int) -> Iterator[tuple[TransformerBridge, Tensor, Tensor]]:
    """Yield the trials of `texts`, each with other tokens of the same shape: the same rows in another order."""
    yield from ((model, tokens, tokens.roll(1, dims=0)) for model, tokens in texts(*layers))


def with_more(trials: Iterator[tuple], *arguments: tuple) -> Iterator[tuple]:
    """Yield trials with more arguments: of the first tuple for the first trial, and so on."""
    yield from ((*trial, *more) for trial, more in zip(trials, arguments))


def tables() -> Iterator[tuple[Tensor, Tensor]]:
    """Yield tables with pairs that are neither right nor wrong; the last two are as large as those of the page."""
    # Sizes, and shares of right and wrong pairs.
    wanted = [(7, 9, 0.2, 0.3), (9, 7, 0.3, 0.3), (40, 40, 0.48, 0.48), (40, 40, 0.04, 0.5)]
    for seed, (rows, columns, right, wrong) in enumerate(wanted):
        drawn = torch.rand(rows, columns, generator=torch.Generator().manual_seed(seed))
        yield drawn < right, drawn > 1 - wrong


def repeated_tokens(model: TransformerBridge, rows: int, length: int, seed: int = 0) -> Int[Tensor, "row pos"]:
    """Return rows of the start token and `length` different random tokens that occur twice."""
    drawn = torch.rand(rows, model.cfg.d_vocab - 1, generator=torch.Generator().manual_seed(seed))
    copy = drawn.argsort(dim=1)[:, :length] + 1
    return torch.cat([torch.zeros_like(copy[:, :1]), copy, copy], dim=1).to(model.W_E.device)


def repeats(*layers: int) -> Iterator[tuple[TransformerBridge, Tensor, int]]:
    """Yield models, repeated tokens, and the length of one copy."""
    for seed, (model,) in enumerate(models(*layers)):
        yield model, repeated_tokens(model, 7 - seed, 11 - seed, seed), 11 - seed
