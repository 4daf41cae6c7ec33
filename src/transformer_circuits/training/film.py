"""What the slider of the page "Follow a name" shows of a model: a frame at each snapshot of its training, in a file.

A frame depends on the weights alone, and belongs to a row of the log. `models.registry.training_film` reads `film.npz`.
With S snapshots, and texts of n tokens:

text_k              uint16 [n]; text 0: a sentence with made-up names, text 1: random tokens twice
pattern_k           uint8 [S, layer, head, n (n + 1) / 2]: 255 times the attention, in SHADES, row by row, sources up to
                    the destination
top_token_k         uint16 [S, n, 5]: the most likely next tokens
top_probability_k   uint8 [S, n, 5]: 255 times their probability

(The shipped films have steps and scores too, which nothing reads: they are those of the log.)
"""

import io
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Int
from tokenizers import Tokenizer
from torch import Tensor

from transformer_circuits.models.architecture import BOS, ModelConfig, Transformer
from transformer_circuits.training.evaluation import view_of

NAMES = "Old Zorblax met Quennifer at the gate. Zorblax bowed, and Quennifer laughed."
MOST = 48  # tokens of a text at most
SEGMENT = 20  # random tokens that occur twice
TOP = 5
SHADES = 32  # of attention, which compress to half the size of 256

Frame = dict[str, Tensor]


def texts(tokenizer: str | None, held_out: Int[Tensor, "pos"], shape: ModelConfig) -> list[np.ndarray]:
    """Return NAMES (the first held-out tokens, where the text has no tokenizer) and random tokens twice, each after the
    start token. Raises ValueError for a model without layers."""
    if shape.n_layers == 0:
        raise ValueError("film must be false for a model without layers")
    if shape.d_vocab > 1 << 16:
        raise ValueError(f"film must be false for more than 65,536 tokens, got {shape.d_vocab:,}")  # ids are uint16
    sentence = held_out[held_out != BOS].tolist()
    if tokenizer:
        sentence = Tokenizer.from_str(tokenizer).encode(NAMES, add_special_tokens=False).ids
    draws = np.random.default_rng(0).permutation(np.arange(1, shape.d_vocab))
    twice = np.tile(draws[: min(SEGMENT, (shape.n_ctx - 1) // 2)], 2)
    return [np.array([BOS, *text], dtype=np.uint16)[: min(MOST, shape.n_ctx)] for text in (sentence, twice)]


@torch.no_grad()
def frame(model: Transformer, texts: Sequence[np.ndarray]) -> Frame:
    """Return the frame of one snapshot, on the CPU: the patterns of all heads on each text, and the most likely next
    tokens at each of its positions."""
    arrays = {}
    for k, text in enumerate(texts):
        tokens = torch.from_numpy(text.astype(np.int64)).to(model.head.weight.device)[None]
        pattern = view_of(model).patterns(tokens)[:, 0]
        seen = torch.ones(len(text), len(text), dtype=torch.bool, device=pattern.device).tril()
        probability, token = model(tokens)[0].softmax(dim=-1).topk(min(TOP, model.config.d_vocab))
        arrays[f"pattern_{k}"] = as_bytes((pattern[..., seen] * (SHADES - 1)).round() / (SHADES - 1))
        arrays[f"top_token_{k}"] = token.cpu().to(torch.uint16)
        arrays[f"top_probability_{k}"] = as_bytes(probability)
    return arrays


def joined(texts: Sequence[np.ndarray], frames: Sequence[Frame]) -> bytes:
    """Return the content of `film.npz`: equal frames, from a checkpoint or not, give equal bytes."""
    arrays = {f"text_{k}": text for k, text in enumerate(texts)}
    arrays |= {name: np.stack([frame[name].numpy(force=True) for frame in frames]) for name in sorted(frames[0])}
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    return content.getvalue()


def as_bytes(share: Tensor) -> Tensor:
    return (255 * share).round().to(torch.uint8).cpu()
