"""T6, T7, T10, T14 to T17: targets, circuits are parts of the score, and what is kept or removed is what hooks keep or
remove.
"""

import pytest
import torch
from random_models import build, differs, same

from transformer_circuits.circuits import matches
from transformer_circuits.measures import attention
from transformer_circuits.measures.repeats import after_earlier, last_target, repeated_random_tokens
from transformer_circuits.measures.weights import match_positivity, positivity
from transformer_circuits.models.view import View, without_heads

REPEATED = repeated_random_tokens(20, 30, rows=11, shortest=4)  # more rows than run together
MODELS = [
    build(d_vocab=20, length=30, n_heads=3, positions=positions, seed=seed).model
    for seed, positions in enumerate((True, False))
]


def test_targets_follow_earlier_occurrences():
    tokens = torch.tensor([[0, 5, 6, 7, 5, 6, 7, 5, 6, 7], [0, 4, 4, 1, 2, 3, 1, 9, 8, 1]])
    first, second = last_target(tokens).tolist()
    assert first == [-1, -1, -1, -1, 2, 3, 4, 5, 6, 7] and second == [-1, -1, 2, -1, -1, -1, 4, -1, -1, 7]
    assert after_earlier(tokens)[0, 7].nonzero().flatten().tolist() == [2, 5]
    assert after_earlier(tokens[1])[2].nonzero().flatten().tolist() == [2]  # twice in a row: its own target
    found = last_target(REPEATED.tokens)[REPEATED.rows, REPEATED.destinations]
    assert torch.equal(found, REPEATED.targets)


def test_the_k_composition_circuit_is_the_part_of_the_score_through_the_earlier_head():
    model, tokens = MODELS[0], REPEATED.tokens[:1]
    circuit = model.W_E @ model.QK[1, 2] @ model.OV[0, 1].T @ model.W_E.mT  # as chapter 7 writes it
    _, cache = model.run_with_cache(tokens)
    through = cache["pattern", 0][0, 1] @ model.W_E[tokens[0]] @ model.W_V[0, 1] @ model.W_O[0, 1]
    query = model.W_E[tokens[0]] @ model.W_Q[1, 2]
    expected = query @ (through @ model.W_K[1, 2]).T
    between = circuit.AB[tokens[0]][:, tokens[0]]  # [query's token, token that the earlier head moved]
    same(between @ cache["pattern", 0][0, 1].T, expected)
    differs(circuit.AB.T[tokens[0]][:, tokens[0]] @ cache["pattern", 0][0, 1].T, expected)
    assert abs(match_positivity(model, (1, 2), (0, 1)) - positivity(torch.linalg.eigvals(circuit.AB))) < 1e-6


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("writer", [0, 2])
def test_what_a_head_reads_in_parts_gives_the_scores_of_hooks_that_remove(model, writer):
    """Chapter 7: the sum over pairs of parts, and what a hook takes out of the keys or the queries."""
    tokens, head = REPEATED.tokens, 2
    parts = matches.by_path(model, tokens, head)
    z = model.run_with_cache(tokens)[1]["z", 0]
    wrote = (z - z.mean(dim=(0, 1)))[:, :, writer] @ model.W_O[0, writer]
    for sides in ("", "k", "q", "kq"):
        hooks = [(f"blocks.1.attn.{side}.hook_in", lambda x, hook: x - wrote) for side in sides]
        pattern = View(model).patterns(tokens, hooks)[1]
        gone = without_heads([(0, writer)], [z.mean(dim=(0, 1))])
        same(View(model).patterns(tokens, [View(model).only_in(side, 1, tokens, gone) for side in sides])[1], pattern)
        mask = torch.ones(len(parts.queries), len(parts.keys))
        mask[1 + writer] = float("q" not in sides)
        mask[:, 1 + writer] *= float("k" not in sides)
        same(matches.induction_with(parts, mask, [REPEATED])[0], attention.induction_score(pattern, REPEATED)[head])
