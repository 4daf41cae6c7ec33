"""The book's own data: tokenizer, held-out text, bigram counts of the training text, passages, small trainings."""

import contextlib
import functools
import json
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from safetensors.torch import load_file
from scipy import sparse
from tokenizers import Tokenizer
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from transformer_circuits.models.architecture import BOS
from transformer_circuits.models.shards import full_precision
from transformer_circuits.models.tokenizer import as_pretrained, narrow
from transformer_circuits.paths import data_file, did_you_mean

D_VOCAB = 4096  # of the family's tokenizer
SMALL_RUNS = "small_runs.safetensors"
SHORTEST_TEXT = 10_000  # characters of a reader's text, of which chapter 19 reads 16 windows


def load_tokenizer() -> PreTrainedTokenizerFast:
    """Return the family's tokenizer: byte-level BPE, 4,096 tokens, token 0 `<|start|>`, which it puts first."""
    return as_pretrained(data_file("tokenizer.json"))


@functools.cache
def vocabulary() -> tuple[str, ...]:
    """Return the string of every token, by id. Bytes that are no text alone appear as the replacement character."""
    tokenizer = load_tokenizer()
    return tuple(tokenizer.batch_decode([[i] for i in range(len(tokenizer))]))


@functools.cache
def held_out_tokens(d_vocab: int = D_VOCAB) -> np.ndarray:
    """Return all held-out documents, one after another, each with the start token first."""
    tokens = np.load(data_file("held_out.npz"))["tokens"]
    tokenizer = json.loads(data_file("tokenizer.json").read_text(encoding="utf8"))
    return narrow(tokens, tokenizer, d_vocab)


def held_out_windows(n: int, n_ctx: int, d_vocab: int = D_VOCAB) -> Int[Tensor, "window pos"]:
    """Return `n` windows of held-out text, evenly spaced: the start token, then `n_ctx` tokens; pos = n_ctx + 1.

    A smaller vocabulary (`models.tokenizer`) reads the same text cut finer. Raises ValueError if there is not so much.
    """
    tokens = held_out_tokens(d_vocab)
    available = len(tokens) // n_ctx if n_ctx > 0 else 0
    if not 0 < n <= available:
        raise ValueError(f"the held-out text holds 1 to {available} windows of {n_ctx} tokens, not {n}")
    windows = tokens[: available * n_ctx].reshape(available, n_ctx)
    rows = windows[np.linspace(0, available - 1, n).astype(int)].astype(np.int64)
    return torch.from_numpy(np.insert(rows, 0, BOS, axis=1))


def held_out_documents() -> list[tuple[dict[str, str | int], Int[Tensor, "pos"]]]:
    """Return every held-out document with its source, kind, path and number of tokens; the start token comes first."""
    listing = json.loads(data_file("held_out_documents.json").read_text())
    parts = np.split(held_out_tokens(), np.cumsum([row["tokens"] for row in listing])[:-1])
    return [(row, torch.from_numpy(part.astype(np.int64))) for row, part in zip(listing, parts, strict=True)]


@functools.cache
def bigram_counts() -> sparse.csr_array:
    """Return how often each token (a row) is followed by each other one (a column) in the training text."""
    stored = np.load(data_file("bigrams.npz"))
    values = {name: stored[name].astype(np.int64) for name in ("gap", "count")}
    for name, part in values.items():
        part[part == 255] = stored[f"large_{name}"]
    row_start = np.concatenate([[0], np.cumsum(stored["successors"], dtype=np.int64)])
    following = np.concatenate([np.cumsum(row) for row in np.split(values["gap"], row_start[1:-1])])
    d_vocab = len(stored["successors"])
    return sparse.csr_array((values["count"], following, row_start), shape=(d_vocab, d_vocab))


def frequencies() -> Float[Tensor, " d_vocab"]:
    """Return the share of each token in the training text, as the first of a pair."""
    totals = torch.from_numpy(bigram_counts().sum(axis=1)).double()
    return (totals / totals.sum()).float()


def small_run(name: str) -> tuple[np.ndarray, dict[str, Tensor]]:
    """Return one of chapter 15's trainings (`make small-runs`): loss and right guesses, [step, 2]; some weights."""
    stored = load_file(data_file(SMALL_RUNS)).items()
    weights = full_precision({key.partition("/")[2]: part for key, part in stored if key.startswith(f"{name}/")})
    return weights.pop("log").numpy(), weights


def own_text(place: str | Path) -> str:
    """Return a text of the reader's: a file, a folder of text files, or the held-out side of a corpus folder.

    Raises ValueError, in one sentence, for a place that is not there, and for a text that is too short.
    """
    place = Path(place).expanduser()
    if not place.exists():
        raise ValueError(f"there is no text {place}{did_you_mean(place)}; pass a file, or a folder of text files")
    texts, files = [], sorted(place.rglob("*")) if place.is_dir() else [place]
    if (place / "held_out.npy").is_file():
        tokens, files = np.load(place / "held_out.npy"), []
        try:
            texts.append(Tokenizer.from_file(str(place / "tokenizer.json")).decode(tokens[tokens != BOS].tolist()))
        except Exception:  # the library raises nothing more particular
            raise ValueError(f"{place} has tokens without a readable tokenizer.json; pass a folder of texts") from None
    for file in files:
        with contextlib.suppress(UnicodeDecodeError, IsADirectoryError):
            texts.append(file.read_text(encoding="utf-8-sig"))
    if (characters := sum(map(len, texts))) < SHORTEST_TEXT:
        trouble = f"{place} has {characters:,} characters of UTF-8 text"
        raise ValueError(f"{trouble}; take a text of at least {SHORTEST_TEXT:,}")
    return "\n".join(texts)
