"""Count which skip-trigrams occur in the training text, and write data/attested_skip_trigrams.npz.

    python -m book_tools.attested --corpus DIR

`DIR` is what `python -m book_tools.corpus` made. `circuits.skip_trigrams.Attested` says what is counted.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from scipy import sparse
from tqdm import tqdm

from transformer_circuits.circuits import skip_trigrams
from transformer_circuits.circuits.head_dump import head_dump
from transformer_circuits.data import bigram_counts, frequencies, vocabulary
from transformer_circuits.models import load_model
from transformer_circuits.models.architecture import BOS
from transformer_circuits.paths import DATA

MODEL = "attn-only-1l"
LEAST_SEEN = 5  # times, of a right triple
N_SOURCES = 300  # for each head
AT_A_TIME = 1_000_000  # positions counted together


class Text:
    """A packed corpus with an index of the positions of every token. Raises ValueError for bigrams of another text."""

    def __init__(self, tokens: np.ndarray, bigrams: sparse.csr_array, n_ctx: int) -> None:
        if (pairs := int(bigrams.sum())) != len(tokens) - 1:
            raise ValueError(f"the bigram counts must have {len(tokens) - 1} pairs, got {pairs}; ship both together")
        self.tokens, self.bigrams, self.n_ctx = tokens, bigrams, n_ctx
        self.d_vocab = bigrams.shape[0]
        self.places = np.argsort(tokens, kind="stable").astype(np.int32)  # all positions, ordered by token
        self.first = np.concatenate([[0], np.cumsum(np.bincount(tokens, minlength=self.d_vocab))])
        self.document_end = np.append(np.flatnonzero(tokens == BOS)[1:], len(tokens))

    def count(self, source: int, destinations: np.ndarray, outs: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return one source's occasions [d], what was seen [d, o] and what is right [d, o], for these d and o."""
        where = self.places[self.first[source] : self.first[source + 1]].astype(np.int64)
        # A document's last position is left out, because nothing follows it.
        last = self.document_end[np.searchsorted(self.document_end, where, side="right")] - 1
        stop = np.minimum(where + self.n_ctx, last)
        # Positions that an earlier occurrence of the source reaches too are counted once.
        start = np.minimum(np.maximum(where + 1, np.append(0, stop)[:-1]), stop)
        row, column = np.full(self.d_vocab, len(destinations)), np.full(self.d_vocab, len(outs))
        row[destinations], column[outs] = np.arange(len(destinations)), np.arange(len(outs))
        seen = np.zeros((len(destinations), len(outs) + 1), dtype=np.int64)
        step = max(1, AT_A_TIME // self.n_ctx)
        for low in range(0, len(where), step):
            part = slice(low, low + step)
            n = stop[part] - start[part]
            places = np.arange(n.sum()) + np.repeat(start[part] - (n.cumsum() - n), n)
            d = row[self.tokens[places]]
            at = np.flatnonzero(d < len(destinations))
            o = column[self.tokens[places[at] + 1]]
            seen += np.bincount(d[at] * (len(outs) + 1) + o, minlength=seen.size).reshape(seen.shape)
        occasions, seen = seen.sum(axis=1), seen[:, :-1]
        after = self.bigrams[destinations].toarray()  # [d, token]
        # n(s, d, o) / n(s, d) > n(d, o) / n(d), without a division by zero
        likelier = seen * after.sum(axis=1, keepdims=True) > after[:, outs] * occasions[:, None]
        return occasions, seen, (seen >= LEAST_SEEN) & likelier


def attest(text: Text, candidates: skip_trigrams.Candidates, listed: skip_trigrams.Ways) -> skip_trigrams.Attested:
    """Count every candidate triple in a text, and those of `listed`, of which the right ones are kept."""
    sources, destinations, outs = (part.numpy() for part in candidates[:3])
    level = np.zeros(destinations.shape, dtype=np.uint8)
    right, never = np.zeros((2, *destinations.shape, outs.shape[-1]), dtype=bool)
    for at in tqdm(np.ndindex(sources.shape), total=sources.size, desc="sources", mininterval=10):
        occasions, seen, right[at] = text.count(int(sources[at]), destinations[at], outs[at])
        level[at] = np.searchsorted(skip_trigrams.LEVELS, occasions, side="right")
        never[at] = (seen == 0) & (occasions[:, None] >= skip_trigrams.LEVELS[0])
    of_paper = [text.count(int(source), d[None], o[None])[2].item() for source, d, o in listed.T.numpy()]
    counted = map(torch.from_numpy, (level, right, never))
    return skip_trigrams.Attested(candidates, *counted, listed[:, torch.tensor(of_paper)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="folder that `book_tools.corpus` made")
    args = parser.parse_args()
    model, bigrams = load_model(MODEL), bigram_counts()
    sources = head_dump(model, frequencies(), n_sources=N_SOURCES, k=1)["source"]
    candidates = skip_trigrams.Candidates.of(model, torch.tensor(sources.to_numpy()).view(model.cfg.n_heads, -1))
    listed = skip_trigrams.paper_list(vocabulary())
    of_paper = torch.cat([skip_trigrams.combined(triple) for triple in listed.forms], dim=1)
    tokens = np.load(args.corpus / "train.npy", mmap_mode="r")
    attested = attest(Text(tokens, bigrams, model.cfg.n_ctx), candidates, of_paper)
    np.savez_compressed(
        DATA / skip_trigrams.FILE,
        weights_sha256=np.array(skip_trigrams.fingerprint(model)),
        sources=attested.candidates.sources.numpy().astype(np.uint16),
        level=attested.level.numpy(),
        right=np.packbits(attested.right.numpy()),
        never=np.packbits(attested.never.numpy()),
        paper=attested.paper.numpy().astype(np.uint16),
    )
    print(f"{DATA / skip_trigrams.FILE}: {attested.right.sum():,} right triples, {attested.never.sum():,} never seen")


if __name__ == "__main__":
    main()
