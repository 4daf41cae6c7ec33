"""P1 to P3, T1, T2, T11, T12, W9: logits, scores, and readings of the stream as sums over paths; frozen patterns; orders
without listing paths, and what a constant does in keys and in queries.
"""

import dataclasses
import math

import pytest
import torch
from random_models import BROKEN, EXACT, PLAIN_CASES, cases, differs, identity, path_sum, random, same

from transformer_circuits.circuits.heads import freeze, relative_error
from workbooks import solutions


@identity(cases())
def test_p1_t1_paths_add_up_to_the_logits_and_to_what_is_read_after_each_layer(case):
    readings, paths = case.cache.accumulated_resid() @ case.model.W_U, []
    for layers, reading in enumerate(readings[:-1]):
        same(path_sum(case, lambda path: all(layer < layers for layer, _ in path)), reading)
    same(path_sum(case, lambda path: not paths.append(path)), case.logits)
    assert len(set(paths)) == (1 + case.model.cfg.n_heads) ** case.model.cfg.n_layers


@pytest.mark.parametrize("case", [case for case in PLAIN_CASES if case.model.cfg.n_layers > 1])
def test_a_virtual_head_is_a_product_of_patterns_times_an_ov_circuit(case):
    model, cache = case.model, case.cache
    A = cache["pattern", 1][0, 1] @ cache["pattern", 0][0, 0]
    circuit = model.W_E @ (model.OV[0, 0] @ model.OV[1, 1]) @ model.W_U
    wrong = model.W_E @ (model.OV[1, 1] @ model.OV[0, 0]) @ model.W_U
    expected = path_sum(case, lambda path: path == ((0, 0), (1, 1)))[0]
    same(A @ circuit.AB[case.tokens[0]], expected)
    differs(A @ wrong.AB[case.tokens[0]], expected)


def score_terms(case, layer, head=0):
    """Scores of a head by what query and key are made of: the position, the embedding, each earlier head."""
    model, cache = case.model, case.cache
    parts = [model.W_pos[None, : case.tokens.shape[1]], cache["embed"]]
    if layer:
        parts += list(cache.stack_head_results(layer=layer))
    x = torch.stack(parts)[:, 0]
    return torch.einsum("aid,de,bje->abij", x, model.QK[layer, head].AB, x) / math.sqrt(model.cfg.d_head)


def scores_of_plain(case, layer, head=0):
    """From the plain module's own queries and keys."""
    residual, positions = case.plain.tok_embed(case.tokens), case.plain.pos.weight[: case.tokens.shape[1]]
    for block in case.plain.layers[:layer]:
        residual = residual + block.attn(residual, positions)[0]
    attention = case.plain.layers[layer].attn
    q, k = (
        f(residual + positions)[0].unflatten(-1, (-1, attention.d_head))[:, head] for f in (attention.q, attention.k)
    )
    return q @ k.T / math.sqrt(attention.d_head)


@identity(cases())
def test_p2_t2_terms_add_up_to_the_scores(case):
    for layer in range(case.model.cfg.n_layers):
        same(score_terms(case, layer).sum((0, 1)), scores_of_plain(case, layer))


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


@pytest.mark.parametrize("case", [case for case in PLAIN_CASES if case.model.cfg.n_layers == 2])
def test_t12_a_constant_in_all_keys_changes_nothing_but_in_queries_it_does(case):
    """So that leaving an output out of the keys and replacing it by its mean are the same; for queries they are not."""
    constant = random(case.model.cfg.d_model)
    for side, least, most in (("k", 0.0, EXACT), ("q", BROKEN, 100.0)):
        hook = (f"blocks.1.attn.{side}.hook_in", lambda x, hook: x + constant)
        error = relative_error(case.model.run_with_hooks(case.tokens, fwd_hooks=[hook]), case.logits)
        assert least <= error < most
