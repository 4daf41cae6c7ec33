"""Windows of packed tokens as a model reads them: in a random order, some without a start token, some with a passage
twice."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from transformer_circuits.models.architecture import BOS

PASSAGE = (8, 256)  # tokens of a planted passage, at most half of the window


class Windows:
    """Non-overlapping windows of packed tokens, in a new random order every epoch.

    A row is the start token and `n_ctx` tokens of text. In `batch`, a share `without_start` of the rows begin with the
    text's previous token instead, and a share `planted` have a passage copied to a later place. Which rows these are
    depends on the seed and on the row's number in the stream alone. With `resident`, the whole text is on that device,
    and so are the rows, unless some are changed: a step then waits for no copy from the host. Raises ValueError for a
    file that is missing, unreadable, too short, or of a larger vocabulary.
    """

    def __init__(
        self,
        path: Path,
        n_ctx: int,
        d_vocab: int,
        seed: int,
        without_start: float = 0,
        planted: float = 0,
        resident: torch.device | None = None,
    ):
        make = f"make it with `python -m book_tools.corpus --out {path.parent}`"
        if not path.exists():
            raise ValueError(f"{path} is missing; {make}")
        try:
            tokens = self.tokens = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise ValueError(f"{path} is not a readable array of tokens ({error}); {make}") from error
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            raise ValueError(f"{path} must be a row of token ids, got {tokens.dtype} {list(tokens.shape)}; {make}")
        if len(tokens) < n_ctx:
            raise ValueError(f"{path} must have at least one window of {n_ctx} tokens, got {len(tokens)}; lower n_ctx")
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= d_vocab:
            raise ValueError(f"token ids must be 0 to {d_vocab - 1}, got {low} to {high} in {path}; set d_vocab")
        if planted and n_ctx < 2 * PASSAGE[0]:
            raise ValueError(f"n_ctx must be at least {2 * PASSAGE[0]} to plant passages, got {n_ctx}; set planted=0")
        self.n_ctx, self.seed, self.without_start, self.planted = n_ctx, seed, without_start, planted
        self.count = len(tokens) // n_ctx
        self.text = tokens[: self.count * n_ctx].reshape(self.count, n_ctx)
        self.epoch, self.order = -1, np.empty(0, dtype=np.int64)
        self.resident = self.resident_order = None
        if resident and not (without_start or planted):
            integers = np.int16 if d_vocab <= 1 << 15 else np.int32  # PyTorch cannot index uint16 on every device
            self.resident = torch.from_numpy(self.text.astype(integers)).to(resident)

    def rows(self, windows: Sequence[int] | np.ndarray) -> Tensor:
        """Return windows by number, unchanged: the start token and the text."""
        return torch.from_numpy(np.insert(self.text[windows].astype(np.int64), 0, BOS, axis=1))

    def batch(self, start: int, size: int) -> Tensor:
        """Return rows start ... start + size of the endless stream of shuffled epochs."""
        numbers, parts = range(start, start + size), []
        while size:
            epoch, place = divmod(start, self.count)
            if epoch != self.epoch:
                self.epoch = epoch
                self.order = np.random.default_rng((self.seed, epoch)).permutation(self.count)
                if self.resident is not None:
                    self.resident_order = torch.from_numpy(self.order).to(self.resident.device)
            order = self.order if self.resident is None else self.resident_order
            parts.append(order[place : place + size])
            start, size = start + len(parts[-1]), size - len(parts[-1])
        if self.resident is not None:
            return F.pad(self.resident[torch.cat(parts)].long(), (1, 0), value=BOS)
        windows = np.concatenate(parts)
        rows = self.rows(windows)
        if self.without_start or self.planted:
            for number, window, row in zip(numbers, windows.tolist(), rows):
                self.change(row, window, np.random.default_rng((self.seed, number, 1)))
        return rows

    def change(self, row: Tensor, window: int, random: np.random.Generator) -> None:
        """Replace the start token by the text's previous token, and copy a passage to a later place, each by chance."""
        starts_in_text, has_passage = random.random(2) < (self.without_start, self.planted)
        if starts_in_text and window:
            row[0] = int(self.text[window - 1, -1])
        if has_passage:  # length and places are drawn uniformly
            text, (shortest, longest) = row[1:], PASSAGE
            length = random.integers(shortest, min(longest, len(text) // 2) + 1)
            source = random.integers(len(text) - 2 * length + 1)
            to = random.integers(source + length, len(text) - length + 1)
            text[to : to + length] = text[source : source + length]
