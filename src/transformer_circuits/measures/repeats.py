"""Tokens that occur again: where induction heads should attend, and text that shows it (paper: "Induction Heads")."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transformer_circuits.models.architecture import BOS

SHORTEST = 20  # tokens of the shortest segment
# Independent draws that every reported induction score averages over, and rows of each; error: at most 0.01.
DRAWS, ROWS = 4, 16


def row_length(n_ctx: int) -> int:
    """Return the tokens of a row on which a model is measured: its context, or 256 for contexts over 512."""
    return n_ctx if n_ctx <= 512 else 256


class Repeated(NamedTuple):
    """Rows of `start token, before, segment, segment, after`. Lengths and offsets differ.

    Of random tokens, those before the segment and in it all differ, so that only the first copy predicts the second.
    """

    tokens: Int[Tensor, "row pos"]
    start: Int[Tensor, " row"]  # where the first copy begins
    length: Int[Tensor, " row"]  # of the segment

    def _inside(self, copy: int, skip: int = 0) -> tuple[Int[Tensor, " token"], Int[Tensor, " token"]]:
        """Return (row, position) of the tokens of one copy, its first `skip` tokens left out."""
        places = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        steps = places - (self.start + copy * self.length)[:, None]
        return ((steps >= skip) & (steps < self.length[:, None])).nonzero(as_tuple=True)

    @property
    def ends(self) -> Int[Tensor, " row"]:
        """Where the second copy of each row has ended: the position after its last token."""
        return self.start + 2 * self.length

    @property
    def rows(self) -> Int[Tensor, " token"]:
        """The row of each token of the second copies."""
        return self._inside(1)[0]

    @property
    def destinations(self) -> Int[Tensor, " token"]:
        """The position of each token of the second copies."""
        return self._inside(1)[1]

    @property
    def targets(self) -> Int[Tensor, " token"]:
        """For each token of the second copies, the position after its first one: where induction heads attend."""
        row, position = self._inside(1)
        return position - self.length[row] + 1

    def by_copy(self, values: Float[Tensor, "row predicted"]) -> Float[Tensor, "copy=2"]:
        """Return the mean over each copy of a value per predicted token; its first token is left out."""
        copies = (self._inside(copy, skip=1) for copy in range(2))
        return torch.stack([values[row, position - 1].mean() for row, position in copies])

    def select(self, rows: Int[Tensor, " n"]) -> Repeated:
        """Return some of the rows."""
        return Repeated(*(part[rows] for part in self))

    def to(self, device: torch.device | str) -> Repeated:
        return Repeated(*(part.to(device) for part in self))


def repeated_random_tokens(
    d_vocab: int,
    n_ctx: int,
    rows: int = ROWS,
    shortest: int | None = None,
    seed: int = 0,
    frequency: Float[Tensor, " d_vocab"] | None = None,
    start: int = BOS,
) -> Repeated:
    """Draw segments of `shortest` to (n_ctx - 1) / 2 different tokens, and write each twice in a row of n_ctx tokens.

    `shortest`: SHORTEST if None, or less in a small context or vocabulary. `frequency`: proportions of tokens. The
    `start` token comes first and is never drawn. Raises ValueError if two copies do not fit.
    """
    weights = torch.ones(d_vocab) if frequency is None else frequency.float().cpu().clone()
    if start < len(weights):
        weights[start] = 0
    different = int((weights > 0).sum())
    longest = min((n_ctx - 1) // 2, different)
    shortest = max(1, min(SHORTEST, longest)) if shortest is None else shortest
    if not 0 < shortest <= longest:
        got = f"a context of {n_ctx} and {different} tokens to draw from"
        raise ValueError(f"two copies of {shortest} different tokens must fit, got {got}")
    generator = torch.Generator().manual_seed(seed)
    # Noise alone at first; the copies follow below.
    tokens = torch.multinomial(weights.expand(rows, -1), n_ctx, replacement=True, generator=generator)
    tokens[:, 0] = start
    places = []  # of each row: where the first copy begins, and its length
    for row in tokens:
        length = int(torch.randint(shortest, longest + 1, (), generator=generator))
        free = min(n_ctx - 1 - 2 * length, different - length)
        before = int(torch.randint(free + 1, (), generator=generator))
        drawn = torch.multinomial(weights, before + length, generator=generator)
        row[1 : 1 + before + 2 * length] = torch.cat([drawn, drawn[before:]])
        places.append((1 + before, length))
    return Repeated(tokens, *torch.tensor(places).T)


def after_earlier(tokens: Int[Tensor, "*row pos"]) -> Bool[Tensor, "*row dest src"]:
    """Return whether each source comes right after an earlier occurrence of the destination's token (claims T6, T7)."""
    same = tokens[..., :, None] == tokens[..., None, :]
    return torch.nn.functional.pad(same.tril(-1)[..., :-1], (1, 0))


def last_target(tokens: Int[Tensor, "*row pos"]) -> Int[Tensor, "*row pos"]:
    """Return the position after the last earlier occurrence of each token, -1 for a token that is new."""
    after = after_earlier(tokens)
    return torch.where(after, torch.arange(tokens.shape[-1], device=tokens.device), -1).amax(dim=-1)
