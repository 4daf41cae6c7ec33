"""The shipped data is whole, and fits together; bigram counts, tokens of similar frequency, and smaller vocabularies."""

import json
import shutil

import numpy as np
import pytest
import torch
from scipy import sparse
from tokenizers import Tokenizer

from book_tools.corpus import count_bigrams
from transformer_circuits import data
from transformer_circuits.circuits.words import similarly_frequent
from transformer_circuits.models.tokenizer import first_tokens, narrow


def test_held_out_windows_begin_with_the_start_token_and_run_through_the_text():
    windows = data.held_out_windows(5, 100)
    assert windows.shape == (5, 101) and (windows[:, 0] == 0).all()
    text = torch.cat([tokens for _, tokens in data.held_out_documents()])
    assert torch.equal(windows[0, 1:], text[:100])
    with pytest.raises(ValueError, match="held-out text holds"):
        data.held_out_windows(10**6, 100)


def test_a_readers_text_is_a_file_a_folder_or_the_held_out_side_of_a_corpus(tmp_path, tiny_tokenizer_file):
    long = "the cat sat on the mat " * 500
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text(long)
    (tmp_path / "texts" / "b.bin").write_bytes(b"\xff\xfe\x00")
    assert data.own_text(tmp_path / "texts") == data.own_text(tmp_path / "texts" / "a.txt") == long
    ids = Tokenizer.from_file(str(tiny_tokenizer_file)).encode(long, add_special_tokens=False).ids
    np.save(tmp_path / "held_out.npy", np.array([0, *ids, 0, *ids], dtype=np.uint16))
    shutil.copy(tiny_tokenizer_file, tmp_path)
    assert data.own_text(str(tmp_path)) == long + long
    with pytest.raises(ValueError, match="there is no text .*texst: did you mean .*texts.; pass a file"):
        data.own_text(tmp_path / "texst")
    (tmp_path / "texts" / "a.txt").write_text("short")
    np.save(tmp_path / "held_out.npy", np.array([0, *ids[:9]], dtype=np.uint16))
    for place in (tmp_path / "texts", tmp_path):
        with pytest.raises(ValueError, match=r"has \d+ characters of UTF-8 text; take a text of at least 10,000"):
            data.own_text(place)
    (tmp_path / tiny_tokenizer_file.name).unlink()
    with pytest.raises(ValueError, match="has tokens without a readable tokenizer.json; pass"):
        data.own_text(tmp_path)


def test_compact_counts_are_the_counts(monkeypatch, tmp_path):
    tokens = np.random.default_rng(0).zipf(1.3, 50_000).clip(max=447).astype(np.uint16)
    table = sparse.csr_array((np.ones(len(tokens) - 1, int), (tokens[:-1], tokens[1:])), shape=(450, 450))
    dense = table.toarray()  # of 450 tokens, the last two never occur
    assert dense.max() > 1000 and np.diff(np.flatnonzero(dense[300])).max() > 255
    np.savez_compressed(tmp_path / "bigrams.npz", **count_bigrams(tokens, 450))
    monkeypatch.setattr(data, "data_file", tmp_path.joinpath)
    monkeypatch.setattr(data, "bigram_counts", data.bigram_counts.__wrapped__)
    assert np.array_equal(data.bigram_counts().toarray(), dense)
    assert data.frequencies().numpy() == pytest.approx(dense.sum(axis=1) / dense.sum())


def test_a_token_is_exchanged_for_one_of_similar_frequency():
    counts = torch.randperm(100, generator=torch.Generator().manual_seed(0))
    tokens = torch.arange(100).repeat(60, 1)
    steps = counts[similarly_frequent(counts, tokens, within=5)] - counts[tokens]
    # At the ends of the ranking the window is moved inside.
    assert (steps != 0).all() and steps.abs().max() <= 10
    assert steps[:, counts == 50].unique().tolist() == [-5, -4, -3, -2, -1, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("d_vocab", [300, 2048])
def test_a_smaller_vocabulary_reads_text_as_a_tokenizer_with_fewer_merges_would(d_vocab):
    def encode(content: dict, text: str) -> np.ndarray:
        tokenizer = Tokenizer.from_str(json.dumps(content))
        return np.array(tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.uint16)

    family = json.loads(data.data_file("tokenizer.json").read_text(encoding="utf8"))
    text = (
        "".join(path.read_text(encoding="utf8") for path in sorted(data.data_file("passages").iterdir()))
        + "\n\n    # ümlaut, 日本 and\ttabs\n"
    )
    narrowed = narrow(encode(family, text), family, d_vocab)
    assert narrowed.max() < d_vocab and narrowed.dtype == np.uint16
    assert np.array_equal(narrowed, encode(first_tokens(family, d_vocab), text))
