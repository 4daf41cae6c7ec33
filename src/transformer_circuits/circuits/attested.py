"""Which skip-trigrams of a model, and which of the paper's, occur in its training text (claims S4, S6).

`python -m book_tools.attested` counts. For each first-layer head the 300 sources that come
first in the head dump are counted, with all their hits (`Candidates`). Definitions, fixed before any cost was known:

    occasions   n(s, d)     positions with destination d and a source s before it, in its document and the context
    seen        n(s, d, o)  those of them where out token o comes next
    right       n(s, d, o) >= 5, and n(s, d, o) / n(s, d) > n(d, o) / n(d): the source makes o more likely than d alone
    never       n(s, d, o) = 0, on 30 occasions or more
    wrong       never, on 300 occasions or more (`Attested.wrong` accepts the other numbers of LEVELS)

The paper's skip-trigrams are counted too, in every form that the vocabulary has. After n occasions without a triple,
its probability is below 3 / n with 95% confidence: a wrong one follows fewer than 1% of them.
"""

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor
from tqdm.auto import tqdm
from transformer_lens.model_bridge import TransformerBridge

from transformer_circuits.circuits.skip_trigrams import Candidates, Ways
from transformer_circuits.data import BigramCounts
from transformer_circuits.models.architecture import BOS
from transformer_circuits.models.bridge import matrices
from transformer_circuits.models.shards import sha256
from transformer_circuits.paths import DATA

FILE = "attested_skip_trigrams.npz"
LEAST_SEEN = 5  # times, of a right triple
N_SOURCES = 300  # for each head
LEVELS = (30, 100, 300, 1000, 3000)  # minimum numbers of occasions that Attested.wrong accepts
OCCASIONS = 300  # of a wrong triple
AT_A_TIME = 1_000_000  # positions counted together


class Attested(NamedTuple):
    """How often every candidate triple occurs in the training text, on the CPU."""

    candidates: Candidates
    level: Int[Tensor, "head source d"]  # how many of LEVELS the occasions reach
    right: Bool[Tensor, "head source d o"]
    never: Bool[Tensor, "head source d o"]  # on at least as many occasions as the first of LEVELS
    paper: Ways  # those forms of the paper's skip-trigrams that are right: ids of source, destination, and out token

    def wrong(self, least_occasions: int = OCCASIONS) -> Bool[Tensor, "head source d o"]:
        """Return which triples never occur in that many occasions. Raises ValueError for a number outside LEVELS."""
        return self.never & (self.level > LEVELS.index(least_occasions))[..., None]


def fingerprint(model: TransformerBridge) -> str:
    """Return the SHA-256 of the model's weights in half precision, as stored on disk."""
    stored = [W.to("cpu", torch.float16).numpy() for name, W in matrices(model).items() if name != "W_pos"]
    return sha256(b"".join(W.tobytes() for W in stored))


class Text:
    """A packed corpus with an index of the positions of every token. Raises ValueError for bigrams of another text."""

    def __init__(self, tokens: np.ndarray, bigrams: BigramCounts, n_ctx: int) -> None:
        if (pairs := int(bigrams.count.sum())) != len(tokens) - 1:
            raise ValueError(f"the bigram counts must have {len(tokens) - 1} pairs, got {pairs}; ship both together")
        self.tokens, self.bigrams, self.n_ctx = tokens, bigrams, n_ctx
        self.d_vocab = len(bigrams.row_start) - 1
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
        after = self.bigrams.dense(torch.from_numpy(destinations)).double().numpy()  # [d, token]
        # n(s, d, o) / n(s, d) > n(d, o) / n(d), without a division by zero
        likelier = seen * after.sum(axis=1, keepdims=True) > after[:, outs] * occasions[:, None]
        return occasions, seen, (seen >= LEAST_SEEN) & likelier


def attest(text: Text, candidates: Candidates, listed: Ways) -> Attested:
    """Count every candidate triple in a text, and those of `listed`, of which the right ones are kept."""
    sources, destinations, outs = (part.numpy() for part in candidates[:3])
    level = np.zeros(destinations.shape, dtype=np.uint8)
    right, never = np.zeros((2, *destinations.shape, outs.shape[-1]), dtype=bool)
    for at in tqdm(np.ndindex(sources.shape), total=sources.size, desc="sources", mininterval=10):
        occasions, seen, right[at] = text.count(int(sources[at]), destinations[at], outs[at])
        level[at] = np.searchsorted(LEVELS, occasions, side="right")
        never[at] = (seen == 0) & (occasions[:, None] >= LEVELS[0])
    of_paper = [text.count(int(source), d[None], o[None])[2].item() for source, d, o in listed.T.numpy()]
    return Attested(candidates, *map(torch.from_numpy, (level, right, never)), listed[:, torch.tensor(of_paper)])


def save(attested: Attested, model: TransformerBridge, file: Path) -> None:
    """Write the counts to a compressed file with the fingerprint of the weights. `load` finds the hits again."""
    np.savez_compressed(
        file,
        weights_sha256=np.array(fingerprint(model)),
        sources=attested.candidates.sources.numpy().astype(np.uint16),
        level=attested.level.numpy(),
        right=np.packbits(attested.right.numpy()),
        never=np.packbits(attested.never.numpy()),
        paper=attested.paper.numpy().astype(np.uint16),
    )


def load(model: TransformerBridge, file: Path = DATA / FILE, working: Bool[Tensor, " head"] | None = None) -> Attested:
    """Load the counts for this model, without heads that do not work. Raises ValueError for other weights."""
    with np.load(file) as stored:
        if str(stored["weights_sha256"]) != fingerprint(model):
            raise ValueError(f"{file} was counted for other weights; run `python -m book_tools.attested` with it")
        candidates = Candidates.of(model, torch.from_numpy(stored["sources"].astype(np.int64)))
        shape = (*candidates.destinations.shape, candidates.outs.shape[-1])
        bits = (np.unpackbits(stored[key], count=math.prod(shape)) for key in ("right", "never"))
        right, never = (part.reshape(shape).astype(bool) for part in bits)
        if working is not None:
            right[~working.numpy()] = never[~working.numpy()] = False
        paper = torch.from_numpy(stored["paper"].astype(np.int64))
        return Attested(candidates, *map(torch.from_numpy, (stored["level"], right, never)), paper)
