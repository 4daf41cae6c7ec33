import sys
from pathlib import Path

import pytest

from transformer_circuits.paths import ROOT
from transformer_circuits.training.corpus import train_tokenizer

# Tests import `stamp`, `colab`, and `browser`.
sys.path[:0] = [str(ROOT / ".ci"), str(ROOT / "notebooks"), str(ROOT / "tests" / "book")]

TEXT = "the cat sat on the mat, the dog sat on the cat; def f(x): return x\n"


@pytest.fixture(scope="session")
def tiny_tokenizer_file(tmp_path_factory) -> Path:
    """A byte-level BPE of 300 tokens with `<|start|>` = 0, like the shipped one but in size."""
    texts = [TEXT + "".join(chr(97 + (i * j) % 26) for j in range(60)) for i in range(26)]
    tokenizer = train_tokenizer(texts, 300)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    assert tokenizer.get_vocab_size() == 300
    return path
