"""Folding layer normalization leaves the model as it was, and keeps its hooks. (That it is exact: tests/identities.)"""

import pytest
import torch

from transformer_circuits.circuits.heads import relative_error
from transformer_circuits.circuits.layer_norm import fold
from transformer_circuits.models.architecture import ModelConfig, Transformer
from transformer_circuits.models.bridge import wrap

TOKENS = torch.tensor([[0, 3, 7, 3, 10, 1]])


@pytest.mark.parametrize("d_mlp", [None, 12])
def test_the_original_stays_as_it_was_and_hooks_of_the_fold_stay_too(d_mlp):
    generator = torch.Generator().manual_seed(5)
    model = Transformer(ModelConfig(2, 16, 2, 5, 11, 9, normalization="LN", d_mlp=d_mlp))
    model.eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if name != "pos.weight":
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    bridge = wrap(model)
    before = {name: tensor.clone() for name, tensor in bridge.state_dict().items()}
    logits = bridge(TOKENS)
    folded = fold(bridge)
    assert all(torch.equal(tensor, before[name]) for name, tensor in bridge.state_dict().items())
    with folded.hooks(fwd_hooks=[("blocks.0.attn.hook_q", lambda q, hook: 0 * q)]):
        assert relative_error(folded(TOKENS), logits) > 1e-3
    folded.reset_hooks()
    assert relative_error(folded(TOKENS), logits) < 1e-5
    assert relative_error(folded(TOKENS.repeat(3, 1))[2:], logits) < 1e-5
    assert torch.equal(bridge(TOKENS), logits)


def test_a_model_without_normalization_is_declined():
    with pytest.raises(ValueError, match="nothing to fold"):
        fold(wrap(Transformer(ModelConfig(1, 16, 2, 5, 11, 9))))
