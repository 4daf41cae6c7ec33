"""Induction heads: where they should attend, and what their attention scores are made of.

Paper: "Induction Heads", "How Induction Heads Work", "Checking the Mechanism". From a token that occurred before, such a head attends to
the token after that occurrence, and raises its logit: [a] [b] ... [a] -> [b].
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformer_lens import FactoredMatrix
from transformer_lens.utilities import get_act_name

from transformer_circuits.circuits.copying import self_boost
from transformer_circuits.circuits.heads import check_head
from transformer_circuits.measures.repeats import Repeated

PARTS = ("own token", "token before", "earlier tokens", "position")


def after_earlier(tokens: Int[Tensor, "*row pos"]) -> Bool[Tensor, "*row dest src"]:
    """Return whether each source comes right after an earlier occurrence of the destination's token (claims T6, T7)."""
    same = tokens[..., :, None] == tokens[..., None, :]
    return torch.nn.functional.pad(same.tril(-1)[..., :-1], (1, 0))


def last_target(tokens: Int[Tensor, "*row pos"]) -> Int[Tensor, "*row pos"]:
    """Return the position after the last earlier occurrence of each token, -1 for a token that is new."""
    after = after_earlier(tokens)
    return torch.where(after, torch.arange(tokens.shape[-1], device=tokens.device), -1).amax(dim=-1)


def content_by_source(cache: Any) -> Float[Tensor, "part=4 row pos d_model"]:
    """Return what the second layer's queries and keys read, split by the token it came from (PARTS, counted from each position).

    First-layer patterns are those of the cached run. The parts add up to the residual stream plus the position.
    """
    model, pattern = cache.model, cache["pattern", 0]
    n = pattern.shape[-1]
    moved = cache["v", 0].transpose(1, 2) @ model.W_O[0]  # [row, head, source, d_model]
    own = cache["resid_pre", 0] + (pattern.diagonal(dim1=-2, dim2=-1)[..., None] * moved).sum(dim=1)
    before = torch.zeros_like(own)
    before[:, 1:] = (pattern.diagonal(offset=-1, dim1=-2, dim2=-1)[..., None] * moved[:, :, :-1]).sum(dim=1)
    return torch.stack([own, before, cache["resid_pre", 1] - own - before, model.W_pos[:n].expand_as(own)])


def excess_by_source(model: Any, repeated: Repeated, head: int) -> Float[Tensor, "query_part=4 key_part=4"]:
    """Return the mean score of a second-layer head at the induction target minus the mean score of its row, by PARTS of query and key (claim T9).

    A row is all that the destination may attend to. The score is linear in the key, so the mean over a row is the score of the mean
    key, and no matrix of scores is formed. Raises ValueError for a head that does not exist.
    """
    check_head(model, 1, head)
    needed = (("pattern", 0), ("v", 0), ("resid_pre", 0), ("resid_pre", 1))
    names, total = [get_act_name(*name) for name in needed], 0.0
    for part in repeated.batches():
        _, cache = model.run_with_cache(part.tokens, names_filter=names)
        queries, keys = (content_by_source(cache) @ W[1, head] for W in (model.W_Q, model.W_K))
        rows, at, target = part.rows, part.destinations, part.targets
        above = keys[:, rows, target] - keys.cumsum(dim=2)[:, rows, at] / (at + 1)[:, None]
        total = total + torch.einsum("and,bnd->ab", queries[:, rows, at], above)
    return total / len(repeated.targets) / model.cfg.d_head**0.5


def self_match_share(circuit: FactoredMatrix) -> float:
    """Return the fraction of tokens whose largest entry in their row is their own; one in d_vocab at random (chapter 7, next to claim T10)."""
    return self_boost(circuit).top_1
