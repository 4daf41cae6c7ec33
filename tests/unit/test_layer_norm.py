"""Folding layer normalization: answers known by hand, TransformerLens's own fold, and what is declined."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import nn
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.model_bridge import TransformerBridge

from transformer_circuits.circuits.layer_norm import (
    centered,
    centering_matrix,
    fold,
    frozen,
    raw_weights,
    readings,
    run_folded,
    scale,
    with_normalization,
)
from transformer_circuits.circuits.weights import Weights, relative_error
from transformer_circuits.figures import layer_norm as figures
from transformer_circuits.models.architecture import ModelConfig, Transformer
from transformer_circuits.models.bridge import wrap

SIZES = dict(d_model=16, n_heads=2, d_head=5, d_vocab=11, n_ctx=9)
TOKENS = torch.tensor([0, 3, 7, 3, 10, 1])


def some_weights(n_layers: int = 2, positions: bool = True, seed: int = 0) -> Weights:
    generator = torch.Generator().manual_seed(seed)
    model = Transformer(ModelConfig(n_layers, **SIZES)).double().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if name != "pos.weight":
            fan_in = 1 if "embed" in name else parameter.shape[1]
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / math.sqrt(fan_in))
    if not positions:
        model.pos.weight.zero_()
    return Weights.of(model)


def normalized(n_layers: int = 2, d_mlp: int | None = None, positions: bool = True) -> Transformer:
    generator = torch.Generator().manual_seed(5)
    shape = (len(readings(n_layers, bool(d_mlp))), SIZES["d_model"])
    gains, biases = torch.randn(2, *shape, generator=generator, dtype=torch.float64)
    return with_normalization(some_weights(n_layers, positions), gains, biases, d_mlp, generator)


def test_the_centering_matrix_is_a_projection_of_one_rank_less():
    C = centering_matrix(7, torch.float64)
    x = torch.randn(4, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.linalg.matrix_rank(C) == 6
    torch.testing.assert_close(C @ C, C)
    torch.testing.assert_close(C, C.T)
    torch.testing.assert_close(x @ C, centered(x))
    assert not (torch.ones(7, dtype=torch.float64) @ C).abs().max() > 1e-14
    assert torch.equal(centering_matrix(2), torch.tensor([[0.5, -0.5], [-0.5, 0.5]]))


def test_the_scale_of_a_vector_known_by_heart():
    x = torch.tensor([[1.0, 3.0, 5.0, 7.0]], dtype=torch.float64)  # mean 4, variance 5
    assert scale(x, eps=0.0).item() == pytest.approx(math.sqrt(5))
    assert scale(x, eps=4.0).item() == pytest.approx(3.0)  # eps is added to the variance, not to its root
    assert scale(x, eps=0.0, is_centered=True).item() == pytest.approx(math.sqrt(21))  # taken at its word
    norm = nn.LayerNorm(4).double()
    torch.testing.assert_close(centered(x) / scale(x)[:, None], norm(x).detach())


def test_normalizations_are_named_in_the_order_in_which_they_act():
    assert readings(0) == readings(0, has_mlp=True) == ["unembedding"]
    assert readings(2) == ["heads of layer 0", "heads of layer 1", "unembedding"]
    assert readings(1, has_mlp=True) == ["heads of layer 0", "MLP of layer 0", "unembedding"]


def test_gains_and_biases_land_where_they_are_named():
    model = normalized(2, d_mlp=4)
    shape = (5, SIZES["d_model"])
    gains = torch.arange(5.0)[:, None].expand(shape)
    marked = with_normalization(some_weights(2), gains, -gains, d_mlp=4)
    norms = [marked.layers[0].ln1, marked.layers[0].ln2, marked.layers[1].ln1, marked.layers[1].ln2, marked.ln_out]
    assert [norm.weight[0].item() for norm in norms] == [0, 1, 2, 3, 4]
    assert [norm.bias[0].item() for norm in norms] == [0, -1, -2, -3, -4]
    assert model.layers[0].mlp.fc_in.bias.any()  # biases of the MLP must be there to be folded


def test_with_normalization_keeps_every_matrix():
    weights = some_weights(2)
    again = raw_weights(normalized(2))
    for field in dataclasses.fields(Weights):
        assert torch.equal(getattr(again, field.name), getattr(weights, field.name)), field.name


def test_a_fold_worked_out_by_hand():
    """One layer, one head, two dimensions: centering leaves one number up to its sign, and the scale leaves only that sign."""
    w = Weights(
        W_E=torch.tensor([[3.0, 1.0], [0.0, 4.0]]),
        W_pos=torch.zeros(4, 2),
        W_Q=torch.zeros(1, 1, 2, 1), W_K=torch.zeros(1, 1, 2, 1),
        W_V=torch.tensor([[[[2.0], [1.0]]]]),
        W_O=torch.tensor([[[[1.0, 3.0]]]]),
        W_U=torch.tensor([[1.0, 0.0], [0.0, 1.0]]),
    )  # fmt: skip
    gains, biases = torch.tensor([[5.0, 7.0], [2.0, 3.0]]), torch.tensor([[0.0, 1.0], [10.0, 20.0]])
    folded = fold(with_normalization(w, gains, biases))
    m = folded.matrices
    assert m.W_E.tolist() == [[1.0, -1.0], [-2.0, 2.0]]
    assert m.W_V[0, 0].tolist() == [[10.0], [7.0]]  # 5 * 2, 7 * 1
    assert m.W_O[0, 0].tolist() == [[-1.0, 1.0]]
    assert m.W_U.tolist() == [[2.0, 0.0], [0.0, 3.0]]
    assert folded.b_V.tolist() == [[[1.0]]]  # 0 * 2 + 1 * 1: by the stored W_V, not by the folded one
    assert folded.b_U.tolist() == [10.0, 20.0]
    torch.testing.assert_close(folded.token_scales(), torch.tensor([1.0, 2.0]), rtol=1e-4, atol=0)
    # Token 0 reads (1, -1): value 10 - 7 + 1 = 4, written as (-4, 4), in all (-3, 3), divided (-1, 1).
    result = run_folded(folded, torch.tensor([0]))
    torch.testing.assert_close(result.logits, torch.tensor([[-2.0 + 10, 3.0 + 20]]), rtol=1e-4, atol=0)


def test_centered_readers_annihilate_the_mean():
    for center, sums in (("reading", True), ("both", True), ("writing", False)):
        m = fold(normalized(2, d_mlp=4), center)
        for matrix in (m.matrices.W_Q, m.matrices.W_K, m.matrices.W_V, m.matrices.W_U, m.mlp.W_in):
            assert bool(matrix.sum(dim=-2).abs().max() < 1e-12) is sums
    for center, sums in (("reading", False), ("both", True), ("writing", True)):
        m = fold(normalized(2, d_mlp=4), center)
        for matrix in (m.matrices.W_E, m.matrices.W_O, m.mlp.W_out, m.mlp.b_out):
            assert bool(matrix.sum(dim=-1).abs().max() < 1e-12) is sums


@pytest.mark.parametrize("d_mlp", [None, 12])
@pytest.mark.parametrize("n_layers", [0, 1, 2])
def test_a_bridge_folds_like_the_module_that_it_wraps(n_layers, d_mlp):
    model = normalized(n_layers, d_mlp)
    plain, bridged = fold(model), fold(wrap(model))
    assert torch.equal(run_folded(plain, TOKENS).logits, run_folded(bridged, TOKENS).logits)


@pytest.mark.parametrize("d_mlp", [None, 12])
def test_the_fold_is_that_of_transformer_lens(d_mlp):
    """Its own architecture, positions zero; it folds in single precision."""
    model = normalized(2, d_mlp, positions=False)
    config = TransformerBridgeConfig(
        n_layers=2, **SIZES, d_vocab_out=11, d_mlp=d_mlp, act_fn="gelu", attn_only=not d_mlp, normalization_type="LN"
    )
    theirs = TransformerBridge.boot_native(config)
    names = {"tok_embed": "embed", "pos": "pos_embed", "layers": "blocks", "ln_out": "ln_final", "head": "unembed"}
    parameters = {name: torch.zeros_like(tensor) for name, tensor in theirs.state_dict().items()}
    for name, tensor in model.state_dict().items():
        first, _, rest = name.replace("fc_", "").partition(".")
        assert f"{names[first]}.{rest}" in parameters
        parameters[f"{names[first]}.{rest}"] = tensor.float()
    theirs.load_state_dict(parameters, strict=False)
    tokens = TOKENS[None].to(theirs.W_E.device)
    assert relative_error(theirs(tokens)[0].cpu().double(), model(TOKENS[None])[0]) < 1e-5
    theirs.enable_compatibility_mode(center_unembed=False, fold_value_biases=False)
    ours = fold(model, "both")
    pairs = {name: getattr(ours.matrices, name) for name in ("W_E", "W_Q", "W_K", "W_V", "W_O", "W_U")}
    pairs |= {"b_Q": ours.at_Q[:, :, 0], "b_K": ours.at_K[:, :, 0], "b_V": ours.b_V, "b_U": ours.b_U}
    if d_mlp:
        pairs |= {name: getattr(ours.mlp, name) for name in ("W_in", "b_in", "W_out", "b_out")}
    for name, tensor in pairs.items():
        assert relative_error(getattr(theirs, name).detach().cpu().double(), tensor) < 1e-5, name
    assert relative_error(theirs(tokens)[0].detach().cpu().double(), run_folded(ours, TOKENS).logits) < 1e-5


def test_batches_run_as_their_rows_do():
    folded = fold(normalized(2, d_mlp=12))
    batch = torch.stack([TOKENS, TOKENS.flip(0)])
    together = run_folded(folded, batch)
    assert together.scales.shape == (5, 2, 6) and together.patterns.shape == (2, 2, 2, 6, 6)
    for i, row in enumerate(batch):
        torch.testing.assert_close(together.logits[i], run_folded(folded, row).logits)
    again = run_folded(folded, batch, together.patterns, list(together.scales))
    torch.testing.assert_close(again.logits, together.logits)


def test_eigenvalues_can_change_sign_by_scales_though_no_entry_does():
    circuit = torch.tensor([[-1.0, 2.0], [-2.0, 3.0]])
    divided = circuit / torch.tensor([[1 / 3], [2.0]])
    assert torch.equal(circuit.sign(), divided.sign())
    assert (torch.linalg.eigvals(circuit).real > 0).all() and (torch.linalg.eigvals(divided).real < 0).all()


def test_nothing_is_drawn_or_changed_in_passing():
    model = normalized(2, d_mlp=4)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(0)
    state = torch.random.get_rng_state()
    fold(model), fold(wrap(model)), raw_weights(model), run_folded(fold(model), TOKENS)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model.config.normalization == "LN" and model.config.d_mlp == 4


# --- what is declined --------------------------------------------------------------------------------------------------


def test_fold_declines_what_it_cannot_fold():
    plain = Transformer(ModelConfig(1, **SIZES))
    with pytest.raises(ValueError, match="nothing to fold"):
        fold(plain)
    with pytest.raises(ValueError, match="a str cannot be folded"):
        fold("attn-only-1l")
    with pytest.raises(ValueError, match="smeared keys"):
        fold(Transformer(ModelConfig(1, **SIZES, normalization="LN", smeared_keys=True)))
    with pytest.raises(ValueError, match="standard positions"):
        fold(Transformer(ModelConfig(1, **SIZES, normalization="LN", standard_positions=True)))
    with pytest.raises(ValueError, match="'writing', 'reading' or 'both', not 'writers'"):
        fold(normalized(1), "writers")
    bridge = wrap(normalized(1))
    bridge.original_model.extra = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="parameters that its module has not: extra"):
        fold(bridge)


def test_runs_decline_prompts_patterns_and_scales_that_do_not_fit():
    folded = fold(normalized(2))
    result = run_folded(folded, TOKENS)
    with pytest.raises(ValueError, match="1 to 9 tokens"):
        run_folded(folded, torch.zeros(10, dtype=torch.long))
    with pytest.raises(ValueError, match="0 to 10"):
        run_folded(folded, torch.tensor([11]))
    with pytest.raises(ValueError, match="patterns must have shape"):
        run_folded(folded, TOKENS, result.patterns[:1])
    with pytest.raises(ValueError, match="one for each reading"):
        run_folded(folded, TOKENS, scales=list(result.scales[:2]))
    with pytest.raises(ValueError, match="one for each reading"):
        run_folded(folded, TOKENS, scales=list(result.scales[:, :3]))


def test_frozen_declines_mlps_and_batches():
    folded = fold(normalized(2, d_mlp=4))
    with pytest.raises(ValueError, match="no path expansion"):
        frozen(folded, run_folded(folded, TOKENS))
    folded = fold(normalized(2))
    with pytest.raises(ValueError, match="single prompt"):
        frozen(folded, run_folded(folded, TOKENS[None]))


def test_with_normalization_declines_other_shapes():
    ones = torch.ones(3, SIZES["d_model"])
    with pytest.raises(ValueError, match="must have shape"):
        with_normalization(some_weights(1), ones, ones)
    with pytest.raises(ValueError, match="must have shape"):
        with_normalization(some_weights(2), ones, ones[:, :4])
    with pytest.raises(ValueError, match="must have shape"):
        with_normalization(some_weights(2), ones, ones, d_mlp=4)


# --- figures -----------------------------------------------------------------------------------------------------------


def test_figures_show_what_they_are_given():
    fig = figures.scales(torch.rand(3, 4) + 0.1, readings(2), [" a", "b", "\n", "d"])
    ax = fig.axes[0]
    assert ax.get_yscale() == "log" and len(ax.lines) == 3
    assert [label.get_text() for label in ax.get_xticklabels()] == ["·a", "b", "↵", "d"]
    fig = figures.by_head({"one": torch.rand(2, 3), "two": torch.full((2, 3), torch.nan)}, "score")
    assert len(fig.axes) == 2 and [text.get_text() for text in fig.legends[0].texts] == ["one", "two"]
    before = torch.rand(3, 2, 4)
    fig = figures.before_and_after(before, before + 1, ("x", "y"))
    assert [ax.get_title() for ax in fig.axes] == ["Q-composition", "K-composition", "V-composition"]
    dots = fig.axes[1].lines[-1]
    assert sorted(dots.get_ydata() - dots.get_xdata()) == pytest.approx([1] * 8)


def test_figures_decline_what_does_not_fit():
    with pytest.raises(ValueError, match="do not fit scales"):
        figures.scales(torch.rand(3, 4), readings(2), ["a"])
    with pytest.raises(ValueError, match="one shape"):
        figures.by_head({"one": torch.rand(2, 3), "two": torch.rand(1, 3)}, "score")
    with pytest.raises(ValueError, match="one shape"):
        figures.by_head({"one": torch.rand(0, 3)}, "score")
    with pytest.raises(ValueError, match="one shape"):
        figures.before_and_after(torch.rand(3, 2, 2), torch.rand(3, 2, 3), ("x", "y"))
