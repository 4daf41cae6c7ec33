"""Skip-trigrams: source ... destination -> out token, read from the QK and OV circuits of the first layer's heads.

Paper: "Interpretation as Skip-Trigrams" and the sections after it (claims S1 to S4, S6, S8). A head's QK circuit says which destinations
attend to a source, and its OV circuit says which out tokens attending to that source raises. Both are read by source
(`head_dump.by_source`). Positions are left out, although they can keep a head from attending where its tokens match.
"""

from __future__ import annotations

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

from transformer_circuits.circuits.factored import Ids, entries, ranks, row_blocks, top_k
from transformer_circuits.circuits.head_dump import by_source
from transformer_circuits.circuits.heads import check_head
from transformer_circuits.circuits.words import akin_to, word_of
from transformer_circuits.data import BigramCounts

SHARE = 0.01  # of the vocabulary: how far down a QK column or an OV row a hit may be
LIFTED = 2.0  # times as likely after a destination as anywhere (claim S1)
PAPER_LIST = Path(__file__).with_name("paper_skip_trigrams.yml")
Forms = tuple[Sequence[int], ...]  # of source, destination, out: token ids with and without a leading space


# --- hits -------------------------------------------------------------------------------------------------------------------


def top_count(d_vocab: int, share: float = SHARE) -> int:
    """Return how many tokens are the top `share` of a vocabulary, rounded down."""
    return int(share * d_vocab)


class Hits(NamedTuple):
    """Tells in which first-layer heads a skip-trigram is a hit. Arguments and results are on the CPU.

    A hit: the destination is in the top `share` of the source's QK column, and the out token in the top `share` of its OV row.
    """

    columns: FactoredMatrix  # QK [head, source, destination]
    rows: FactoredMatrix  # OV [head, source, out]
    least_score: Float[Tensor, "head d_vocab"]  # by source: the bound that hits exceed
    least_boost: Float[Tensor, "head d_vocab"]

    @classmethod
    def of(cls, model: TransformerBridge, share: float = SHARE) -> Hits:
        """Read both circuits of every head once. Raises ValueError for a model without layers."""
        columns, rows = by_source(model)
        count = top_count(model.cfg.d_vocab, share)
        return cls(columns, rows, _bounds(columns, count), _bounds(rows, count))

    def attended(self, sources: Ids, destinations: Ids) -> Bool[Tensor, "head n"]:
        """Return whether destination i is in the top share of source i's QK column."""
        return by_head(entries, self.columns, sources, destinations) > self.least_score[:, sources]

    def raised(self, sources: Ids, outs: Ids) -> Bool[Tensor, "head n"]:
        """Return whether out token i is in the top share of source i's OV row."""
        return by_head(entries, self.rows, sources, outs) > self.least_boost[:, sources]

    def __call__(self, sources: Ids, destinations: Ids, outs: Ids) -> Bool[Tensor, "head n"]:
        """Return whether skip-trigram i is a hit."""
        return self.attended(sources, destinations) & self.raised(sources, outs)

    def above(self, sources: Ids, destinations: Ids, outs: Ids) -> Float[Tensor, "2 head n"]:
        """Return the share of tokens that rank above the destination in its column, and above the out token in its row (claim S4)."""
        above_d = by_head(ranks, self.columns, sources, destinations)
        above_o = by_head(ranks, self.rows, sources, outs)
        return torch.stack([above_d, above_o]) / self.rows.rdim

    def best_copier(self, sources: Ids) -> Ids:
        """Return for each source the head in whose OV row it ranks highest itself; of several, the one that raises it most (claim S1)."""
        boost = by_head(entries, self.rows, sources, sources)
        return (by_head(ranks, self.rows, sources, sources) - boost / (2 * boost.abs().max())).argmin(dim=0)

    def top_outs(self, k: int) -> Int[Tensor, "head d_vocab k"]:
        """Return the out tokens that each head raises most, by source, largest boost first (claim S2)."""
        return torch.stack([top_k(self.rows[head], k).indices.cpu() for head in range(len(self.rows.A))])


def _bounds(circuits: FactoredMatrix, count: int) -> Float[Tensor, "head row"]:
    """Return for each row the middle between its `count`-th largest entry and the next one, so that rounding moves neither across."""
    bounds = []
    for head in range(len(circuits.A)):
        blocks = (block for _, block in row_blocks(circuits[head]))
        bounds.append(torch.cat([block.topk(count + 1).values[:, -2:].mean(dim=1) for block in blocks]))
    return torch.stack(bounds).cpu()


