"""What the trainer watches and the chapters use: repeated random tokens, and each head's scores.

One definition each. Imports only torch and the architecture, so that it runs wherever the trainer does.
"""

from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F
from torch import Tensor

from transformer_circuits.models.architecture import BOS, Transformer

# ---- on text ------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def losses(model: Transformer, rows: Tensor, batch: int = 8) -> Tensor:
    """Nats at predicting each token after the first, [row, position - 1]."""
    parts = []
    for tokens in rows.split(batch):
        logits = model(tokens[:, :-1]).float()
        parts.append(F.cross_entropy(logits.mT, tokens[:, 1:], reduction="none"))
    return torch.cat(parts)


def in_context_score(losses_by_position: Tensor, early: int = 50, late: int = 500, around: int = 10) -> float:
    """Loss at token 500 minus loss at token 50, in nats (Olsson et al. 2022): below zero if later tokens are easier.

    Each is a mean over the positions within `around` of it. For contexts shorter than 512, both move in proportion.
    """
    n = losses_by_position.shape[-1]
    if n < 511:
        early, late, around = early * n // 512, late * n // 512, max(1, around * n // 512)
    mean = losses_by_position.mean(0)
    return float(mean[late - around : late + around].mean() - mean[early - around : early + around].mean())


def previous_token_score(patterns: Tensor) -> Tensor:
    """Mean attention to the token before, patterns [..., head, destination, source] -> [..., head].

    Destinations 0 and 1 are left out: they see little else. Take its mean over held-out text.
    """
    return patterns.diagonal(offset=-1, dim1=-2, dim2=-1)[..., 1:].mean(dim=-1)


def start_token_score(patterns: Tensor) -> Tensor:
    """Mean attention to the start token from the positions after it; a head with 0.95 or more is at rest."""
    return patterns[..., 1:, 0].mean(dim=-1)


# ---- on random tokens that repeat ---------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Repeated:
    """Rows of `start token, noise, s, s, s, noise`: a segment s of random tokens, several times over.

    Its tokens and those of the noise before it all differ, so that nothing but the earlier copies predicts a later one. Lengths
    and offsets differ from row to row: a head that looks a fixed number of tokens back is right in few rows.
    """

    tokens: Tensor  # [row, position]
    start: Tensor  # [row], where the first copy begins
    length: Tensor  # [row], of the segment
    copies: int

    def _steps(self, first_copy: int, skip: int = 0) -> tuple[Tensor, Tensor]:
        """(row, position) of the tokens of copies `first_copy` and on, the first `skip` of each copy left out."""
        steps = torch.arange(self.tokens.shape[1], device=self.tokens.device) - self.start[:, None]
        inside = (steps >= first_copy * self.length[:, None]) & (steps < self.copies * self.length[:, None])
        row, position = (inside & (steps % self.length[:, None] >= skip)).nonzero(as_tuple=True)
        return row, position

    @property
    def rows(self) -> Tensor:
        """Of every repeated token, those of copies two and on: its row."""
        return self._steps(1)[0]

    @property
    def destinations(self) -> Tensor:
        """Of every repeated token, its position."""
        return self._steps(1)[1]

    @property
    def targets(self) -> Tensor:
        """Of every repeated token, the position after its last occurrence: where an induction head looks."""
        row, position = self._steps(1)
        return position - self.length[row] + 1

    def by_copy(self, losses: Tensor) -> Tensor:
        """Mean loss in each copy, [copy], its first token left out. `losses` [row, position - 1], as `losses` gives them."""
        row, position = self._steps(0, skip=1)
        copy = (position - self.start[row]) // self.length[row]
        found = losses[row, position - 1]
        return torch.stack([found[copy == c].mean() for c in range(self.copies)])

    def to(self, device: torch.device | str) -> Repeated:
        moved = {name: getattr(self, name).to(device) for name in ("tokens", "start", "length")}
        return dataclasses.replace(self, **moved)


