"""The first tokens of a byte-level BPE tokenizer are a tokenizer by themselves, and text in them needs no second reading."""

import json

import numpy as np
import pytest
from tokenizers import Tokenizer

from transformer_circuits.data import passage
from transformer_circuits.models.tokenizer import first_tokens, narrow
from transformer_circuits.paths import DATA

FAMILY = json.loads((DATA / "tokenizer.json").read_text(encoding="utf8"))


def encode(content: dict, text: str) -> np.ndarray:
    return np.array(Tokenizer.from_str(json.dumps(content)).encode(text, add_special_tokens=False).ids, dtype=np.uint16)


@pytest.mark.parametrize("d_vocab", [300, 2048])
def test_undoing_merges_is_encoding_with_fewer(d_vocab):
    text = (
        passage("candide")
        + passage("tree_broadcast_center")
        + "\n\n    def f(x):\n        return x  # ümlaut, 日本 and\ttabs\n"
    )
    narrowed = narrow(encode(FAMILY, text), FAMILY, d_vocab)
    assert narrowed.max() < d_vocab and narrowed.dtype == np.uint16
    assert np.array_equal(narrowed, encode(first_tokens(FAMILY, d_vocab), text))
