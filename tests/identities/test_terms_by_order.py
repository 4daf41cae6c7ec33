"""T11 and T12: orders without listing paths, and what a constant does in keys and in queries."""

import dataclasses

import pytest
from random_models import BROKEN, EXACT, PLAIN_CASES, cases, identity, path_sum, random

from transformer_circuits.circuits.heads import relative_error
from transformer_circuits.measures.prediction import losses_by_order
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


@pytest.mark.parametrize("case", TWO_LAYERS)
def test_t12_a_constant_in_all_keys_changes_nothing_but_in_queries_it_does(case):
    """So that leaving an output out of the keys and replacing it by its mean are the same; for queries they are not."""
    constant = random(case.model.cfg.d_model)
    for side, least, most in (("k", 0.0, EXACT), ("q", BROKEN, 100.0)):
        hook = (f"blocks.1.attn.{side}.hook_in", lambda x, hook: x + constant)
        error = relative_error(case.model.run_with_hooks(case.tokens, fwd_hooks=[hook]), case.logits)
        assert least <= error < most
