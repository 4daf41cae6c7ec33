"""Skip-trigrams on weights made by hand, where the answer is known."""

from types import SimpleNamespace

import pytest
import torch

from transformer_circuits.circuits import skip_trigrams as st
from transformer_circuits.circuits.factored import entries
from transformer_circuits.data import BigramCounts, load_tokenizer, vocabulary
from transformer_circuits.models.bridge import from_matrices

N = 6  # tokens, one dimension of the residual stream each
TWO = 2.4 / N  # a share of two of six


def one_head(scores: torch.Tensor, boosts: torch.Tensor):
    """A model whose QK circuit [destination, source] (over sqrt(d_head)) and OV circuit [source, out] are what is given."""
    eye, shape = torch.eye(N), (1, 1, N, N)
    Q, V, one = (scores * N**0.5).view(shape), boosts.view(shape), eye.view(shape)
    return from_matrices(W_E=eye, W_U=eye, W_pos=torch.zeros(8, N), W_K=one, W_O=one, W_Q=Q, W_V=V)


def table() -> torch.Tensor:
    return torch.rand(N, N, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def keep():
    """Source 0; destinations 1 and 2 look for it; outs 3 and 4 come out. All other entries are lower, and differ."""
    scores, boosts = table(), table()
    scores[1, 0], scores[2, 0] = 9.0, 8.0
    scores[0, 1] = 50.0  # were rows and columns exchanged, this would be the top
    boosts[0, 3], boosts[0, 4] = 9.0, 8.0
    boosts[3, 0] = 50.0
    return one_head(scores, boosts)


def ids(*tokens: int) -> torch.Tensor:
    return torch.tensor(tokens)


def test_hits_read_a_column_of_qk_and_a_row_of_ov(keep):
    hits, every, source = st.Hits.of(keep, TWO), torch.arange(N), torch.zeros(N, dtype=torch.long)
    assert hits.attended(source, every).nonzero()[:, 1].tolist() == [1, 2]
    assert hits.raised(source, every).nonzero()[:, 1].tolist() == [3, 4]
    assert hits(ids(0, 0, 0, 0), ids(1, 2, 1, 3), ids(4, 3, 5, 3)).tolist() == [[True, True, False, False]]
    column = entries(hits.columns[0], source, every).sort(descending=True).values
    assert column[1] > hits.least_score[0, 0] > column[2]  # the bound lies between two entries
    above = hits.above(ids(0, 0), ids(1, 2), ids(4, 3))
    assert torch.allclose(above, torch.tensor([[[0, 1 / N]], [[1 / N, 0]]]))
    assert hits.top_outs(2)[0, 0].tolist() == [3, 4]


def test_where_triples_come_nearest_to_a_hit(keep):
    forms = [((0,), (3,), (3,)), ((0,), (), (3,)), ((5, 0), (1,), (4,))]
    table = st.nearest(st.Hits.of(keep, TWO), forms, "abcdef")
    assert table.index.tolist() == [2, 0] and set(table["head"]) == {"0.0"}
    assert table.tokens.tolist() == [["a", "b", "e"], ["a", "d", "d"]]
    assert table.loc[2].tolist()[2:] == pytest.approx([0, 100 / N]) and table.loc[0, "above o (%)"] == 0


def test_the_best_copier_is_the_head_in_which_a_source_ranks_highest():
    heads = torch.stack([torch.eye(N) * 0.5 + table(), torch.eye(N) * 9, torch.eye(N) * 5])[None]
    one, eye = torch.eye(N), torch.eye(N).expand(heads.shape)
    model = from_matrices(W_E=one, W_U=one, W_pos=torch.zeros(8, N), W_Q=eye, W_K=eye, W_V=heads, W_O=eye)
    # Top in two heads, and raised more in this one.
    assert st.Hits.of(model, TWO).best_copier(torch.arange(N)).tolist() == [1] * N


def counts_of(text: list[int], d_vocab: int) -> BigramCounts:
    pairs = torch.zeros(d_vocab, d_vocab, dtype=torch.long)
    for a, b in zip(text, text[1:]):
        pairs[a, b] += 1
    row_start = torch.cat([ids(0), (pairs > 0).sum(dim=1).cumsum(0)])
    return BigramCounts(row_start, pairs.nonzero()[:, 1], pairs[pairs > 0])


def test_lifts():
    counts = counts_of([0, 1, 0, 1, 0, 2, 3, 0, 1], 5)  # 8 pairs, 3 of them end in 1, all of these behind 0
    assert st.lifts(counts, {1})[ids(0, 2, 4)].tolist() == pytest.approx([(3 / 4) / (3 / 8), 0, 0])
    assert st.lifts(counts, {1, 2})[0] == pytest.approx(1 / (4 / 8))
    # No token that ever comes: no lift, and no division by zero.
    assert st.lifts(counts, {4}).tolist() == [0.0] * 5


WORDS = [" Ralph", "R", "alph", "Alph", " ", " dog", "dog", " dogs", "s", "d", "og", "x"]


def way(*strings: str) -> tuple[int, ...]:
    return tuple(WORDS.index(string) for string in strings)


def test_words_fall_apart():
    found = set(zip(*(part.tolist() for part in st.all_splits(WORDS))))
    assert found == {
        way(" Ralph", "R", "alph"),
        way("dog", "d", "og"),
        way(" dog", "d", "og"),
        way(" dogs", " dog", "s"),
        way(" dogs", "dog", "s"),
    }
    pieces = {"Ralph": "R alph", "ralph": "r a l p h", "dog": "dog", "Dog": "D og", "Dogs": "D o g s"}

    def encode(text):
        return [WORDS.index(p) if p in WORDS else len(WORDS) for p in pieces.get(text, "x").split()]

    # "alph" and "x" have no space in front; " dogs" is never two tokens
    assert set(zip(*(p.tolist() for p in st.broken_words(WORDS, encode)))) == {
        way(" Ralph", "R", "alph"),
        (*way(" dog"), len(WORDS), *way("og")),
    }


def test_four_patterns():
    outs = torch.full((1, len(WORDS), 2), WORDS.index("x"))
    outs[0, way("dog")[0]] = torch.tensor(way("dog", " dogs"))  # itself, and one akin to it
    outs[0, way(" dog")[0], 0] = way("dog")[0]  # only one akin to it
    outs[0, way(" Ralph")[0], 0] = way("Alph")[0]  # akin to the rest

    def hits(attended):
        return SimpleNamespace(attended=lambda whole, piece: ((whole == way(" Ralph")[0]) & attended)[None])

    found = st.four_patterns(hits(True), WORDS, outs)
    assert [[WORDS[i] for i in pairs[0].nonzero().flatten()] for pairs in found] == [
        ["dog", "x"],
        [" dog", "dog"],
        [],
        [" Ralph"],
    ]
    outs[0, way(" Ralph")[0], 1] = way("alph")[0]
    assert [st.four_patterns(hits(a), WORDS, outs)[2].sum() for a in (True, False)] == [1, 0]


def test_exchanged_words_are_found_where_the_others_pieces_fit():
    scores, boosts = table(), table()
    for whole, piece, rest in ((0, 2, 4), (1, 3, 5)):
        scores[piece, whole] = boosts[whole, rest] = 9.0
    splits, frequency = st.Splits.of([(0, 2, 4), (1, 3, 5)]), torch.ones(N) / N
    hits = st.Hits.of(one_head(scores, boosts), 1.2 / N)
    assert hits(*splits).all() and st.exchanged_words(hits, splits, frequency, 3).tolist() == [0.0] * 3
    # Now either word has the other's pieces among its top two.
    scores[2:4, :2] = boosts[:2, 4:] = 9.0 + table()[:2, :2]
    hits = st.Hits.of(one_head(scores, boosts), TWO)
    assert st.exchanged_words(hits, splits, frequency, 3).tolist() == [1.0] * 3


def test_the_papers_list_in_our_tokens():
    tokenizer, names = load_tokenizer(), vocabulary()
    triples = st.paper_list(names, lambda text: tokenizer.encode(text, add_special_tokens=False))
    assert len(triples) == 68
    for t in triples:  # what cannot be expressed says why
        assert all(t.forms) or t.pieces or "(any)" in t.paper
        assert all("|" in pieces for pieces in t.pieces)
    deeper = next(t for t in triples if t.paper.endswith("→ else"))
    assert [names[form[0]] for form in deeper.forms[:2]] == ["\n" + " " * 11, "\n" + " " * 7]


def test_a_triple_is_a_hit_in_any_of_its_forms_and_by_chance_only_if_exchanged_so(keep):
    hits, forms = st.Hits.of(keep, 1.2 / N), [((5, 0), (1,), (3,)), ((0,), (2,), (3,)), ((0,), (), (3,))]
    assert st.count_hits(hits, forms).tolist() == [[True, False, False]]
    assert st.exchanged_hits(hits, forms[::2], shuffles=4).tolist() == [1.0] * 4  # nothing to exchange with
    assert st.exchanged_hits(hits, [((0,), (1,), (5,)), ((4,), (5,), (3,))], shuffles=50).max() == 1.0


def test_bugs_against_a_count_by_hand():
    state = torch.randint(3, (4, 5, 6), generator=torch.Generator().manual_seed(1))
    right, wrong = state == 0, state == 1
    for r, w, n, marked in zip(right, wrong, st.count_bugs(right, wrong), st.crossed(right, wrong)):
        bugs = [(d, o, e, p) for d in range(5) for o in range(6) for e in range(d + 1, 5) for p in range(6)
                if r[d, o] and r[e, p] and w[d, p] and w[e, o]]  # fmt: skip
        assert n == len(bugs)
        expected = {x for d, o, e, p in bugs for x in ((d, p), (e, o))}
        assert set(map(tuple, marked.nonzero().tolist())) == expected
        d, o = marked.nonzero().T
        e, p = st.partners_in_bugs(r.expand(len(d), -1, -1), w.expand(len(d), -1, -1), d, o)
        assert (r[d, p] & r[e, o] & w[e, p]).all()


def test_bugs_are_counted_exactly_beyond_the_digits_of_single_precision():
    """Half of the rows are right in the first half of the outs, half in the second: a bug for each two such rows and two outs."""
    # Odd, and so is the number of bugs.
    right = torch.block_diag(torch.ones(51, 101), torch.ones(51, 101)).bool()
    assert int(st.count_bugs(right, ~right)) == (51 * 101) ** 2 > 2**24


def test_boosts_need_the_source_before_the_destination(keep):
    candidates = st.Candidates.of(keep, ids(0).view(1, 1), TWO)
    pattern = torch.full((1, 4, 4), 0.25)
    assert len(st.find_boosts(ids(1, 0, 5, 5), pattern, candidates).out) == 0  # keep comes too late
    at = st.find_boosts(ids(0, 0, 1, 5), pattern, candidates)
    assert at.position.tolist() == [[2]] and at.out.tolist() == [[3, 4]] and at.triple.tolist() == [[0, 1]]
    row = keep.W_V[0, 0, 0]
    assert torch.allclose(at.amount, 0.5 * (row[3:5] - row.mean()))  # from both places of the source


def test_costs_per_thousand_tokens():
    lengths = torch.tensor([100, 300, 600])
    same = st.per_thousand_tokens(0.002 * lengths, lengths)  # two nats in each thousand of every text
    assert same.tolist() == pytest.approx([2, 2, 2])
    costs = st.per_thousand_tokens(torch.tensor([0.0, 0.0, 6.0]), lengths)
    assert costs.tolist() == pytest.approx([6, 0, 10])
