"""Skip-trigrams: source ... destination -> out token, read from the QK and OV circuits of the first layer's heads; and
which of them, and of the paper's, occur in the training text.

Paper: "Interpretation as Skip-Trigrams" and the sections after it (claims S1 to S4, S6, S8). Both circuits are read by
source (`head_dump.by_source`): which destinations attend to it, and which out tokens that raises. Positions are left
out, although they can keep a head from attending where its tokens match. All arguments and results are on the CPU.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
import yaml
from jaxtyping import Bool, Float, Int
from scipy import sparse
from torch import Tensor
from transformer_lens import FactoredMatrix
from transformer_lens.model_bridge import TransformerBridge

from transformer_circuits.circuits.factored import Ids, ranks, top_k
from transformer_circuits.circuits.head_dump import by_source, top_share
from transformer_circuits.circuits.words import variants_of, word_of
from transformer_circuits.measures import estimates
from transformer_circuits.models.bridge import matrices
from transformer_circuits.models.shards import sha256
from transformer_circuits.paths import data_file

OFTEN = 100  # times that a source token occurs in the training text (claims S1, S2): rarer ones cannot be learned
LIFTED = 2.0  # times as likely after a destination as anywhere (claim S1)
# Shuffles behind every value by chance here: the standard error of the rarest of them is a tenth of it.
SHUFFLES = 100
# A destination is in the top share of its source's QK column, or a source in that of its destination's row.
Axis = Literal["column", "row"]
Forms = tuple[Sequence[int], ...]  # of source, destination, out: token ids with and without a leading space
Ways = Int[Tensor, "3 _way"]  # ways to split a word: ids of the whole, of its first piece, and of the rest


def columns_and_rows(model: TransformerBridge) -> list[FactoredMatrix]:
    """Return `by_source` in double precision, so that every machine finds the same hits in the same order."""
    return [FactoredMatrix(circuit.A.cpu(), circuit.B.cpu()) for circuit in by_source(model, torch.float64)]


class Candidates(NamedTuple):
    """Some sources of each first-layer head, and all hits of each: every destination goes with every out token."""

    sources: Int[Tensor, "head source"]
    destinations: Int[Tensor, "head source d"]  # the top share of the source's QK column, ascending ids
    outs: Int[Tensor, "head source o"]  # the top share of its OV row, largest boost first
    boosts: Float[Tensor, "head source o"]  # logits above the mean of that row

    @classmethod
    def of(cls, model: TransformerBridge, sources: Int[Tensor, "head source"]) -> Candidates:
        """Find all hits of these sources."""
        count, (columns, rows) = top_share(model.cfg.d_vocab), columns_and_rows(model)
        attending = torch.stack([top_k(columns[h], count, mine)[1] for h, mine in enumerate(sources)])
        boosts, outs = map(torch.stack, zip(*(top_k(rows[h], count, mine) for h, mine in enumerate(sources))))
        return cls(sources, attending.sort(dim=-1).values, outs, boosts.float())


class Hits(NamedTuple):
    """Tells in which first-layer heads a skip-trigram of any tokens is a hit."""

    columns: FactoredMatrix  # QK [head, source, destination]
    rows: FactoredMatrix  # OV [head, source, out]
    grid: Candidates  # of every token as a source
    sources: Int[Tensor, "head destination s"]  # the top share of every destination's QK row
    counted: Bool[Tensor, " head"]  # in the other heads nothing is a hit

    @classmethod
    def of(cls, model: TransformerBridge, working: Bool[Tensor, " head"] | None = None) -> Hits:
        """Find the hits of every source. `working`: heads that count; None for all."""
        every_token = torch.arange(model.cfg.d_vocab).expand(model.cfg.n_heads, -1)
        counted = torch.ones(model.cfg.n_heads, dtype=torch.bool) if working is None else working
        columns, rows = columns_and_rows(model)
        count = top_share(model.cfg.d_vocab)
        of_rows = torch.stack([top_k(columns[head].T, count)[1] for head in range(model.cfg.n_heads)])
        return cls(columns, rows, Candidates.of(model, every_token), of_rows, counted)

    def attended(self, sources: Ids, destinations: Ids, axis: Axis = "column") -> Bool[Tensor, "head n"]:
        """Return whether destination i is in the top share of source i's column, or source i in that of its row."""
        if axis == "row":
            return (self.sources[:, destinations] == sources[:, None]).any(dim=-1)
        return (self.grid.destinations[:, sources] == destinations[:, None]).any(dim=-1)

    def __call__(self, sources: Ids, destinations: Ids, outs: Ids, axis: Axis = "column") -> Bool[Tensor, "head n"]:
        """Return whether skip-trigram i is a hit: also, out token i is in the top share of source i's OV row."""
        raised = (self.grid.outs[:, sources] == outs[:, None]).any(dim=-1)
        return self.attended(sources, destinations, axis) & raised & self.counted[:, None]

    def best_copier(self, sources: Ids) -> Ids:
        """Return for each source the counted head that ranks it highest; of several, the largest boost (claim S1)."""
        rank = torch.stack([ranks(self.rows[h], sources, sources) for h in range(len(self.counted))])
        rank = rank.masked_fill(~self.counted[:, None], self.rows.rdim)
        boost = (self.rows.A[:, sources] * self.rows.B.mT[:, sources]).sum(dim=-1)
        return boost.masked_fill(rank > rank.amin(dim=0), -torch.inf).argmax(dim=0)

    def in_rows(self, grid: Candidates) -> Bool[Tensor, "head source d"]:
        """Return which of these destinations have the source in the top share of their own row."""
        head = torch.arange(len(grid.sources))[:, None, None]
        return (self.sources[head, grid.destinations] == grid.sources[..., None, None]).any(dim=-1)

    def top_destinations(self, heads: Ids, sources: Ids, k: int = 5) -> tuple[Int[Tensor, "n k"], Bool[Tensor, "n k"]]:
        """Return source i's k highest destinations in head i, and which have it in their row's top share (claim S1)."""
        found = torch.zeros(len(sources), k, dtype=torch.long)
        for head in heads.unique():
            _, found[heads == head] = top_k(self.columns[int(head)], k, sources[heads == head])
        in_row = self.sources[heads[:, None], found] == sources[:, None, None]
        return found, in_row.any(dim=-1)


