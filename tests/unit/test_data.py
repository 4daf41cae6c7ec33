"""The shipped data is whole, and fits together."""

import json

import pytest
import torch

from transformer_circuits import data
from transformer_circuits.paths import DATA


def test_held_out_documents_are_those_listed():
    documents = data.held_out_documents()
    assert all(len(tokens) == row["tokens"] and tokens[0] == 0 for row, tokens in documents)
    assert {row["kind"] for row, _ in documents} == {"prose", "python", "docs", "html", "latex"}
    listed = json.loads((DATA / "corpus.json").read_text())["splits"]["held_out"]["tokens"]
    assert sum(len(tokens) for _, tokens in documents) == listed


def test_windows():
    windows = data.held_out_windows(5, 100)
    assert windows.shape == (5, 101) and (windows[:, 0] == 0).all()
    text = torch.cat([tokens for _, tokens in data.held_out_documents()])
    assert torch.equal(windows[0, 1:], text[:100])
    with pytest.raises(ValueError, match="held-out text holds"):
        data.held_out_windows(10**6, 100)


def test_bigram_counts_add_up_to_the_training_text():
    counts = data.bigram_counts()
    tokens = json.loads((DATA / "corpus.json").read_text())["splits"]["train"]["tokens"]
    assert counts.count.sum() == tokens - 1
    assert ((counts.following.diff() > 0) | (counts.preceding.diff() > 0)).all()
    assert counts.following.max() < 4096
