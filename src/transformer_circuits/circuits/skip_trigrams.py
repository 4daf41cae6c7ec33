"""Skip-trigrams: source ... destination -> out, read off the QK and OV circuits of the first layer's heads.

Paper: "Interpretation as Skip-Trigrams" and the sections after it (claims S1 to S4, S6, S8). The QK circuit of a head says which
destinations attend to a source, its OV circuit which outs attending to that source raises. Both are read by source: a column
of QK and a row of OV. Positions are left out; they can still keep a head from attending where its tokens want to.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import yaml
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformer_lens import FactoredMatrix

from transformer_circuits.circuits.factored import entries, ranks, row_blocks
from transformer_circuits.circuits.head_dump import ov_boosts, qk_columns
from transformer_circuits.circuits.weights import Weights
from transformer_circuits.circuits.words import akin_to, word_of
from transformer_circuits.data import BigramCounts

SHARE = 0.01  # of the vocabulary: as far down a QK column or an OV row as counts as a hit
PAPER_LIST = Path(__file__).with_name("paper_skip_trigrams.yml")


# --- hits -------------------------------------------------------------------------------------------------------------------


def top_count(d_vocab: int, share: float = SHARE) -> int:
    """How many tokens are the top `share` of a vocabulary, rounded down. Raises ValueError if that is none, or all."""
    count = int(share * d_vocab)
    if not 0 < count < d_vocab:
        raise ValueError(f"a share of {share} of {d_vocab} tokens is {count}: choose one that leaves at least one in and one out")
    return count


def least_of_top(matrix: FactoredMatrix, share: float = SHARE) -> Float[Tensor, " row"]:
    """For each row the bound that its top `share` of entries exceeds and all others do not; streamed.

    It lies halfway between the last entry that is in and the first that is not, so that rounding cannot move either across.
    """
    count = top_count(matrix.rdim, share)
    bounds = [block.topk(count + 1).values[:, -2:].mean(dim=1) for _, block in row_blocks(matrix)]
    return torch.cat(bounds)


class Percentiles(NamedTuple):
    """How far from the top of its QK column and OV row each skip-trigram is, in every head: 0 is the largest, 1 the smallest."""

    destination: Float[Tensor, "head n"]
    out: Float[Tensor, "head n"]

    @property
    def worse(self) -> Float[Tensor, "head n"]:
        return torch.maximum(self.destination, self.out)


@dataclasses.dataclass(frozen=True)
class Hits:
    """Tells for any skip-trigram in which heads of the first layer it is a hit.

    A hit: the destination is in the top `share` of the source's QK column, and the out in the top `share` of its OV row.
    """

    columns: list[FactoredMatrix]  # by head: the QK circuit [source, destination]
    rows: list[FactoredMatrix]  # by head: the OV circuit [source, out], above the mean of each row
    least_score: Float[Tensor, "head d_vocab"]  # by source: the bound that hits exceed
    least_boost: Float[Tensor, "head d_vocab"]

    @classmethod
    def of(cls, weights: Weights, share: float = SHARE) -> Hits:
        """Reads both circuits of every head once. Raises ValueError for a model without layers and as `top_count` does."""
        weights.check_head(0, 0)
        columns, rows = ([circuit(weights, 0, h) for h in range(weights.n_heads)] for circuit in (qk_columns, ov_boosts))
        bounds = (torch.stack([least_of_top(matrix, share) for matrix in circuits]) for circuits in (columns, rows))
        return cls(columns, rows, *bounds)

    def attended(self, sources: Int[Tensor, " n"], destinations: Int[Tensor, " n"]) -> Bool[Tensor, "head n"]:
        """Whether destination i is in the top share of source i's QK column."""
        return torch.stack([entries(m, sources, destinations) for m in self.columns]) > self.least_score[:, sources]

    def raised(self, sources: Int[Tensor, " n"], outs: Int[Tensor, " n"]) -> Bool[Tensor, "head n"]:
        """Whether out i is in the top share of source i's OV row."""
        return torch.stack([entries(m, sources, outs) for m in self.rows]) > self.least_boost[:, sources]

    def __call__(
        self, sources: Int[Tensor, " n"], destinations: Int[Tensor, " n"], outs: Int[Tensor, " n"]
    ) -> Bool[Tensor, "head n"]:
        """Whether skip-trigram i is a hit."""
        return self.attended(sources, destinations) & self.raised(sources, outs)

    def percentiles(self, sources: Int[Tensor, " n"], destinations: Int[Tensor, " n"], outs: Int[Tensor, " n"]) -> Percentiles:
        """The share of tokens that rank above destination and out, in each head (claim S4)."""
        d_vocab = self.least_score.shape[1]
        above = (
            torch.stack([ranks(matrix, sources, tokens) for matrix in circuits]) / d_vocab
            for circuits, tokens in ((self.columns, destinations), (self.rows, outs))
        )
        return Percentiles(*above)

    def best_copier(self, source: int) -> tuple[int, int]:
        """(head, rank) of the head in whose OV row of this source the source itself ranks highest; rank 0 is the top (claim S1).

        If it does so in several, the one with the largest boost. Raises ValueError for a token that there is not.
        """
        if not 0 <= source < self.least_boost.shape[1]:
            raise ValueError(f"token ids run from 0 to {self.least_boost.shape[1] - 1}, not {source}")
        token = torch.tensor([source], device=self.least_boost.device)
        found = [(int(ranks(m, token, token)), -float(entries(m, token, token)), h) for h, m in enumerate(self.rows)]
        rank, _, head = min(found)
        return head, rank


