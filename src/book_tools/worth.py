"""What a head's attention is worth on windows of text, and what is left of it with another pattern (claims T16, T18,
T20)."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.utilities import get_act_name

from transformer_circuits.circuits import matches
from transformer_circuits.measures import estimates
from transformer_circuits.models.view import BATCH


def pair(estimate: tuple[Tensor, Tensor]) -> list[float]:
    """Return an estimate and its standard error as the records hold them."""
    return [round(float(x), 5) for x in estimate]


class Text(NamedTuple):
    """Windows of text on which a head's pattern can be replaced: its values, and the logits without what it writes."""

    tokens: Int[Tensor, "row pos"]
    following: Int[Tensor, "row pos"]
    pattern: Float[Tensor, "row dest src"]
    values: Float[Tensor, "row pos d_head"]
    logits: Float[Tensor, "row pos d_vocab"]
    writes: Float[Tensor, "d_head d_vocab"]

    def losses(self, pattern: Float[Tensor, "row dest src"]) -> Float[Tensor, " row"]:
        """Return each window's mean loss (nats) if the head attends like this."""
        return torch.stack([self._loss(row, A @ self.values[row]) for row, A in enumerate(pattern)])

    def losses_without(self) -> Float[Tensor, " row"]:
        """Return each window's mean loss if the head's z is replaced by its mean over these windows and positions."""
        mean = (self.pattern @ self.values).mean(dim=(0, 1), keepdim=True)[0]
        return torch.stack([self._loss(row, mean) for row in range(len(self.tokens))])

    def _loss(self, row: int, z: Float[Tensor, "pos d_head"]) -> Tensor:
        return torch.nn.functional.cross_entropy(self.logits[row] + z @ self.writes, self.following[row])

    def select(self, rows: slice) -> Text:
        return Text(*(part[rows] for part in self[:-1]), self.writes)


@torch.no_grad()
def on_text(model: Any, windows: Int[Tensor, "row pos"], head: int) -> Text:
    """Return windows of text as one head of the second layer sees them."""
    names = [get_act_name(name, 1) for name in ("pattern", "v", "resid_post")]
    found = []
    for rows in windows.split(BATCH):
        _, cache = model.run_with_cache(rows[:, :-1], names_filter=names)
        A, v, stream = (cache[name] for name in names)
        A, v = A[:, head], v[:, :, head]
        found.append((A, v, (stream - A @ v @ model.W_O[1, head]) @ model.W_U))
    parts = [torch.cat(part) for part in zip(*found)]
    return Text(windows[:, :-1], windows[:, 1:], *parts, model.W_O[1, head] @ model.W_U)


class Worth:
    """What a head's attention is worth on windows of text, and what is left of it with another pattern."""

    def __init__(self, text: Text) -> None:
        self.text, self.without, self.intact = text, text.losses_without(), text.losses(text.pattern)

    def kept(self, pattern: Tensor) -> list[float]:
        return pair(estimates.ratio(self.without - self.text.losses(pattern), self.without - self.intact))

    def with_parts(self, parts: matches.Parts, mask: Tensor) -> list[float]:
        rows = range(parts.queries.shape[1])
        return self.kept(matches.attend(torch.stack([matches.scores(parts, mask, row) for row in rows])))


def scrubbed(parts: matches.Parts, mask: Tensor, worth: Worth) -> list[float]:
    """Return the loss recovered by causal scrubbing: all pairs but those of `mask` are computed on another window. The
    zero is a head all of whose scores come from another window."""
    n_rows = parts.queries.shape[1]
    everything = torch.ones_like(mask)
    own, other = [], []
    for row in range(n_rows):
        elsewhere = (row + 1) % n_rows
        other.append(matches.scores(parts, everything, elsewhere))
        rest = matches.scores(parts, everything - mask, elsewhere)
        own.append(matches.scores(parts, mask, row) + rest)
    random = worth.text.losses(matches.attend(torch.stack(other)))
    mine = worth.text.losses(matches.attend(torch.stack(own)))
    return pair(estimates.ratio(random - mine, random - worth.intact))
