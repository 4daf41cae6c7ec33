"""Induction heads: where they should look, what their scores are made of, and what hangs on a key.

Paper: "Induction Heads", "How Induction Heads Work", "Checking the Mechanism". From a token that occurred before, such a head attends to
the token after that occurrence, and raises it: [a] [b] ... [a] -> [b].
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformer_lens import FactoredMatrix
from transformer_lens.utilities import get_act_name

from transformer_circuits.circuits.factored import ranks
from transformer_circuits.circuits.heads import BATCH, Head, check_head
from transformer_circuits.training.scores import Repeated

# ---- where an induction head should look ----------------------------------------------------------------------------------


def after_earlier(tokens: Int[Tensor, "*row pos"]) -> Bool[Tensor, "*row dest src"]:
    """True where the source comes right after an earlier occurrence of the destination's token (claims T6, T7)."""
    same = tokens[..., :, None] == tokens[..., None, :]
    return torch.nn.functional.pad(same.tril(-1)[..., :-1], (1, 0))


def last_target(tokens: Int[Tensor, "*row pos"]) -> Int[Tensor, "*row pos"]:
    """The position after the last earlier occurrence of each token; -1 for a token that is new."""
    after = after_earlier(tokens)
    return torch.where(after, torch.arange(tokens.shape[-1], device=tokens.device), -1).amax(dim=-1)


# ---- what its scores are made of --------------------------------------------------------------------------------------------

PARTS = ("own token", "token before", "earlier tokens", "position")


def content_by_source(cache: Any) -> Float[Tensor, "part=4 row pos d_model"]:
    """What the second layer's queries and keys read, split by the token it came from (PARTS, counted from each position).

    First-layer patterns are those of the cached run. The parts add up to the residual stream and the position.
    """
    model, pattern = cache.model, cache["pattern", 0]
    n = pattern.shape[-1]
    moved = cache["v", 0].transpose(1, 2) @ model.W_O[0]  # [row, head, source, d_model]
    own = cache["resid_pre", 0] + (pattern.diagonal(dim1=-2, dim2=-1)[..., None] * moved).sum(dim=1)
    before = torch.zeros_like(own)
    before[:, 1:] = (pattern.diagonal(offset=-1, dim1=-2, dim2=-1)[..., None] * moved[:, :, :-1]).sum(dim=1)
    return torch.stack([own, before, cache["resid_pre", 1] - own - before, model.W_pos[:n].expand_as(own)])


def excess_by_source(model: Any, repeated: Repeated, head: int) -> Float[Tensor, "query_part=4 key_part=4"]:
    """Mean score of a second-layer head at the induction target less the mean score of its row, by PARTS of query and key (claim T9).

    A row is all that the destination may attend to. The score is linear in the key, so the mean over a row is the score of the mean
    key, and no matrix of scores is formed. Raises ValueError for a head that does not exist.
    """
    check_head(model, 1, head)
    total = 0.0
    for part in batches(repeated):
        _, cache = model.run_with_cache(part.tokens, names_filter=_names(("pattern", 0), ("v", 0), ("resid_pre", 0), ("resid_pre", 1)))
        queries, keys = (content_by_source(cache) @ W[1, head] for W in (model.W_Q, model.W_K))
        rows, at, target = part.rows, part.destinations, part.targets
        above = keys[:, rows, target] - keys.cumsum(dim=2)[:, rows, at] / (at + 1)[:, None]
        total = total + torch.einsum("and,bnd->ab", queries[:, rows, at], above)
    return total / len(repeated.targets) / model.cfg.d_head**0.5


def self_match_share(circuit: FactoredMatrix) -> float:
    """Share of tokens whose largest entry in their row is the one with themselves; one in d_vocab at random (chapter 7, beside T10).

    Raises ValueError if the circuit is not square.
    """
    if circuit.ldim != circuit.rdim:
        raise ValueError(f"tokens can match themselves in a square circuit only, not in {circuit.ldim} by {circuit.rdim}")
    every = torch.arange(circuit.ldim, device=circuit.A.device)
    return (ranks(circuit, every, every) == 0).float().mean().item()


# ---- what hangs on a key ----------------------------------------------------------------------------------------------------


class KeyEffects(NamedTuple):
    """For each repeated token: the reader's attention to its target, and the effect on the right logit (nats) of a part of its key."""

    attention: Float[Tensor, " token"]
    ablation: Float[Tensor, " token"]
    gradient: Float[Tensor, " token"]


def key_effects(model: Any, repeated: Repeated, reader: Head, writer: Head, mean: Float[Tensor, " d_head"]) -> KeyEffects:
    """What the right token's logit owes to `writer`'s output in `reader`'s key at the target: by ablation, and by gradient times input.

    The output is measured from its `mean` (a row of `heads.mean_z`). It is taken out of one key at a time, that of the target, and so
    out of one score in each row: a hook on the scores does it for all rows at once (claim T15). For a linear effect both numbers are
    the same. Raises ValueError for heads that do not exist, or if the writer is not in an earlier layer.
    """
    check_head(model, *reader), check_head(model, *writer)
    if writer[0] >= reader[0]:
        raise ValueError(f"head {reader[0]}.{reader[1]} cannot read what a head of layer {writer[0]} writes after it or beside it")
    found = []
    for part in batches(repeated):
        where = (part.rows, part.destinations)
        _, cache = model.run_with_cache(part.tokens, names_filter=_names(("pattern", reader[0]), ("q", reader[0]), ("z", writer[0])))
        output = (cache["z", writer[0]][:, :, writer[1]] - mean) @ model.W_O[writer]
        keys = output[part.rows, part.targets] @ model.W_K[reader]
        score = (cache["q", reader[0]][:, :, reader[1]][where] * keys).sum(dim=-1) / model.cfg.d_head**0.5

        def logit_without(amount: Tensor) -> Tensor:
            def weaken(scores: Tensor, hook: Any) -> Tensor:
                index = (part.rows, torch.full_like(part.rows, reader[1]), part.destinations, part.targets)
                return scores.index_put(index, -amount * score, accumulate=True)

            logits = model.run_with_hooks(part.tokens, fwd_hooks=[(get_act_name("attn_scores", reader[0]), weaken)])
            return logits[(*where, part.tokens[part.rows, part.targets])]

        with torch.enable_grad():
            none = torch.zeros_like(score, requires_grad=True)
            intact = logit_without(none)
            (slope,) = torch.autograd.grad(intact.sum(), none)
        attention = cache["pattern", reader[0]][:, reader[1]][(*where, part.targets)]
        found.append(torch.stack([attention, intact.detach() - logit_without(torch.ones_like(score)), -slope]))
    return KeyEffects(*torch.cat(found, dim=1))


def batches(repeated: Repeated) -> Iterator[Repeated]:
    """A few rows at a time."""
    for rows in torch.arange(len(repeated.tokens)).split(BATCH):
        yield Repeated(repeated.tokens[rows], repeated.start[rows], repeated.length[rows], repeated.copies)


def _names(*parts: tuple[str, int]) -> list[str]:
    return [get_act_name(name, layer) for name, layer in parts]