# --- copying (S1, S2, S3) ---------------------------------------------------------------------------------------------------


def lifts(counts: BigramCounts, after: Iterable[int]) -> Float[Tensor, " d_vocab"]:
    """How many times as likely one of the tokens `after` is behind each token as anywhere (claim S1); 0 behind one never seen."""
    d_vocab = len(counts.row_start) - 1
    wanted = torch.isin(counts.following, torch.tensor(sorted(after)))
    total = torch.bincount(counts.preceding, counts.count.double(), minlength=d_vocab)
    followed = torch.bincount(counts.preceding[wanted], counts.count[wanted].double(), minlength=d_vocab)
    anywhere = followed.sum() / total.sum()
    return (followed / total.clamp(min=1) / anywhere.clamp(min=1e-300)).float()


def of_like_frequency(frequency: Float[Tensor, " d_vocab"], token: int, n: int = 100) -> Int[Tensor, " n"]:
    """The n tokens nearest to this one in the order of frequency, itself left out (claim S1).

    Half of them are more frequent and half less, but for the first and last of the order. Raises ValueError for more tokens than
    there are others.
    """
    if not 0 < n < len(frequency):
        raise ValueError(f"a token of {len(frequency)} has 1 to {len(frequency) - 1} others, not {n}")
    order = frequency.argsort(descending=True, stable=True)
    place = int((order == token).nonzero())
    start = min(max(place - n // 2, 0), len(order) - n - 1)
    near = order[start : start + n + 1]
    return near[near != token]


class Splits(NamedTuple):
    """Words that are one token in one place and two in another: whole = piece + rest. Token ids, one row for each way."""

    whole: Int[Tensor, " n"]
    piece: Int[Tensor, " n"]
    rest: Int[Tensor, " n"]

    @classmethod
    def of(cls, rows: Iterable[tuple[int, int, int]]) -> Splits:
        """Each different (whole, piece, rest) once, by ids."""
        return cls(*torch.tensor(sorted(set(rows)), dtype=torch.long).reshape(-1, 3).T.contiguous())

    def to(self, device: torch.device) -> Splits:
        return Splits(*(part.to(device) for part in self))


def all_splits(names: Sequence[str]) -> Splits:
    """Every way to cut a token's string, with or without its leading space, into two tokens of the vocabulary (claim S2).

    No piece is only a space. `names` are the strings of all tokens, by id (`data.vocabulary()`).
    """
    ids = {name: i for i, name in enumerate(names)}
    rows = []
    for i, name in enumerate(names):
        for text in {name, name.removeprefix(" ")}:
            for cut in range(1, len(text)):
                piece, rest = text[:cut], text[cut:]
                if piece in ids and rest in ids and piece.strip():
                    rows.append((i, ids[piece], ids[rest]))
    return Splits.of(rows)


def broken_words(names: Sequence[str], encode: Callable[[str], list[int]]) -> Splits:
    """Words that are one token behind a space, and exactly two without it, or capitalized otherwise (claim S3).

    Args:
        names: the strings of all tokens, by id.
        encode: the tokenizer, without a start token.
    """
    rows = []
    for i, name in enumerate(names):
        word = name.removeprefix(" ")
        if word == name or word_of(name) is None:
            continue
        other = word[0].swapcase() + word[1:]
        for text in (word, other, " " + other):
            pieces = encode(text)
            if len(pieces) == 2:
                rows.append((i, *pieces))
    return Splits.of(rows)


def four_patterns(
    names: Sequence[str], outs: Int[Tensor, "head d_vocab k"], splits: Splits, attended: Bool[Tensor, "head n"]
) -> dict[str, Bool[Tensor, "head d_vocab"]]:
    """Which (head, source) pairs show each of the paper's four patterns of copying (claim S2).

    Args:
        names: the strings of all tokens, by id.
        outs: the k tokens that each head raises most, by source token.
        splits: the n ways in which source tokens fall apart; `attended`: in which heads the piece attends to the whole.

    Returns:
        exact: [b] ... [a] -> [b], the source is among its outs; akin: [b] ... [a] -> [b'], another token akin to it is;
        split_exact, split_akin: [ab] ... [a] -> [b] or [b'], with b the rest of a source whose piece a attends to it.
    """
    akin = akin_to(names)
    n_heads, d_vocab, _ = outs.shape
    device = outs.device
    own = torch.arange(d_vocab, device=device)
    exact = (outs == own[:, None]).any(dim=-1)
    akin_found = _among_akin(outs, own, akin)
    split_exact, split_akin = torch.zeros(2, n_heads, d_vocab, dtype=torch.bool, device=device)
    behind = outs[:, splits.whole]  # [head, way, k]
    for found, hit in (
        (split_exact, (behind == splits.rest[:, None]).any(dim=-1)),
        (split_akin, _among_akin(behind, splits.rest, akin)),
    ):
        head, way = (hit & attended).nonzero(as_tuple=True)
        found[head, splits.whole[way]] = True
    return {"exact": exact, "akin": akin_found, "split_exact": split_exact, "split_akin": split_akin}


def _among_akin(outs: Int[Tensor, "head n k"], of: Int[Tensor, " n"], akin: Sequence[frozenset[int]]) -> Bool[Tensor, "head n"]:
    """Whether one of outs[:, i] is akin to token of[i]; a token is not akin to itself. `akin` as `akin_to` gives it."""
    most = max(map(len, akin), default=0)
    padded = torch.tensor([[*others] + [-1] * (most - len(others)) for others in akin], device=outs.device)
    found = torch.zeros(outs.shape[:2], dtype=torch.bool, device=outs.device)
    for column in padded[of].T:
        found |= (outs == column[:, None]).any(dim=-1)
    return found


def deal(outs: Int[Tensor, "head d_vocab k"], generator: torch.Generator) -> Int[Tensor, "head d_vocab k"]:
    """The same lists, dealt to the sources at random within each head: what chance gives (claim S2)."""
    return torch.stack([row[torch.randperm(len(row), generator=generator).to(row.device)] for row in outs])


def exchange(frequency: Float[Tensor, " n"], bin_size: int, generator: torch.Generator) -> Int[Tensor, " n"]:
    """For each of n things another one of like frequency, by a random cycle within each bin of neighbors in frequency.

    The result is a permutation that leaves nothing in its place, unless a bin holds one thing only.
    """
    partner = torch.empty(len(frequency), dtype=torch.long)
    for part in frequency.argsort(stable=True).split(bin_size):
        cycle = part[torch.randperm(len(part), generator=generator)]
        partner[cycle] = cycle.roll(1)
    return partner


def exchanged_words(
    hits: Hits, splits: Splits, frequency: Float[Tensor, " d_vocab"], shuffles: int, bin_size: int = 20, seed: int = 0
) -> Float[Tensor, " shuffle"]:
    """The share of words found once each has the pieces and rests of another word of like frequency (claim S3).

    Words change places within groups of `bin_size` neighbors in frequency. A piece stays with its rest.
    """
    generator = torch.Generator().manual_seed(seed)
    words, ways = splits.whole.cpu().unique(return_inverse=True)
    shares = []
    for _ in range(shuffles):
        partner = exchange(frequency.cpu()[words], bin_size, generator)
        owner = partner.argsort()[ways].to(splits.whole.device)  # the word that now has this way of falling apart
        found = hits(words.to(owner.device)[owner], splits.piece, splits.rest).any(dim=0)
        shares.append(len(owner[found].unique()) / len(words))
    return torch.tensor(shares)


# --- the paper's list (S4) --------------------------------------------------------------------------------------------------


def paper_examples() -> dict[str, Any]:
    """The paper's examples as data: `copying` (S1), `split_words` (S3), `others` (S4) and `bugs` (S6)."""
    return yaml.safe_load(PAPER_LIST.read_text(encoding="utf8"))


@dataclasses.dataclass(frozen=True)
class Triple:
    """One skip-trigram of the paper, in all the forms that our vocabulary has for it."""

    group: str
    text: tuple[str, str | None, str]  # as the paper writes it; None: it leaves the destination open
    forms: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]  # token ids with and without a leading space
    pieces: dict[str, tuple[str, ...]]  # into what the vocabulary splits the tokens that it lacks in either form

    @property
    def expressible(self) -> bool:
        """Whether source, destination and out are single tokens. A triple without a destination is not: nothing can attend."""
        return all(self.forms)


def paper_list(names: Sequence[str], encode: Callable[[str], list[int]]) -> list[Triple]:
    """The paper's skip-trigrams in our tokens (claim S4).

    The paper does not show leading spaces, so both forms of each token count, with and without one, where they are single
    tokens. What the vocabulary splits in both forms is listed with its pieces, not dropped.

    Args:
        names: the strings of all tokens, by id.
        encode: the tokenizer, without a start token.
    """
    ids = {name: i for i, name in enumerate(names)}
    triples = []
    for row in paper_examples()["others"]:
        for out in row["outs"]:
            text = (row["source"], row.get("destination"), out)
            ours = [row.get("as", {}).get(t, t) for t in text]
            forms = tuple(() if t is None else tuple(ids[f] for f in (t, " " + t) if f in ids) for t in ours)
            pieces = {t: tuple(names[j] for j in encode(o)) for t, o, f in zip(text, ours, forms) if t is not None and not f}
            triples.append(Triple(row["group"], text, forms, pieces))
    return triples


class Spelled(NamedTuple):
    """Triples written out: a row of three token ids for each combination of forms, and which triple it belongs to."""

    tokens: Int[Tensor, "row 3"]
    owner: Int[Tensor, " row"]


def spell_out(forms: Sequence[tuple[Sequence[int], Sequence[int], Sequence[int]]]) -> Spelled:
    """All combinations of the forms of every triple. Raises ValueError if a triple has none."""
    rows = [(i, *combination) for i, triple in enumerate(forms) for combination in itertools.product(*triple)]
    table = torch.tensor(rows, dtype=torch.long).reshape(-1, 4)
    if len(table[:, 0].unique()) < len(forms):
        raise ValueError("every triple must be expressible: leave out those whose tokens the vocabulary splits")
    return Spelled(table[:, 1:], table[:, 0])


def count_hits(
    hits: Hits, forms: Sequence[tuple[Sequence[int], Sequence[int], Sequence[int]]]
) -> Bool[Tensor, "head triple"]:
    """In which heads each triple is a hit, in at least one of its forms."""
    spelled = spell_out(forms)
    found = hits(*spelled.tokens.to(hits.least_score.device).T).cpu()
    return torch.zeros(len(found), len(forms)).index_add_(1, spelled.owner, found.float()) > 0


def exchanged_hits(
    hits: Hits, forms: Sequence[tuple[Sequence[int], Sequence[int], Sequence[int]]], shuffles: int, seed: int = 0
) -> Float[Tensor, " shuffle"]:
    """How many triples are hits once destinations and outs have been exchanged between them, each on its own (claim S4).

    A token keeps all its forms, so that these triples have the same chances as the right ones.
    """
    generator = torch.Generator().manual_seed(seed)
    dealt = []
    for _ in range(shuffles):
        d, o = (torch.randperm(len(forms), generator=generator).tolist() for _ in range(2))
        dealt += [(forms[i][0], forms[d[i]][1], forms[o[i]][2]) for i in range(len(forms))]
    return count_hits(hits, dealt).any(dim=0).view(shuffles, len(forms)).sum(dim=1).float()


# --- clusters of columns (S8) -----------------------------------------------------------------------------------------------


def column_coordinates(weights: Weights, head: int, sources: Int[Tensor, " n"]) -> Float[Tensor, "n d_head"]:
    """QK columns of first-layer sources, each of length one, in d_head coordinates that keep all their inner products.

    A column has d_vocab entries, but all columns lie in d_head dimensions: they are products Q k with Q = W_E W_Q. With Q = U S,
    orthonormal columns in U, the coordinates S k of a column have the same lengths and angles as the column itself. From each
    destination's scores their mean over all sources is taken off first, which softmax does not see. Raises ValueError for a head
    that does not exist.
    """
    weights.check_head(0, head)
    columns = qk_columns(weights, 0, head)
    keys = columns.A[sources] - columns.A.mean(dim=0)
    return F.normalize(keys @ torch.linalg.qr(columns.B.T, mode="r").R.T, dim=1)


def adjusted_rand(clusters: Int[Tensor, " n"], kinds: Int[Tensor, "*batch n"]) -> Float[Tensor, "*batch"]:
    """The adjusted Rand index of one clustering with many labelings at once: 1 if they agree, 0 on average by chance (claim S8).

    The same number as scikit-learn's, which takes one labeling at a time and so some seconds for thousands of them.
    """
    table = F.one_hot(clusters).T.double() @ F.one_hot(kinds).double()  # [*batch, cluster, kind]
    pairs = [(n * (n - 1) / 2).flatten(-m).sum(dim=-1) for n, m in ((table, 2), (table.sum(-1), 1), (table.sum(-2), 1))]
    together, in_clusters, in_kinds = pairs  # pairs of things that are in one cluster and kind, in one cluster, in one kind
    expected = in_clusters * in_kinds / max(len(clusters) * (len(clusters) - 1) / 2, 1)
    most = (in_clusters + in_kinds) / 2
    # All in one group, or each alone, in both: nothing to expect, and they agree.
    return torch.where(most == expected, 1.0, (together - expected) / (most - expected))


# --- bugs (S6) --------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Candidates:
    """For each first-layer head some sources, and all hits of each: every destination goes with every out.

    That the hits of a head and source form a full grid is the factored form that the paper speaks of.
    """

    sources: Int[Tensor, "head source"]
    destinations: Int[Tensor, "head source d"]  # ascending ids
    outs: Int[Tensor, "head source o"]

    @classmethod
    def of(cls, weights: Weights, sources: Int[Tensor, "head source"], share: float = SHARE) -> Candidates:
        """All hits of the given sources. Raises ValueError unless each head has its row of sources, and as `top_count` does."""
        if sources.ndim != 2 or len(sources) != weights.n_heads:
            shape = list(sources.shape)
            raise ValueError(f"`sources` must have a row for each of the {weights.n_heads} heads, not the shape {shape}")
        count = top_count(len(weights.W_E), share)

        def hits(circuit: Callable) -> Tensor:
            found = []
            for head, rows in enumerate(sources):
                blocks = [block.topk(count).indices for _, block in row_blocks(circuit(weights, 0, head), rows)]
                found.append(torch.cat(blocks).sort(dim=1).values)
            return torch.stack(found)

        return cls(sources, hits(qk_columns), hits(ov_boosts))

    def to(self, device: torch.device | str) -> Candidates:
        return Candidates(*(getattr(self, field.name).to(device) for field in dataclasses.fields(self)))


def count_bugs(right: Bool[Tensor, "*batch d o"], wrong: Bool[Tensor, "*batch d o"]) -> Int[Tensor, "*batch"]:
    """In how many ways two right skip-trigrams of one head and source force two wrong ones (claim S6).

    A bug is a pair (d, o), (d', o'), both right, whose crossed triples (d, o') and (d', o) are both wrong. Takes some sixteen
    times the memory of `right`: a batch of one head's sources is enough at once.
    """
    crossings = right.float() @ wrong.float().mT  # [d, d']: outs o that are right behind d and wrong behind d'
    return ((crossings * crossings.mT).sum(dim=(-2, -1), dtype=torch.double) / 2).long()  # single precision counts to 2^24 only


def crossed(right: Bool[Tensor, "*batch d o"], wrong: Bool[Tensor, "*batch d o"]) -> Bool[Tensor, "*batch d o"]:
    """The wrong triples that are part of at least one bug. Memory as `count_bugs`."""
    return wrong & (right.float() @ wrong.float().mT @ right.float() > 0.5)


class Boosts(NamedTuple):
    """What triples add to the logits of a text: an entry for each place of a triple's destination and each head."""

    position: Int[Tensor, " entry"]  # of the destination
    out: Int[Tensor, " entry"]
    amount: Float[Tensor, " entry"]  # logits, above zero
    triple: Int[Tensor, " entry"]  # index into the flattened grid [head, source, d, o]


def grid_boosts(weights: Weights, candidates: Candidates) -> Float[Tensor, "head source o"]:
    """The OV entry of each candidate source and out, above the mean of its row."""
    found = []
    for head, (sources, outs) in enumerate(zip(candidates.sources, candidates.outs)):
        circuit = ov_boosts(weights, 0, head)
        found.append(torch.einsum("sk,sok->so", circuit.A[sources], circuit.B.T[outs]))
    return torch.stack(found)


def find_boosts(
    tokens: Int[Tensor, " position"],
    patterns: Float[Tensor, "head destination source"],
    candidates: Candidates,
    boosts: Float[Tensor, "head source o"],
    chosen: Bool[Tensor, "head source d o"],
) -> Boosts:
    """Where the chosen triples occur in a text, and what they add to the logits there (claim S6).

    For head h, destination d at place j and out o: A^h[j, source] * boost of o, with the attention summed over all places of the
    source before j. A token that attends to itself is no skip-trigram. Boosts that are not positive are left out.

    Raises ValueError if `chosen` or `boosts` do not fit the candidates.
    """
    grid, rows = (*candidates.destinations.shape, candidates.outs.shape[-1]), candidates.outs.shape
    if chosen.shape != grid or boosts.shape != rows:
        raise ValueError(f"`chosen` must have the shape {grid} and `boosts` {tuple(rows)}, as the candidates have")
    kinds, kind_of = tokens.unique(return_inverse=True)
    one_hot = F.one_hot(kind_of, len(kinds)).to(patterns.dtype)
    attention = patterns.tril(-1) @ one_hot  # [head, position, kind]: to all earlier places of a kind of token
    head, source = torch.isin(candidates.sources, kinds).nonzero(as_tuple=True)
    kind = torch.searchsorted(kinds, candidates.sources[head, source])
    hits = candidates.destinations[head, source]  # [candidate here, d]
    seen = torch.searchsorted(hits, tokens.expand(len(hits), -1).contiguous()).clamp(max=hits.shape[1] - 1)
    looks = (hits.gather(1, seen) == tokens) & (attention[head, :, kind] > 0)
    i, j = looks.nonzero(as_tuple=True)  # a candidate source, and a place of one of its destinations behind it
    head, source, d = head[i], source[i], seen[i, j]
    amount = attention[head, j, kind[i], None] * boosts[head, source] * chosen[head, source, d]  # [place, o]
    at, o = (amount > 0).nonzero(as_tuple=True)
    triple = ((head[at] * grid[1] + source[at]) * grid[2] + d[at]) * grid[3] + o
    return Boosts(j[at], candidates.outs[head[at], source[at], o], amount[at, o], triple)


def losses_without(
    log_probs: Float[Tensor, "position d_vocab"], targets: Int[Tensor, " position"], found: Boosts
) -> Float[Tensor, " position"]:
    """The loss of each token, in nats, once the boosts found are taken off the logits (claim S6).

    Exact: taking b off the logit of an out with probability p changes the normalizer by p (exp(-b) - 1).
    """
    d_vocab = log_probs.shape[-1]
    places, entry = (found.position * d_vocab + found.out).unique(return_inverse=True)
    amount = log_probs.new_zeros(len(places)).index_add_(0, entry, found.amount.to(log_probs))
    lost = log_probs.flatten()[places].exp() * torch.expm1(-amount)
    normalizer = log_probs.new_zeros(len(targets)).index_add_(0, places // d_vocab, lost)
    most = (normalizer < -0.5).nonzero().flatten()  # where more than half is taken away, differences would lose digits
    normalizer = torch.log1p(normalizer.clamp(min=-0.5))
    if len(most):
        row = torch.full_like(targets, -1).index_put_((most,), torch.arange(len(most), device=targets.device))[places // d_vocab]
        left = log_probs[most].index_put_((row[row >= 0], places[row >= 0] % d_vocab), -amount[row >= 0], accumulate=True)
        normalizer[most] = left.logsumexp(dim=-1)
    own = torch.arange(len(targets), device=targets.device) * d_vocab + targets
    removed = torch.zeros_like(normalizer)
    if len(places):
        spot = torch.searchsorted(places, own).clamp(max=len(places) - 1)
        removed = torch.where(places[spot] == own, amount[spot], 0)
    return normalizer + removed - log_probs.gather(1, targets[:, None])[:, 0]


def cost_of_each(
    log_probs: Float[Tensor, "position d_vocab"], targets: Int[Tensor, " position"], found: Boosts
) -> Float[Tensor, " entry"]:
    """By how much each entry alone raises the loss at its place, in nats; below zero where it helps."""
    log_p = log_probs[found.position, found.out].clamp(max=0)  # rounding can leave it above
    right = targets[found.position] == found.out
    # What is left of the normalizer is 1 - p + p exp(-b). For a p near 1 it must not be 1 less something.
    rare = torch.log1p(log_p.exp() * torch.expm1(-found.amount))
    likely = torch.logaddexp((-torch.expm1(log_p)).log(), log_p - found.amount)
    return -torch.where(log_p < -0.7, rare, likely) - found.amount * right


def partner_in_bug(
    right: Bool[Tensor, "d o"], wrong: Bool[Tensor, "d o"], cost: Float[Tensor, "d o"], d: int, o: int
) -> tuple[int, int]:
    """For a crossed triple (d, o) the (d', o') of one bug it is part of: (d, o') and (d', o) right, (d', o') wrong.

    Of several bugs the one whose other crossed triple costs most. Raises ValueError if the triple is in no bug.
    """
    bugs = wrong & right[:, [o]] & right[d]
    if not (wrong[d, o] and bugs.any()):
        raise ValueError(f"the triple at ({d}, {o}) is part of no bug: choose one that `crossed` marks")
    best = int(torch.where(bugs, cost, -torch.inf).argmax())
    return divmod(best, right.shape[1])


class Interval(NamedTuple):
    """A mean with its 95 % interval."""

    mean: float
    low: float
    high: float


def bootstrap(
    values: Float[Tensor, " document"], lengths: Int[Tensor, " document"], resamples: int = 2000, seed: int = 0
) -> Interval:
    """Mean of per-token values, given their sum for each document, with a 95 % interval over resampled documents.

    Tokens of one document are alike, so that documents are drawn, not tokens. Raises ValueError for fewer than two.
    """
    if len(values) < 2 or len(values) != len(lengths):
        raise ValueError(f"an interval needs sums and lengths of two documents or more, not {len(values)} and {len(lengths)}")
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(len(values), (resamples, len(values)), generator=generator)
    values, lengths = values.double().cpu(), lengths.double().cpu()
    means = values[drawn].sum(dim=1) / lengths[drawn].sum(dim=1)
    low, high = means.quantile(torch.tensor([0.025, 0.975], dtype=torch.double)).tolist()
    return Interval(float(values.sum() / lengths.sum()), low, high)
