"""Exact identities behind the chapter on skip-trigrams, in double precision on random models."""

from unittest import mock

import torch
from random_models import Case, cases, identity

from transformer_circuits.circuits import head_dump
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
    with mock.patch.object(head_dump, "SHARE", 0.5):
        hits = st.Hits.of(case.model)
    triples = torch.cartesian_prod(every_token, every_token, every_token)
    by_column, by_row = (hits(*triples.T, axis).view(-1, n, n, n) for axis in ("column", "row"))
    for head in range(len(by_column)):
        columns, boosts = circuits(case, head)
        top = [matrix.topk(n // 2).indices for matrix in (columns, columns.T, boosts)]
        attended, attracting, raised = ((tokens[:, None] == every_token[:, None]).any(-1) for tokens in top)
        assert torch.equal(by_column[head], attended[:, :, None] & raised[:, None])
        assert torch.equal(by_row[head], attracting.T[:, :, None] & raised[:, None])
