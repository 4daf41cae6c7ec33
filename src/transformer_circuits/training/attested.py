"""Which skip-trigrams of a model occur in its training text (claim S6).

    python -m transformer_circuits.training.attested --corpus DIR --model attn-only-1l --ship data

`DIR` is what `python -m transformer_circuits.training.corpus` made. Readers of the book need neither: the counts are shipped.

For each head of the first layer the 300 sources that come first in the head dump are looked at, with all their hits: 81
destinations times 81 outs, at a vocabulary of 8,192. What counts as attested was fixed before any cost was known:

    occasions   n(s, d)     places where destination d stands and source s stands before it, in the same document and no
                            further back than the model's context reaches
    seen        n(s, d, o)  those of them where out o comes next
    right       n(s, d, o) >= 5, and n(s, d, o) / n(s, d) > n(d, o) / n(d): the source makes the out more likely than the
                            destination alone does, so that raising it is right (n(d, o) and n(d) are the bigram
                            counts: they also take in the few places where a document ends)
    never       n(s, d, o) = 0

A triple that was never seen may just have had few occasions. So what is called wrong is up to the reader, by a least number
of occasions: after n occasions in vain its probability is, with 95 % confidence, below 3 / n.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor
from tqdm.auto import tqdm

from transformer_circuits.circuits.skip_trigrams import Candidates
from transformer_circuits.data import BigramCounts, bigram_counts
from transformer_circuits.models.architecture import BOS
from transformer_circuits.paths import DATA

LEAST_SEEN = 5  # times, of a right triple
N_SOURCES = 300  # for each head
AT_A_TIME = 1_000_000  # places looked at together


class AttestedError(RuntimeError):
    """Stored counts that cannot be used, with one sentence that says what to do."""


@dataclasses.dataclass(frozen=True)
class Attested:
    """What the training text says about every candidate triple."""

    candidates: Candidates
    occasions: Int[Tensor, "head source d"]
    right: Bool[Tensor, "head source d o"]
    never: Bool[Tensor, "head source d o"]

    def wrong(self, least_occasions: int) -> Bool[Tensor, "head source d o"]:
        """Never seen, in at least so many occasions."""
        return self.never & (self.occasions >= least_occasions)[..., None]


def fingerprint(model: object) -> str:
    """SHA-256 of the model's weights in half precision, as they lie on disk: other weights have other skip-trigrams."""
    digest = hashlib.sha256()
    for name in ("W_E", "W_Q", "W_K", "W_V", "W_O", "W_U"):
        digest.update(getattr(model, name).detach().to("cpu", torch.float16).contiguous().numpy().tobytes())
    return digest.hexdigest()


