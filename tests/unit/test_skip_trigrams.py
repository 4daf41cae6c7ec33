"""Skip-trigrams and the head dump on weights made by hand, where the answer is known; which tokens are the same word."""

import pandas as pd
import pytest
import torch

from transformer_circuits.circuits import skip_trigrams as st
from transformer_circuits.circuits.head_dump import head_dump
from transformer_circuits.circuits.words import variants_of
from transformer_circuits.data import BigramCounts, load_tokenizer, vocabulary
from transformer_circuits.models.bridge import from_matrices

N = 6  # tokens, one dimension of the residual stream each
ONE, TWO = 1.2 / N, 2.4 / N  # a share of one of six, and of two


def one_layer(scores: torch.Tensor, boosts: torch.Tensor):
    """A model whose QK circuits [head, destination, source] (over sqrt(d_head)) and OV circuits [head, source, out] are what is given."""
    n, eye = len(scores[0]), torch.eye(len(scores[0]))
    one = eye.expand(1, *scores.shape)
    Q, V = scores[None] * n**0.5, boosts[None]
    return from_matrices(W_E=eye, W_U=eye, W_pos=torch.zeros(8, n), W_K=one, W_O=one, W_Q=Q, W_V=V)


def table() -> torch.Tensor:
    return torch.rand(1, N, N, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def keep():
    """Source 0; destinations 1 and 2 look for it; outs 3 and 4 come out. All other entries are lower, and differ."""
    scores, boosts = table(), table()
    scores[0, 1, 0], scores[0, 2, 0] = 9.0, 8.0
    boosts[0, 0, 3], boosts[0, 0, 4] = 9.0, 8.0
    scores[0, 0, 1] = boosts[0, 3, 0] = 50.0  # were rows and columns exchanged, these would be the top
    return one_layer(scores, boosts)


def test_where_triples_come_nearest_to_a_hit(keep):
    forms = [((0,), (3,), (3,)), ((0,), (), (3,)), ((5, 0), (1,), (4,))]
    table = st.nearest(keep, [st.combined(triple) for triple in forms], "abcdef", torch.tensor([True]), TWO)
    assert table.index.tolist() == [2, 0] and set(table["head"]) == {"0.0"}
    assert table.tokens.tolist() == [["a", "b", "e"], ["a", "d", "d"]]
    assert table.loc[2].tolist()[3:] == pytest.approx([0, 0, 100 / N]) and table.loc[0, "above o (%)"] == 0
    assert table["hit"].to_dict() == {2: True, 0: False}


def test_nothing_is_a_hit_in_a_head_that_does_not_count(keep):
    one, none = (st.Hits.of(keep, ONE, working=torch.tensor([works])) for works in (True, False))
    triple = [torch.tensor([token]) for token in (0, 1, 3)]
    assert one(*triple).item() and not none(*triple).item()
    two = st.Hits(
        *(st.FactoredMatrix(m.A.repeat(2, 1, 1), m.B.repeat(2, 1, 1)) for m in one[:2]),
        *(one.grid, one.sources),
        torch.tensor([False, True]),
    )
    assert two.best_copier(torch.arange(N)).tolist() == [1] * N


WORDS = [" Ralph", "R", "alph", "Alph", " ", " dog", "dog", " dogs", "s", "d", "og", "x"]


def ways(*lines: str) -> set[tuple[int, ...]]:
    return {tuple(WORDS.index(string) for string in line.split("|")) for line in lines}


def test_words_fall_apart():
    splits = ways(" Ralph|R|alph", "dog|d|og", " dog|d|og", " dogs| dog|s", " dogs|dog|s")
    assert set(map(tuple, st.all_splits(WORDS).T.tolist())) == splits
    pieces = {"Ralph": "R alph", "ralph": "r a l p h", "dog": "dog", "Dog": "D og", "Dogs": "D o g s"}

    def encode(text):
        return [WORDS.index(p) if p in WORDS else len(WORDS) for p in pieces.get(text, "x").split()]

    # "alph" and "x" have no space in front; " dogs" is never two tokens
    broken = ways(" Ralph|R|alph") | {(WORDS.index(" dog"), len(WORDS), WORDS.index("og"))}
    assert set(map(tuple, st.broken_words(WORDS, encode).T.tolist())) == broken


def test_what_comes_before_a_source_at_least_twice_as_often_as_it_occurs():
    table = torch.tensor([[6, 1, 1], [1, 3, 4], [1, 5, 2]])  # [token before, token]
    counts = BigramCounts(torch.tensor([0, 3, 6, 9]), torch.arange(3).repeat(3), table.flatten())
    family = torch.tensor([[True, False, False], [False, True, True]])
    # Token 0 follows itself in 6 of 8 cases, and overall in 8 of 24; the two others, 14 of 16 and 7 of 8 times, overall in 16 of 24.
    assert st.often_followed(counts, family).tolist() == [[True, False, False], [False, False, False]]


def test_out_tokens_of_another_source_are_its_own_only_by_chance():
    """One head raises each token itself most, one raises token 3 most for all: only the second can be right after a shuffle."""
    copies, same = table()[0] / 10 + 9 * torch.eye(N), table()[0] / 10
    same[:, 3] = 9
    hits = st.Hits.of(one_layer(table().repeat(2, 1, 1), torch.stack([copies, same])), ONE)
    family, sources = torch.eye(N).bool(), torch.arange(N)
    by_chance = st.copied_by_chance(hits, family, sources, k=1, shuffles=30)
    assert by_chance.min() >= 1 / N and by_chance.mean() < 0.6
    only_same = hits._replace(counted=torch.tensor([False, True]))
    assert st.copied_by_chance(only_same, family, sources, k=1).tolist() == pytest.approx([1 / N] * st.SHUFFLES)
    names = ["!", "?", ",", ".", ";", ":"]  # no words, so no variants
    shuffled = st.shuffled_patterns(only_same, names, sources, k=1, shuffles=5)
    assert shuffled.tolist() == [pytest.approx([1 / N, 0, 0, 0])] * 5
    found = st.four_patterns(hits, names, hits.grid.outs[..., :1])[0]
    assert found.sum(1).tolist() == [N, 1]


def test_shares_of_patterns_and_of_a_list_with_their_errors(keep):
    hits = st.Hits.of(one_layer(table(), 9 * torch.eye(N)[None] + table() / 10), ONE)
    shares = st.pattern_shares(hits, ["!", "?", ",", ".", ";", ":"], torch.arange(N), k=1)
    assert shares["exact"] == (1, 0) and shares["akin"] == shares["split_exact"] == (0, 0)
    assert shares["exact_random"][0] < 0.6 and shares["exact_random"][1] > 0
    listed = pd.DataFrame(
        {
            "paper": ["a ... b → d", "e ... d → d", "b ... c → f"],
            "forms": [((0,), (1,), (3,)), ((4,), (3,), (3,)), ((1,), (2,), (5,))],
        }
    )
    right = torch.tensor([[0, 1, 3], [4, 3, 3]]).T
    in_text = st.hits_in_text(st.Hits.of(keep, ONE), listed, right)
    assert in_text["rest"].tolist() == ["b → d", "d → d"] and in_text["column"].tolist() == [True, False]
    share, chance = st.hit_share(st.Hits.of(keep, ONE), in_text, "column")
    assert share[0] == 0.5 and 0 < chance[0] < 1


def test_the_papers_list_in_our_tokens():
    tokenizer, names = load_tokenizer(), vocabulary()
    listed = st.paper_list(names, lambda text: tokenizer.encode(text, add_special_tokens=False))
    assert len(listed) == 68
    for row in listed.itertuples():  # what cannot be expressed says why
        assert all(row.forms) or row.pieces or "(any)" in row.paper
        assert all("|" in pieces for pieces in row.pieces)
    deeper = listed.forms[listed.paper.str.endswith("→ else")].item()
    assert [names[form[0]] for form in deeper[:2]] == ["\n" + " " * 11, "\n" + " " * 7]


def test_a_triple_is_a_hit_in_any_of_its_forms_and_by_chance_only_if_exchanged_so(keep):
    hits, forms = st.Hits.of(keep, ONE), [((5, 0), (1,), (3,)), ((0,), (2,), (3,)), ((0,), (), (3,))]
    assert [hits(*st.combined(triple)).any().item() for triple in forms] == [True, False, False]
    assert st.exchanged_hits(hits, forms[::2], shuffles=4).tolist() == [1.0] * 4  # nothing to exchange with
    assert st.exchanged_hits(hits, [((0,), (1,), (5,)), ((4,), (5,), (3,))], shuffles=50).max() == 1.0


def test_the_head_dump_of_two_heads_alike():
    scores = torch.tensor(
        [[0.0, 4, -1, 1], [3, 0, -1, 2], [1, 2, -3, 0], [1, 3, -2, 2]]
    )  # [destination, source]; means 1, 1, 0, 1
    scores = scores + torch.tensor([0.0, 9, 0, 0])[:, None]  # of one destination to all sources alike: invisible
    boosts = torch.tensor([[4.0, 0, 0, 0], [1, 2, 9, 0], [0, 0, 0, 8], [5, 1, 1, 5]])  # [source, out]
    model = one_layer(scores.expand(2, -1, -1), boosts.expand(2, -1, -1))
    dump = head_dump(model, torch.full((4,), 0.25), n_sources=4, k=2)
    # largest scores above the destination's mean: 2, 3, -2, 1;  largest boosts above the source's mean: 3, 6, 6, 2;  products 6, 18, -12, 2.
    assert dump["source"].tolist() == 2 * [1, 0, 3, 2] and dump["rank"].tolist() == 2 * [1, 2, 3, 4]
    assert dump["head"].tolist() == [0] * 4 + [1] * 4
    assert dump["score"][:4].tolist() == pytest.approx([x * 0.25**0.1 for x in (18, 6, 2, -12)])
    assert dump["destinations"].tolist()[:2] == [[0, 2], [1, 2]]  # columns of QK, not rows
    assert dump["destination_scores"][0] == pytest.approx([3, 2])
    assert dump["in_row"].tolist()[:2] == [[True, True], [True, False]]  # destination 2 prefers source 1
    assert dump["outs"][0] == [2, 1]  # rows of OV, not columns
    assert dump["out_boosts"][0] == pytest.approx([6, -1])


def test_frequent_tokens_come_first_and_unseen_ones_get_zero():
    frequency = torch.tensor([0.0, 0.1, 0.8, 0.1 * 2**-10])
    dump = head_dump(one_layer(torch.eye(4)[None], torch.eye(4)[None]), frequency, n_sources=4, k=1)
    assert dump["source"][:4].tolist() == [2, 1, 3, 0] and dump["score"][3] == 0
    assert dump["score"][1] / dump["score"][2] == pytest.approx(2.0)  # (2^10)^0.1


SAME = [("two", " two"), ("lambda", "LAMBDA"), ("city", " cities"), ("box", "Boxes"), ("Straße", " straße")]
OTHER = [("as", "a"), ("is", "I"), ("cities", "citys"), ("the", "there"), ("  two", "two"), ("+", " +")]


@pytest.mark.parametrize(("first", "second"), SAME + OTHER)
def test_akin(first, second):
    expected = [{1}, {0}] if (first, second) in SAME else [set(), set()]
    assert variants_of([first, second]) == variants_of([second, first]) == expected


def test_being_akin_goes_both_ways_and_never_to_itself():
    akin = variants_of(vocabulary())
    assert all(i not in others and all(i in akin[j] for j in others) for i, others in enumerate(akin))
    assert sum(map(bool, akin)) > 500, "few tokens of the vocabulary have a variant: this shows little"
    assert variants_of(["city", " City", "cities", " CITIES", "cit"])[0] == {1, 2, 3}
