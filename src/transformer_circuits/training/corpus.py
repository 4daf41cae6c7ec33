"""From named sources to packed tokens: fetch, select, deduplicate, split, train the tokenizer, pack, report.

    python -m transformer_circuits.training.corpus --out corpus [--mirror FOLDER]
    python -m transformer_circuits.training.corpus --out corpus --folder MY_TEXTS       (any folder of text files)
    python -m transformer_circuits.training.corpus --out corpus --dataset HF/NAME       (any Hugging Face text dataset)

The sources, with versions, licences and SHA-256, are in `sources.toml`. Whole documents go to one side of the split.
Written to `--out`: `tokenizer.json`, `train.npy` and `held_out.npy` (uint16, token 0 before every document),
`held_out_documents.json` and `report.json`.
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import hashlib
import json
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from urllib.parse import quote

import numpy as np
from tqdm import tqdm

from transformer_circuits.models.architecture import BOS
from transformer_circuits.training.vocabulary import compact

HERE = Path(__file__).parent
KINDS = {".md": "docs", ".rst": "docs", ".txt": "docs", ".py": "python", ".html": "html", ".tex": "latex"}
DATA_LIKE = 0.35  # share of characters that are neither letters nor space above which a file is a table, not a text
HELD_OUT_SHARE = 0.015
HELD_OUT_KNOWN = 0.05  # of a held-out document's runs of words, at most so many stand in other documents, where a kind has such documents
COPY_WINDOW = 512


@dataclasses.dataclass(frozen=True)
class Document:
    source: str
    kind: str
    path: str
    text: str


def shingles(text: str, words: int = 8) -> set[int]:
    """Checksums of runs of words, one run in eight, the same wherever lines break."""
    parts = text.split()
    runs = {zlib.crc32(" ".join(parts[i : i + words]).encode()) for i in range(max(1, len(parts) - words + 1))}
    return {run for run in runs if run % 8 == 0} or {min(runs)}


class Deduplicator:
    """Remembers the runs of words of all accepted documents; a document half of which is known is a copy.

    Catches the same book under two names, edited copies, and copies whose lines break at other places.
    """

    def __init__(self) -> None:
        self.seen: set[int] = set()

    def is_copy(self, text: str) -> bool:
        found = shingles(text)
        copy = len(found & self.seen) > len(found) / 2
        if not copy:
            self.seen |= found
        return copy


def is_text(document: Document) -> bool:
    """False for fragments, minified files and tables of numbers."""
    text = document.text
    if not 400 <= len(text) <= 2_000_000 or "\x00" in text:
        return False
    lines = text.splitlines()
    if document.kind != "prose" and max(map(len, lines)) > 2_000:
        return False
    letters = sum(c.isalpha() or c.isspace() for c in text[:20_000])
    return document.kind == "html" or 1 - letters / min(len(text), 20_000) < DATA_LIKE


# --- sources -----------------------------------------------------------------------------------------------------------


def load_sources(path: Path = HERE / "sources.toml") -> list[dict]:
    return tomllib.loads(path.read_text(encoding="utf8"))["source"]


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def read_github(source: dict, mirror: Path | None, cache: Path) -> Iterator[tuple[str, bytes]]:
    """Files of a GitHub repository at one commit, from a mirror's archive or one by one, each checked."""
    listing = (HERE / "files" / f"{source['name']}.sha256").read_text(encoding="utf8")
    expected = {path: digest for digest, path in (line.split("  ", 1) for line in listing.splitlines())}
    archive = mirror / source["mirror"] if mirror else None
    if archive and archive.exists():
        with tarfile.open(archive) as tar:
            for member in tar:
                path = str(PurePosixPath(*PurePosixPath(member.name).parts[1:]))
                if path in expected and (file := tar.extractfile(member)):
                    content = file.read()
                    if sha256(content) != expected[path]:
                        raise ValueError(f"{archive.name}: {path} does not have the SHA-256 listed in files/; fetch it again")
                    expected.pop(path)
                    yield path, content
        if expected:
            raise ValueError(f"{archive.name} lacks {len(expected)} of the files listed in files/, such as {next(iter(expected))}: fetch it again")
        return
    import pooch  # only needed for downloads

    base = f"https://raw.githubusercontent.com/{source['repository']}/{source['commit']}/"
    for path, digest in tqdm(expected.items(), desc=source["name"], unit="file"):
        file = pooch.retrieve(base + quote(path), known_hash=digest, path=cache / source["name"], fname=digest)
        yield path, Path(file).read_bytes()