def by_head(
    read: Callable[..., Ids], circuit: FactoredMatrix, rows: Ids, columns: Ids
) -> Float[Tensor, "head n"]:
    """Return `factored.entries` or `factored.ranks` of every head's circuit, on any device; ids and result are on the CPU."""
    rows, columns = rows.to(circuit.A.device), columns.to(circuit.A.device)
    return torch.stack([read(circuit[head], rows, columns).cpu() for head in range(len(circuit.A))])


# --- copying (S1, S2, S3) ---------------------------------------------------------------------------------------------------


def lifts(counts: BigramCounts, after: Iterable[int]) -> Float[Tensor, " d_vocab"]:
    """Return how many times as likely one of the tokens `after` is after each token as anywhere; 0 after a token never seen (claim S1)."""
    d_vocab, pairs = len(counts.row_start) - 1, counts.count.double()
    wanted = torch.isin(counts.following, torch.tensor(sorted(after)))
    followed = torch.bincount(counts.preceding, pairs * wanted, minlength=d_vocab)
    total = torch.bincount(counts.preceding, pairs, minlength=d_vocab)
    anywhere = (followed.sum() / total.sum()).clamp(min=1e-300)
    return (followed / total.clamp(min=1) / anywhere).float()


class Splits(NamedTuple):
    """Words that are one token in one place and two in another: whole = piece + rest. Token ids, one row for each way to split."""

    whole: Ids
    piece: Ids
    rest: Ids

    @classmethod
    def of(cls, rows: Iterable[tuple[int, int, int]]) -> Splits:
        """Collect each different (whole, piece, rest) once, by ids."""
        return cls(*torch.tensor(sorted(set(rows)), dtype=torch.long).reshape(-1, 3).T.contiguous())


def all_splits(names: Sequence[str]) -> Splits:
    """Return every way to cut a token, with or without its leading space, into two tokens; the first is not only a space (claim S2)."""
    ids = {name: i for i, name in enumerate(names)}
    rows = []
    for i, name in enumerate(names):
        for text in {name, name.removeprefix(" ")}:
            for cut in range(1, len(text)):
                piece, rest = text[:cut], text[cut:]
                if piece.strip() and piece in ids and rest in ids:
                    rows.append((i, ids[piece], ids[rest]))
    return Splits.of(rows)


def broken_words(names: Sequence[str], encode: Callable[[str], list[int]]) -> Splits:
    """Return words that are one token after a space, and exactly two without the space or with the first letter's case changed (claim S3).

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
PATTERNS = {
    "exact": "[b] ... [a] → [b]",
    "akin": "[b] ... [a] → [b']",
    "split_exact": "[ab] ... [a] → [b]",
    "split_akin": "[ab] ... [a] → [b']",
}


def four_patterns(
    hits: Hits, names: Sequence[str], outs: Int[Tensor, "head d_vocab k"]
) -> Bool[Tensor, "4 head d_vocab"]:
    """Return which (head, source) pairs show each of the four PATTERNS of copying, in that order (claim S2).

    The first two: the source, or a variant of it, is among its out tokens. The last two: the rest b of a source (`all_splits`), or a
    variant of that rest, is, and the piece a attends to the source. `outs`: the k that each head raises most, by source.
    """
    n, splits = len(names), all_splits(names)
    variants = torch.tensor([a * n + b for a, others in enumerate(akin_to(names)) for b in others])

    def akin(tokens: Ids, outs: Int[Tensor, "head n k"]) -> Bool[Tensor, "head n k"]:
        return torch.isin(tokens[:, None] * n + outs, variants)

    own, of_whole = torch.arange(n), outs[:, splits.whole]
    exact, similar = (outs == own[:, None]).any(dim=-1), akin(own, outs).any(dim=-1)
    found = torch.stack([exact, similar, torch.zeros_like(exact), torch.zeros_like(exact)])
    attended = hits.attended(splits.whole, splits.piece)
    for kind, raised in ((2, of_whole == splits.rest[:, None]), (3, akin(splits.rest, of_whole))):
        head, way = (raised.any(dim=-1) & attended).nonzero(as_tuple=True)
        found[kind, head, splits.whole[way]] = True
    return found


def exchanged_words(
    hits: Hits, splits: Splits, frequency: Float[Tensor, " d_vocab"], shuffles: int
) -> Float[Tensor, " shuffle"]:
    """Return the share of words found once each has the pieces and rests of another, similarly frequent word (claim S3).

    Words change places in a random cycle within groups of 20 neighbors in frequency. A piece stays with its rest.
    """
    generator, shares = torch.Generator().manual_seed(0), []
    words, ways = splits.whole.unique(return_inverse=True)
    groups = frequency[words].argsort(stable=True).split(20)
    for _ in range(shuffles):
        # owner[word]: the word whose pieces and rests it now has.
        owner = torch.empty(len(words), dtype=torch.long)
        for group in groups:
            cycle = group[torch.randperm(len(group), generator=generator)]
            owner[cycle] = cycle.roll(1)
        found = hits(words[owner[ways]], splits.piece, splits.rest).any(dim=0)
        shares.append(len(owner[ways][found].unique()) / len(words))
    return torch.tensor(shares)


# --- the paper's list (S4) --------------------------------------------------------------------------------------------------


def paper_examples() -> dict[str, Any]:
    """Load the paper's examples: `copying` (S1), `split_words` (S3), `others` (S4), `bugs` (S6), and `kinds` of words (S8)."""
    return yaml.safe_load(PAPER_LIST.read_text(encoding="utf8"))


