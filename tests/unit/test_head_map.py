"""Ablation effects: those of a hook on the plain module. The map of all heads: names where they are known. In-context scores."""

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from random_models import build

from transformer_circuits.circuits import head_map, survey
from transformer_circuits.data import held_out_windows
from transformer_circuits.measures.ablation import WORKS, AblationEffects, ablate_heads, effects
from transformer_circuits.measures.prediction import IN_CONTEXT_WINDOWS, in_context_places, in_context_scores
from transformer_circuits.models import load_model
from transformer_circuits.models.bridge import from_matrices, wrap
from workbooks.solutions import induction_by_hand


def losses_of(plain, rows):
    return F.cross_entropy(plain(rows[:, :-1]).mT, rows[:, 1:], reduction="none")


def losses_without(plain, rows, layer, head):
    """By a hook of PyTorch on the plain module: W_O reads the head's mean in place of its output."""
    output, kept = plain.layers[layer].attn.o, []
    with output.register_forward_pre_hook(lambda module, inputs: kept.append(inputs[0])):
        plain(rows[:, :-1])
    (z,), mine = kept, slice(8 * head, 8 * head + 8)
    z = z.clone()
    z[..., mine] = z[..., mine].mean(dim=(0, 1))
    with output.register_forward_pre_hook(lambda module, inputs: (z,)):
        return losses_of(plain, rows)


@torch.no_grad()
def test_costs_are_those_of_hooks_and_a_head_that_is_switched_off_is_without_effect():
    plain = build(2, d_model=24, n_heads=3, d_head=8, d_vocab=40, length=16).plain
    plain.layers[0].attn.o.weight[:, 8:16] = 0  # head 0.1
    rows, hooked = torch.randint(40, (6, 17)), wrap(plain)
    found, intact = ablate_heads(hooked, rows), losses_of(plain, rows)
    for layer, head in ((0, 2), (1, 0)):
        torch.testing.assert_close(found[layer, head], losses_without(plain, rows, layer, head) - intact)
    assert found[0, 1].abs().max() == 0 and not effects(found).working[0, 1]
    assert not any(point.has_hooks() for point in hooked.hook_dict.values()), "nothing stays on the model"


def test_a_head_works_if_its_cost_is_large_enough_and_certain_enough():
    cost = torch.tensor([[WORKS, WORKS * 0.99, 0.1, -0.1]])
    assert AblationEffects(cost, torch.tensor([[0.0, 0, 0.06, 0.01]])).working.tolist() == [[True, False, False, False]]


def test_heads_copy_or_are_negative_beyond_a_threshold_on_either_side():
    columns = ["previous", "current", "induction", "successor"]
    found = pd.DataFrame(0.0, range(4), columns).assign(works=True, positivity=[0.4, 0.2, -0.2, -0.4])
    assert head_map._names(found, threshold=0.3) == [["copying"], [], [], ["negative"]]


@torch.no_grad()
def test_costs_that_are_not_given_are_measured_on_windows_from_all_of_the_text(monkeypatch):
    model, given = from_matrices(**induction_by_hand(40, 64)), []
    monkeypatch.setattr(head_map, "rises", lambda model, rows: given.append(rows) or torch.ones(2, 1, *rows.shape))
    windows = survey.text(model, 10)
    head_map.head_map(model, windows)
    assert torch.equal(given[0], windows[[0, 3, 6, 9], :65])


@torch.no_grad()
def test_an_induction_circuit_that_was_built_by_hand_gets_its_names():
    model = from_matrices(**induction_by_hand(40, 64))
    all_work = AblationEffects(torch.ones(2, 1), torch.zeros(2, 1))
    found = head_map.head_map(model, survey.text(model), all_work)
    assert "previous" in found["names"]["0.0"] and "induction" not in found["names"]["0.0"]
    assert {"induction", "copying"} <= set(found["names"]["1.0"])
    idle = head_map.head_map(model, survey.text(model), AblationEffects(torch.zeros(2, 1), torch.zeros(2, 1)))
    assert idle["names"].tolist() == [[], []], "only working heads have names"


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
