"""Folding layer normalization: an answer worked out by hand, TransformerLens's own fold, and what is declined."""

import pytest
import torch
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.model_bridge import TransformerBridge

from transformer_circuits.circuits.heads import relative_error
from transformer_circuits.circuits.layer_norm import fold
from transformer_circuits.models.architecture import ModelConfig, Transformer
from transformer_circuits.models.bridge import wrap

TOKENS = torch.tensor([[0, 3, 7, 3, 10, 1]])


def random_model(**kind) -> Transformer:
    generator = torch.Generator().manual_seed(5)
    model = (
        Transformer(ModelConfig(2, 16, 2, 5, 11, 9, normalization="LN", **kind)).eval().requires_grad_(False)
    )
    for name, parameter in model.named_parameters():
        if name != "pos.weight":
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    return model


def test_a_fold_worked_out_by_hand():
    """One layer, one head, two dimensions: centering leaves one number up to its sign, and the scale leaves only that sign."""
    model = Transformer(ModelConfig(1, 2, 1, 1, 2, 2, normalization="LN")).requires_grad_(False)
    block, attn = model.layers[0], model.layers[0].attn
    model.pos.weight.zero_(), attn.q.weight.zero_(), attn.k.weight.zero_()
    for parameter, value in [
        (model.tok_embed.weight, [[3, 1], [0, 4]]), (model.head.weight, [[1, 0], [0, 1]]),
        (attn.v.weight, [[2, 1]]), (attn.o.weight, [[1], [3]]),
        (block.ln1.weight, [5, 7]), (block.ln1.bias, [0, 1]), (model.ln_out.weight, [2, 3]), (model.ln_out.bias, [10, 20]),
    ]:  # fmt: skip
        parameter.copy_(torch.tensor(value))
    folded = fold(wrap(model))
    assert folded.W_E.tolist() == [[1, -1], [-2, 2]]
    assert folded.W_V[0, 0].tolist() == [[10], [7]]  # 5 * 2, 7 * 1
    assert folded.blocks[0].attn.v.original_component.bias.tolist() == [1]  # 0 * 2 + 1 * 1, by the stored W_V
    assert folded.W_O[0, 0].tolist() == [[-1, 1]]
    assert folded.W_U.tolist() == [[2, 0], [0, 3]]
    assert folded.unembed.original_component.bias.tolist() == [10, 20]
    # Token 0 reads (1, -1): value 10 - 7 + 1 = 4, written as (-4, 4), in all (-3, 3), divided (-1, 1).
    torch.testing.assert_close(
        folded(torch.tensor([[0]])), torch.tensor([[[-2.0 + 10, 3.0 + 20]]]), rtol=1e-4, atol=0
    )


@pytest.mark.parametrize("d_mlp", [None, 12])
def test_the_fold_is_that_of_transformer_lens(d_mlp):
    """In its own architecture, which adds positions to the stream; it centers the readers too."""
    model = random_model(d_mlp=d_mlp, standard_positions=True)
    config = TransformerBridgeConfig(
        n_layers=2, d_model=16, n_heads=2, d_head=5, d_vocab=11, n_ctx=9, d_vocab_out=11, d_mlp=d_mlp,
        act_fn="gelu", attn_only=not d_mlp, normalization_type="LN",
    )  # fmt: skip
    theirs = TransformerBridge.boot_native(config)
    names = {
        "tok_embed": "embed",
        "pos": "pos_embed",
        "layers": "blocks",
        "ln_out": "ln_final",
        "head": "unembed",
    }
    parameters = {name: torch.zeros_like(tensor) for name, tensor in theirs.state_dict().items()}
    for name, tensor in model.state_dict().items():
        first, _, rest = name.replace("fc_", "").partition(".")
        parameters[f"{names[first]}.{rest}"] = tensor
    theirs.load_state_dict(parameters, strict=False)
    tokens = TOKENS.to(theirs.W_E.device)
    assert relative_error(theirs(tokens).detach().cpu(), model(TOKENS)) < 1e-5
    theirs.enable_compatibility_mode(center_unembed=False, fold_value_biases=False)
    ours = fold(wrap(model))
    for name in ("W_E", "W_pos", "W_O", "W_Q", "W_K", "W_V", "W_U", "b_Q", "b_V", "b_U"):
        own = getattr(ours, name)
        if name in ("W_Q", "W_K", "W_V", "W_U"):
            own = own - own.mean(-2, keepdim=True)
        assert relative_error(getattr(theirs, name).detach().cpu(), own) < 1e-5, name
    assert relative_error(theirs(tokens).detach().cpu(), ours(TOKENS)) < 1e-5


@pytest.mark.parametrize("d_mlp", [None, 12])
def test_the_original_stays_as_it_was_and_hooks_of_the_fold_stay_too(d_mlp):
    bridge = wrap(random_model(d_mlp=d_mlp))
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


def test_eigenvalues_can_change_sign_by_scales_though_no_entry_does():
    circuit = torch.tensor([[-1.0, 2.0], [-2.0, 3.0]], dtype=torch.float64)
    divided = circuit / torch.tensor([[0.1], [1.0]])
    assert torch.equal(circuit.sign(), divided.sign())
    assert torch.linalg.eigvals(circuit).real.min() > 0.99
    assert sorted(torch.linalg.eigvals(divided).real.tolist()) == pytest.approx([-5, -2])


def test_a_model_without_normalization_is_declined():
    with pytest.raises(ValueError, match="nothing to fold"):
        fold(wrap(Transformer(ModelConfig(1, 16, 2, 5, 11, 9))))
