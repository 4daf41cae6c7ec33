"""X2 and X3: heads written by hand do just what is written, positions turn, and both circuits of chapter 9 do induction."""

import dataclasses

import pytest
import torch
from random_models import EXACT, defined_in, random, same

from transformer_circuits.circuits import by_hand
from transformer_circuits.circuits.by_hand import Head, Stream
from transformer_circuits.measures.repeats import repeated_random_tokens
from transformer_circuits.models.view import View

VOCAB, CONTEXT = 80, 48
CHAPTER = defined_in("09_heads_by_hand", "pointer-arithmetic", "k-composition", by_hand=by_hand, torch=torch)
STREAM = Stream.of(torch.nn.functional.normalize(random(VOCAB, 16), dim=1), CONTEXT)
REPEATED = repeated_random_tokens(VOCAB, CONTEXT, rows=6, shortest=8)


def test_a_head_scores_and_moves_just_what_is_written():
    d = len(STREAM.content)
    narrow = Head(random(d, 2, seed=1), random(d, 2, seed=2), random(d, 3, seed=3), random(3, d, seed=4))
    wide = Head(random(d, 4, seed=5), random(d, 4, seed=6), random(d, 1, seed=7), random(1, d, seed=8))
    model = STREAM.model([[narrow, wide]])
    _, cache = model.run_with_cache(torch.arange(5)[None])
    x = cache["embed"][0] + model.W_pos[:5]
    for h, head in enumerate((narrow, wide)):
        same(cache["attn_scores", 0][0, h].tril(), ((x @ head.W_Q) @ (x @ head.W_K).T).tril())
        same(model.OV[0, h].AB, head.W_V @ head.W_O)


@pytest.mark.parametrize("build", [CHAPTER.pointer_arithmetic, CHAPTER.k_composition])
def test_in_the_sharp_limit_all_attention_is_on_the_target(build):
    sharp = {name: 20 * getattr(STREAM, name) for name in ("beta_content", "beta_position", "beta_copy")}
    found = View(build(dataclasses.replace(STREAM, **sharp))).patterns(REPEATED.tokens)[1]
    on_target = found[REPEATED.rows, 0, REPEATED.destinations, REPEATED.targets]
    assert (1 - on_target).abs().max() < EXACT
