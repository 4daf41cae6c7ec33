"""Exact identities behind the chapter on skip-trigrams, in double precision on random models."""

import torch
import torch.nn.functional as F
from hypothesis import given
from random_models import BROKEN, EXACT, Case, build, cases, identity, random

from transformer_circuits.circuits import skip_trigrams as st
from transformer_circuits.circuits.paths import run
from transformer_circuits.circuits.weights import relative_error


def circuits(case: Case, head: int) -> tuple[torch.Tensor, torch.Tensor]:
    """QK columns [source, destination] and OV rows above their mean [source, out], multiplied out."""
    w = case.weights
    scores = (w.W_E @ w.W_Q[0, head]) @ (w.W_E @ w.W_K[0, head]).T / w.d_head**0.5
    boosts = w.W_E @ w.W_V[0, head] @ w.W_O[0, head] @ w.W_U
    return scores.T, boosts - boosts.mean(dim=1, keepdim=True)


def grid(case: Case, share: float = 0.5) -> st.Candidates:
    d_vocab, n_heads = len(case.weights.W_E), case.weights.n_heads
    return st.Candidates.of(case.weights, torch.arange(d_vocab).expand(n_heads, -1), share)


@identity
@given(cases(min_layers=1, max_layers=2))
def test_hits_are_the_top_of_the_multiplied_circuits(case):
    d_vocab = len(case.weights.W_E)
    hits, pairs = st.Hits.of(case.weights, 0.5), torch.cartesian_prod(torch.arange(d_vocab), torch.arange(d_vocab))
    attended, raised = hits.attended(*pairs.T), hits.raised(*pairs.T)
    for head in range(case.weights.n_heads):
        for matrix, found, listed in zip(circuits(case, head), (attended, raised), (grid(case).destinations, grid(case).outs)):
            top = matrix.topk(d_vocab // 2).indices.sort(dim=1).values
            assert torch.equal(listed[head], top)
            assert torch.equal(found[head].view(d_vocab, d_vocab).nonzero()[:, 1].view(d_vocab, -1), top)


@identity
@given(cases(min_layers=1, max_layers=1))
def test_losses_without_boosts_are_those_of_the_logits_without_them(case):
    candidates, tokens = grid(case), case.tokens
    n, d_vocab = len(tokens), len(case.weights.W_E)
    chosen = random(*candidates.destinations.shape, candidates.outs.shape[-1], seed=1) > 0
    patterns, targets = run(case.weights, tokens).patterns[0], tokens.roll(1)
    found = st.find_boosts(tokens, patterns, candidates, st.grid_boosts(case.weights, candidates), chosen)

    taken = torch.zeros(n, d_vocab, dtype=torch.float64)
    for head in range(case.weights.n_heads):
        boosts = circuits(case, head)[1].clamp(min=0)
        for j in range(n):
            for i in range(j):
                s = int(tokens[i])
                for d in (candidates.destinations[head, s] == tokens[j]).nonzero().flatten():
                    outs = candidates.outs[head, s][chosen[head, s, d]]
                    taken[j, outs] += patterns[head, j, i] * boosts[s, outs]
    expected = F.cross_entropy(case.logits - taken, targets, reduction="none")
    ours = st.losses_without(case.logits.log_softmax(-1), targets, found)
    assert (ours - expected).abs().max() < EXACT * (1 + expected.max())  # losses can be next to nothing


@identity
@given(cases(min_layers=1, max_layers=1))
def test_the_cost_of_one_entry_is_the_difference_that_it_makes_alone(case):
    candidates, tokens, targets = grid(case), case.tokens, case.tokens.roll(1)
    everything = torch.ones(*candidates.destinations.shape, candidates.outs.shape[-1], dtype=torch.bool)
    patterns, log_probs = run(case.weights, tokens).patterns[0], case.logits.log_softmax(-1)
    found = st.find_boosts(tokens, patterns, candidates, st.grid_boosts(case.weights, candidates), everything)
    costs = st.cost_of_each(log_probs, targets, found)
    loss = -log_probs.gather(1, targets[:, None])[:, 0]
    for i, cost in enumerate(costs[:20]):
        without = st.losses_without(log_probs, targets, st.Boosts(*(part[i : i + 1] for part in found)))
        assert abs((loss - without).sum() - cost) < EXACT * (1 + loss.sum())


@identity
@given(cases(min_layers=1, max_layers=2))
def test_coordinates_keep_the_angles_of_columns(case):
    d_vocab = len(case.weights.W_E)
    for head in range(case.weights.n_heads):
        columns = circuits(case, head)[0]
        columns = F.normalize(columns - columns.mean(dim=0), dim=1)
        coordinates = st.column_coordinates(case.weights, head, torch.arange(d_vocab))
        assert coordinates.shape[1] <= case.weights.d_head
        assert relative_error(coordinates @ coordinates.T, columns @ columns.T) < 1e-8  # near zero length angles are rough


def test_other_conventions_would_be_noticed():
    """Rows of QK instead of columns, and keys without the queries' geometry, have other angles."""
    case = build(n_layers=1, n_heads=1, d_model=8, d_head=3)
    columns = circuits(case, 0)[0]
    ours = st.column_coordinates(case.weights, 0, torch.arange(11))
    rows = F.normalize(columns.T - columns.T.mean(dim=0), dim=1)
    keys = case.weights.W_E @ case.weights.W_K[0, 0]
    keys = F.normalize(keys - keys.mean(dim=0), dim=1)
    for wrong in (rows, keys):
        assert relative_error(wrong @ wrong.T, ours @ ours.T) > BROKEN


def test_a_constant_for_each_destination_changes_no_coordinates():
    """Scores to all sources shifted alike for a destination: softmax does not see it, and neither do clusters."""
    case = build(n_layers=1, n_heads=1, d_model=8, d_head=3)
    w = case.weights
    columns = circuits(case, 0)[0]
    shift = random(11)
    shifted = columns + shift  # [source, destination]
    by_hand = F.normalize(shifted - shifted.mean(dim=0), dim=1)
    ours = st.column_coordinates(w, 0, torch.arange(11))
    assert relative_error(ours @ ours.T, by_hand @ by_hand.T) < EXACT
