"""P1, P3, T1, T11, W9: logits and readings of the stream as sums over paths; frozen patterns; orders without listing paths."""

import dataclasses

import pytest
from random_models import BROKEN, EXACT, PLAIN_CASES, cases, identity, path_sum, random, same

from transformer_circuits.circuits.heads import freeze, relative_error
from workbooks import solutions


@identity(cases())
def test_p1_t1_paths_add_up_to_the_logits_and_to_what_is_read_after_each_layer(case):
    readings, paths = case.cache.accumulated_resid() @ case.model.W_U, []
    for layers, reading in enumerate(readings[:-1]):
        same(path_sum(case, lambda path: all(layer < layers for layer, _ in path)), reading)
    same(path_sum(case, lambda path: not paths.append(path)), case.logits)
    assert len(set(paths)) == (1 + case.model.cfg.n_heads) ** case.model.cfg.n_layers


def mixing_error(case, hooks):
    """The logits of a mixture of embeddings against the mixture of the logits."""

    def logits(embedding):
        return case.model.run_with_hooks(case.tokens, fwd_hooks=[("embed.hook_out", lambda x, hook: embedding), *hooks])

    # Weights for the tokens of the vocabulary.
    s, t = random(2, *case.tokens.shape, case.model.cfg.d_vocab, seed=1) @ case.model.W_E
    return relative_error(logits(3 * s - 2 * t), 3 * logits(s) - 2 * logits(t))


@identity(cases(min_layers=0))
def test_p3_frozen_attention_is_linear_and_gives_the_run_itself(case):
    hooks = freeze(case.cache)
    assert len(hooks) == case.model.cfg.n_layers
    assert mixing_error(case, hooks) < EXACT
    same(case.model.run_with_hooks(case.tokens, fwd_hooks=hooks), case.logits)


@pytest.mark.parametrize("case", PLAIN_CASES)
def test_p3_fails_with_free_patterns_or_one_free_layer(case):
    hooks = freeze(case.cache)
    assert mixing_error(case, []) > BROKEN
    assert mixing_error(case, hooks[1:]) > BROKEN


def nats(logits, targets):
    return -logits.log_softmax(dim=-1).gather(-1, targets[..., None])[..., 0].mean(dim=-1)


@identity(cases().filter(lambda case: case.tokens.shape[1] > 1))
def test_t11_the_papers_algorithm_is_the_path_sum_at_every_order(case):
    shorter, targets = dataclasses.replace(case, tokens=case.tokens[:, :-1]), case.tokens[:, 1:]
    for order, loss in enumerate(solutions.losses_by_order(case.model, case.tokens)):
        assert abs(loss - nats(path_sum(shorter, lambda path: len(path) <= order), targets)) < EXACT
    assert order == case.model.cfg.n_layers and abs(loss - nats(shorter.logits, targets)) < EXACT
