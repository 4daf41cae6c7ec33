"""What functions are tried with: random models first, because on a trained model many mistakes change little, then a shipped one."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from transformer_circuits.data import held_out_windows
from transformer_circuits.models import load_model
from transformer_circuits.models.bridge import from_matrices

# No two sizes are alike, so that axes can be told apart.
D_VOCAB, N_CTX, N_HEADS, D_HEAD, D_MODEL = 19, 24, 5, 6, 12
SHIPPED = "small-2l"  # the trained model of every check: small enough that a slow function still ends


@functools.cache
def random_model(n_layers: int, seed: int = 0) -> TransformerBridge:
    """Return a random model in double precision."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*size: int, scale: float = 0.5) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64) * scale

    heads = (n_layers, N_HEADS)
    return from_matrices(
        W_E=draw(D_VOCAB, D_MODEL, scale=1.0),
        W_pos=draw(N_CTX, D_MODEL, scale=1.0),
        W_Q=draw(*heads, D_MODEL, D_HEAD),
        W_K=draw(*heads, D_MODEL, D_HEAD),
        W_V=draw(*heads, D_MODEL, D_HEAD),
        W_O=draw(*heads, D_HEAD, D_MODEL),
        W_U=draw(D_MODEL, D_VOCAB),
    )


@functools.cache
def shipped() -> TransformerBridge:
    """Return a trained model in double precision, as the random ones are, so that one tolerance fits all."""
    return load_model(SHIPPED, dtype=torch.float64)


def texts(*layers: int) -> Iterator[tuple[TransformerBridge, Tensor]]:
    """Yield random models of these depths with random tokens, then the shipped model with held-out text."""
    for seed, n_layers in enumerate(layers):
        tokens = torch.randint(D_VOCAB, (7, 17), generator=torch.Generator().manual_seed(seed))
        yield random_model(n_layers, seed), tokens
    yield shipped(), held_out_windows(2, 32, shipped().cfg.d_vocab).to(shipped().W_E.device)


def repeats() -> Iterator[tuple[TransformerBridge, Tensor, int]]:
    """Yield two-layer models, rows of the start token and random tokens repeated twice, and the length of one copy."""
    generator = torch.Generator().manual_seed(0)
    for model, rows, length in ((random_model(2), 7, 11), (random_model(2, 1), 3, 10), (shipped(), 2, 16)):
        order = torch.rand(rows, model.cfg.d_vocab - 1, generator=generator).argsort(dim=1)
        copy, start = order[:, :length] + 1, torch.zeros(rows, 1, dtype=torch.long)
        yield model, torch.cat([start, copy, copy], dim=1).to(model.W_E.device), length
