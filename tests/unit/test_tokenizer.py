"""The first tokens of a byte-level BPE tokenizer are a tokenizer by themselves, and text in them needs no second reading."""

import json

import numpy as np
import pytest
from tokenizers import Tokenizer

from transformer_circuits.data import passage
from transformer_circuits.models.tokenizer import first_tokens, narrow, packed, pieces, tokenizer_of
from transformer_circuits.paths import DATA
from transformer_circuits.training.corpus import train_tokenizer

FAMILY = json.loads((DATA / "tokenizer.json").read_text(encoding="utf8"))


def encode(content: dict, text: str) -> np.ndarray:
    return np.array(Tokenizer.from_str(json.dumps(content)).encode(text, add_special_tokens=False).ids, dtype=np.uint16)


@pytest.mark.parametrize("d_vocab", [300, 2048, 4095])
@pytest.mark.parametrize("name", ["candide", "tree_broadcast_center"])
def test_undoing_merges_is_encoding_with_fewer(name, d_vocab):
    text = passage(name) + "\n\n    def f(x):\n        return x  # ümlaut, 日本 and\ttabs\n"
    narrowed = narrow(encode(FAMILY, text), pieces(FAMILY, d_vocab))
    assert narrowed.max() < d_vocab and narrowed.dtype == np.uint16
    assert np.array_equal(narrowed, encode(first_tokens(FAMILY, d_vocab), text))


def test_the_first_tokens_are_what_training_to_that_size_gives():
    texts = ["the cat sat on the mat, the cat that sat there", "that mat is the cat's mat"] * 3
    large, small = (json.loads(train_tokenizer(texts, d_vocab).to_str()) for d_vocab in (280, 268))
    assert first_tokens(large, 268)["model"]["vocab"] == small["model"]["vocab"]
    assert first_tokens(large, 268)["model"]["merges"] == small["model"]["merges"]


def test_packed_tokens_are_narrowed_once_and_only_where_the_corpus_has_more(tmp_path):
    np.save(tmp_path / "train.npy", np.array([0, 4000, 5], dtype=np.uint16))
    assert packed(tmp_path, "train", 2048) == tmp_path / "train.npy"  # nothing is known of these tokens
    assert tokenizer_of(tmp_path, 2048) is None
    (tmp_path / "tokenizer.json").write_text(json.dumps(FAMILY), encoding="utf8")
    assert packed(tmp_path, "train", 4096) == tmp_path / "train.npy"
    assert tokenizer_of(tmp_path, 4096) == (DATA / "tokenizer.json").read_text(encoding="utf8")
    path = packed(tmp_path, "train", 2048)
    assert np.load(path).tolist() == [0, *pieces(FAMILY, 2048)[4000], 5]
    written = path.stat().st_mtime_ns
    assert packed(tmp_path, "train", 2048) == path and path.stat().st_mtime_ns == written
    assert packed(tmp_path, "held_out", 2048) == tmp_path / "held_out.npy"  # missing: the trainer says so
    assert len(json.loads(tokenizer_of(tmp_path, 2048))["model"]["vocab"]) == 2048
    assert {path.name for path in tmp_path.iterdir()} == {"train.npy", "train-2048.npy", "tokenizer.json"}
