"""T11 and T12: orders without listing paths, and terms left out in one pass."""

import dataclasses

import pytest
from random_models import BROKEN, EXACT, PLAIN_CASES, cases, identity, path_sum, random

from transformer_circuits.circuits import heads
from transformer_circuits.circuits.heads import relative_error
from transformer_circuits.circuits.term_importance import losses_by_ablation, losses_by_terms
from transformer_circuits.exercises.solutions import losses_by_order

TWO_LAYERS = [case for case in PLAIN_CASES if case.model.cfg.n_layers == 2]


def nats(logits, targets):
    return -logits.log_softmax(dim=-1).gather(-1, targets[..., None])[..., 0].mean(dim=-1)


def texts(**layers):
    """Cases with something to predict."""
    return cases(**layers).filter(lambda case: case.tokens.shape[1] > 1)


@identity(texts())
def test_t11_the_papers_algorithm_is_the_path_sum_at_every_order(case):
    shorter, targets = dataclasses.replace(case, tokens=case.tokens[:, :-1]), case.tokens[:, 1:]
    for order, loss in enumerate(losses_by_order(case.model, case.tokens)):
        assert abs(loss - nats(path_sum(shorter, lambda path: len(path) <= order), targets)) < EXACT
    assert order == case.model.cfg.n_layers and abs(loss - nats(shorter.logits, targets)) < EXACT


@identity(texts(min_layers=2, max_layers=2))
def test_t11_t12_one_pass_is_path_sums_and_hooked_runs(case):
    model, inputs, targets = case.model, case.tokens[:, :-1], case.tokens[:, 1:]
    found = losses_by_terms(model, case.tokens)
    below = model.run_with_cache(inputs)[1]["blocks.0.attn.hook_out"]
    shorter = dataclasses.replace(case, tokens=inputs)
    wanted = {
        "order 0": lambda path: not path,
        "order 1": lambda path: len(path) <= 1,
        "layer 1": lambda path: all(layer == 0 for layer, _ in path),
        "layer 2": lambda path: all(layer == 1 for layer, _ in path),
    }
    expected = {name: nats(path_sum(shorter, rule), targets) for name, rule in wanted.items()}
    for side in "KQ":
        hook = (f"blocks.1.attn.{side.lower()}.hook_in", lambda x, hook: x - below)
        expected[f"without {side}"] = nats(model.run_with_hooks(inputs, fwd_hooks=[hook]), targets)
    expected["order 2"] = heads.losses(model, case.tokens).mean(dim=-1)
    assert found.keys() == expected.keys()
    for name in expected:
        assert (found[name] - expected[name]).abs().max() < EXACT, name  # in nats: a loss may be almost zero


@identity(texts(min_layers=2, max_layers=2))
def test_t12_other_ablations_are_hooked_runs(case):
    model, inputs, targets = case.model, case.tokens[:, :-1], case.tokens[:, 1:]
    below = model.run_with_cache(inputs)[1]["blocks.0.attn.hook_out"]
    instead = {"mean Q": below.mean(dim=(0, 1)), "other K": below.roll(1, 0), "other Q": below.roll(1, 0)}
    found = losses_by_ablation(model, case.tokens)
    assert found.keys() == instead.keys()
    for name, other in instead.items():
        hook = (f"blocks.1.attn.{name[-1].lower()}.hook_in", lambda x, hook: x - below + other)
        expected = nats(model.run_with_hooks(inputs, fwd_hooks=[hook]), targets)
        assert (found[name] - expected).abs().max() < EXACT, name


@pytest.mark.parametrize("case", TWO_LAYERS)
def test_t12_a_constant_in_all_keys_changes_nothing_but_in_queries_it_does(case):
    """So that leaving an output out of the keys and replacing it by its mean are the same; for queries they are not."""
    constant = random(case.model.cfg.d_model)
    for side, least, most in (("k", 0.0, EXACT), ("q", BROKEN, 100.0)):
        hook = (f"blocks.1.attn.{side}.hook_in", lambda x, hook: x + constant)
        error = relative_error(case.model.run_with_hooks(case.tokens, fwd_hooks=[hook]), case.logits)
        assert least <= error < most