class Triple(NamedTuple):
    """One skip-trigram of the paper, in all the forms that our vocabulary has for it."""

    group: str
    paper: str  # as the paper writes it
    forms: Forms
    pieces: list[str]  # how the vocabulary splits the tokens that it lacks in either form: "str|ft|ime"


def paper_list(names: Sequence[str], encode: Callable[[str], list[int]]) -> list[Triple]:
    """Return the paper's skip-trigrams in our tokens (claim S4).

    The paper does not show leading spaces, so both forms of each token count, where they are single tokens. A token that the vocabulary
    splits in both forms is listed with its pieces, not dropped. `names`: the strings of all tokens; `encode`: the tokenizer, no start token.
    """
    ids, examples = {name: i for i, name in enumerate(names)}, paper_examples()
    rows = [(group, *row) for group, rows in examples["others"].items() for row in rows]
    triples = []
    for group, source, destination, outs in rows:
        for out in outs:
            texts = [examples["as"].get(text, text) for text in (source, destination, out)]
            both = [[] if text is None else [text, " " + text] for text in texts]
            forms = tuple(tuple(ids[form] for form in pair if form in ids) for pair in both)
            split = [text for text, form in zip(texts, forms) if text is not None and not form]
            pieces = ["|".join(names[i] for i in encode(text)) for text in dict.fromkeys(split)]
            paper = f"{source} ... {destination or '(any)'} → {out}"
            triples.append(Triple(group, paper, forms, pieces))
    return triples


def count_hits(hits: Hits, forms: Sequence[Forms]) -> Bool[Tensor, "head triple"]:
    """Return in which heads each triple is a hit, in at least one of its forms; in none if it has no form."""
    rows = [(i, *combination) for i, triple in enumerate(forms) for combination in itertools.product(*triple)]
    owner, *tokens = torch.tensor(rows, dtype=torch.long).reshape(-1, 4).T
    found = hits(*tokens)
    return torch.zeros(len(found), len(forms)).index_add_(1, owner, found.float()) > 0


def exchanged_hits(hits: Hits, forms: Sequence[Forms], shuffles: int) -> Float[Tensor, " shuffle"]:
    """Return how many triples are hits once destinations and out tokens are exchanged between them, independently (claim S4).

    Triples without a form are left out.
    """
    sources, destinations, outs = zip(*(triple for triple in forms if all(triple)))
    generator, n = torch.Generator().manual_seed(0), len(sources)
    exchanged = []
    for _ in range(shuffles):
        d, o = (torch.randperm(n, generator=generator).tolist() for _ in range(2))
        exchanged += [(sources[i], destinations[d[i]], outs[o[i]]) for i in range(n)]
    return count_hits(hits, exchanged).any(dim=0).view(shuffles, n).sum(dim=1).float()


