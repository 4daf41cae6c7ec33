"""A smaller vocabulary inside a byte-level BPE tokenizer: its first tokens, which are a tokenizer by themselves.

BPE learns its merges one after the other. A merge only joins older tokens, and encoding applies older merges first:
text in the smaller vocabulary is that in the larger one with later tokens undone.
"""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from .architecture import BOS
from .shards import TOKENIZER, WeightsError

START = "<|start|>"  # the text of token BOS
REPORT = "report.json"  # of a corpus folder: written last, so a folder with a tokenizer and without it is not whole


def as_pretrained(path: Path) -> PreTrainedTokenizerFast:
    """Return the tokenizer in a `tokenizer.json`, with `<|start|>`, its bos, eos and pad token, before each text.
    Raises WeightsError for a file that is missing or holds no tokenizer."""
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more particular
        raise WeightsError(f"{path} is not a readable tokenizer ({error}); fetch it again") from error
    tokenizer.post_processor = TemplateProcessing(single=f"{START} $A", special_tokens=[(START, BOS)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=START,
        eos_token=START,
        pad_token=START,
        padding_side="right",
        clean_up_tokenization_spaces=False,
        name_or_path=path.name,  # TransformerLens reads this, and asks the Hugging Face hub for that name unless ...
        add_bos_token=True,  # ... the tokenizer says that it prepends its start token
    )


def first_tokens(tokenizer: dict[str, Any], d_vocab: int) -> dict[str, Any]:
    """Return the content of `tokenizer.json` with its first `d_vocab` tokens. Raises ValueError if they are none."""
    _parts(tokenizer, d_vocab)
    model = tokenizer["model"]
    vocab = {token: i for token, i in model["vocab"].items() if i < d_vocab}
    merges = [merge for merge in model["merges"] if model["vocab"]["".join(merge)] < d_vocab]
    return tokenizer | {"model": model | {"vocab": vocab, "merges": merges}}


def narrow(tokens: np.ndarray, tokenizer: dict[str, Any], d_vocab: int) -> np.ndarray:
    """Return tokens of `tokenizer` in its first `d_vocab` tokens: each as it is, or as the parts it was made of."""
    if len(tokenizer["model"]["vocab"]) <= d_vocab:
        return tokens
    parts, pieces = _parts(tokenizer, d_vocab), [[token] for token in range(d_vocab)]
    for token in range(d_vocab, len(tokenizer["model"]["vocab"])):
        left, right = parts[token]
        pieces.append(pieces[left] + pieces[right])
    return np.fromiter(itertools.chain.from_iterable(pieces[token] for token in tokens), tokens.dtype)


def compact(tokenizer: dict[str, Any]) -> str:
    """Return the text of a `tokenizer.json` as it is shipped, so that its checksum is the same wherever it was made."""
    return json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":"))


def tokenizer_of(folder: Path, d_vocab: int) -> str | None:
    """Return the `tokenizer.json` of a model of `d_vocab` tokens; None if its corpus folder has none."""
    if (tokenizer := of_corpus(folder)) is None:
        return None
    if len(tokenizer["model"]["vocab"]) > d_vocab:
        tokenizer = first_tokens(tokenizer, d_vocab)
    return compact(tokenizer)


def of_corpus(folder: Path) -> dict[str, Any] | None:
    """Return the content of a corpus folder's `tokenizer.json`; None if it has none. Raises ValueError if the folder
    is not whole."""
    if not (path := folder / TOKENIZER).exists():
        return None
    if not (folder / REPORT).exists():
        raise ValueError(f"{folder} is not a whole corpus (no {REPORT}); make it again")
    return json.loads(path.read_text(encoding="utf8"))


def _parts(tokenizer: dict[str, Any], d_vocab: int) -> dict[int, tuple[int, int]]:
    """Return which two older tokens each token was made of. Raises ValueError if the first `d_vocab` are none."""
    vocab = tokenizer["model"]["vocab"]
    parts: dict[int, tuple[int, int]] = {}
    for left, right in tokenizer["model"]["merges"]:
        parts.setdefault(vocab[left + right], (vocab[left], vocab[right]))  # a later way to the same token made nothing
    smallest = min(parts, default=len(vocab))
    if not smallest <= d_vocab <= len(vocab):
        raise ValueError(f"this tokenizer can have {smallest} to {len(vocab)} tokens, not {d_vocab}")
    return parts