def families(names: Sequence[str]) -> Bool[Tensor, "d_vocab d_vocab"]:
    """Return which tokens are the same or variants of one another."""
    family = torch.eye(len(names), dtype=torch.bool)
    for token, others in enumerate(variants_of(names)):
        family[token, list(others)] = True
    return family


def often_followed(follows: sparse.csr_array, family: Bool[Tensor, "source d_vocab"]) -> Bool[Tensor, "source d_vocab"]:
    """Return after which tokens a source or a variant comes more than LIFTED times as often as overall (claim S1).
    `follows`: `data.bigram_counts`."""
    after = (follows @ sparse.csr_array(family.numpy().astype(np.int64).T)).toarray()  # [token before, source]
    total = follows.sum(axis=1)[:, None]
    return torch.from_numpy(after * total.sum() > LIFTED * total * after.sum(axis=0)).T


def orders(n: int, draws: int) -> Int[Tensor, "draw n"]:
    """Return random orders of n things."""
    generator = torch.Generator().manual_seed(0)
    return torch.stack([torch.randperm(n, generator=generator) for _ in range(draws)])


def copied_by_chance(
    hits: Hits, family: Bool[Tensor, "d_vocab d_vocab"], sources: Ids, k: int = 5
) -> Float[Tensor, " shuffle"]:
    """Return the share of sources with a variant among another's k highest out tokens, in any counted head (S1)."""
    shares = []
    for others in sources[orders(len(sources), SHUFFLES)]:
        raised = hits.grid.outs[hits.counted][:, others, :k]
        shares.append(family[sources[:, None], raised].any(dim=-1).any(dim=0).float().mean())
    return torch.stack(shares)


def _ways(rows: Iterable[tuple[int, ...]]) -> Ways:
    return torch.tensor([*rows], dtype=torch.long).reshape(-1, 3).T


def all_splits(names: Sequence[str]) -> Ways:
    """Return every way to cut a token, with or without its leading space, into two tokens, the first no space (S2)."""
    ids = {name: i for i, name in enumerate(names)}
    rows = []
    for i, name in enumerate(names):
        for text in {name, name.removeprefix(" ")}:
            for cut in range(1, len(text)):
                piece, rest = text[:cut], text[cut:]
                if piece.strip() and piece in ids and rest in ids:
                    rows.append((i, ids[piece], ids[rest]))
    return _ways(sorted(set(rows)))


def broken_words(names: Sequence[str], encode: Callable[[str], list[int]]) -> Ways:
    """Return words that are one token after a space, and two without it or in the other case (claim S3)."""
    rows = []
    for i, name in enumerate(names):
        word = name.removeprefix(" ")
        if word != name and word_of(name) is not None:
            other = word[0].swapcase() + word[1:]
            rows += [(i, *pieces) for pieces in map(encode, (word, other, " " + other)) if len(pieces) == 2]
    return _ways(sorted(set(rows)))


