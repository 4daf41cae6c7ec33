"""What functions are tried with: random models first, because on a trained model many mistakes change little, then a shipped one."""

import functools
import inspect
from collections.abc import Iterator

import torch
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from transformer_circuits.data import held_out_windows
from transformer_circuits.models import load_model
from transformer_circuits.models.bridge import MATRICES, from_matrices

# The axes of what `from_matrices` takes
_parameters = inspect.signature(from_matrices, eval_str=True).parameters
AXES = {name: _parameters[name].annotation.dim_str.split() for name in MATRICES}
# Of random models. No two are alike, so that axes can be told apart.
SIZES = {"d_vocab": 19, "n_ctx": 24, "head": 5, "d_head": 6, "d_model": 12}
SHIPPED = "small-2l"  # the trained model of every check: small enough that a slow function still ends


@functools.cache
def random_model(n_layers: int, seed: int = 0) -> TransformerBridge:
    """Return a random model in double precision."""
    generator, sizes, matrices = torch.Generator().manual_seed(seed), SIZES | {"layer": n_layers}, {}
    for name, axes in AXES.items():
        drawn = torch.randn([sizes[axis] for axis in axes], generator=generator, dtype=torch.float64)
        matrices[name] = drawn if name in ("W_E", "W_pos") else 0.5 * drawn
    return from_matrices(**matrices)


@functools.cache
def shipped() -> TransformerBridge:
    """Return a trained model in double precision, as the random ones are, so that one tolerance fits all."""
    return load_model(SHIPPED, dtype=torch.float64)


def models() -> Iterator[tuple[TransformerBridge]]:
    yield from ((model,) for model in (random_model(2), random_model(1, 1), shipped()))


def texts(*layers: int) -> Iterator[tuple[TransformerBridge, Tensor]]:
    """Yield random models of these depths with random tokens, then the shipped model with held-out text."""
    for seed, n_layers in enumerate(layers):
        tokens = torch.randint(SIZES["d_vocab"], (7, 17), generator=torch.Generator().manual_seed(seed))
        yield random_model(n_layers, seed), tokens
    yield shipped(), held_out_windows(2, 32, shipped().cfg.d_vocab).to(shipped().W_E.device)


def first_layer_heads() -> Iterator[tuple[TransformerBridge, Tensor, int]]:
    yield from ((model, tokens, head) for head, (model, tokens) in enumerate(texts(2, 1), start=1))


def layers() -> Iterator[tuple[TransformerBridge, Tensor, int]]:
    yield from ((model, tokens, layer) for layer, (model, tokens) in zip((0, 1, 1), texts(2, 3)))


def heads() -> Iterator[tuple[TransformerBridge, int, int, int]]:
    """Yield models with a layer, a head, and a token."""
    yield random_model(2), 0, 2, 5
    yield random_model(2, 1), 1, 4, 11
    yield shipped(), 1, 3, 300


def sides() -> Iterator[tuple[TransformerBridge, str]]:
    yield from ((random_model(2), side) for side in "QKV")
    yield shipped(), "K"


def tables() -> Iterator[tuple[Tensor, Tensor]]:
    """Yield tables in which some pairs are neither right nor wrong."""
    for seed in range(3):
        drawn = torch.rand(7, 9, generator=torch.Generator().manual_seed(seed))
        yield drawn < 0.3, drawn > 0.6


def twice(rows: int, length: int, d_vocab: int, generator: torch.Generator) -> Tensor:
    """Return rows of the start token and different random tokens that occur twice, [row, 2 length + 1]."""
    copy = torch.rand(rows, d_vocab - 1, generator=generator).argsort(dim=1)[:, :length] + 1
    return torch.cat([torch.zeros_like(copy[:, :1]), copy, copy], dim=1)


def repeats() -> Iterator[tuple[TransformerBridge, Tensor, int]]:
    """Yield two-layer models, rows of tokens that occur twice, and the length of one copy."""
    generator = torch.Generator().manual_seed(0)
    for model, rows, length in ((random_model(2), 7, 11), (random_model(2, 1), 3, 10), (shipped(), 2, 16)):
        yield model, twice(rows, length, model.cfg.d_vocab, generator).to(model.W_E.device), length


def connections() -> Iterator[tuple[TransformerBridge, Tensor, int, int, str]]:
    """Yield what `repeats` does, with a first-layer head and a side that reads it."""
    for (model, tokens, length), writer, side in zip(repeats(), (3, 1, 2), "kqk"):
        yield model, tokens, length, writer, side
        yield model, tokens, length, writer, "v"
