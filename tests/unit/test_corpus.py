"""From documents to packed tokens: nothing twice, nothing held out in training, every file checked."""

import hashlib
import io
import json
import os
import shutil
import tarfile
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from tokenizers import Tokenizer

from book_tools import corpus
from book_tools.corpus import Document, copy_oracle, is_copy, read_folder, split
from transformer_circuits.models.shards import WeightsError


def sentences(seed: int, n: int = 60) -> str:
    random = np.random.default_rng(seed)
    letters = random.choice(list("abcdefgh"), (n, 8, 5))
    return "\n".join(" ".join("".join(word) for word in line) + f" number {seed}." for line in letters)


def documents(n: int, kind: str = "prose") -> list[Document]:
    return [Document("test", kind, f"{kind}/{i}", sentences(i)) for i in range(n)]


def test_a_rewrapped_or_slightly_changed_copy_is_a_copy_and_another_text_is_not():
    seen, text = set(), sentences(0)
    assert not is_copy(text, seen)
    assert is_copy("\n".join(text.split()), seen)  # lines broken at other places
    assert is_copy("A new title. " + text[: len(text) * 3 // 4] + sentences(1, 10), seen)
    assert not is_copy(sentences(2), seen)


def test_split_keeps_documents_whole_and_apart_for_every_kind():
    all_documents = documents(200) + documents(12, "python") + documents(2, "html")
    training, held_out = split(all_documents)
    assert not set(training) & set(held_out) and set(training) | set(held_out) == set(all_documents)
    assert {d.kind for d in held_out} == {d.kind for d in training} == {"prose", "python", "html"}
    held, whole = (sum(len(d.text) for d in side if d.kind == "prose") for side in (held_out, all_documents))
    assert 0.5 < held / whole / corpus.HELD_OUT_SHARE < 2
    assert split(all_documents) == (training, held_out)


def test_the_held_out_share_is_bounded_whatever_the_files():
    """Reported elsewhere: of a book and a note, the book was held out, or both."""
    book, note = 240_000, 2_400
    for draw in range(20):
        for sizes in ((book, note), (book, note, note), (book,) * 3, (19_000, 2_000)):
            texts = [Document("test", "prose", f"{i}", f"{draw} {i} " * (size // 8)) for i, size in enumerate(sizes)]
            training, held_out = split(texts)
            share = sum(len(d.text) for d in held_out) / sum(len(d.text) for d in texts)
            assert training and 0 < share <= 0.5 and (share < 0.03 or note not in sizes)


def test_recalled_runs_against_a_plain_search():
    random = np.random.default_rng(0)
    train, own = (random.integers(0, 50, n).astype(np.uint16) for n in (500, 40))
    held_out = np.concatenate([train[100:130], own])
    assert corpus.recalled(held_out, train, n=14, block=64) == 17 / (len(held_out) - 13)
    assert corpus.recalled(held_out[:5], train) == 0, "fewer tokens than a run has"


def test_copy_oracle_against_a_plain_loop():
    tokens = np.random.default_rng(0).integers(0, 20, 500).astype(np.uint16)
    right = 0
    for i in range(len(tokens) - 1):
        before = [j for j in range(max(0, i - 30), i) if tokens[j] == tokens[i]]
        right += bool(before) and tokens[before[-1] + 1] == tokens[i + 1]
    assert copy_oracle(tokens, window=30) == pytest.approx(right / len(tokens))
    assert copy_oracle(np.tile(np.arange(10, dtype=np.uint16), 50)) > 0.95


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "texts").mkdir()
    for i in range(30):
        (tmp_path / "texts" / f"{i}.txt").write_text(sentences(i), encoding="utf8")
    (tmp_path / "texts" / "copy.txt").write_text(sentences(3), encoding="utf8")
    (tmp_path / "texts" / "binary.bin").write_bytes(b"\xff\xfe\x00")
    return tmp_path / "texts"


def make(folder, out, *options) -> dict:
    """Run the command, and return its report."""
    corpus.main(["--folder", str(folder), "--out", str(out), "--d-vocab", "400", *options])
    return json.loads((out / "report.json").read_text())


def test_a_folder_becomes_packed_tokens_that_decode_to_its_texts(folder, tmp_path, capsys):
    report = make(folder, tmp_path / "out", "--ship", str(tmp_path / "data"))
    assert "copy rule" in capsys.readouterr().out
    train, held_out = (np.load(tmp_path / "out" / f"{name}.npy") for name in ("train", "held_out"))
    assert train.dtype == np.uint16 and train[0] == 0 and held_out[0] == 0
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    both = np.concatenate([train, held_out])
    parts = np.split(both, np.flatnonzero(both == 0)[1:])
    texts = sorted(tokenizer.decode(part[1:].tolist()) for part in parts)
    assert texts == sorted(sentences(i) for i in range(30))
    assert report["splits"]["train"] == {"documents": 29, "tokens": len(train)}
    assert report["splits"]["held_out"]["recalled"] == {"docs": 0.0}
    stored = np.load(tmp_path / "data" / "bigrams.npz")
    assert stored["count"].astype(int)[stored["count"] < 255].sum() + stored["large_count"].sum() == len(train) - 1
    assert np.array_equal(np.load(tmp_path / "data" / "held_out.npz")["tokens"], held_out)


def test_what_in_a_folder_is_text(folder, tmp_path, capfd):
    (folder / "marked.txt").write_text("<|start|> of a line. " * 30 + sentences(50), encoding="utf8")
    (tmp_path / "secret.txt").write_text(sentences(60), encoding="utf8")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "archive.tar").write_bytes(sentences(61).encode() + bytes(512))
    (folder / "bom.txt").write_text(sentences(63), encoding="utf-8-sig")
    with open(os.fsencode(folder) + b"/caf\xe9.txt", "w", encoding="utf8") as file:
        file.write(sentences(70))
    texts = {d.path: d.text for d in read_folder(folder)}
    assert {"link.txt", "copy.txt"}.isdisjoint(texts) and texts["bom.txt"] == sentences(63)
    assert "caf\\xe9.txt" in texts, "a name that is not UTF-8 is escaped"
    said = capfd.readouterr().err
    assert "left out 2 files that are not UTF-8 text" in said and "archive.tar" in said
    assert "left out 1 near-copies of earlier files: copy.txt" in said
    make(folder, tmp_path / "out")
    tokens = np.concatenate([np.load(tmp_path / "out" / f"{side}.npy") for side in ("train", "held_out")])
    assert (tokens == 0).sum() == len(texts) == 33, "a start token that is written in a text is text"


def test_a_corpus_is_written_beside_and_its_report_leaves_first_and_arrives_last(folder, tmp_path, monkeypatch):
    out = tmp_path / "out"
    make(folder, out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    (folder / "more.txt").write_text(sentences(80), encoding="utf8")

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(corpus, "recalled", killed)
        with pytest.raises(KeyboardInterrupt):
            make(folder, out)
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == before
    done, replace = [], Path.replace
    monkeypatch.setattr(
        Path, "replace", lambda path, to: (done.append((to.name, (out / "report.json").exists())), replace(path, to))
    )
    make(folder, out)
    assert done[-1][0] == "report.json" and len(done) == 5 and not any(there for _, there in done)
    assert not (out / ".partial").exists() and before["train.npy"] != (out / "train.npy").read_bytes()


@pytest.mark.parametrize("files", [{}, {"a.bin": b"\xff\xfe\x00"}, {"a.txt": b"one text"}])
def test_too_few_texts_are_one_sentence(tmp_path, files):
    (tmp_path / "texts").mkdir()
    for name, content in files.items():
        (tmp_path / "texts" / name).write_bytes(content)
    with pytest.raises(SystemExit, match="at least two different documents, got [01]; add UTF-8 text files"):
        make(tmp_path / "texts", tmp_path / "out")


def package(tmp_path) -> dict:
    """A source package, and its entry."""
    archive = tmp_path / "thing-1.0.tar.gz"
    texts = {"a.py": sentences(1), "b.rst": sentences(2), "c.png": "no text", "locale/d.txt": sentences(3)}
    with tarfile.open(archive, "w:gz") as tar:
        for path, text in texts.items():
            info = tarfile.TarInfo(f"thing-1.0/{path}")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    about = {"name": "thing", "package": "thing", "version": "1.0", "archive": archive.name}
    about |= {"sha256": hashlib.sha256(archive.read_bytes()).hexdigest(), "skip": ["*locale/*"]}
    return about | {"megabytes": {"python": 1, "docs": 1}}


def test_a_file_that_is_not_had_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus.torch.hub, "download_url_to_file", Mock(side_effect=OSError("no network")))
    source = next(source for source in corpus.load_sources() if "repository" in source)
    with pytest.raises(ValueError, match=f" of {source['name']}, a source of the corpus, .* fetched: no network"):
        list(corpus.read_github(source, tmp_path))


def test_a_package_is_fetched_and_read_by_kind_up_to_its_limit_if_it_is_the_listed_one(tmp_path, monkeypatch, server):
    entry, index, cache = package(tmp_path), tmp_path / "public" / "simple" / "thing", tmp_path / "cache"
    index.mkdir(parents=True)
    (index / "index.html").write_text(f'<a href="{entry["archive"]}">{entry["archive"]}</a>')
    (tmp_path / entry["archive"]).rename(index / entry["archive"])
    monkeypatch.setenv("PIP_INDEX_URL", f"{server.address.replace('//', '//me:secret@')}/simple/")
    with pytest.raises(WeightsError, match="thing-1.0.tar.gz is missing or damaged .SHA-256 must be 0000"):
        list(corpus.read_sources([entry | {"sha256": "0" * 64}], cache, set()))
    assert not any(cache.iterdir())
    read = corpus.read_sources([entry], cache, set())
    expected = {("a.py", "python", sentences(1)), ("b.rst", "docs", sentences(2))}
    assert {(d.path, d.kind, d.text) for d in read} == expected
    shutil.rmtree(index)
    assert [d.path for d in corpus.read_sources([entry | {"megabytes": {"docs": 1}}], cache, set())] == ["b.rst"]
    with pytest.raises(ValueError, match="^thing==1.0, a source of the corpus, could not be fetched; [^@]*$"):
        list(corpus.read_sources([entry], tmp_path / "other", set()))


def test_the_large_corpus_keeps_the_split_and_what_is_near_held_out_text_stays_out(tmp_path, monkeypatch):
    license = sentences(90, 12)
    held_out = sentences(50) + license
    book = [d._replace(text=d.text + license) for d in documents(20, "docs")]
    book.append(Document("test", "docs", "held.rst", held_out))
    quotes = sentences(61) + "\n".join(held_out.splitlines()[:20])
    more = {"copy.rst": sentences(1) + license, "new.rst": sentences(60) + license, "quotes.rst": quotes}
    more = [Document("more", "docs", path, text) for path, text in more.items()]
    tables = {"sources": book, "sources_large": more}
    monkeypatch.setattr(corpus, "load_sources", lambda table="sources": tables[table])
    monkeypatch.setattr(corpus, "read_sources", lambda found, _, seen: [d for d in found if not is_copy(d.text, seen)])
    listing = tmp_path / "held_out_documents.json"
    listing.write_text(json.dumps([{"source": "test", "kind": "docs", "path": "held.rst", "tokens": 1}]))
    monkeypatch.setattr(corpus, "data_file", lambda name: tmp_path / name)
    assert corpus.read_book(tmp_path, large=False) == (book[:-1], book[-1:])
    training, kept = corpus.read_book(tmp_path, large=True)
    assert kept == book[-1:] and [d.path for d in training] == [*(d.path for d in book[:-1]), "new.rst"]
