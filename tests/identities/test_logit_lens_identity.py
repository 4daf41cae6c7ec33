"""The logit lens is the path expansion cut off by depth (claim W9); the key lens is the score of the query's token."""

import pytest
import torch
from random_models import PLAIN_CASES, cases, differs, identity, same


@identity(cases())
def test_the_reading_after_the_first_layer_is_the_sum_of_its_paths(case):
    """The direct path, and one through each head of the first layer."""
    cache = case.cache
    through = torch.einsum("bhqk,bkd,hde->bqe", cache["pattern", 0], cache["embed"], case.model.OV[0].AB)
    readings = cache.accumulated_resid() @ case.model.W_U
    same((cache["embed"] + through) @ case.model.W_U, readings[1])
    same(readings[-1], case.logits)


@pytest.mark.parametrize("case", [case for case in PLAIN_CASES if len(case.model.blocks) > 1])
def test_key_lens_is_the_score_of_the_query_token(case):
    """Recorded scores, once with the query's stream replaced by its token and the key's as it is, positions left out."""
    model, name = case.model, "blocks.1.attn.{}.hook_in"
    x, embed = case.cache.accumulated_resid(), case.plain.tok_embed(case.tokens).detach()
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
