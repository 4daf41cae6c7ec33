"""The logit lens is the path expansion cut off by depth (claim W9); the key lens is the score of the query's token."""

import pytest
import torch
from hypothesis import given
from random_models import PLAIN_CASES, build, cases, differs, identity, random, same

from transformer_circuits.circuits import heads
from transformer_circuits.circuits.logit_lens import BATCH, linear_map, reading_losses, streams


@identity
@given(cases(min_layers=0))
def test_streams_end_at_the_plain_models_logits(case):
    x = streams(case.model, case.tokens)
    same(x[0], case.plain.tok_embed(case.tokens).detach())
    same(x[-1] @ case.model.W_U, case.logits)
    batch = streams(case.model, case.tokens.expand(6, -1))  # more than one batch
    same(batch[:, 5:], x)


@identity
@given(cases())
def test_the_reading_after_the_first_layer_is_the_sum_of_its_paths(case):
    """The direct path, and one through each head of the first layer."""
    _, cache = case.model.run_with_cache(case.tokens)
    through = torch.einsum("bhqk,bkd,hde->bqe", cache["pattern", 0], cache["embed"], case.model.OV[0].AB)
    reading = streams(case.model, case.tokens)[1] @ case.model.W_U
    same((cache["embed"] + through) @ case.model.W_U, reading)


@pytest.mark.parametrize("case", [case for case in PLAIN_CASES if len(case.model.blocks) > 1])
def test_key_lens_is_the_score_of_the_query_token(case):
    """Recorded scores, once with the query's stream replaced by its token and the key's as it is, positions left out."""
    model, name = case.model, "blocks.1.attn.{}.hook_in"
    x, embed = streams(model, case.tokens), case.plain.tok_embed(case.tokens).detach()
    hooks = [(name.format("q"), lambda _, hook: embed), (name.format("k"), lambda _, hook: x[1])]
    recorded = []
    hooks.append(("blocks.1.attn.hook_attn_scores", lambda scores, hook: recorded.append(scores.clone())))
    model.run_with_hooks(case.tokens, fwd_hooks=hooks)
    allowed = torch.ones(x.shape[2], x.shape[2], dtype=torch.bool).tril()
    # [stage, head, position, token], as in the chapter
    lens = (x[:2] @ model.QK[1].T @ model.W_E.T).AB / model.cfg.d_head**0.5
    for head in range(model.cfg.n_heads):
        found = lens[1, head][:, case.tokens[0]].T  # [query, key]
        same(found[allowed], recorded[0][0, head][allowed])
        broken = lens[0, head][:, case.tokens[0]].T  # of the stream before layer 0 has written
        differs(broken[allowed], recorded[0][0, head][allowed])


def test_losses_of_the_last_reading_are_the_models_own():
    model = build(length=7).model
    # More than one batch.
    windows = torch.randint(11, (BATCH + 1, 7), generator=torch.Generator().manual_seed(0))
    x = streams(model, windows[:, :-1])
    found = reading_losses(model, x, windows[:, 1:])
    assert found.shape == (3, BATCH + 1, 6)
    torch.testing.assert_close(found[-1], heads.losses(model, windows))
    torch.testing.assert_close(reading_losses(model, x[1], windows[:, 1:]), found[1])


def test_linear_map_finds_a_map_and_is_no_better_than_least_squares():
    x, M, b = random(50, 6), random(6, 6, seed=1), random(6, seed=2)
    found, shift = linear_map(x, x @ M + b)
    torch.testing.assert_close(found, M)
    torch.testing.assert_close(shift, b)
    y = random(50, 6, seed=3)
    found, shift = linear_map(x, y)
    rest = y - x @ found - shift
    assert (x.T @ rest).abs().max() < 1e-10 and rest.sum(0).abs().max() < 1e-10  # the normal equations