# What claim S2 calls the four patterns of copying, and how the paper writes them.
PATTERNS = {
    "exact": "[b] ... [a] → [b]",
    "akin": "[b] ... [a] → [b']",
    "split_exact": "[ab] ... [a] → [b]",
    "split_akin": "[ab] ... [a] → [b']",
}


def pattern_shares(hits: Hits, names: Sequence[str], sources: Ids, k: int = 3) -> dict[str, tuple[float, float]]:
    """Return how frequent each of the PATTERNS is over counted heads and these sources, with its error over sources.

    The first two: the source, or a variant of it (`families`), is among its k highest out tokens. The last two: the
    rest b of a source (`all_splits`), or a variant of that rest, is, and the piece a attends to the source.
    NAME_random: the same once the sources have exchanged their out tokens at random, with the error over SHUFFLES.
    """
    own, akin = torch.arange(len(names))[:, None], families(names).fill_diagonal_(False)
    whole, piece, rest = all_splits(names)
    attended = hits.attended(whole, piece)

    def patterns(outs: Int[Tensor, "head d_vocab k"]) -> Float[Tensor, "4 head source"]:
        found = [(outs == own).any(dim=-1), akin[own, outs].any(dim=-1)]
        of_whole = outs[:, whole]
        for raised in (of_whole == rest[:, None], akin[rest[:, None], of_whole]):
            ways = (raised.any(dim=-1) & attended).float()
            found.append(torch.zeros(len(ways), len(names)).index_add_(1, whole, ways) > 0)
        return torch.stack(found)[:, hits.counted][..., sources].float()

    outs = hits.grid.outs[..., :k]
    exchanged = (outs.index_copy(1, sources, outs[:, others]) for others in sources[orders(len(sources), SHUFFLES)])
    by_chance = estimates.mean(torch.stack([patterns(other).mean(dim=(1, 2)) for other in exchanged]))
    by_name = {"": estimates.mean(patterns(outs).mean(dim=1).T), "_random": by_chance}
    return {
        f"{pattern}{ending}": (float(share), float(error))
        for ending, pair in by_name.items()
        for pattern, share, error in zip(PATTERNS, *pair)
    }


def exchanged_words(hits: Hits, ways: Ways, frequency: Float[Tensor, " d_vocab"]) -> Float[Tensor, " shuffle"]:
    """Return the share of words found once 20 neighbors in frequency exchange pieces and rests (claim S3)."""
    generator, shares = torch.Generator().manual_seed(0), []
    words, word = ways[0].unique(return_inverse=True)
    groups = frequency[words].argsort(stable=True).split(20)
    for _ in range(SHUFFLES):
        # owner[word]: the word whose pieces and rests it now has.
        owner = torch.empty(len(words), dtype=torch.long)
        for group in groups:
            cycle = group[torch.randperm(len(group), generator=generator)]
            owner[cycle] = cycle.roll(1)
        found = hits(words[owner[word]], *ways[1:]).any(dim=0)
        shares.append(len(owner[word][found].unique()) / len(words))
    return torch.tensor(shares)


def paper_examples() -> dict[str, Any]:
    """Load the paper's examples: `copying` (claim S1), `others` (S4), and `kinds` of words (S8)."""
    return yaml.safe_load(Path(__file__).with_name("paper_skip_trigrams.yml").read_text(encoding="utf8"))


def paper_list(names: Sequence[str]) -> pd.DataFrame:
    """Return the paper's skip-trigrams in our tokens (claim S4): `paper`, and `forms`, ids for each of the three.

    The paper does not show leading spaces, so both forms of each token count, where they are single tokens.
    """
    ids, examples = {name: i for i, name in enumerate(names)}, paper_examples()
    triples = []
    for source, destination, outs in itertools.chain(*examples["others"].values()):
        for out in outs:
            texts = [examples["as"].get(text, text) for text in (source, destination, out)]
            both = [[] if text is None else [text, " " + text] for text in texts]
            forms = tuple(tuple(ids[form] for form in pair if form in ids) for pair in both)
            triples.append((f"{source} ... {destination or '(any)'} → {out}", forms))
    return pd.DataFrame(triples, columns=["paper", "forms"])


def combined(triple: Forms) -> Ways:
    """Return every way to write a triple, one of its forms for each of the three tokens."""
    return _ways(itertools.product(*triple))


