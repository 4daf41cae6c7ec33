"""What a head's attention is worth on windows of text, and what is left of it with another pattern (claims T16, T18,
T20)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformer_lens.utilities import get_act_name

from transformer_circuits.circuits import matches
from transformer_circuits.measures import estimates
from transformer_circuits.models.view import BATCH


def pair(estimate: tuple[Tensor, Tensor]) -> list[float]:
    """Return an estimate and its standard error as the records hold them."""
    return [round(float(x), 5) for x in estimate]


def of_rows(parts: matches.Parts, mask: Float[Tensor, "query key"]) -> Float[Tensor, "row dest src"]:
    """Return the attention scores of every row, from these pairs of parts alone."""
    return torch.stack([matches.scores_with(parts, mask, row) for row in range(parts.keys.shape[1])])


@dataclass
class Worth:
    """Windows of text on which the pattern of one head of the second layer can be replaced, and its loss there (nats,
    of each window) with other patterns. `values` are the head's, `logits` lack what it writes, `writes` is W_O W_U."""

    tokens: Int[Tensor, "row pos"]
    following: Int[Tensor, "row pos"]
    pattern: Float[Tensor, "row dest src"]
    values: Float[Tensor, "row pos d_head"]
    logits: Float[Tensor, "row pos d_vocab"]
    writes: Float[Tensor, "d_head d_vocab"]

    @classmethod
    @torch.no_grad()
    def of(cls, model: Any, windows: Int[Tensor, "row pos"], head: int) -> Worth:
        names = [get_act_name(name, 1) for name in ("pattern", "v", "resid_post")]
        found = []
        for rows in windows.split(BATCH):
            _, cache = model.run_with_cache(rows[:, :-1], names_filter=names)
            A, v, stream = (cache[name] for name in names)
            A, v = A[:, head], v[:, :, head]
            found.append((A, v, (stream - A @ v @ model.W_O[1, head]) @ model.W_U))
        parts = [torch.cat(part) for part in zip(*found)]
        return cls(windows[:, :-1], windows[:, 1:], *parts, model.W_O[1, head] @ model.W_U)

    def losses(self, pattern: Float[Tensor, "row dest src"]) -> Float[Tensor, " row"]:
        """Return the losses if the head attends like this."""
        return torch.stack([self._loss(row, A @ self.values[row]) for row, A in enumerate(pattern)])

    @cached_property
    def intact(self) -> Float[Tensor, " row"]:
        return self.losses(self.pattern)

    @cached_property
    def without(self) -> Float[Tensor, " row"]:
        """The losses if the head's z is replaced by its mean over these windows and positions."""
        mean = (self.pattern @ self.values).mean(dim=(0, 1), keepdim=True)[0]
        return torch.stack([self._loss(row, mean) for row in range(len(self.tokens))])

    def _loss(self, row: int, z: Float[Tensor, "pos d_head"]) -> Tensor:
        return cross_entropy(self.logits[row] + z @ self.writes, self.following[row])

    def kept(self, pattern: Float[Tensor, "row dest src"]) -> list[float]:
        """Return which fraction of the head's worth is left if it attends like this."""
        return pair(estimates.ratio(self.without - self.losses(pattern), self.without - self.intact))

    def with_parts(self, parts: matches.Parts, mask: Float[Tensor, "query key"]) -> list[float]:
        """Return which fraction is left if only these pairs of parts are compared."""
        return self.kept(matches.causal_softmax(of_rows(parts, mask)))

    def scrubbed(self, parts: matches.Parts, mask: Float[Tensor, "query key"]) -> list[float]:
        """Return the loss recovered by causal scrubbing: all pairs but those of `mask` are computed on another window.
        The zero is a head all of whose scores come from another window."""
        everything = torch.ones_like(mask)
        elsewhere, rest = (of_rows(parts, pairs).roll(-1, dims=0) for pairs in (everything, everything - mask))
        random = self.losses(matches.causal_softmax(elsewhere))
        mine = self.losses(matches.causal_softmax(of_rows(parts, mask) + rest))
        return pair(estimates.ratio(random - mine, random - self.intact))