def nearest(hits: Hits, forms: Sequence[Forms], names: Sequence[str]) -> pd.DataFrame:
    """Return where triples come nearest to a hit: the form and the head in which the worse of the two shares is best; nearest first.

    Columns tokens (three strings), head ("0.7"), above d (%) and above o (%): the share of tokens that rank above destination and out token.
    The index says which triple it is; those without a form are left out.
    """
    rows = {}
    for i, triple in enumerate(forms):
        if all(triple):
            ways = torch.cartesian_prod(*map(torch.tensor, triple))
            above = 100 * hits.above(*ways.T)  # [2, head, way]
            head, way = divmod(int(above.amax(dim=0).argmin()), len(ways))
            rows[i] = [names[token] for token in ways[way]], f"0.{head}", *above[:, head, way].tolist()
    columns = ["tokens", "head", "above d (%)", "above o (%)"]
    table = pd.DataFrame.from_dict(rows, orient="index", columns=columns)
    return table.loc[table.iloc[:, 2:].max(axis=1).sort_values(kind="stable").index]


# --- clusters of columns (S8) -----------------------------------------------------------------------------------------------


def column_coordinates(model: TransformerBridge, head: int, sources: Ids) -> Float[Tensor, "n d_head"]:
    """Return QK columns of first-layer sources, each of length one, in d_head coordinates that keep all their inner products (claim S8).

    Columns are products Q k with Q = W_E W_Q. With Q = U S, orthonormal columns in U, the coordinates S k have the same lengths and
    angles. From each destination's scores their mean over all sources is subtracted first, because softmax does not depend on it.
    """
    check_head(model, 0, head)
    columns = by_source(model)[0][head]
    keys = columns.A[sources] - columns.A.mean(dim=0)
    return F.normalize(keys @ torch.linalg.qr(columns.B.T, mode="r").R.T, dim=1)


# --- bugs (S6) --------------------------------------------------------------------------------------------------------------


class Candidates(NamedTuple):
    """Some sources of each first-layer head, and all hits of each source: every destination goes with every out token.

    That the hits of a head and source form a full grid is what the paper calls the factored form.
    """

    sources: Int[Tensor, "head source"]
    destinations: Int[Tensor, "head source d"]  # ascending ids
    outs: Int[Tensor, "head source o"]  # largest boost first
    boosts: Float[Tensor, "head source o"]  # logits above the mean of the source's OV row

    @classmethod
    def of(
        cls, model: TransformerBridge, sources: Int[Tensor, "head source"], share: float = SHARE
    ) -> Candidates:
        """Find all hits of these sources, on the CPU and in double precision: every machine finds the same ones in the same order."""
        count, sources = top_count(model.cfg.d_vocab, share), sources.cpu()
        columns, rows = (FactoredMatrix(m.A.cpu(), m.B.cpu()) for m in by_source(model, torch.float64))
        attending = [top_k(columns[h], count, mine).indices for h, mine in enumerate(sources)]
        raised = [top_k(rows[h], count, mine) for h, mine in enumerate(sources)]
        boosts, outs = map(torch.stack, zip(*raised))
        return cls(sources, torch.stack(attending).sort(dim=-1).values, outs, boosts.float())

    def to(self, device: torch.device | str) -> Candidates:
        return Candidates(*(part.to(device) for part in self))


def count_bugs(right: Bool[Tensor, "*batch d o"], wrong: Bool[Tensor, "*batch d o"]) -> Int[Tensor, "*batch"]:
    """Return in how many ways two right skip-trigrams of one head and source force two wrong ones (claim S6).

    A bug is a pair (d, o), (d', o'), both right, whose crossed triples (d, o') and (d', o) are both wrong.
    """
    # [d, d']: out tokens that are right after d and wrong after d'
    crossings = right.float() @ wrong.float().mT
    # Single precision ends at 2^24.
    each_twice = (crossings * crossings.mT).sum(dim=(-2, -1), dtype=torch.double)
    return (each_twice / 2).long()


def crossed(
    right: Bool[Tensor, "*batch d o"], wrong: Bool[Tensor, "*batch d o"]
) -> Bool[Tensor, "*batch d o"]:
    """Return the wrong triples that are part of at least one bug."""
    return wrong & (right.float() @ wrong.float().mT @ right.float() > 0.5)