@dataclasses.dataclass(frozen=True)
class Text:
    """A packed corpus, ready to be asked where tokens stand."""

    tokens: np.ndarray  # uint16, the start token before every document
    document_end: np.ndarray  # for each document the first place behind it
    places: np.ndarray  # all places, ordered by token
    first: np.ndarray  # where the places of each token begin in `places`

    @classmethod
    def of(cls, tokens: np.ndarray, d_vocab: int) -> Text:
        """Raises ValueError if the text does not begin with a start token, or has tokens that the vocabulary lacks."""
        if not len(tokens) or tokens[0] != BOS or tokens.max() >= d_vocab:
            needed = f"begin with token {BOS} and hold tokens below {d_vocab}"
            raise ValueError(f"the corpus must {needed}: pack it with this model's tokenizer")
        places = np.argsort(tokens, kind="stable").astype(np.int32)
        first = np.concatenate([[0], np.cumsum(np.bincount(tokens, minlength=d_vocab))])
        starts = np.flatnonzero(tokens == BOS)
        return cls(tokens, np.append(starts[1:], len(tokens)), places, first)

    def behind(self, source: int, n_ctx: int) -> Iterator[np.ndarray]:
        """Places that have this source before them in their document, at most n_ctx - 1 back; a million at a time.

        A document's last place is left out: nothing follows it.
        """
        where = self.places[self.first[source] : self.first[source + 1]].astype(np.int64)
        ends = self.document_end[np.searchsorted(self.document_end, where, side="right")]
        stop = np.minimum(where + n_ctx, ends - 1)  # exclusive
        start = np.maximum(where + 1, np.concatenate([[0], stop[:-1]]))  # what the occurrence before reaches is counted once
        start = np.minimum(start, stop)
        lengths = stop - start
        parts = np.flatnonzero(np.diff(lengths.cumsum() // AT_A_TIME)) + 1
        for low, high in zip([0, *parts], [*parts, len(where)]):
            n = lengths[low:high]
            yield np.arange(n.sum()) + np.repeat(start[low:high] - (n.cumsum() - n), n)


def count(
    text: Text, source: int, destinations: np.ndarray, outs: np.ndarray, n_ctx: int, d_vocab: int
) -> tuple[np.ndarray, np.ndarray]:
    """(occasions [d], seen [d, o]) of one source with some destinations and outs."""
    row = np.full(d_vocab, len(destinations), dtype=np.int32)
    column = np.full(d_vocab, len(outs), dtype=np.int32)
    row[destinations], column[outs] = np.arange(len(destinations)), np.arange(len(outs))
    seen = np.zeros((len(destinations), len(outs) + 1), dtype=np.int64)
    for places in text.behind(source, n_ctx):
        d = row[text.tokens[places]]
        at = np.flatnonzero(d < len(destinations))
        o = column[text.tokens[places[at] + 1]]
        seen += np.bincount(d[at] * (len(outs) + 1) + o, minlength=seen.size).reshape(seen.shape)
    return seen.sum(axis=1), seen[:, :-1]


def attest(
    tokens: np.ndarray, candidates: Candidates, bigrams: BigramCounts, n_ctx: int, least_seen: int = LEAST_SEEN
) -> Attested:
    """Counts every candidate triple in a packed text.

    Args:
        tokens: the text, the start token before every document.
        bigrams: n(d, o) of the same text.
        n_ctx: the model's context.

    Raises ValueError if the bigrams are of another text.
    """
    d_vocab = len(bigrams.row_start) - 1
    if int(bigrams.count.sum()) != len(tokens) - 1:
        raise ValueError("the bigram counts are of another text: make both with one run of `training.corpus --ship`")
    text = Text.of(tokens, d_vocab)
    sources, destinations, outs = (getattr(candidates, f.name).cpu().numpy() for f in dataclasses.fields(candidates))
    shape = (*destinations.shape, outs.shape[-1])
    occasions = np.zeros(destinations.shape, dtype=np.int64)
    right, never = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
    for source in tqdm(np.unique(sources), desc="sources", mininterval=10):
        cells = np.argwhere(sources == source)
        all_d, all_o = (np.unique(np.concatenate([part[h, i] for h, i in cells])) for part in (destinations, outs))
        n, seen = count(text, int(source), all_d, all_o, n_ctx, d_vocab)
        rows = bigrams.dense(torch.from_numpy(all_d)).double().numpy()
        # n(s, d, o) / n(s, d) > n(d, o) / n(d), without dividing by what may be zero
        likelier = seen * rows.sum(axis=1, keepdims=True) > rows[:, all_o] * n[:, None]
        for h, i in cells:
            d, o = np.searchsorted(all_d, destinations[h, i]), np.searchsorted(all_o, outs[h, i])
            cell = np.ix_(d, o)
            occasions[h, i] = n[d]
            right[h, i] = (seen[cell] >= least_seen) & likelier[cell]
            never[h, i] = seen[cell] == 0
    return Attested(candidates, torch.from_numpy(occasions), torch.from_numpy(right), torch.from_numpy(never))


def save(attested: Attested, file: Path, weights_sha256: str) -> None:
    """Writes counts to a compressed file that names the weights they belong to."""
    candidates = attested.candidates
    np.savez_compressed(
        file,
        weights_sha256=np.array(weights_sha256),
        sources=candidates.sources.cpu().numpy().astype(np.uint16),
        destination_steps=_steps(candidates.destinations),
        out_steps=_steps(candidates.outs),
        occasions=attested.occasions.numpy().astype(np.uint32),
        right=np.packbits(attested.right.numpy()),
        never=np.packbits(attested.never.numpy()),
    )


def load(model: object, file: Path = DATA / "attested_skip_trigrams.npz") -> Attested:
    """The stored counts for this model. Raises AttestedError, in one sentence, if there are none or they are of other weights."""
    command = "python -m transformer_circuits.training.attested"
    if not Path(file).is_file():
        raise AttestedError(f"there is no {file}: make it from the packed training text with `{command}`")
    with np.load(file) as stored:
        if str(stored["weights_sha256"]) != fingerprint(model):
            raise AttestedError(
                f"{Path(file).name} was counted for other weights than these: load the model it was made for, or run `{command}` "
                "with this one and its packed training text"
            )
        sources, destinations, outs = (stored[key].astype(np.int64) for key in ("sources", "destination_steps", "out_steps"))
        candidates = Candidates(*(torch.from_numpy(x) for x in (sources, destinations.cumsum(-1), outs.cumsum(-1))))
        shape = (*destinations.shape, outs.shape[-1])
        right, never = (
            torch.from_numpy(np.unpackbits(stored[key], count=int(np.prod(shape))).reshape(shape).astype(bool))
            for key in ("right", "never")
        )
        return Attested(candidates, torch.from_numpy(stored["occasions"].astype(np.int64)), right, never)


def _steps(ids: Int[Tensor, "*batch n"]) -> np.ndarray:
    """Ascending ids as steps from one to the next, which compress better."""
    return np.diff(ids.cpu().numpy(), axis=-1, prepend=0).astype(np.uint16)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True, help="folder with train.npy, made by `training.corpus`")
    parser.add_argument("--model", default="attn-only-1l", help="a model that `load_model` knows")
    parser.add_argument("--ship", type=Path, default=DATA, help="folder to write attested_skip_trigrams.npz to")
    parser.add_argument("--sources", type=int, default=N_SOURCES, help="sources of each head, first in the dump's order")
    args = parser.parse_args(argv)
    if not (args.corpus / "train.npy").is_file():
        parser.error(f"{args.corpus} has no train.npy: make it with `python -m transformer_circuits.training.corpus`")

    from transformer_circuits.circuits.bigrams import SmoothedBigrams
    from transformer_circuits.circuits.head_dump import head_dump
    from transformer_circuits.circuits.weights import Weights
    from transformer_circuits.models import load_model

    model = load_model(args.model)
    weights, bigrams = Weights.of(model), bigram_counts()
    frequency = SmoothedBigrams.of(bigrams).frequency.to(weights.W_E.device)
    listed = head_dump(weights, frequency, n_sources=args.sources, k=1)
    sources = torch.tensor(listed["source"].to_numpy()).view(weights.n_heads, args.sources)
    candidates = Candidates.of(weights, sources.to(weights.W_E.device)).to("cpu")
    attested = attest(np.load(args.corpus / "train.npy", mmap_mode="r"), candidates, bigrams, weights.n_ctx)
    file = args.ship / "attested_skip_trigrams.npz"
    save(attested, file, fingerprint(model))
    print(f"{file}: {file.stat().st_size:,} bytes")
    print(f"{attested.right.numel():,} triples, {attested.right.sum():,} right, {attested.never.sum():,} never seen")


if __name__ == "__main__":
    main()