def repeated_random_tokens(
    d_vocab: int, n_ctx: int, rows: int = 30, copies: int = 3, shortest: int = 20, seed: int = 0, frequency: Tensor | None = None
) -> Repeated:
    """Segments of `shortest` to n_ctx / copies tokens, drawn uniformly and without replacement, each several times over.

    `frequency` [d_vocab]: draw tokens in these proportions instead. The start token comes first and is never drawn.
    Raises ValueError for fewer than two copies, or if the context or the vocabulary is too small.
    """
    weights = torch.ones(d_vocab) if frequency is None else frequency.float().cpu().clone()
    weights[BOS] = 0
    different = int((weights > 0).sum())
    longest = min((n_ctx - 1) // copies, different) if copies > 1 else 0
    if longest < shortest:
        raise ValueError(
            f"two or more copies of {shortest} different tokens are needed: {copies} copies do not fit a context of {n_ctx}, "
            f"or there are too few tokens to draw from ({different})"
        )
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.multinomial(weights.expand(rows, -1), n_ctx, replacement=True, generator=generator)  # all noise
    tokens[:, 0] = BOS
    starts, lengths = [], []
    for row in tokens:
        length = int(torch.randint(shortest, longest + 1, (), generator=generator))
        free = min(n_ctx - 1 - copies * length, different - length)
        before = int(torch.randint(free + 1, (), generator=generator))
        drawn = torch.multinomial(weights, before + length, generator=generator)
        row[1 : 1 + before + copies * length] = torch.cat([drawn[:before], drawn[before:].repeat(copies)])
        starts.append(1 + before), lengths.append(length)
    return Repeated(tokens, torch.tensor(starts), torch.tensor(lengths), copies)


def induction_score(patterns: Tensor, repeated: Repeated) -> Tensor:
    """Mean attention from a repeated token to the one after its last occurrence; [row, head, destination, source] -> [head]."""
    if patterns.shape[-1] != repeated.tokens.shape[1]:
        raise ValueError(f"patterns of {patterns.shape[-1]} positions are not those of {repeated.tokens.shape[1]} tokens")
    return patterns[repeated.rows, :, repeated.destinations, repeated.targets].mean(dim=0)


# ---- in the weights, and with frozen patterns ----------------------------------------------------------------------------


def positivity(first: Tensor, second: Tensor) -> Tensor:
    """Sum of the eigenvalues of `first @ second` over the sum of their moduli: 1 if all are positive, 0 at random.

    first [..., large, small], second [..., small, large]: the eigenvalues are those of the small product the other way round.
    """
    values = torch.linalg.eigvals((second @ first).double())
    return (values.real.sum(dim=-1) / values.abs().sum(dim=-1)).float()


def head_matrices(model: Transformer) -> dict[str, Tensor]:
    """W_Q, W_K, W_V [layer, head, d_model, d_head] and W_O [layer, head, d_head, d_model] of the plain module."""
    shape = (model.config.n_layers, model.config.n_heads, model.config.d_head, model.config.d_model)
    out_in = {part: torch.stack([getattr(block.attn, part).weight.detach().float() for block in model.layers]) for part in "qkvo"}
    reads = {f"W_{part.upper()}": out_in[part].reshape(shape).mT for part in "qkv"}
    return reads | {"W_O": out_in["o"].mT.reshape(shape)}


@torch.no_grad()
def attention_patterns(model: Transformer, tokens: Tensor) -> Tensor:
    """[layer, row, head, destination, source]."""
    (residual, positions), patterns = model.start(tokens), []
    for block in model.layers:
        patterns.append(block.attn(block.ln1(residual), positions=positions, pattern_fn=lambda p: p)[1])
        (residual,) = block(residual, positions=positions)
    return torch.stack(patterns)


@torch.no_grad()
def losses_by_order(model: Transformer, rows: Tensor) -> list[float]:
    """Mean loss with patterns frozen and only paths through at most 0, 1, ... heads (term importance, claim T11)."""
    patterns = attention_patterns(model, rows[:, :-1])
    embedding = model.tok_embed(rows[:, :-1])
    orders = [embedding]  # of order n: what all paths through exactly n heads have written so far
    for block, pattern in zip(model.layers, patterns):
        attn = block.attn
        heads = (attn.n_heads, attn.d_head)
        moved = [attn.o((pattern @ attn.v(x).unflatten(-1, heads).transpose(1, 2)).transpose(1, 2).flatten(-2)) for x in orders]
        orders = [a + b for a, b in zip([*orders, 0.0], [0.0, *moved])]
    found = []
    for n in range(len(orders)):
        logits = model.head(sum(orders[: n + 1])).float()
        found.append(float(F.cross_entropy(logits.mT, rows[:, 1:])))
    return found