def read_package(source: dict, mirror: Path | None, cache: Path) -> Iterator[tuple[str, bytes]]:
    """Files of a source package at one version. The archive is read, never built or run."""
    requirement = f"{source['package']}=={source['version']}"
    archive = mirror / source["archive"] if mirror else None
    if not (archive and archive.exists()):
        archive = cache / source["archive"]
    if not archive.exists():
        import pooch

        find = [sys.executable, "-m", "unearth", "--no-binary", "--link-only", requirement]
        url = subprocess.run(find, check=True, capture_output=True, text=True).stdout.split()[0].partition("#")[0]
        pooch.retrieve(url, known_hash=source["sha256"], path=cache, fname=source["archive"], progressbar=True)
    if (found := sha256(archive.read_bytes())) != source["sha256"]:
        raise ValueError(f"{archive.name}: expected SHA-256 {source['sha256']}, found {found}; delete it and fetch again")
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isfile() and (file := tar.extractfile(member)):
                yield str(PurePosixPath(*PurePosixPath(member.name).parts[1:])), file.read()


def read_source(source: dict, mirror: Path | None, cache: Path) -> Iterator[Document]:
    """Documents of a source in a fixed pseudo-random order, so that a limit takes a fair sample of its files."""
    read = read_github if "repository" in source else read_package
    skip = source.get("skip", [])
    files = [(path, content) for path, content in read(source, mirror, cache) if PurePosixPath(path).suffix in KINDS]
    for path, content in sorted(files, key=lambda file: sha256(file[0].encode())):
        if any(fnmatch.fnmatch(path, pattern) for pattern in skip):
            continue
        try:
            text = content.decode("utf8").replace("\r\n", "\n")
        except UnicodeDecodeError:
            continue
        yield Document(source["name"], source.get("kind", KINDS[PurePosixPath(path).suffix]), path, text)


def read_sources(sources: Iterable[dict], mirror: Path | None, cache: Path) -> Iterator[Document]:
    """Documents worth training on, without copies, at most `megabytes[kind]` of each kind from each source."""
    copies = Deduplicator()
    for source in tqdm(list(sources), desc="sources"):
        room = {kind: megabytes * 1e6 for kind, megabytes in source["megabytes"].items()}
        for document in read_source(source, mirror, cache):
            if room.get(document.kind, 0) > 0 and is_text(document) and not copies.is_copy(document.text):
                room[document.kind] -= len(document.text)
                yield document


def read_folder(folder: Path) -> Iterator[Document]:
    """Every UTF-8 text file below a folder, copies left out. Links that lead out of it are not followed; what cannot be read is named."""
    copies, unread = Deduplicator(), []
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.resolve().is_relative_to(folder.resolve())):
        try:
            text = path.read_text(encoding="utf8")
        except (UnicodeDecodeError, OSError):
            unread.append(path.name)
            continue
        if text.strip() and not copies.is_copy(text):
            yield Document(folder.name, KINDS.get(path.suffix, "prose"), str(path.relative_to(folder)), text)
    if unread:
        more = ", ..." if len(unread) > 5 else ""
        print(f"left out {len(unread)} files that are no UTF-8 text or cannot be read: {', '.join(unread[:5])}{more}", file=sys.stderr)


def read_dataset(name: str, characters: int) -> Iterator[Document]:
    """The first documents of a Hugging Face dataset with a `text` column, streamed."""
    from datasets import load_dataset

    copies, room = Deduplicator(), characters
    for i, row in enumerate(load_dataset(name, split="train", streaming=True)):
        if room <= 0:
            return
        if row["text"].strip() and not copies.is_copy(row["text"]):
            room -= len(row["text"])
            yield Document(name, "prose", str(i), row["text"])


# --- tokens ------------------------------------------------------------------------------------------------------------


def split(documents: list[Document]) -> tuple[list[Document], list[Document]]:
    """(training, held out): whole documents, about HELD_OUT_SHARE of the characters of every kind, at least one document.

    Raises ValueError if there are too few documents to hold any out.
    """
    by_kind: dict[str, list[Document]] = defaultdict(list)
    runs = {document: shingles(document.text) for document in documents}
    known = Counter(run for found in runs.values() for run in found)
    own = {d: sum(known[run] > 1 for run in found) <= HELD_OUT_KNOWN * len(found) for d, found in runs.items()}
    for document in documents:
        by_kind[document.kind].append(document)
    held_out: set[Document] = set()
    for group in by_kind.values():
        room = HELD_OUT_SHARE * sum(len(d.text) for d in group)
        # Documents longer than a fifth of the share would make the held-out text a matter of two or three authors.
        # Boilerplate that the training text has too would be recalled, not predicted: documents without much of it come first.
        for document in sorted(group, key=lambda d: (not own[d], sha256(d.text.encode()))):
            if room > 0 and (len(document.text) < max(room / 2, 20_000) or len(group) < 10):
                held_out.add(document)
                room -= len(document.text)
    training = [d for d in documents if d not in held_out]
    if not training:
        raise ValueError("there are too few documents to hold some out: give at least two different ones")
    return training, [d for d in documents if d in held_out]


