"""Skip-trigrams on weights made by hand, where the answer is known."""

import matplotlib.pyplot as plt
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from transformer_circuits.circuits import skip_trigrams as st
from transformer_circuits.circuits.factored import entries
from transformer_circuits.circuits.weights import Weights
from transformer_circuits.data import BigramCounts, load_tokenizer, vocabulary
from transformer_circuits.figures import skip_trigrams as figures

N = 6  # tokens, one dimension of the residual stream each


def one_head(scores: torch.Tensor, boosts: torch.Tensor) -> Weights:
    """A model whose QK circuit [destination, source] (over sqrt(d_head)) and OV circuit [source, out] are what is given."""
    n = len(scores)
    eye = torch.eye(n)
    shape = (1, 1, n, n)
    return Weights(
        W_E=eye, W_U=eye, W_pos=torch.zeros(8, n), W_K=eye.view(shape), W_O=eye.view(shape),
        W_Q=(scores * n**0.5).view(shape), W_V=boosts.view(shape),
    )  # fmt: skip


@pytest.fixture
def keep() -> Weights:
    """Source 0; destinations 1 and 2 look for it; outs 3 and 4 come out. All other entries are lower, and differ."""
    scores, boosts = torch.rand(N, N), torch.rand(N, N)
    scores[1, 0], scores[2, 0] = 9.0, 8.0
    scores[0, 1] = 50.0  # were rows and columns exchanged, this would be the top
    boosts[0, 3], boosts[0, 4] = 9.0, 8.0
    boosts[3, 0] = 50.0
    return one_head(scores, boosts)


def ids(*tokens: int) -> torch.Tensor:
    return torch.tensor(tokens)


def test_hits_read_a_column_of_qk_and_a_row_of_ov(keep):
    hits = st.Hits.of(keep, share=2.4 / N)  # two of six
    every = torch.arange(N)
    source = torch.zeros(N, dtype=torch.long)
    assert hits.attended(source, every).nonzero()[:, 1].tolist() == [1, 2]
    assert hits.raised(source, every).nonzero()[:, 1].tolist() == [3, 4]
    assert hits(ids(0, 0, 0, 0), ids(1, 2, 1, 3), ids(4, 3, 5, 3)).tolist() == [[True, True, False, False]]


def test_exactly_the_top_share_is_in(keep):
    for count in (1, 2, 5):
        hits = st.Hits.of(keep, share=(count + 0.01) / N)
        pairs = torch.cartesian_prod(torch.arange(N), torch.arange(N))
        assert hits.attended(*pairs.T).view(N, N).sum(dim=1).tolist() == [count] * N
        assert hits.raised(*pairs.T).view(N, N).sum(dim=1).tolist() == [count] * N


def test_a_constant_on_a_row_changes_no_hit_and_no_boost(keep):
    lifted = one_head(keep.W_Q[0, 0] / N**0.5, keep.W_V[0, 0] + torch.arange(N)[:, None] * 10.0)
    one, other = (st.grid_boosts(w, st.Candidates.of(w, ids(0, 1).view(1, 2), 2.4 / N)) for w in (keep, lifted))
    assert torch.allclose(one, other, atol=1e-4)


@pytest.mark.parametrize("share", [0.0, 0.01, 1.0])
def test_a_share_that_leaves_none_in_or_none_out_is_refused(share):
    with pytest.raises(ValueError, match="choose one that leaves"):
        st.top_count(N, share)


def test_percentiles_count_what_stands_above(keep):
    p = st.Hits.of(keep, 2.4 / N).percentiles(ids(0, 0), ids(1, 2), ids(4, 3))
    assert torch.allclose(p.destination, torch.tensor([[0, 1 / N]]))
    assert torch.allclose(p.out, torch.tensor([[1 / N, 0]]))
    assert torch.allclose(p.worse, torch.tensor([[1 / N, 1 / N]]))


def test_best_copier(keep):
    hits = st.Hits.of(keep, 2.4 / N)
    row = keep.W_V[0, 0, 0]
    assert hits.best_copier(0) == (0, int((row > row[0]).sum()))
    for token in (-1, N):
        with pytest.raises(ValueError, match=f"not {token}"):
            hits.best_copier(token)


