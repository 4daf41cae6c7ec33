"""How well a model predicts: losses, first guesses, and by how much the context before a token reduces the loss."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from tqdm.auto import tqdm

# rows run together on a CPU: patterns of 12 heads at 512 tokens take 25 MB; the system zeroes larger tensors each time
BATCH = 2
ROW_BYTES = 1 << 28  # of a GPU's free memory for each row: logits of 50,000 tokens at 512 positions take 100 MB

# Thresholds of claims about losses.
HALF = 0.5  # T8: of the attention, of the first guesses, of the loss of a uniform guess
VIRTUAL = 0.15  # T11: what virtual heads reduce the loss by, as a fraction of what single heads do
HELPS = 0.2  # W1: nats by which the in-context scores of one and two layers differ

# Windows of held-out text that a measure reads, by the standard error that they give.
IN_CONTEXT_WINDOWS = 1768  # all there are: 0.03 nats for an in-context score (W1), 0.02 for that of two models
LENS_WINDOWS = 32  # every fourth position: 0.05 nats for the fall of the loss from one layer to the next (W9)

# Token ids [row, pos] -> logits [row, pos, d_vocab]: a plain transformer or a hooked one.
Model = Callable[[Tensor], Tensor]


def batch_size(device: torch.device) -> int:
    """Return how many rows to run together on a device."""
    if device.type == "cuda":
        return max(BATCH, torch.cuda.mem_get_info(device)[0] // ROW_BYTES)
    return BATCH


@torch.no_grad()
def losses_and_guesses(
    model: Model, rows: Int[Tensor, "row pos"], ends: Int[Tensor, " row"] | None = None
) -> tuple[Tensor, Tensor]:
    """Return, [row, pos-1], the loss (nats) at each token after the first, and whether it is the first guess.

    `ends`: how many tokens of each row matter; what follows costs no time, and its losses mean nothing.
    """
    # Made beforehand: small results between large temporary ones would keep the heap from being reused.
    found, right = None, torch.zeros(rows[:, 1:].shape, dtype=torch.bool, device=rows.device)
    ends = torch.full_like(rows[:, 0], rows.shape[1]) if ends is None else ends
    parts = ends.argsort(stable=True).split(batch_size(rows.device))
    for part in tqdm(parts, desc="losses", leave=False, delay=2):
        tokens = rows[part, : ends[part].max()]
        logits, targets = model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()
        logits = logits.float() if logits.dtype.itemsize == 2 else logits
        if found is None:
            found = logits.new_zeros(right.shape)
        # One row per token: eight times as fast on CPUs as [row, d_vocab, pos].
        of_part = F.cross_entropy(logits, targets, reduction="none")
        found[part, : tokens.shape[1] - 1] = of_part.view(len(part), -1)
        right[part, : tokens.shape[1] - 1] = (logits.argmax(dim=-1) == targets).view(len(part), -1)
    return found, right


def losses(model: Model, rows: Int[Tensor, "row pos"]) -> Float[Tensor, "row pos-1"]:
    """Return the loss (nats) at each token after the first."""
    return losses_and_guesses(model, rows)[0]


def in_context_places(n: int) -> tuple[Int[Tensor, " early"], Int[Tensor, " late"]]:
    """Return which of n losses of a window the in-context score compares: those within 10 of position 50, and of 500.
    For contexts shorter than 512, all move in proportion."""
    early, late, around = 50, 500, 10
    if n < 511:
        early, late, around = max(1, 50 * n // 512), 500 * n // 512, max(1, 10 * n // 512)
    places = torch.arange(n)
    return places[max(0, early - around) : early + around], places[max(0, late - around) : late + around]


def in_context_score(losses_by_position: Float[Tensor, "row pos"]) -> float:
    """Return the loss at token 500 minus that at token 50 (`in_context_places`), in nats (Olsson et al. 2022)."""
    mean = losses_by_position.mean(0)
    early, late = in_context_places(len(mean))
    return float(mean[late].mean() - mean[early].mean())
