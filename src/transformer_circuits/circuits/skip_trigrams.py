"""Skip-trigrams: source ... destination -> out, read off the QK and OV circuits of the first layer's heads.

Paper: "Interpretation as Skip-Trigrams" and the sections after it (claims S1 to S4, S6, S8). The QK circuit of a head says which
destinations attend to a source, its OV circuit which outs attending to that source raises. Both are read by source
(`head_dump.by_source`). Positions are left out; they can still keep a head from attending where its tokens want to.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
import torch.nn.functional as F
import yaml
from jaxtyping import Bool, Float, Int
from scipy.stats import bootstrap
from torch import Tensor
from transformer_lens import FactoredMatrix
from transformer_lens.model_bridge import TransformerBridge

from transformer_circuits.circuits.factored import entries, ranks, row_blocks, top_k
from transformer_circuits.circuits.head_dump import by_source
from transformer_circuits.circuits.heads import check_head
from transformer_circuits.circuits.words import akin_to, word_of
from transformer_circuits.data import BigramCounts

SHARE = 0.01  # of the vocabulary: as far down a QK column or an OV row as counts as a hit
PAPER_LIST = Path(__file__).with_name("paper_skip_trigrams.yml")
Ids = Int[Tensor, " n"]


# --- hits -------------------------------------------------------------------------------------------------------------------


def top_count(d_vocab: int, share: float = SHARE) -> int:
    """How many tokens are the top `share` of a vocabulary, rounded down. Raises ValueError if that is none, or all."""
    count = int(share * d_vocab)
    if not 0 < count < d_vocab:
        raise ValueError(f"a share of {share} of {d_vocab} tokens is {count}: choose one that leaves at least one in and one out")
    return count


@dataclasses.dataclass(frozen=True)
class Hits:
    """Tells for any skip-trigram in which first-layer heads it is a hit; takes and gives tensors on the CPU.

    A hit: the destination is in the top `share` of the source's QK column, and the out in the top `share` of its OV row.
    """

    columns: FactoredMatrix  # QK [head, source, destination]
    rows: FactoredMatrix  # OV [head, source, out]
    least_score: Float[Tensor, "head d_vocab"]  # by source: the bound that hits exceed
    least_boost: Float[Tensor, "head d_vocab"]

    @classmethod
    def of(cls, model: TransformerBridge, share: float = SHARE) -> Hits:
        """Reads both circuits of every head once. Raises ValueError for a model without layers and as `top_count` does."""
        circuits, count = by_source(model), top_count(model.cfg.d_vocab, share)

        def bounds(circuit: FactoredMatrix) -> Tensor:
            # Halfway between the last entry that is in and the first that is not: rounding moves neither across.
            return torch.cat([block.topk(count + 1).values[:, -2:].mean(dim=1) for _, block in row_blocks(circuit)])

        return cls(*circuits, *(torch.stack([bounds(m[h]).cpu() for h in range(model.cfg.n_heads)]) for m in circuits))

    def attended(self, sources: Ids, destinations: Ids) -> Bool[Tensor, "head n"]:
        """Whether destination i is in the top share of source i's QK column."""
        return by_head(entries, self.columns, sources, destinations) > self.least_score[:, sources]

    def raised(self, sources: Ids, outs: Ids) -> Bool[Tensor, "head n"]:
        """Whether out i is in the top share of source i's OV row."""
        return by_head(entries, self.rows, sources, outs) > self.least_boost[:, sources]

    def __call__(self, sources: Ids, destinations: Ids, outs: Ids) -> Bool[Tensor, "head n"]:
        """Whether skip-trigram i is a hit."""
        return self.attended(sources, destinations) & self.raised(sources, outs)

    def above(self, sources: Ids, destinations: Ids, outs: Ids) -> Float[Tensor, "2 head n"]:
        """The share of tokens that rank above the destination in its column and above the out in its row (claim S4)."""
        columns, rows = by_head(ranks, self.columns, sources, destinations), by_head(ranks, self.rows, sources, outs)
        return torch.stack([columns, rows]) / self.rows.rdim

    def best_copier(self, sources: Ids) -> Ids:
        """For each source the head in whose OV row it ranks highest itself; of several, the one that raises it most (claim S1)."""
        boost = by_head(entries, self.rows, sources, sources)
        return (by_head(ranks, self.rows, sources, sources) - boost / (2 * boost.abs().max())).argmin(dim=0)

    def top_outs(self, k: int) -> Int[Tensor, "head d_vocab k"]:
        """The outs that each head raises most, by source, largest boost first (claim S2)."""
        return torch.stack([top_k(self.rows[head], k).indices.cpu() for head in range(len(self.rows.A))])


