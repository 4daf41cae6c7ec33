"""Record what the page "Watch it learn" shows of a model: one frame at each snapshot of its training, one file at the
end.

A frame depends on the weights alone. A resumed run therefore ends with the same `film.npz`, byte for byte, as an
uninterrupted one. `models.registry.training_film` reads it. With S snapshots, and texts of n tokens:

step, tokens                          int64 [S], those of the log's rows
text_k                                uint16 [n]; text 0: a sentence with made-up names, text 1: random tokens, repeated
    twice
pattern_k                             uint8 [S, layer, head, n (n + 1) / 2]: 255 times the attention, in SHADES, row by
    row, sources up to the destination
top_token_k, top_probability_k        uint16, uint8 [S, n, 5]: the most likely next tokens, 255 times their probability
eigenvalues                           float16 [S, layer, head, d_head, 2]: of W_E W_V W_O W_U, real and imaginary,
    largest first, in PARTS,
eigenvalue_scale                      float32 [S, layer, head]: divided by the largest absolute value
composition                           float16 [S, 3, reader, writer]: composition ratios of Q, K, V, with two layers
    only
previous_token, rest, induction, positivity   float16 [S, layer, head]: scores of the log's row
"""

import io
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from transformer_circuits.models.architecture import BOS, ModelConfig, Transformer
from transformer_circuits.models.shards import save_arrays, write_atomically
from transformer_circuits.models.tokenizer import tokenizer_of
from transformer_circuits.training import evaluation

NAMES = "Old Zorblax met Quennifer at the gate. Zorblax bowed, and Quennifer laughed."
LONGEST = 48  # tokens of a text at most
SEGMENT = 20  # random tokens that occur twice
TOP = 5
PARTS = 128  # of 1, for eigenvalues
SHADES = 32  # of attention, which compress to half the size of 256
SCORES = ("previous_token", "rest", "induction", "positivity")


def texts(data: Path, held_out: np.ndarray, shape: ModelConfig) -> list[np.ndarray]:
    """Return NAMES (the first held-out tokens, if the corpus has no tokenizer) and random tokens twice, each after the
    start token."""
    sentence = held_out[held_out != BOS]
    if content := tokenizer_of(data, shape.d_vocab):
        sentence = Tokenizer.from_str(content).encode(NAMES, add_special_tokens=False).ids
    longest = min(LONGEST, shape.n_ctx) - 1
    draws = np.random.default_rng(0).permutation(np.arange(1, shape.d_vocab))
    segment = draws[: min(SEGMENT, (shape.n_ctx - 1) // 2)]
    return [np.array([BOS, *text], dtype=np.uint16) for text in (sentence[:longest], np.tile(segment, 2))]


class Film:
    """The frames of one run, in a folder. Raises ValueError for a model whose circuits are not products of its
    matrices."""

    def __init__(self, folder: Path, texts: list[np.ndarray], shape: ModelConfig):
        if not shape.has_plain_circuits or shape.n_layers == 0:
            raise ValueError("film must be false for a model without layers or with more than attention")
        if shape.d_vocab > 1 << 16:
            raise ValueError(f"film must be false for more than 65,536 tokens, got {shape.d_vocab:,}")  # ids are uint16
        self.folder, self.texts = folder, texts
        folder.mkdir(parents=True, exist_ok=True)

    def record(self, step: int, tokens: int, model: Transformer, scores: dict[str, Any]) -> None:
        """Write the frame of one snapshot; `scores` is the row of the log."""
        arrays = {"step": np.int64(step), "tokens": np.int64(tokens)}
        for k, text in enumerate(self.texts):
            arrays |= {f"{name}_{k}": array for name, array in reading(model, text).items()}
        arrays |= circuits(model)
        arrays |= {name: np.array(scores[name], dtype=np.float16) for name in SCORES}
        content = io.BytesIO()
        np.savez(content, **arrays)
        path = self.folder / f"{step:09}.npz"
        write_atomically(path, lambda partial: partial.write_bytes(content.getvalue()))

    def frames(self, steps: Iterable[int]) -> list[dict[str, np.ndarray]]:
        """Return the frames of these snapshots, in order. Raises ValueError for one that is missing or damaged."""
        arrays = []
        for path in [self.folder / f"{step:09}.npz" for step in sorted(steps)]:
            try:
                with np.load(path, allow_pickle=False) as file:
                    arrays.append(dict(file))
            except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
                advice = "restore it, or delete the checkpoint to start over"
                raise ValueError(f"{path} cannot be read ({error}); {advice}") from error
        return arrays

    def joined(self, steps: Iterable[int]) -> bytes:
        """Return the content of `film.npz`, made of the frames of these snapshots."""
        frames = self.frames(steps)
        arrays = {f"text_{k}": text for k, text in enumerate(self.texts)}
        arrays |= {name: np.stack([frame[name] for frame in frames]) for name in frames[0]}
        content = io.BytesIO()
        save_arrays(content, **arrays)
        return content.getvalue()


@torch.no_grad()
def reading(model: Transformer, text: np.ndarray) -> dict[str, np.ndarray]:
    """Return the patterns of all heads on a text, and the most likely next tokens at each of its positions."""
    tokens = torch.from_numpy(text.astype(np.int64)).to(model.head.weight.device)[None]
    pattern = evaluation.attention_patterns(model, tokens)[:, 0]
    seen = torch.ones(len(text), len(text), dtype=torch.bool, device=pattern.device).tril()
    probability, token = model(tokens)[0].softmax(dim=-1).topk(min(TOP, model.config.d_vocab))
    return {
        "pattern": as_bytes((pattern[..., seen] * (SHADES - 1)).round() / (SHADES - 1)),
        "top_token": token.cpu().numpy().astype(np.uint16),
        "top_probability": as_bytes(probability),
    }


def as_bytes(share: Tensor) -> np.ndarray:
    return (255 * share).round().to(torch.uint8).cpu().numpy()


@torch.no_grad()
def circuits(model: Transformer) -> dict[str, np.ndarray]:
    """Return what a frame contains of the weights: eigenvalues of the OV circuits and composition ratios."""
    W = evaluation.head_matrices(model)
    eigenvalues = torch.linalg.eigvals((W["W_O"] @ evaluation.vocabulary_product(model) @ W["W_V"]).double())
    eigenvalues = eigenvalues.gather(-1, eigenvalues.abs().argsort(dim=-1, descending=True, stable=True))
    scale = eigenvalues[..., :1].abs()
    arrays = {
        "eigenvalues": ((torch.view_as_real(eigenvalues / scale) * PARTS).round() / PARTS).numpy().astype(np.float16)
    }
    arrays["eigenvalue_scale"] = scale[..., 0].numpy().astype(np.float32)
    if model.config.n_layers == 2:
        arrays["composition"] = evaluation.composition(W).numpy().astype(np.float16)
    return arrays