def counts_of(text: list[int], d_vocab: int) -> BigramCounts:
    table = torch.zeros(d_vocab, d_vocab, dtype=torch.long)
    for a, b in zip(text, text[1:]):
        table[a, b] += 1
    pairs = table.nonzero()
    row_start = torch.cat([torch.zeros(1, dtype=torch.long), (table > 0).sum(dim=1).cumsum(0)])
    return BigramCounts(row_start, pairs[:, 1], table[table > 0])


def test_lifts():
    counts = counts_of([0, 1, 0, 1, 0, 2, 3, 0, 1], 5)  # 8 pairs, 3 of them end in 1, all of these behind 0
    found = st.lifts(counts, {1})
    assert found[0] == pytest.approx((3 / 4) / (3 / 8))
    assert found[2] == 0.0
    assert found[4] == 0.0  # never seen
    assert st.lifts(counts, {1, 2})[0] == pytest.approx(1 / (4 / 8))
    assert st.lifts(counts, {4}).tolist() == [0.0] * 5  # no token that ever comes: no lift, and no division by zero


def test_tokens_of_like_frequency():
    frequency = torch.tensor([0.5, 0.2, 0.1, 0.09, 0.06, 0.05])
    assert sorted(st.of_like_frequency(frequency, 2, n=2).tolist()) == [1, 3]
    assert sorted(st.of_like_frequency(frequency, 0, n=2).tolist()) == [1, 2]
    assert sorted(st.of_like_frequency(frequency, 5, n=2).tolist()) == [3, 4]
    assert sorted(st.of_like_frequency(frequency, 3, n=5).tolist()) == [0, 1, 2, 4, 5]
    for n in (0, 6):
        with pytest.raises(ValueError, match=f"1 to 5 others, not {n}"):
            st.of_like_frequency(frequency, 3, n=n)


WORDS = [" Ralph", "R", "alph", "Alph", " ", " dog", "dog", " dogs", "s", "d", "og", "x"]


def way(*strings: str) -> tuple[int, ...]:
    return tuple(WORDS.index(string) for string in strings)


def test_all_splits_take_off_the_leading_space_and_never_leave_a_bare_one():
    found = set(zip(*(part.tolist() for part in st.all_splits(WORDS))))
    assert way(" Ralph", "R", "alph") in found
    assert way("dog", "d", "og") in found and way(" dog", "d", "og") in found
    assert way(" dogs", " dog", "s") in found and way(" dogs", "dog", "s") in found
    assert not any(WORDS[piece].strip() == "" for _, piece, _ in found)
    assert len(found) == 5


def test_broken_words():
    pieces = {"Ralph": "R alph", "ralph": "r a l p h", "dog": "dog", "Dog": "D og", "Dogs": "D o g s"}

    def encode(text: str) -> list[int]:
        return [WORDS.index(p) if p in WORDS else len(WORDS) for p in pieces.get(text, "x").split()]

    found = set(zip(*(part.tolist() for part in st.broken_words(WORDS, encode))))
    # "alph" and "x" have no space in front; " dogs" is never two tokens
    assert found == {way(" Ralph", "R", "alph"), (*way(" dog"), len(WORDS), *way("og"))}


def test_four_patterns():
    outs = torch.full((1, len(WORDS), 2), WORDS.index("x"))
    outs[0, way("dog")[0]] = torch.tensor(way("dog", " dogs"))  # itself, and one akin to it
    outs[0, way(" dog")[0], 0] = way("dog")[0]  # only one akin to it
    outs[0, way(" Ralph")[0], 0] = way("Alph")[0]  # akin to the rest
    splits = st.Splits.of([way(" Ralph", "R", "alph")])
    found = st.four_patterns(WORDS, outs, splits, torch.tensor([[True]]))
    shown = {kind: [WORDS[i] for i in pairs[0].nonzero().flatten()] for kind, pairs in found.items()}
    assert shown == {"exact": ["dog", "x"], "akin": [" dog", "dog"], "split_exact": [], "split_akin": [" Ralph"]}
    outs[0, way(" Ralph")[0], 1] = way("alph")[0]
    assert st.four_patterns(WORDS, outs, splits, torch.tensor([[True]]))["split_exact"].sum() == 1
    assert st.four_patterns(WORDS, outs, splits, torch.tensor([[False]]))["split_exact"].sum() == 0