def by_head(read: Callable[..., Ids], circuit: FactoredMatrix, rows: Ids, columns: Ids) -> Float[Tensor, "head n"]:
    """`factored.entries` or `factored.ranks` of every head's circuit, wherever it lies; ids and result are on the CPU."""
    rows, columns = rows.to(circuit.A.device), columns.to(circuit.A.device)
    return torch.stack([read(circuit[head], rows, columns).cpu() for head in range(len(circuit.A))])


# --- copying (S1, S2, S3) ---------------------------------------------------------------------------------------------------


def lifts(counts: BigramCounts, after: Iterable[int]) -> Float[Tensor, " d_vocab"]:
    """How many times as likely one of the tokens `after` is behind each token as anywhere (claim S1); 0 behind one never seen."""
    d_vocab, pairs = len(counts.row_start) - 1, counts.count.double()
    followed = torch.bincount(counts.preceding, pairs * torch.isin(counts.following, torch.tensor(sorted(after))), minlength=d_vocab)
    total = torch.bincount(counts.preceding, pairs, minlength=d_vocab)
    return (followed / total.clamp(min=1) / (followed.sum() / total.sum()).clamp(min=1e-300)).float()


def of_like_frequency(frequency: Float[Tensor, " d_vocab"], tokens: Int[Tensor, "*shape"], n: int = 100) -> Int[Tensor, "*shape n"]:
    """For each token the n nearest to it in the order of frequency, itself left out (claim S1)."""
    order = frequency.argsort(descending=True, stable=True)
    own = order.argsort()[tokens][..., None]
    near = (own - n // 2).clamp(0, len(order) - n - 1) + torch.arange(n)
    return order[near + (near >= own)]


class Splits(NamedTuple):
    """Words that are one token in one place and two in another: whole = piece + rest. Token ids, one row for each way."""

    whole: Ids
    piece: Ids
    rest: Ids

    @classmethod
    def of(cls, rows: Iterable[tuple[int, int, int]]) -> Splits:
        """Each different (whole, piece, rest) once, by ids."""
        return cls(*torch.tensor(sorted(set(rows)), dtype=torch.long).reshape(-1, 3).T.contiguous())


def all_splits(names: Sequence[str]) -> Splits:
    """Every way to cut a token's string, with or without its leading space, into two tokens, neither just a space first (claim S2)."""
    ids = {name: i for i, name in enumerate(names)}
    cuts = ((i, s[:n], s[n:]) for i, name in enumerate(names) for s in {name, name.removeprefix(" ")} for n in range(1, len(s)))
    return Splits.of((i, ids[a], ids[b]) for i, a, b in cuts if a in ids and b in ids and a.strip())


def broken_words(names: Sequence[str], encode: Callable[[str], list[int]]) -> Splits:
    """Words that are one token behind a space, and exactly two without it, or capitalized otherwise (claim S3).

    `names`: the strings of all tokens, by id; `encode`: the tokenizer, without a start token.
    """
    rows = []
    for i, name in enumerate(names):
        word = name.removeprefix(" ")
        if word != name and word_of(name) is not None:
            other = word[0].swapcase() + word[1:]
            rows += [(i, *pieces) for pieces in map(encode, (word, other, " " + other)) if len(pieces) == 2]
    return Splits.of(rows)


# What claim S2 calls the four patterns of copying, and how the paper writes them.
PATTERNS = {"exact": "[b] ... [a] → [b]", "akin": "[b] ... [a] → [b']", "split_exact": "[ab] ... [a] → [b]", "split_akin": "[ab] ... [a] → [b']"}


def four_patterns(hits: Hits, names: Sequence[str], outs: Int[Tensor, "head d_vocab k"]) -> Bool[Tensor, "4 head d_vocab"]:
    """Which (head, source) pairs show each of the paper's four patterns of copying (claim S2), in the paper's order:

    [b] ... [a] -> [b], the source is among its outs; -> [b'], another token akin to it is; [ab] ... [a] -> [b] and -> [b'], the rest b
    of a source (`all_splits`), or a token akin to it, where the piece a attends. `outs`: the k that each head raises most, by source.
    """
    akin, splits = akin_to(names), all_splits(names)
    most = max(1, *map(len, akin))
    akin = torch.tensor([[*others] + [-1] * (most - len(others)) for others in akin])
    own = torch.arange(len(names))

    def among(outs: Tensor, wanted: Int[Tensor, "n m"]) -> Bool[Tensor, "head n"]:
        return torch.stack([(outs == column[:, None]).any(dim=-1) for column in wanted.T]).any(dim=0)

    found = torch.zeros(4, *outs.shape[:2], dtype=torch.bool)
    found[0], found[1] = among(outs, own[:, None]), among(outs, akin)
    for kind, wanted in ((2, splits.rest[:, None]), (3, akin[splits.rest])):
        head, way = (among(outs[:, splits.whole], wanted) & hits.attended(splits.whole, splits.piece)).nonzero(as_tuple=True)
        found[kind, head, splits.whole[way]] = True
    return found


def exchanged_words(
    hits: Hits, splits: Splits, frequency: Float[Tensor, " d_vocab"], shuffles: int, bin_size: int = 20, seed: int = 0
) -> Float[Tensor, " shuffle"]:
    """The share of words found once each has the pieces and rests of another word of like frequency (claim S3).

    Words change places in a random cycle within groups of `bin_size` neighbors in frequency. A piece stays with its rest.
    """
    generator, shares = torch.Generator().manual_seed(seed), []
    words, ways = splits.whole.unique(return_inverse=True)
    for _ in range(shuffles):
        owner = torch.empty(len(words), dtype=torch.long)  # the word that now has this one's ways of falling apart
        for part in frequency[words].argsort(stable=True).split(bin_size):
            cycle = part[torch.randperm(len(part), generator=generator)]
            owner[cycle] = cycle.roll(1)
        found = hits(words[owner[ways]], splits.piece, splits.rest).any(dim=0)
        shares.append(len(owner[ways][found].unique()) / len(words))
    return torch.tensor(shares)


# --- the paper's list (S4) --------------------------------------------------------------------------------------------------

Forms = tuple[Sequence[int], Sequence[int], Sequence[int]]  # source, destination, out: token ids with and without a leading space


def paper_examples() -> dict[str, Any]:
    """The paper's examples as data: `copying` (S1), `split_words` (S3), `others` (S4) and `bugs` (S6); and `kinds` of words (S8)."""
    return yaml.safe_load(PAPER_LIST.read_text(encoding="utf8"))


class Triple(NamedTuple):
    """One skip-trigram of the paper, in all the forms that our vocabulary has for it."""

    group: str
    paper: str  # as the paper writes it
    forms: Forms
    pieces: list[str]  # into what the vocabulary splits the tokens that it lacks in either form: "str|ft|ime"


def paper_list(names: Sequence[str], encode: Callable[[str], list[int]]) -> list[Triple]:
    """The paper's skip-trigrams in our tokens (claim S4).

    The paper does not show leading spaces, so both forms of each token count, where they are single tokens. What the vocabulary splits
    in both forms is listed with its pieces, not dropped. `names`: the strings of all tokens; `encode`: the tokenizer, no start token.
    """
    ids, examples, triples = {name: i for i, name in enumerate(names)}, paper_examples(), []
    for group, rows in examples["others"].items():
        for source, destination, outs in rows:
            for text in ((source, destination, out) for out in outs):
                ours = {t: examples["as"].get(t, t) for t in text if t is not None}
                forms = [tuple(ids[f] for f in (ours[t], " " + ours[t]) if f in ids) if t in ours else () for t in text]
                pieces = ["|".join(names[i] for i in encode(ours[t])) for t, f in dict(zip(text, forms)).items() if t in ours and not f]
                triples.append(Triple(group, f"{source} ... {destination or '(any)'} → {text[2]}", tuple(forms), pieces))
    return triples


def count_hits(hits: Hits, forms: Sequence[Forms]) -> Bool[Tensor, "head triple"]:
    """In which heads each triple is a hit, in at least one of its forms; in none if it has no form."""
    rows = [(i, *combination) for i, triple in enumerate(forms) for combination in itertools.product(*triple)]
    owner, *tokens = torch.tensor(rows, dtype=torch.long).reshape(-1, 4).T
    found = hits(*tokens)
    return torch.zeros(len(found), len(forms)).index_add_(1, owner, found.float()) > 0


def exchanged_hits(hits: Hits, forms: Sequence[Forms], shuffles: int, seed: int = 0) -> Float[Tensor, " shuffle"]:
    """How many triples are hits once destinations and outs have been exchanged between them, each on its own (claim S4).

    Triples without a form are left out.
    """
    forms = [triple for triple in forms if all(triple)]
    generator, n = torch.Generator().manual_seed(seed), len(forms)
    deals = [torch.randperm(n, generator=generator).tolist() for _ in range(2 * shuffles)]
    dealt = [(forms[i][0], forms[a][1], forms[b][2]) for d, o in zip(deals[::2], deals[1::2]) for i, a, b in zip(range(n), d, o)]
    return count_hits(hits, dealt).any(dim=0).view(shuffles, n).sum(dim=1).float()


def nearest(hits: Hits, forms: Sequence[Forms], names: Sequence[str]) -> pd.DataFrame:
    """Where triples come nearest to a hit: for each the form and the head in which the worse of the two shares is best; nearest first.

    Columns tokens (three strings), head ("0.7"), above d (%) and above o (%): the share of tokens that rank above destination and out.
    The index says which triple it is; those without a form are left out.
    """
    rows = {}
    for i, triple in enumerate(forms):
        if all(triple):
            ways = torch.cartesian_prod(*map(torch.tensor, triple))
            above = 100 * hits.above(*ways.T)  # [2, head, way]
            head, way = divmod(int(above.amax(dim=0).argmin()), len(ways))
            rows[i] = [names[token] for token in ways[way]], f"0.{head}", *above[:, head, way].tolist()
    table = pd.DataFrame.from_dict(rows, orient="index", columns=["tokens", "head", "above d (%)", "above o (%)"])
    return table.loc[table.iloc[:, 2:].max(axis=1).sort_values(kind="stable").index]


# --- clusters of columns (S8) -----------------------------------------------------------------------------------------------


def column_coordinates(model: TransformerBridge, head: int, sources: Ids) -> Float[Tensor, "n d_head"]:
    """QK columns of first-layer sources, each of length one, in d_head coordinates that keep all their inner products (claim S8).

    Columns are products Q k with Q = W_E W_Q. With Q = U S, orthonormal columns in U, the coordinates S k have the same lengths and
    angles. From each destination's scores their mean over all sources is taken off first, which softmax does not see.
    """
    check_head(model, 0, head)
    columns = by_source(model)[0][head]
    keys = columns.A[sources] - columns.A.mean(dim=0)
    return F.normalize(keys @ torch.linalg.qr(columns.B.T, mode="r").R.T, dim=1)


# --- bugs (S6) --------------------------------------------------------------------------------------------------------------


class Candidates(NamedTuple):
    """For each first-layer head some sources, and all hits of each: every destination goes with every out.

    That the hits of a head and source form a full grid is the factored form that the paper speaks of.
    """

    sources: Int[Tensor, "head source"]
    destinations: Int[Tensor, "head source d"]  # ascending ids
    outs: Int[Tensor, "head source o"]  # largest boost first
    boosts: Float[Tensor, "head source o"]  # logits above the mean of the source's OV row

    @classmethod
    def of(cls, model: TransformerBridge, sources: Int[Tensor, "head source"], share: float = SHARE) -> Candidates:
        """All hits of these sources, on the CPU and in double precision, so that every machine finds the same ones in the same order.

        Raises ValueError unless each head has its row of sources, and as `top_count` does.
        """
        if sources.ndim != 2 or len(sources) != model.cfg.n_heads:
            raise ValueError(f"`sources` must have a row for each of the {model.cfg.n_heads} heads, not the shape {list(sources.shape)}")
        count, sources = top_count(model.cfg.d_vocab, share), sources.cpu()
        columns, rows = (FactoredMatrix(m.A.cpu(), m.B.cpu()) for m in by_source(model, torch.float64))
        to, out = ([top_k(m[h], count, mine) for h, mine in enumerate(sources)] for m in (columns, rows))
        destinations = torch.stack([found.indices for found in to]).sort(dim=-1).values
        return cls(sources, destinations, *(torch.stack(part) for part in zip(*((f.indices, f.values.float()) for f in out))))

    def to(self, device: torch.device | str) -> Candidates:
        return Candidates(*(part.to(device) for part in self))


def count_bugs(right: Bool[Tensor, "*batch d o"], wrong: Bool[Tensor, "*batch d o"]) -> Int[Tensor, "*batch"]:
    """In how many ways two right skip-trigrams of one head and source force two wrong ones (claim S6).

    A bug is a pair (d, o), (d', o'), both right, whose crossed triples (d, o') and (d', o) are both wrong.
    """
    crossings = right.float() @ wrong.float().mT  # [d, d']: outs that are right behind d and wrong behind d'
    return ((crossings * crossings.mT).sum(dim=(-2, -1), dtype=torch.double) / 2).long()  # single precision counts to 2^24 only


def crossed(right: Bool[Tensor, "*batch d o"], wrong: Bool[Tensor, "*batch d o"]) -> Bool[Tensor, "*batch d o"]:
    """The wrong triples that are part of at least one bug."""
    return wrong & (right.float() @ wrong.float().mT @ right.float() > 0.5)


def partners_in_bugs(right: Bool[Tensor, "n d o"], wrong: Bool[Tensor, "n d o"], d: Ids, o: Ids) -> tuple[Ids, Ids]:
    """For crossed triples (d, o) the (d', o') of a bug that each is part of: (d, o') and (d', o) right, (d', o') wrong. On the CPU."""
    i = torch.arange(len(d))
    bugs = wrong & right[i, :, o][:, :, None] & right[i, d][:, None]
    if not (wrong[i, d, o] & bugs.any(dim=(1, 2))).all():
        raise ValueError("there is a triple that is part of no bug: choose those that `crossed` marks")
    return torch.unravel_index(bugs.flatten(1).int().argmax(dim=1).cpu(), bugs.shape[1:])


class Boosts(NamedTuple):
    """What triples add to the logits of a text: a row for each place of a destination and each head and source it looks back to."""

    position: Int[Tensor, "place 1"]  # of the destination
    out: Int[Tensor, "place o"]
    amount: Float[Tensor, "place o"]  # logits, zero or above
    triple: Int[Tensor, "place o"]  # index into the flattened grid [head, source, d, o]


def find_boosts(tokens: Int[Tensor, " position"], patterns: Float[Tensor, "head dest src"], candidates: Candidates) -> Boosts:
    """Where candidate triples occur in a text, and what they add to the logits there (claim S6).

    For head h, destination d at place j and out o: A^h[j, source] * boost of o, with the attention summed over all places of the
    source before j. A token that attends to itself is no skip-trigram. Boosts below zero count as none.
    """
    kinds, kind_of = tokens.unique(return_inverse=True)
    attention = patterns.tril(-1) @ F.one_hot(kind_of, len(kinds)).to(patterns)  # [head, place, kind]: to earlier places of a kind
    head, source = torch.isin(candidates.sources, kinds).nonzero(as_tuple=True)
    kind = torch.searchsorted(kinds, candidates.sources[head, source])
    looking = candidates.destinations[head, source]  # [candidate here, d]
    d = torch.searchsorted(looking, tokens.expand(len(looking), -1).contiguous()).clamp(max=looking.shape[1] - 1)
    here, place = ((looking.gather(1, d) == tokens) & (attention[head, :, kind] > 0)).nonzero(as_tuple=True)
    head, source, kind, d = head[here], source[here], kind[here], d[here, place]
    outs, boosts = candidates.outs[head, source], candidates.boosts[head, source].clamp(min=0)
    row = (head * candidates.sources.shape[1] + source) * looking.shape[1] + d
    triple = row[:, None] * outs.shape[1] + torch.arange(outs.shape[1], device=row.device)
    return Boosts(place[:, None], outs, attention[head, place, kind, None] * boosts, triple)


def loss_without(
    logits: Float[Tensor, "position d_vocab"], targets: Int[Tensor, " position"], at: Boosts, chosen: Bool[Tensor, "head source d o"]
) -> float:
    """Nats at predicting the targets, summed, once the chosen triples are taken off the logits: what the heads would add without them."""
    amount = at.amount * chosen.flatten()[at.triple]
    return float(F.cross_entropy(logits.index_put((at.position, at.out), -amount, accumulate=True), targets, reduction="sum"))


def cost_alone(logits: Float[Tensor, "position d_vocab"], targets: Int[Tensor, " position"], at: Boosts) -> Float[Tensor, "place o"]:
    """By how much each boost alone raises the loss at its place, nats; below zero where it helps.

    Without b logits an out of probability p leaves a normalizer of (1 - p) + p exp(-b).
    """
    p = logits.double().softmax(dim=-1)[at.position, at.out]
    return -((1 - p) + p * (-at.amount.double()).exp()).log() - at.amount * (targets[at.position] == at.out)


def per_thousand_tokens(nats: Float[Tensor, " text"], lengths: Int[Tensor, " text"]) -> pd.Series:
    """What sums over texts come to in nats per 1,000 tokens: `cost`, and the ends of its 95 % interval over resampled texts (claim S6)."""

    def ratio(nats: Any, lengths: Any, axis: int = 0) -> Any:
        return 1000 * nats.sum(axis) / lengths.sum(axis)

    drawn = bootstrap((nats, lengths), ratio, paired=True, n_resamples=2000, method="percentile", rng=0).confidence_interval
    return pd.Series({"cost": ratio(nats, lengths).item(), "cost_low": drawn.low, "cost_high": drawn.high})
