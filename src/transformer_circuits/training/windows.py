"""Windows of packed tokens as a model reads them: in a random order, some without a start token, some with a passage
twice."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

from transformer_circuits.models.architecture import BOS
from transformer_circuits.models.tokenizer import narrow, of_corpus

PASSAGE = (8, 256)  # tokens of a planted passage, at most half of the window


class Windows:
    """Non-overlapping windows of packed tokens, in a new random order every epoch.

    A row is the start token and `n_ctx` tokens of text. In `batch`, a share `without_start` of the rows begin with the
    text's previous token instead, and a share `planted` have a passage copied to a later place. Which rows these are
    depends on the seed and on the row's number in the stream alone. The whole text is read at once, to `device`;
    `digest` identifies it. Where the tokenizer beside it has more tokens than `d_vocab`, the text is cut finer. Raises
    ValueError for a file that is missing, unreadable, too short, or of a larger vocabulary.
    """

    def __init__(
        self,
        path: Path,
        n_ctx: int,
        d_vocab: int,
        seed: int,
        without_start: float = 0.0,
        planted: float = 0.0,
        device: torch.device | None = None,
    ):
        if not path.exists():
            raise ValueError(f"{path} is missing; pass a folder that `make corpus` made (--data)")
        with open(path, "rb") as file:
            self.digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]
            file.seek(0)
            try:
                tokens = np.load(file, allow_pickle=False)
                if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
                    raise ValueError(f"got {tokens.dtype} {list(tokens.shape)}")
            except (ValueError, EOFError) as error:
                raise ValueError(f"{path} is not a readable row of token ids ({error}); make it again") from error
        if tokenizer := of_corpus(path.parent):
            tokens = narrow(tokens, tokenizer, d_vocab)
        if len(tokens) < 2 * n_ctx:  # ablation effects on one window would have no standard error
            raise ValueError(f"{path} must have at least two windows of {n_ctx} tokens, got {len(tokens)}; lower n_ctx")
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= d_vocab:
            raise ValueError(f"token ids must be 0 to {d_vocab - 1}, got {low} to {high} in {path}; set d_vocab")
        if planted and n_ctx < 2 * PASSAGE[0]:
            raise ValueError(f"n_ctx must be at least {2 * PASSAGE[0]} to plant passages, got {n_ctx}; set planted=0")
        self.n_ctx, self.seed, self.without_start, self.planted = n_ctx, seed, without_start, planted
        self.count = len(tokens) // n_ctx
        signed = np.int16 if d_vocab <= 1 << 15 else np.int32  # PyTorch cannot index uint16 on every device
        text = tokens[: self.count * n_ctx].astype(signed).reshape(self.count, n_ctx)
        self.text = torch.from_numpy(text).to(device)
        self.epoch, self.order = -1, np.empty(0, dtype=np.int64)

    def rows(self, windows: Sequence[int]) -> Int[Tensor, "row pos"]:
        """Return windows by number, unchanged: the start token and the text."""
        return F.pad(self.text[list(windows)].long(), (1, 0), value=BOS)

    def window(self, number: int) -> int:
        """Return which window is at this place of the endless stream of shuffled epochs."""
        epoch, place = divmod(number, self.count)
        if epoch != self.epoch:
            self.epoch = epoch
            self.order = np.random.default_rng((self.seed, epoch)).permutation(self.count)
        return int(self.order[place])

    def batch(self, start: int, size: int) -> Int[Tensor, "row pos"]:
        """Return rows start ... start + size of the stream."""
        numbers = range(start, start + size)
        windows = [self.window(number) for number in numbers]
        rows = self.rows(windows)
        if self.without_start or self.planted:
            for number, window, row in zip(numbers, windows, rows):
                self.change(row, window, np.random.default_rng((self.seed, number, 1)))
        return rows

    def change(self, row: Int[Tensor, "pos"], window: int, random: np.random.Generator) -> None:
        """Replace the start token by the text's previous token, and copy a passage to a later place, each by chance."""
        starts_in_text, has_passage = random.random(2) < (self.without_start, self.planted)
        if starts_in_text and window:
            row[0] = self.text[window - 1, -1]
        if has_passage:  # length and places are drawn uniformly
            text, (shortest, longest) = row[1:], PASSAGE
            length = random.integers(shortest, min(longest, len(text) // 2) + 1)
            source = random.integers(len(text) - 2 * length + 1)
            to = random.integers(source + length, len(text) - length + 1)
            text[to : to + length] = text[source : source + length]
