"""In-context scores against all losses."""

import pytest
import torch
from random_models import build

from transformer_circuits.data import held_out_windows
from transformer_circuits.measures.prediction import IN_CONTEXT_WINDOWS, in_context_places, in_context_scores
from transformer_circuits.models import load_model


def test_in_context_scores_are_those_of_the_losses_at_all_positions() -> None:
    model = build(2, d_vocab=50, length=64).model
    windows = torch.randint(0, 50, (5, 65), generator=torch.Generator().manual_seed(0))
    losses = -model(windows[:, :-1]).log_softmax(dim=-1).gather(-1, windows[:, 1:, None])[..., 0]
    expected = losses[:, 61:63].mean(dim=1) - losses[:, 5:7].mean(dim=1)
    assert in_context_scores(model, windows).tolist() == pytest.approx(expected.tolist(), abs=1e-5)
    early, late = in_context_places(512)
    assert (early.tolist(), late.tolist()) == (list(range(40, 60)), list(range(490, 510)))


@pytest.mark.parametrize("name", ["attn-only-1l", "attn-only-2l"])
def test_scores_in_the_repository_are_those_of_the_shipped_models(name: str) -> None:
    model, windows = load_model(name), held_out_windows(IN_CONTEXT_WINDOWS, 512)
    some = torch.arange(0, IN_CONTEXT_WINDOWS, 221)
    shipped = in_context_scores(model, windows)[some]
    torch.testing.assert_close(shipped, in_context_scores(model, windows[some]), atol=1e-4, rtol=0)
