"""What the trainer watches: held-out loss by position, in-context score, and of each head the previous-token, induction and
start-token scores.

Imports only torch and the architecture, so that it runs wherever the trainer does.
"""

from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F
from torch import Tensor

from transformer_circuits.models.architecture import BOS, Transformer


@torch.no_grad()
def losses(model: Transformer, inputs: Tensor, targets: Tensor, batch: int = 8) -> Tensor:
    """Nats per token, shape [window, position]; inputs and targets have the same shape, targets one token ahead."""
    parts = []
    for x, y in zip(inputs.split(batch), targets.split(batch)):
        logits = model(x).float()
        parts.append(F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view(y.shape))
    return torch.cat(parts)


def in_context_score(losses_by_position: Tensor, early: int = 50, late: int = 500, around: int = 10) -> float:
    """Loss at token 500 minus loss at token 50, in nats (Olsson et al. 2022): below zero if later tokens are easier.

    Each is a mean over the positions within `around` of it. For contexts shorter than 512, both move in proportion.
    """
    n = losses_by_position.shape[-1]
    if n < 512:
        early, late, around = early * n // 512, late * n // 512, max(1, around * n // 512)
    mean = losses_by_position.mean(0)
    return float(mean[late - around : late + around].mean() - mean[early - around : early + around].mean())


@dataclasses.dataclass(frozen=True)
class Repeats:
    """Sequences in which a random segment comes twice: `start token, noise, segment, noise, the same segment`.

    Every token is drawn on its own from real text, so that only copying can predict the second segment. Lengths and
    offsets differ from row to row: a fixed distance between the copies could be attended to by position alone.
    """

    tokens: Tensor  # [row, position]
    first: Tensor  # [row], where the first copy starts
    second: Tensor  # [row], where the second copy starts
    length: Tensor  # [row], of the segment

    @classmethod
    def draw(cls, text: Tensor, rows: int, n_ctx: int, seed: int = 0) -> "Repeats":
        """`text` is a flat tensor of token ids to draw from. Raises ValueError if the context is too short."""
        if n_ctx < 16:
            raise ValueError(f"a repeated segment needs a context of at least 16 tokens, not {n_ctx}")
        generator = torch.Generator().manual_seed(seed)

        def integers(low: int, high: int) -> int:  # low <= n < high
            return int(torch.randint(low, high, (), generator=generator))

        text = text[text != BOS]
        tokens = text[torch.randint(len(text), (rows, n_ctx), generator=generator)].long()
        tokens[:, 0] = BOS
        first, second, length = [], [], []
        for row in tokens:
            n = integers(n_ctx // 8, n_ctx // 3)
            one = integers(1, n_ctx - 2 * n)
            two = integers(one + n, n_ctx - n + 1)
            row[two : two + n] = row[one : one + n]
            first.append(one), second.append(two), length.append(n)
        return cls(tokens, torch.tensor(first), torch.tensor(second), torch.tensor(length))

    def ceiling(self) -> float:
        """The mean induction score of a head that attends, in equal parts, to what followed each earlier copy of its token."""
        shares = []
        for row, second, n in zip(self.tokens, self.second.tolist(), self.length.tolist()):
            shares += [1 / float((row[:place] == row[place]).sum()) for place in range(second, second + n - 1)]
        return sum(shares) / len(shares)


@torch.no_grad()
def attention_patterns(model: Transformer, tokens: Tensor) -> Tensor:
    """[layer, row, head, destination, source]."""
    (residual, positions), patterns = model.start(tokens), []
    for block in model.layers:
        patterns.append(block.attn(block.ln1(residual), positions=positions, pattern_fn=lambda p: p)[1])
        (residual,) = block(residual, positions=positions)
    return torch.stack(patterns)


def previous_token_scores(patterns: Tensor) -> Tensor:
    """Mean attention to the token before, [layer, head]. Positions 0 and 1 are left out: they see little else."""
    return patterns.diagonal(offset=-1, dim1=-2, dim2=-1)[..., 1:].mean(dim=(1, 3))


def start_token_scores(patterns: Tensor) -> Tensor:
    """Mean attention to the start token from all positions after it, [layer, head]: near one for a head at rest."""
    return patterns[..., 1:, 0].mean(dim=(1, 3))


def induction_scores(patterns: Tensor, repeats: Repeats) -> Tensor:
    """Mean attention from each token of the second copy to the one that followed it in the first, [layer, head].

    The last token of the copy is left out: what follows the first copy is noise.
    """
    rows = []
    for row in range(len(repeats.tokens)):
        steps = torch.arange(int(repeats.length[row]) - 1, device=patterns.device)
        destinations, sources = int(repeats.second[row]) + steps, int(repeats.first[row]) + steps + 1
        rows.append(patterns[:, row, :, destinations, sources].mean(-1))
    return torch.stack(rows).mean(0)