def train_tokenizer(texts: Iterable[str], d_vocab: int):
    """Byte-level BPE with GPT-2's splitting into words; token 0 is the start of text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=d_vocab,
        special_tokens=["<|start|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def encode(tokenizer, documents: list[Document], batch: int = 256) -> list[np.ndarray]:
    """One uint16 array per document, start token first."""
    encoded = []
    for i in tqdm(range(0, len(documents), batch), desc="encode", unit="batch"):
        for encoding in tokenizer.encode_batch_fast([d.text for d in documents[i : i + batch]], add_special_tokens=False):
            encoded.append(np.array([BOS, *encoding.ids], dtype=np.uint16))
    return encoded


def copy_oracle(tokens: np.ndarray, window: int = COPY_WINDOW) -> float:
    """Share of tokens that "what followed the present token last time follows again" predicts, within a window."""
    order = np.argsort(tokens[:-1], kind="stable")  # positions, grouped by token
    same = tokens[order[1:]] == tokens[order[:-1]]
    last, now = order[:-1][same], order[1:][same]
    near = now - last <= window
    return float((tokens[last[near] + 1] == tokens[now[near] + 1]).sum() / len(tokens))


def recalled(held_out: np.ndarray, train: np.ndarray, n: int = 14, block: int = 4_000_000) -> np.ndarray:
    """For each run of `n` held-out tokens, whether the training text has it too."""

    def runs(tokens: np.ndarray) -> np.ndarray:  # a polynomial of each run, modulo 2^64
        total = np.zeros(max(0, len(tokens) - n + 1), dtype=np.uint64)
        for i in range(n):
            total = total * np.uint64(0x9E3779B97F4A7C15) + tokens[i : len(tokens) - n + 1 + i] + np.uint64(1)
        return total

    wanted, places = np.unique(runs(held_out), return_inverse=True)
    found = np.zeros(len(wanted), dtype=bool)
    for start in range(0, len(train), block):
        these = runs(train[start : start + block + n - 1])
        at = np.searchsorted(wanted, these).clip(max=len(wanted) - 1)
        found[at[wanted[at] == these]] = True
    return found[places]


def count_bigrams(tokens: np.ndarray, d_vocab: int) -> dict[str, np.ndarray]:
    """How often each token follows each other one, as compact arrays (`data.bigram_counts` reads them back).

    successors [d_vocab]: number of different tokens seen after each token; then, for each of those in order, gap: its id
    minus the one before it in the row (the first: its id), and count.
    """
    totals = np.zeros(d_vocab * d_vocab, dtype=np.uint32)
    for start in range(0, len(tokens) - 1, 8_000_000):
        part = tokens[start : start + 8_000_001].astype(np.int64)
        pairs, counts = np.unique(part[:-1] * d_vocab + part[1:], return_counts=True)
        totals[pairs] += counts.astype(np.uint32)
    pairs = np.flatnonzero(totals)
    first, second = np.divmod(pairs, d_vocab)
    new_row = np.diff(first, prepend=-1) != 0
    gap = np.where(new_row, second, np.diff(second, prepend=0))
    successors = np.bincount(first, minlength=d_vocab)
    return {"successors": successors.astype(np.uint16), "gap": gap.astype(np.uint16), "count": totals[pairs]}


def save_arrays(file: Path, **arrays: np.ndarray) -> None:
    """An .npz that `np.load` reads like any other, by LZMA a quarter smaller than what `np.savez_compressed` writes."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_LZMA) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)


def ship(out: Path, data: Path) -> None:
    """Copies to `data` what the book needs of a corpus: tokenizer, held-out text, bigram counts and the report."""
    data.mkdir(parents=True, exist_ok=True)
    tokens = np.load(out / "train.npy", mmap_mode="r")
    held_out = np.load(out / "held_out.npy")
    d_vocab = json.loads((out / "report.json").read_text())["d_vocab"]
    save_arrays(data / "bigrams.npz", **count_bigrams(np.asarray(tokens), d_vocab))
    save_arrays(data / "held_out.npz", tokens=held_out)
    tokenizer = json.loads((out / "tokenizer.json").read_text(encoding="utf8"))
    (data / "tokenizer.json").write_text(compact(tokenizer), encoding="utf8")
    (data / "held_out_documents.json").write_text((out / "held_out_documents.json").read_text())
    (data / "corpus.json").write_text((out / "report.json").read_text())