def test_dealt_lists_stay_whole_and_in_their_head():
    outs = torch.arange(24).view(2, 4, 3)
    dealt = st.deal(outs, torch.Generator().manual_seed(0))
    assert not torch.equal(dealt, outs)
    assert torch.equal(dealt.sort(dim=1).values, outs)


def test_exchange_leaves_nothing_in_place_and_stays_among_neighbors():
    frequency = torch.arange(40.0).flip(0)
    partner = st.exchange(frequency, 10, torch.Generator().manual_seed(0))
    assert sorted(partner.tolist()) == list(range(40))
    assert (partner != torch.arange(40)).all()
    assert (partner // 10 == torch.arange(40) // 10).all()


def test_exchanged_words_are_found_where_the_others_pieces_fit():
    scores, boosts = torch.rand(N, N), torch.rand(N, N)
    for whole, piece, rest in ((0, 2, 4), (1, 3, 5)):
        scores[piece, whole] = boosts[whole, rest] = 9.0
    splits = st.Splits.of([(0, 2, 4), (1, 3, 5)])
    hits = st.Hits.of(one_head(scores, boosts), 1.2 / N)
    assert hits(*splits).all()
    frequency = torch.ones(N) / N
    assert st.exchanged_words(hits, splits, frequency, 3).tolist() == [0.0] * 3
    scores[2:4, :2] = boosts[:2, 4:] = 9.0 + torch.rand(2, 2)  # now either word has the other's pieces among its top two
    everywhere = st.Hits.of(one_head(scores, boosts), 2.2 / N)
    assert st.exchanged_words(everywhere, splits, frequency, 3).tolist() == [1.0] * 3


def test_the_papers_list_in_our_tokens():
    tokenizer, names = load_tokenizer(), vocabulary()
    triples = st.paper_list(names, lambda text: tokenizer.encode(text, add_special_tokens=False))
    assert len(triples) == 68
    by_text = {t.text: t for t in triples}
    mind, bay = by_text["keep", "in", "mind"], by_text["keep", "at", "bay"]
    assert mind.expressible and " mind" in [names[i] for i in mind.forms[2]]
    assert not bay.expressible and bay.pieces == {"bay": ("b", "ay")}
    bracket = by_text["('", None, "')"]
    assert not bracket.expressible and not bracket.pieces  # all there is are single tokens, but nobody attends
    deeper = by_text["\\n\\t\\t\\t", "\\n\\t\\t", "else"]
    assert names[deeper.forms[0][0]] == "\n" + " " * 11 and names[deeper.forms[1][0]] == "\n" + " " * 7
    for t in triples:
        assert t.expressible or t.pieces or t.text[1] is None  # what cannot be expressed says why


def test_a_triple_is_a_hit_in_any_of_its_forms_and_by_chance_only_if_exchanged_so(keep):
    hits = st.Hits.of(keep, 1.2 / N)
    forms = [((5, 0), (1,), (3,)), ((0,), (2,), (3,))]
    assert st.count_hits(hits, forms).tolist() == [[True, False]]
    assert st.exchanged_hits(hits, forms[:1], shuffles=4).tolist() == [1.0] * 4  # nothing to exchange with
    both = [((0,), (1,), (3,)), ((0,), (1,), (3,))]
    assert st.exchanged_hits(hits, both, shuffles=4).tolist() == [2.0] * 4
    with pytest.raises(ValueError, match="must be expressible"):
        st.count_hits(hits, [((0,), (), (3,))])


def test_adjusted_rand_is_that_of_scikit_learn():
    generator = torch.Generator().manual_seed(0)
    clusters = torch.randint(4, (30,), generator=generator)
    kinds = torch.randint(3, (20, 30), generator=generator)
    expected = [adjusted_rand_score(k, clusters) for k in kinds]
    assert st.adjusted_rand(clusters, kinds).tolist() == pytest.approx(expected)
    assert st.adjusted_rand(clusters, 3 - clusters) == pytest.approx(1.0)


@pytest.mark.parametrize("clusters", [torch.zeros(5), torch.arange(5), torch.zeros(1)])
def test_adjusted_rand_of_groupings_that_leave_no_choice(clusters):
    """All in one group, or each alone, twice: nothing over nothing, and scikit-learn says 1. Against another grouping it is 0."""
    clusters = clusters.long()
    assert st.adjusted_rand(clusters, clusters) == adjusted_rand_score(clusters, clusters) == 1.0
    if len(clusters) > 1:
        other = torch.tensor([0, 1, 1, 0, 0])
        assert st.adjusted_rand(clusters, other) == adjusted_rand_score(clusters, other) == 0.0


def test_the_papers_bug():
    right = torch.tensor([[1, 0], [0, 1]]).bool()  # keep ... in mind, keep ... at bay
    assert st.count_bugs(right, ~right) == 1
    assert torch.equal(st.crossed(right, ~right), ~right)
    half = torch.tensor([[0, 1], [0, 0]]).bool()  # "keep ... at mind" may be right after all
    assert st.count_bugs(right, half) == 0 and not st.crossed(right, half).any()


def test_bugs_against_a_count_by_hand():
    generator = torch.Generator().manual_seed(1)
    state = torch.randint(3, (4, 5, 6), generator=generator)
    right, wrong = state == 0, state == 1
    for r, w, n, marked in zip(right, wrong, st.count_bugs(right, wrong), st.crossed(right, wrong)):
        bugs = [
            (d, o, e, p)
            for d in range(5) for o in range(6) for e in range(d + 1, 5) for p in range(6)
            if r[d, o] and r[e, p] and w[d, p] and w[e, o]
        ]  # fmt: skip
        assert n == len(bugs)
        assert set(map(tuple, marked.nonzero().tolist())) == {x for d, o, e, p in bugs for x in ((d, p), (e, o))}


def test_bugs_are_counted_exactly_beyond_the_digits_of_single_precision():
    """Half of the rows are right in the first half of the outs, half in the second: a bug for each two such rows and two outs."""
    rows, outs = 51, 101  # odd, and so is the number of bugs
    right = torch.zeros(2 * rows, 2 * outs, dtype=torch.bool)
    right[:rows, :outs], right[rows:, outs:] = True, True
    assert int(st.count_bugs(right, ~right)) == (rows * outs) ** 2 > 2**24


def test_partner_in_a_bug():
    right = torch.tensor([[1, 0, 0], [0, 1, 0], [0, 1, 0]]).bool()
    cost = torch.tensor([[0.0, 5, 0], [1, 0, 0], [2, 0, 0]])
    assert st.partner_in_bug(right, ~right, cost, d=0, o=1) == (2, 0)  # of destinations 1 and 2 the costlier
    for d, o in ((0, 0), (0, 2)):
        with pytest.raises(ValueError, match="is part of no bug"):
            st.partner_in_bug(right, ~right, cost, d, o)


def test_boosts_need_the_source_before_the_destination(keep):
    candidates = st.Candidates.of(keep, ids(0).view(1, 1), 2.4 / N)
    boosts = st.grid_boosts(keep, candidates)
    everything = torch.ones(1, 1, 2, 2, dtype=torch.bool)
    pattern = torch.full((1, 4, 4), 0.25)

    def found(*tokens):
        return st.find_boosts(ids(*tokens), pattern, candidates, boosts, everything)

    assert len(found(1, 0, 5, 5).out) == 0  # keep comes too late
    at = found(0, 0, 1, 5)
    assert at.position.tolist() == [2, 2] and at.out.tolist() == [3, 4]
    row = keep.W_V[0, 0, 0]
    assert torch.allclose(at.amount, 0.5 * (row[3:5] - row.mean()))  # from both places of the source
    none = st.find_boosts(ids(0, 0, 1, 5), pattern, candidates, boosts, ~everything)
    log_probs = torch.randn(4, N).log_softmax(-1)
    kept = st.losses_without(log_probs, ids(0, 1, 5, 2), none)
    assert torch.allclose(kept, -log_probs.gather(1, ids(0, 1, 5, 2)[:, None])[:, 0])


@pytest.mark.parametrize("rows", [ids(0, 1), ids(0, 1).view(2, 1)])
def test_candidates_need_a_row_of_sources_for_each_head(keep, rows):
    with pytest.raises(ValueError, match="a row for each of the 1 heads"):
        st.Candidates.of(keep, rows, 2.4 / N)


def test_a_model_without_layers_has_no_hits():
    no_head = torch.zeros(0, 2, N, N)
    weights = Weights(torch.eye(N), torch.zeros(8, N), no_head, no_head, no_head, no_head, torch.eye(N))
    with pytest.raises(ValueError, match="no layers"):
        st.Hits.of(weights, 0.5)


@pytest.mark.parametrize("p", [1e-9, 0.3, 0.6, 1 - 1e-4, 1.0])
@pytest.mark.parametrize("amount", [0.01, 3.0, 60.0])
@pytest.mark.parametrize("hit", [False, True])
def test_the_cost_of_an_out_that_is_all_but_certain(p, amount, hit):
    """The normalizer that is left is exp(-60) of what it was: a difference from 1 would be no digits and an infinite cost."""
    log_probs = torch.tensor([[p, 1 - p]]).log()
    found = st.Boosts(ids(0), ids(0), torch.tensor([amount]), ids(0))
    cost = st.cost_of_each(log_probs, ids(0 if hit else 1), found)
    log_p = log_probs.double()
    expected = -torch.stack([log_p[0, 0] - amount, log_p[0, 1]]).logsumexp(0) - amount * hit
    assert cost.item() == pytest.approx(expected.item(), rel=1e-4, abs=1e-6)


def test_boosts_that_do_not_fit_are_refused(keep):
    candidates = st.Candidates.of(keep, ids(0).view(1, 1), 2.4 / N)
    boosts, pattern = st.grid_boosts(keep, candidates), torch.full((1, 2, 2), 0.5)
    for b, chosen in ((boosts, torch.ones(1, 1, 2, 3)), (boosts[..., :1], torch.ones(1, 1, 2, 2))):
        with pytest.raises(ValueError, match="as the candidates have"):
            st.find_boosts(ids(0, 1), pattern, candidates, b, chosen.bool())


def test_bootstrap():
    same = st.bootstrap(torch.tensor([2.0, 4.0, 6.0]), torch.tensor([1, 2, 3]))
    assert same == pytest.approx((2.0, 2.0, 2.0))  # two nats a token in each document
    spread = st.bootstrap(torch.arange(50.0), torch.ones(50))
    assert spread.mean == pytest.approx(24.5)
    assert 24.5 - 6 < spread.low < 24.5 < spread.high < 24.5 + 6  # standard error: 2.04
    for values, lengths in ((torch.ones(1), torch.ones(1)), (torch.ones(3), torch.ones(2))):
        with pytest.raises(ValueError, match="two documents or more"):
            st.bootstrap(values, lengths)


def test_figures_are_drawn_and_closed():
    heads = torch.arange(3.0)
    drawn = [
        figures.positional(torch.rand(3, 4), torch.rand(3, 4), torch.rand(2, 3)),
        figures.patterns_by_head({"exact": heads / 10, "akin": heads / 20}, heads > 1),
        figures.kinds(torch.zeros(3, 2), torch.tensor([0, 1, 1]), ["one", "two"], [" a", "b", "c"]),
        figures.cost_by_strictness({1: st.Interval(1.0, 0.5, 1.5), 10: st.Interval(0.5, 0.1, 0.9)}, 10),
    ]
    assert not plt.get_fignums()
    texts = [text.get_text() for text in drawn[2].axes[0].texts]
    assert len(texts) < 3 + 2 and "a" in texts
    assert [t.get_text() for t in drawn[1].axes[0].get_xticklabels()] == ["0.0", "0.1", "0.2*"]


def test_least_of_top_lies_between_two_entries(keep):
    hits = st.Hits.of(keep, 2.4 / N)
    column = entries(hits.columns[0], torch.zeros(N, dtype=torch.long), torch.arange(N)).sort(descending=True).values
    assert column[1] > hits.least_score[0, 0] > column[2]
