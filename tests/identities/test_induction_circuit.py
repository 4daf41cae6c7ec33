"""T9, T10, T15: parts of scores add up, the circuit is a part of the score, effects are those of ablation and of autograd."""

import math

import pytest
import torch
from random_models import BROKEN, EXACT, build, random

from transformer_circuits.circuits import heads
from transformer_circuits.circuits.heads import relative_error
from transformer_circuits.circuits.induction import content_by_source, excess_by_source, key_effects
from transformer_circuits.training.scores import repeated_random_tokens

REPEATED = repeated_random_tokens(20, 30, rows=11, shortest=4)  # more rows than run together
MODELS = [build(d_vocab=20, length=30, n_heads=3, positions=positions, seed=seed).model for seed, positions in enumerate((True, False))]


@pytest.mark.parametrize("model", MODELS)
def test_contents_are_what_the_second_layer_reads_told_apart_by_source(model):
    _, cache = model.run_with_cache(REPEATED.tokens)
    own, before, earlier, position = content_by_source(cache)
    assert relative_error(own + before + earlier, cache["resid_pre", 1]) < EXACT
    assert relative_error(own + before + earlier + position, cache["blocks.1.attn.k.hook_in"]) < EXACT
    for part, offset in ((own, 0), (before, 1)):
        expected = model.W_E[REPEATED.tokens] if offset == 0 else torch.zeros_like(own)
        for head in range(model.cfg.n_heads):
            near = torch.diag_embed(cache["pattern", 0][:, head].diagonal(-offset, dim1=-2, dim2=-1), -offset)
            expected = expected + near @ model.W_E[REPEATED.tokens] @ model.OV[0, head].AB
        assert relative_error(part, expected) < EXACT


@pytest.mark.parametrize("model", MODELS)
def test_parts_add_up_to_the_excess_over_the_rows_mean(model):
    _, cache = model.run_with_cache(REPEATED.tokens)
    where = list(zip(REPEATED.rows.tolist(), REPEATED.destinations.tolist(), REPEATED.targets.tolist()))
    for head in range(model.cfg.n_heads):
        scores = cache["attn_scores", 1][:, head]
        expected = torch.stack([scores[row, to, at] - scores[row, to, : to + 1].mean() for row, to, at in where]).mean()
        parts = excess_by_source(model, REPEATED, head)
        assert abs(parts.sum() - expected) < EXACT * scores[scores.isfinite()].abs().max()
        assert relative_error(parts, parts.T) > BROKEN  # queries and keys are kept apart


def test_the_k_composition_circuit_is_the_part_of_the_score_through_the_earlier_head():
    model, tokens = MODELS[0], REPEATED.tokens[:1]
    circuit = model.W_E @ model.QK[1, 2] @ model.OV[0, 1].T @ model.W_E.mT  # as chapter 7 writes it
    _, cache = model.run_with_cache(tokens)
    through = cache["pattern", 0][0, 1] @ model.W_E[tokens[0]] @ model.W_V[0, 1] @ model.W_O[0, 1]
    query = model.W_E[tokens[0]] @ model.W_Q[1, 2]
    expected = query @ (through @ model.W_K[1, 2]).T
    between = circuit.AB[tokens[0]][:, tokens[0]]  # [query's token, token that the earlier head moved]
    assert relative_error(between @ cache["pattern", 0][0, 1].T, expected) < EXACT
    assert relative_error(circuit.AB.T[tokens[0]][:, tokens[0]] @ cache["pattern", 0][0, 1].T, expected) > BROKEN
    large = torch.linalg.eigvals(circuit.AB)
    assert abs(heads.positivity(circuit.eigenvalues) - heads.positivity(large)) < 1e-8


def effect_on_logit(model, row, to, at, reader, writer, mean, amount):
    """The right token's logit with `amount` of the writer's output, less its mean, taken out of one key; plain and slow."""
    _, cache = model.run_with_cache(REPEATED.tokens[row : row + 1])
    part = (cache["z", 0][0, at, writer[1]] - mean) @ model.W_O[writer]
    seen = cache["resid_pre", 1][0]
    placed = seen + model.W_pos[: len(seen)]
    keys = torch.cat([placed[:at], (placed[at] - amount * part)[None], placed[at + 1 :]]) @ model.W_K[reader]
    A = (keys @ (placed[to] @ model.W_Q[reader]) / math.sqrt(model.cfg.d_head))[: to + 1].softmax(dim=0)
    intact = cache["pattern", 1][0, reader[1], to, : to + 1]
    return (A - intact) @ seen[: to + 1] @ model.OV[reader].AB @ model.W_U[:, REPEATED.tokens[row, at]]


@pytest.mark.parametrize("model", MODELS)
def test_key_effects_are_those_of_ablation_and_of_autograd(model):
    reader, writer, mean = (1, 2), (0, 0), random(model.cfg.d_head)
    found = key_effects(model, REPEATED, reader, writer, mean)
    attention = heads.patterns(model, REPEATED.tokens)[1, :, reader[1]]
    assert relative_error(found.attention, attention[REPEATED.rows, REPEATED.destinations, REPEATED.targets]) < EXACT
    for n in range(0, len(REPEATED.rows), 23):
        row, to, at = (int(x[n]) for x in (REPEATED.rows, REPEATED.destinations, REPEATED.targets))
        amount = torch.zeros((), dtype=torch.float64, requires_grad=True)
        effect_on_logit(model, row, to, at, reader, writer, mean, amount).backward()
        ablated = effect_on_logit(model, row, to, at, reader, writer, mean, 1.0)
        assert abs(found.ablation[n] + ablated) < 1e-9 and abs(found.gradient[n] + amount.grad) < 1e-9
