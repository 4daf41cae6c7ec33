"""What a model is given to read: its start token, text or random tokens, and from which ids these are drawn."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from .architecture import BOS, Transformer
from .shards import WeightsError

SENTENCE = "It was a bright cold day in April, and the clocks were striking thirteen."


@dataclass(frozen=True)
class Reading:
    """What a model is given to read, decided once, from its published tokenizer and configuration."""

    start: int | None  # the token that texts begin with; None if neither names one
    drawn: Int[Tensor, " id"]  # the ids that random tokens are drawn from, ascending
    reads_text: bool  # in the tokens of its own tokenizer; otherwise it is given random tokens
    words: str  # all of this, to print


def of(model: TransformerBridge) -> Reading:
    """Return what a model is given to read, as decided at loading; for a bridge made or changed by hand, now."""
    tokenizer, decided = getattr(model, "decided", (None, None))
    if decided is None or tokenizer is not model.tokenizer:
        choose(model)
    return model.decided[1]


def choose(model: TransformerBridge, tokenizer: Any = None, start: int | None = None) -> None:
    """Choose what a model is given to read. `tokenizer`: if that is not the bridge's. `start`: a start token. Raises
    WeightsError unless the start token is in the vocabulary."""
    original, d_vocab = model.original_model, model.cfg.d_vocab
    if start is None and isinstance(original, Transformer):
        start = BOS
    if start is not None and start not in range(d_vocab):
        raise WeightsError(f"the start token must be 0 to {d_vocab - 1}, got {start}")
    decided = decide(d_vocab, tokenizer or model.tokenizer, getattr(original, "config", None), start)
    model.decided = model.tokenizer, decided


def start_token(model: TransformerBridge) -> int:
    """Return the token that the model's texts begin with. Raises WeightsError if neither its tokenizer nor its
    configuration names one."""
    if (start := of(model).start) is None:
        todo = "pass one to models.reading.choose (START in chapter 19)"
        raise WeightsError(f"{model.cfg.model_name!r} names no start token; {todo}")
    return start


def decide(d_vocab: int, tokenizer: Any = None, config: Any = None, start: int | None = None) -> Reading:
    """Return what a model with `d_vocab` rows of W_E is given to read.

    `tokenizer`: as it was published, before TransformerLens adds tokens to it. `start`: a start token that the reader
    chose. Otherwise the start token is the one that the tokenizer names, else the configuration's, if it is a special
    token of the tokenizer, else an end token. Random tokens are ids of the tokenizer that are not special or added.
    """
    ids, why_random = range(d_vocab), "it has no tokenizer"
    if tokenizer is not None:
        apart = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
        ordinary = sorted({*tokenizer.get_vocab().values()} - apart)
        if ordinary and ordinary[-1] >= d_vocab:
            why_random = f"its tokenizer has {len(tokenizer):,} tokens and its vocabulary {d_vocab:,}"
            tokenizer = None
        else:
            ids = ordinary or ids
            why_random = None if _reads_english(tokenizer) else "its tokenizer does not know English text"
    if start is None:
        start = next((token for token in _start_tokens(tokenizer, config) if token in range(d_vocab)), None)
    drawn = [token for token in ids if token != start]
    words = [f"random tokens from {drawn[0]:,} to {drawn[-1]:,}"]
    if start is not None:
        text = "token" if tokenizer is None else tokenizer.convert_ids_to_tokens(start)
        words.insert(0, f"starts with {text} ({start:,})")
    words.append(f"reads random tokens, because {why_random}" if why_random else "reads text with its own tokenizer")
    return Reading(start, torch.tensor(drawn), not why_random, "; ".join(words))


def _reads_english(tokenizer: Any) -> bool:
    """Return whether a tokenizer gives tokens for English text, most of them known."""
    try:
        ids = tokenizer(SENTENCE, add_special_tokens=False)["input_ids"]
    except Exception:  # the library raises nothing more particular for a word that it does not have
        return False
    return bool(ids) and ids.count(tokenizer.unk_token_id) <= len(ids) / 2


def _start_tokens(tokenizer: Any, config: Any) -> list[int]:
    """Return the ids that may be the start token, the likeliest first."""
    bos, eos = getattr(config, "bos_token_id", None), getattr(config, "eos_token_id", None)
    tokens = [bos, eos]
    if tokenizer is not None:
        special = tokenizer.all_special_ids or tokenizer.get_vocab().values()
        if bos == tokenizer.pad_token_id and bos == getattr(type(config)(), "bos_token_id", None):
            bos = None  # the configuration's class put it there, for another tokenizer
        tokens = [tokenizer.bos_token_id, bos if bos in special else None]
        tokens += [tokenizer.eos_token_id, eos if eos in special else None]
    return [token for token in tokens if isinstance(token, int)]
