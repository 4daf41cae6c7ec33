"""Random attention-only models for the identity tests: double precision, and weights several times larger than at
initialization, so that a transposed factor or a missing term cannot hide below the tolerance.

The hooked model is what the chapters use; the reference for every identity is the plain `Transformer`'s own forward pass, or a naive
computation.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import nbformat
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformer_lens import ActivationCache
from transformer_lens.model_bridge import TransformerBridge

from transformer_circuits.circuits.heads import relative_error
from transformer_circuits.models.architecture import ModelConfig, Transformer
from transformer_circuits.models.bridge import wrap
from transformer_circuits.paths import ROOT

EXACT = 1e-10  # relative; an identity holds
BROKEN = 1e-4  # relative; a broken one is off by at least this


def identity(*strategies: st.SearchStrategy) -> Callable[[Callable], Callable]:
    """Test a function on 25 random examples."""
    return lambda test: settings(max_examples=25, deadline=None, derandomize=True)(given(*strategies)(test))


def same(measured: Tensor, expected: Tensor, tolerance: float = EXACT) -> None:
    error = relative_error(measured, expected)
    assert error < tolerance, f"relative error {error}"


def differs(measured: Tensor, expected: Tensor) -> None:
    error = relative_error(measured, expected)
    assert error > BROKEN, f"relative error {error} where the identity should be broken"


@dataclasses.dataclass(frozen=True)
class Case:
    """A random model, hooked and plain, and a prompt."""

    model: TransformerBridge
    plain: Transformer
    tokens: Tensor  # [1, position]

    @property
    def logits(self) -> Tensor:
        """The reference: the plain forward pass, [1, position, d_vocab]."""
        return self.plain(self.tokens).detach()

    @property
    def cache(self) -> ActivationCache:
        return self.model.run_with_cache(self.tokens)[1]


def build(
    n_layers: int = 2,
    n_heads: int = 2,
    d_model: int = 8,
    d_head: int = 3,
    d_vocab: int = 11,
    length: int = 6,
    positions: bool = True,
    seed: int = 0,
    **more: Any,
) -> Case:
    """Return one case; tokens are drawn with replacement. `more`: what else the model has."""
    generator = torch.Generator().manual_seed(seed)
    config = ModelConfig(n_layers, d_model, n_heads, d_head, d_vocab, max(length, 2), **more)
    model = Transformer(config).double().eval().requires_grad_(False)
    for name, weight in model.named_parameters():
        if name != "pos.weight":
            gain = 1.0 if name.endswith(("q.weight", "k.weight")) else 2.0  # softmax must not saturate
            fan_in = 1 if name == "tok_embed.weight" or weight.ndim == 1 else weight.shape[1]
            drawn = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            weight.copy_(drawn * gain / math.sqrt(fan_in))
    if not positions:
        model.pos.weight.zero_()
    tokens = torch.randint(d_vocab, (1, length), generator=generator)
    return Case(wrap(model), model, tokens)


@functools.cache
def small(n_layers: int, number: int) -> Case:
    """Return one of the random models of a depth: of any small shape, with or without positions."""
    draw = Random(number).randint
    sizes = dict(n_heads=draw(1, 4), d_model=2 * draw(2, 6), d_head=draw(1, 5), d_vocab=draw(2, 15), length=draw(1, 9))
    return build(n_layers, **sizes, positions=bool(draw(0, 1)), seed=number)


def cases(min_layers: int = 1, max_layers: int = 3) -> st.SearchStrategy[Case]:
    """Draw models, of 25 for each depth that all tests share: to make one takes longer than most tests of it."""
    return st.builds(small, st.integers(min_layers, max_layers), st.integers(0, 24))


# For the tests that break an identity: shapes in which nothing is degenerate.
PLAIN_CASES = [
    build(n_layers=n_layers, positions=positions, seed=seed)
    for seed, (n_layers, positions) in enumerate([(1, True), (2, True), (2, False), (3, True)])
]


def path_sum(case, wanted):
    """Logits of the paths that `wanted` says yes to, each written out: a path is a tuple of heads (layer, head)."""
    model, cache = case.model, case.cache
    layers = [[None, *((layer, h) for h in range(model.cfg.n_heads))] for layer in range(model.cfg.n_layers)]
    total = 0.0
    for choice in itertools.product(*layers):
        path, stream = tuple(head for head in choice if head), model.W_E[case.tokens]
        if wanted(path):
            for layer, h in path:
                stream = cache["pattern", layer][:, h] @ stream @ model.W_V[layer, h] @ model.W_O[layer, h]
            total = total + stream @ model.W_U
    return total


def defined_in(chapter: str, *cells: str, **imported: Any) -> SimpleNamespace:
    """Return what these cells of a chapter define, given what the chapter imports: readers see the code that is tested."""
    for cell in nbformat.read(ROOT / "notebooks" / f"{chapter}.ipynb", as_version=4).cells:
        if cell.id in cells:
            exec(cell.source, imported)
    return SimpleNamespace(**imported)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