def partners_in_bugs(
    right: Bool[Tensor, "n d o"], wrong: Bool[Tensor, "n d o"], d: Ids, o: Ids
) -> tuple[Ids, Ids]:
    """Return for `crossed` triples (d, o) the (d', o') of a bug that each is part of: (d, o') and (d', o) right, (d', o') wrong. On the CPU."""
    i = torch.arange(len(d))
    bugs = wrong & right[i, :, o][:, :, None] & right[i, d][:, None]
    return torch.unravel_index(bugs.flatten(1).int().argmax(dim=1).cpu(), bugs.shape[1:])


class Boosts(NamedTuple):
    """What triples add to the logits of a text: a row for each place of a destination and each head and source before it."""

    position: Int[Tensor, "place 1"]  # of the destination
    out: Int[Tensor, "place o"]
    amount: Float[Tensor, "place o"]  # logits, zero or above
    triple: Int[Tensor, "place o"]  # index into the flattened grid [head, source, d, o]


def find_boosts(
    tokens: Int[Tensor, " position"], patterns: Float[Tensor, "head dest src"], candidates: Candidates
) -> Boosts:
    """Return where candidate triples occur in a text, and what they add to the logits there (claim S6).

    For head h, destination d at position j, and out token o: A^h[j, source] * boost of o, with the attention summed over all positions of
    the source before j. A token that attends to itself is not a skip-trigram. Boosts below zero count as zero.
    """
    kinds, kind_of = tokens.unique(return_inverse=True)
    one_hot = F.one_hot(kind_of, len(kinds)).to(patterns)
    # [head, position, kind of token]: to earlier positions of this token
    attention = patterns.tril(-1) @ one_hot
    head, source = torch.isin(candidates.sources, kinds).nonzero(as_tuple=True)
    kind = torch.searchsorted(kinds, candidates.sources[head, source])
    attending = candidates.destinations[head, source]  # [candidate source in this text, d]
    d = torch.searchsorted(attending, tokens.expand(len(attending), -1).contiguous())
    d = d.clamp(max=attending.shape[1] - 1)
    is_destination = attending.gather(1, d) == tokens
    here, place = (is_destination & (attention[head, :, kind] > 0)).nonzero(as_tuple=True)
    head, source, kind, d = head[here], source[here], kind[here], d[here, place]
    outs, boosts = candidates.outs[head, source], candidates.boosts[head, source].clamp(min=0)
    row = (head * candidates.sources.shape[1] + source) * attending.shape[1] + d
    triple = row[:, None] * outs.shape[1] + torch.arange(outs.shape[1], device=row.device)
    return Boosts(place[:, None], outs, attention[head, place, kind, None] * boosts, triple)


def without(
    logits: Float[Tensor, "position d_vocab"], boosts: Boosts, chosen: Bool[Tensor, "head source d o"]
) -> Float[Tensor, "position d_vocab"]:
    """Return the logits minus what the chosen triples add to them, attention patterns unchanged."""
    amount = boosts.amount * chosen.flatten()[boosts.triple]
    return logits.index_put((boosts.position, boosts.out), -amount, accumulate=True)


def cost_alone(
    logits: Float[Tensor, "position d_vocab"], targets: Int[Tensor, " position"], boosts: Boosts
) -> Float[Tensor, "place o"]:
    """Return by how much each boost alone raises the loss at its place, in nats; negative where it helps.

    Without b logits, an out token of probability p leaves a normalizer of (1 - p) + p exp(-b).
    """
    p = logits.double().softmax(dim=-1)[boosts.position, boosts.out]
    normalizer = (1 - p) + p * (-boosts.amount.double()).exp()
    return -normalizer.log() - boosts.amount * (targets[boosts.position] == boosts.out)


def per_thousand_tokens(nats: Float[Tensor, " text"], lengths: Int[Tensor, " text"]) -> pd.Series:
    """Return nats per 1,000 tokens, from sums over texts: `cost`, and the ends of its 95% interval over resampled texts (claim S6)."""

    def ratio(nats: Any, lengths: Any, axis: int = 0) -> Any:
        return 1000 * nats.sum(axis) / lengths.sum(axis)

    drawn = bootstrap((nats, lengths), ratio, paired=True, n_resamples=2000, method="percentile", rng=0)
    low, high = drawn.confidence_interval
    return pd.Series({"cost": ratio(nats, lengths).item(), "cost_low": low, "cost_high": high})
