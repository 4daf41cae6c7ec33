"""X1, X2, X3: the virtual head expands exactly; in the sharp limit both induction circuits attend to one place and no other."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_models import EXACT, differs, identity, random, same

from transformer_circuits.circuits import by_hand
from transformer_circuits.circuits.by_hand import Head
from transformer_circuits.circuits.heads import patterns
from transformer_circuits.measures.repeats import repeated_random_tokens

LAYERS = [([0, 1, 2, 3], [8, 9, 10, 11]), ([4, 5, 6, 8], [12, 13, 14, 15])]  # dimensions read and written
N = 9


def run(vectors: torch.Tensor) -> torch.Tensor:
    """What two previous-token heads that copy dimensions make of a row of vectors."""
    unit, none = torch.eye(16, dtype=torch.float64), torch.zeros(16, 1, dtype=torch.float64)
    heads = [[Head(none, none, unit[:, reads], unit[writes])] for reads, writes in LAYERS]
    model = by_hand.assemble(vectors, torch.zeros_like(vectors), vectors.T, heads)
    A = torch.diag(torch.ones(N - 1, dtype=torch.float64), -1)
    with model.hooks(
        fwd_hooks=[(f"blocks.{layer}.attn.hook_pattern", lambda p, hook: A.expand_as(p)) for layer in (0, 1)]
    ):
        return model.run_with_cache(torch.arange(N)[None])[1]["resid_post", 1][0]


def back(x: torch.Tensor, steps: int) -> torch.Tensor:
    return torch.cat([torch.zeros_like(x[:steps]), x[: len(x) - steps]])


def test_x1_each_dimension_is_one_copy():
    x = random(N, 16, seed=3).masked_fill(torch.arange(16) >= 8, 0.0)
    y = run(x)
    assert torch.equal(y[:, :8], x[:, :8])
    same(y[:, 8:15], back(x, 1)[:, :7])  # seven from one back
    same(y[:, 15], back(x, 2)[:, 0])  # one from two back


def test_x1_multiplies_out_in_one_order_only_and_moves_what_fills_its_workspace():
    x, unit = random(N, 16, seed=4), torch.eye(16, dtype=torch.float64)
    one, two = (unit[:, reads] @ unit[writes] for reads, writes in LAYERS)
    expanded = x + back(x, 1) @ (one + two) + back(x, 2) @ one @ two
    same(run(x), expanded)
    differs(run(x), x + back(x, 1) @ (one + two) + back(x, 2) @ two @ one)
    differs(run(x)[:, 15], back(x, 2)[:, 0])  # dimension 8 was not empty


@identity
@given(st.integers(1, 12), st.integers(-30, 30), st.integers(0, 400))
def test_turning_by_steps_is_moving_by_steps(pairs, steps, n):
    turn = by_hand.rates(pairs)
    here, there = (torch.cat([(at * turn).sin(), (at * turn).cos()]) for at in (n, n + steps))
    assert (here @ by_hand.rotation(turn, steps) - there).abs().max() < EXACT


@pytest.mark.parametrize("build", [by_hand.k_composition, by_hand.pointer_arithmetic])
def test_x2_x3_in_the_sharp_limit_all_attention_is_on_the_target(build):
    stream = by_hand.Stream.of(by_hand.content_vectors(random(60, 16), 12), 40, pairs=6)
    sharp = {name: 20 * getattr(stream, name) for name in ("beta_content", "beta_position", "beta_copy")}
    repeated = repeated_random_tokens(60, 40, rows=5, shortest=5)
    found = patterns(build(dataclasses.replace(stream, **sharp)), repeated.tokens)[1]
    assert (1 - found[repeated.rows, 0, repeated.destinations, repeated.targets]).abs().max() < EXACT