def hits_in_text(hits: Hits, listed: pd.DataFrame, right: Ways) -> pd.DataFrame:
    """Return those of `paper_list` that are `right` in a text: source, rest, forms there, hit by column, by row."""
    known, rows = set(zip(*right.tolist())), []
    for name, triple in zip(listed.paper, listed.forms):
        if found := known.intersection(itertools.product(*triple)):
            way = _ways(sorted(found))
            source, _, rest = name.partition(" ... ")
            forms = tuple(side.unique().tolist() for side in way)
            rows.append((source, rest, forms, *(hits(*way, axis).any().item() for axis in ("column", "row"))))
    return pd.DataFrame(rows, columns=["source", "rest", "forms", "column", "row"])


def hit_share(hits: Hits, in_text: pd.DataFrame, axis: Axis) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the fraction of `hits_in_text` that are hits by this axis, and once destinations and out tokens are
    exchanged between the triples (claim S4), with standard errors."""
    by_source = in_text.groupby("source")[axis].agg(["sum", "count"])
    share = estimates.ratio(*torch.tensor(by_source.to_numpy()).T)
    sources, destinations, outs = zip(*in_text["forms"])
    counts = []
    for d, o in orders(len(sources), 2 * SHUFFLES).view(SHUFFLES, 2, -1).tolist():
        exchanged = zip(sources, (destinations[i] for i in d), (outs[i] for i in o))
        counts.append(sum(hits(*combined(triple), axis).any().item() for triple in exchanged))
    chance = estimates.mean(torch.tensor(counts, dtype=torch.float) / len(in_text))
    return tuple(map(float, share)), tuple(map(float, chance))


FILE = "attested_skip_trigrams.npz"
LEVELS = (30, 100, 300, 1000, 3000)  # minimum numbers of occasions that Attested.wrong accepts
OCCASIONS = 300  # of a wrong triple


class Attested(NamedTuple):
    """How often every candidate triple occurs in the training text, on the CPU (claims S4, S6).

    `python -m book_tools.attested` counts: for each first-layer head the 300 sources that come first in the head dump,
    with all their hits (`Candidates`). Definitions, fixed before any cost was known::

        occasions   n(s, d)     positions with destination d and a source s before it, in its document and the context
        seen        n(s, d, o)  those of them where out token o comes next
        right       n(s, d, o) >= 5, and n(s, d, o) / n(s, d) > n(d, o) / n(d): s makes o more likely than d alone
        never       n(s, d, o) = 0, on 30 occasions or more
        wrong       never, on 300 occasions or more (`Attested.wrong` accepts the other numbers of LEVELS)

    The paper's skip-trigrams are counted too, in every form that the vocabulary has. After n occasions without a
    triple, its probability is below 3 / n with 95% confidence: a wrong one follows fewer than 1% of them.
    """

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


def load_attested(model: TransformerBridge, working: Bool[Tensor, " head"] | None = None) -> Attested:
    """Load the counts for this model, without heads that do not work. Raises ValueError for other weights."""
    file = data_file(FILE)
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


# Of each place of a destination and each head and source before it: position [place, 1], out tokens [place, o], what is
# added to their logits [place, o], and the ids (head, source, d) of a row o in a grid [head, source, d, o].
Boosts = tuple[Int[Tensor, "place 1"], Int[Tensor, "place o"], Float[Tensor, "place o"], tuple[Ids, Ids, Ids]]


def find_boosts(tokens: Int[Tensor, " position"], patterns: Float[Tensor, "head dest src"], grid: Candidates) -> Boosts:
    """Return where candidate triples occur in a text, and what they add to the logits there (claim S6).

    For head h, destination d at position j, and out token o: A^h[j, source] * boost of o, with the attention summed
    over all positions of the source before j. Boosts below zero count as zero.
    """
    kinds, kind_of = tokens.unique(return_inverse=True)
    # [head, position, kind of token]: to earlier positions of this token
    attention = patterns.tril(-1) @ F.one_hot(kind_of).to(patterns)
    # Pairs of which both tokens are in the text
    both = torch.isin(grid.sources, kinds)[..., None] & torch.isin(grid.destinations, kinds)
    head, source, d = both.nonzero(as_tuple=True)
    attention = attention[head, :, torch.searchsorted(kinds, grid.sources[head, source])]
    attending = (grid.destinations[head, source, d][:, None] == tokens) & (attention > 0)
    pair, position = attending.nonzero(as_tuple=True)
    triples = head[pair], source[pair], d[pair]
    amount = attention[pair, position, None] * grid.boosts[triples[:2]].clamp(min=0)
    return position[:, None], grid.outs[triples[:2]], amount, triples