def build(documents: Iterable[Document], out: Path, d_vocab: int, tokenizer_file: Path | None, seed: int = 0) -> dict:
    """Splits, tokenizes and packs documents into `out`; returns the report that is also written there."""
    from tokenizers import Tokenizer

    documents = list(documents)
    training, held_out = split(documents)
    if tokenizer_file:
        tokenizer = Tokenizer.from_file(str(tokenizer_file))
    else:
        tokenizer = train_tokenizer((d.text for d in training[:: max(1, len(training) // 6_000)]), d_vocab)
    order = np.random.default_rng(seed).permutation(len(training))
    training = [training[i] for i in order]
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    tokenizer.encode_special_tokens = True  # "<|start|>" written in a text is text

    report: dict = {"d_vocab": tokenizer.get_vocab_size(), "copy_window": COPY_WINDOW, "splits": {}, "sources": []}
    groups: dict[tuple[str, str], list[np.ndarray]] = defaultdict(list)
    characters: Counter = Counter()
    for name, side in (("train", training), ("held_out", held_out)):
        arrays = encode(tokenizer, side)
        np.save(out / f"{name}.npy", np.concatenate(arrays))
        report["splits"][name] = {"documents": len(side), "tokens": sum(map(len, arrays))}
        for document, array in zip(side, arrays):
            groups[document.source, document.kind].append(array)
            characters[document.source, document.kind] += len(document.text)
        if name == "held_out":
            train = np.load(out / "train.npy", mmap_mode="r")
            for kind in sorted({d.kind for d in side}):
                text = np.concatenate([array for d, array in zip(side, arrays) if d.kind == kind])
                report["splits"][name].setdefault("recalled", {})[kind] = round(float(recalled(text, train).mean()), 4)
            listing = [{"source": d.source, "kind": d.kind, "path": d.path, "tokens": len(a)} for d, a in zip(side, arrays)]
            (out / "held_out_documents.json").write_text(json.dumps(listing, indent=0))
    kinds: dict[str, list[np.ndarray]] = defaultdict(list)
    for (source, kind), arrays in sorted(groups.items()):
        kinds[kind] += arrays
        tokens = np.concatenate(arrays)
        row = {"source": source, "kind": kind, "documents": len(arrays), "characters": characters[source, kind]}
        report["sources"].append(row | {"tokens": len(tokens), "copy_oracle": round(copy_oracle(tokens), 4)})
    report["kinds"] = {
        kind: {"tokens": sum(map(len, arrays)), "copy_oracle": round(copy_oracle(np.concatenate(arrays)), 4)}
        for kind, arrays in kinds.items()
    }
    (out / "report.json").write_text(json.dumps(report, indent=1))
    return report


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write tokens, tokenizer and report to")
    parser.add_argument("--mirror", type=Path, help="folder that holds archives of the sources, used before the network")
    parser.add_argument("--folder", type=Path, help="train on the text files below this folder instead")
    parser.add_argument("--dataset", help="train on this Hugging Face dataset instead (its column `text`)")
    parser.add_argument("--characters", type=int, default=250_000_000, help="how much of --dataset to take")
    parser.add_argument("--kinds", nargs="+", choices=sorted({*KINDS.values(), "prose"}), help="only documents of these kinds")
    parser.add_argument("--d-vocab", type=int, default=4096)
    parser.add_argument("--tokenizer", type=Path, help="use this tokenizer.json instead of training one")
    parser.add_argument("--ship", type=Path, help="also write what the book needs (tokenizer, held-out text, counts) there")
    args = parser.parse_args(argv)
    if args.folder and not args.folder.is_dir():
        parser.error(f"{args.folder} is not a folder")
    if args.folder:
        documents = read_folder(args.folder)
    elif args.dataset:
        documents = read_dataset(args.dataset, args.characters)
    else:
        documents = read_sources(load_sources(), args.mirror, args.out / "downloads")
    if args.kinds:
        documents = (document for document in documents if document.kind in args.kinds)
    report = build(documents, args.out, args.d_vocab, args.tokenizer)
    if args.ship:
        ship(args.out, args.ship)
    for kind, row in report["kinds"].items():
        print(f"{kind:8} {row['tokens']:>12,} tokens   copy oracle {row['copy_oracle']:.1%}")
    for name, row in report["splits"].items():
        print(f"{name:8} {row['tokens']:>12,} tokens in {row['documents']:,} documents")


if __name__ == "__main__":
    main()
