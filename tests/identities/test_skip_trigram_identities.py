"""Exact identities behind the chapter on skip-trigrams, in double precision on random models."""

import torch
from random_models import Case, cases, identity, random, same

from transformer_circuits.circuits import skip_trigrams as st


def circuits(case: Case, head: int) -> tuple[torch.Tensor, torch.Tensor]:
    """QK [source, destination] above the mean over sources and OV [source, out] above that over out tokens, multiplied out."""
    m = case.model
    scores = (m.W_E @ m.W_Q[0, head]) @ (m.W_E @ m.W_K[0, head]).T / m.cfg.d_head**0.5
    boosts = m.W_E @ m.W_V[0, head] @ m.W_O[0, head] @ m.W_U
    return scores.T - scores.T.mean(dim=0), boosts - boosts.mean(dim=1, keepdim=True)


@identity(cases(min_layers=1, max_layers=2))
def test_hits_are_the_top_of_the_multiplied_circuits(case):
    n, every_token = case.model.cfg.d_vocab, torch.arange(case.model.cfg.d_vocab)
    hits = st.Hits.of(case.model, 0.5)
    triples = torch.cartesian_prod(every_token, every_token, every_token)
    by_column, by_row = (hits(*triples.T, axis).view(-1, n, n, n) for axis in ("column", "row"))
    for head in range(len(by_column)):
        columns, boosts = circuits(case, head)
        top = [matrix.topk(n // 2).indices for matrix in (columns, columns.T, boosts)]
        attended, attracting, raised = ((tokens[:, None] == every_token[:, None]).any(-1) for tokens in top)
        assert torch.equal(by_column[head], attended[:, :, None] & raised[:, None])
        assert torch.equal(by_row[head], attracting.T[:, :, None] & raised[:, None])


def subtracted(case: Case, found: st.Candidates, chosen: torch.Tensor) -> torch.Tensor:
    """What the chosen triples add to the logits [position, d_vocab], place by place; patterns are those of the hooked model."""
    tokens, taken = case.tokens[0], torch.zeros_like(case.logits[0])
    patterns = case.cache["pattern", 0][0]
    for head in range(len(patterns)):
        boosts = circuits(case, head)[1].clamp(min=0)
        for j in range(len(tokens)):
            for s, weight in zip(tokens[:j].tolist(), patterns[head, j]):
                for d in (found.destinations[head, s] == tokens[j]).nonzero().flatten():
                    outs = found.outs[head, s][chosen[head, s, d]]
                    taken[j, outs] += weight * boosts[s, outs]
    return taken


@identity(cases(min_layers=1, max_layers=1))
def test_logits_without_triples_against_a_sum_position_by_position(case):
    found = st.Hits.of(case.model, 0.5).grid
    boosts = [circuits(case, head)[1].gather(1, outs) for head, outs in enumerate(found.outs)]
    found = found._replace(boosts=torch.stack(boosts))  # in double precision
    chosen = random(*found.destinations.shape, found.outs.shape[-1], seed=1) > 0
    at = st.find_boosts(case.tokens[0], case.cache["pattern", 0][0], found)
    expected = case.logits[0] - subtracted(case, found, chosen)
    same(st.without(case.logits[0], at, chosen), expected)
