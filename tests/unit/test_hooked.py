"""Measurements through hooks equal those from weights, where both exist; and hold for models that have no such weights."""

import pytest
import torch

from transformer_circuits.circuits import hooked, induction
from transformer_circuits.circuits.paths import run
from transformer_circuits.circuits.weights import Weights
from transformer_circuits.models.architecture import ModelConfig, Transformer
from transformer_circuits.models.bridge import wrap

SHAPE = dict(d_model=24, n_heads=3, d_head=8, d_vocab=40, n_ctx=40)


def a_model(n_layers=2, **options) -> Transformer:
    torch.manual_seed(1)
    model = Transformer(ModelConfig(n_layers, **SHAPE, **options)).double().requires_grad_(False)
    for parameter in model.parameters():
        parameter *= 3  # attention far from uniform
    return model


@pytest.fixture(scope="module")
def sequences():
    return induction.repeated_random_tokens(40, 40, rows=4, shortest=5)


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_patterns_scores_and_losses_are_those_from_weights(sequences):
    model = a_model()
    weights, bridge = Weights.of(model), wrap(model)
    ran = [run(weights, s.tokens) for s in sequences]
    A, logits = hooked.patterns(bridge, sequences[0].tokens)
    close(A, ran[0].patterns), close(logits, ran[0].logits)
    scores, losses = hooked.scores(bridge, sequences)
    close(scores, torch.stack([induction.attention_to_last(r.patterns, s).mean(-1) for r, s in zip(ran, sequences)]).mean(0))
    each = (induction.copy_losses(induction.next_token_losses(r.logits, s.tokens), s) for r, s in zip(ran, sequences))
    close(losses, torch.stack(list(each)).mean(0))


def test_removing_a_head_equals_the_computation_from_weights(sequences):
    model = a_model(3)
    weights, bridge = Weights.of(model), wrap(model)
    prompts = [s.tokens for s in sequences]
    z = hooked.mean_z(bridge, prompts, layer=1)
    means = induction.mean_outputs(weights, prompts, layer=1)
    close(torch.einsum("hk,hkm->hm", z, weights.W_O[1]), means)
    found, _ = hooked.patterns(bridge, prompts[0], [hooked.without(bridge, 1, 2, z)])
    intact = run(weights, prompts[0])
    close(found, induction.patterns_without(weights, intact, (1, 2), means[2]))
    assert not torch.allclose(found[2], intact.patterns[2])


def test_a_patched_key_changes_its_own_scores_alone(sequences):
    bridge, (one, two) = wrap(a_model()), (s.tokens[:12] for s in sequences[:2])
    name = "blocks.1.attn.hook_k"
    other = hooked.activations(bridge, two, [name, "blocks.1.attn.hook_q"])
    here = hooked.activations(bridge, one, ["blocks.1.attn.hook_q", "blocks.1.attn.hook_attn_scores"], [hooked.put(name, other[name])])
    expected = torch.einsum("dhk,shk->hds", here["blocks.1.attn.hook_q"], other[name]) / 8**0.5
    seen = torch.ones(12, 12).tril().bool()
    close(here["blocks.1.attn.hook_attn_scores"][:, seen], expected[:, seen])


def test_previous_token_scores_of_a_head_that_looks_back_and_of_one_that_does_not():
    model = a_model(1)
    bridge = wrap(model)
    windows = torch.randint(1, 40, (3, 20), generator=torch.Generator().manual_seed(0))

    def look_back(pattern, hook):
        pattern[:, 0] = torch.diag(torch.ones(19).double(), -1)
        pattern[:, 1] = torch.eye(20).double()
        return pattern

    bridge.add_hook("blocks.0.attn.hook_pattern", look_back)
    found = hooked.previous_token(bridge, windows)[0]
    assert found[0] == 1 and found[1] == 0 and 0 < found[2] < 1


@pytest.mark.parametrize("options", [{"normalization": "LN", "d_mlp": 12}, {"smeared_keys": True}, {"standard_positions": True}])
def test_models_that_have_no_weights_are_measured_as_they_run(options, sequences):
    model = a_model(**options)
    A, logits = hooked.patterns(wrap(model), sequences[0].tokens)
    close(logits, model(sequences[0].tokens[None])[0])
    close(A.sum(-1), torch.ones_like(A[..., 0]))
    scores, _ = hooked.scores(wrap(model), sequences)
    assert scores.shape == (2, 3) and (scores > 0).all() and (scores < 1).all()


def test_bad_input(sequences):
    bridge = wrap(a_model())
    with pytest.raises(ValueError, match="there are no sequences"):
        hooked.scores(bridge, [])
    with pytest.raises(ValueError, match="there is no head 1.3: this model has 2 layers of 3 heads"):
        hooked.without(bridge, 1, 3, torch.zeros(3, 8))
    with pytest.raises(ValueError, match="there is no head -1.0"):
        hooked.mean_z(bridge, [sequences[0].tokens], -1)
    with pytest.raises(ValueError, match="this model has no hooks blocks.2.hook_nothing"):
        hooked.activations(bridge, sequences[0].tokens, ["blocks.2.hook_nothing"])
