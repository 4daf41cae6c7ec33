"""T11 and T12: orders without listing paths, and terms left out in one pass."""

import dataclasses

import pytest
import torch
from random_models import BROKEN, EXACT, PLAIN_CASES, cases, identity, path_sum, random

from transformer_circuits.circuits import heads
from transformer_circuits.circuits.heads import relative_error
from transformer_circuits.circuits.term_importance import losses_by_ablation, losses_by_order, losses_by_terms
from workbooks import solutions

TWO_LAYERS = [case for case in PLAIN_CASES if case.model.cfg.n_layers == 2]


def nats(logits, targets):
    return -logits.log_softmax(dim=-1).gather(-1, targets[..., None])[..., 0].mean(dim=-1)


def texts(**layers):
    """Cases with something to predict."""
    return cases(**layers).filter(lambda case: case.tokens.shape[1] > 1)


@identity(texts())
def test_t11_the_papers_algorithm_and_the_trainers_are_the_path_sum_at_every_order(case):
    shorter, targets = dataclasses.replace(case, tokens=case.tokens[:, :-1]), case.tokens[:, 1:]
    trainers = losses_by_order(case.model, case.tokens)  # in single precision
    for order, loss in enumerate(solutions.losses_by_order(case.model, case.tokens)):
        assert abs(loss - nats(path_sum(shorter, lambda path: len(path) <= order), targets)) < EXACT
        assert trainers[order] == pytest.approx(float(loss), abs=1e-4)
    assert order == case.model.cfg.n_layers and abs(loss - nats(shorter.logits, targets)) < EXACT


@identity(texts(min_layers=2, max_layers=2))
def test_t11_t12_one_pass_is_path_sums_and_hooked_runs(case):
    model, tokens = case.model, torch.cat([case.tokens, case.tokens.flip(1)])
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    shorter = dataclasses.replace(case, tokens=inputs)
    wanted = {
        "order 0": lambda path: not path,
        "order 1": lambda path: len(path) <= 1,
        "layer 1": lambda path: all(layer == 0 for layer, _ in path),
        "layer 2": lambda path: all(layer == 1 for layer, _ in path),
    }
    expected = {name: nats(path_sum(shorter, rule), targets) for name, rule in wanted.items()}
    expected["order 2"] = heads.losses(model, tokens).mean(dim=-1)
    below = shorter.cache["blocks.0.attn.hook_out"]
    instead = {"without K": 0, "without Q": 0, "mean Q": below.mean(dim=(0, 1))}
    for name, other in (instead | dict.fromkeys(("other K", "other Q"), below.roll(1, 0))).items():
        hook = (f"blocks.1.attn.{name[-1].lower()}.hook_in", lambda x, hook: x - below + other)
        expected[name] = nats(model.run_with_hooks(inputs, fwd_hooks=[hook]), targets)
    found = losses_by_terms(model, tokens) | losses_by_ablation(model, tokens)
    assert found.keys() == expected.keys()
    for name in expected:
        assert (found[name] - expected[name]).abs().max() < EXACT, name  # in nats: a loss may be almost zero


@pytest.mark.parametrize("case", TWO_LAYERS)
def test_t12_a_constant_in_all_keys_changes_nothing_but_in_queries_it_does(case):
    """So that leaving an output out of the keys and replacing it by its mean are the same; for queries they are not."""
    constant = random(case.model.cfg.d_model)
    for side, least, most in (("k", 0.0, EXACT), ("q", BROKEN, 100.0)):
        hook = (f"blocks.1.attn.{side}.hook_in", lambda x, hook: x + constant)
        error = relative_error(case.model.run_with_hooks(case.tokens, fwd_hooks=[hook]), case.logits)
        assert least <= error < most
