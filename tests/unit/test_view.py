"""The view of a model: normalizations folded, positions by rotation, and keys that heads share."""

import pytest
import torch
import transformers

from transformer_circuits.circuits.heads import relative_error
from transformer_circuits.data import held_out_windows
from transformer_circuits.measures import weights
from transformer_circuits.models import load_model
from transformer_circuits.models.view import View
from transformer_circuits.real import real_models


def test_normalizations_are_folded_as_transformer_lens_folds_them(make):
    model = load_model(make("GPT2"), "cpu")
    assert not model.training and not any(parameter.requires_grad for parameter in model.parameters())
    W = View(model)
    _ = W.W_U, W.QK, W.OV  # read before the model's own are changed
    with torch.no_grad():
        model.process_weights(fold_ln=True, center_writing_weights=False, center_unembed=False, fold_value_biases=False)
        assert relative_error(W.W_U, model.W_U) < 1e-5
        for ours, theirs in ((W.QK, model.QK), (W.OV, model.OV)):
            assert relative_error(ours.AB, theirs.AB) < 1e-5


def test_gains_before_and_after_attention_are_in_the_OV_circuits(make):
    """What attention writes in transformers' own modules is what the folded matrices give, up to its length."""
    model = load_model(make("Gemma2"), "cpu")
    W = View(model)
    plain = transformers.AutoModelForCausalLM.from_pretrained(make("Gemma2"), attn_implementation="eager")
    layer, noted = plain.model.layers[1], {}
    layer.input_layernorm.register_forward_hook(lambda module, args, out: noted.update(read=out))
    layer.post_attention_layernorm.register_forward_hook(lambda module, args, out: noted.update(wrote=out))
    tokens = torch.randint(1, 300, (2, 24), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        A = torch.stack(plain(tokens, output_attentions=True).attentions)
    torch.testing.assert_close(View(model).patterns(tokens), A, rtol=1e-4, atol=1e-5)
    x = noted["read"] / (layer.input_layernorm.weight + 1)  # the matrices contain these gains too
    ours = torch.einsum("rhqk,rkm,hmd,hde->rqe", A[1], x, W.OV.A[1], W.OV.B[1])
    assert (torch.cosine_similarity(ours, noted["wrote"], dim=-1) > 1 - 1e-5).all() and noted["wrote"].norm() > 0


@pytest.mark.parametrize("kind", ["Llama", "Qwen3"])
@torch.no_grad()
def test_the_score_of_a_token_with_itself_is_an_entry_of_the_QK_circuit(make, kind):
    """There rotations cancel. Qwen3 divides each query and each key by its length besides."""
    model, layer = load_model(make(kind, head_dim=16), "cpu"), 1
    eps = model.original_model.config.rms_norm_eps
    tokens = torch.randint(1, 200, (1, 24), generator=torch.Generator().manual_seed(0))
    W, (_, cache) = View(model), model.run_with_cache(tokens)

    def divided(x, gain=1.0):
        return x / ((x / gain).square().mean(dim=-1, keepdim=True) + eps).sqrt()

    x = divided(cache["resid_pre", layer][0])
    q, k = x @ W.QK.A[layer], x @ W.QK.B[layer].mT  # [head, pos, d_head]
    if kind == "Qwen3":
        attention = model.blocks[layer].attn
        q, k = divided(q, attention.q_norm.w), divided(k, attention.k_norm.w)
    scores = cache["attn_scores", layer][0].diagonal(dim1=-2, dim2=-1)
    assert relative_error(scores, (q * k).sum(dim=-1) / 16**0.5) < 1e-4


@torch.no_grad()
def test_means_are_in_single_precision(make):
    view, tokens = View(load_model(make("Llama"), "cpu", torch.bfloat16)), torch.arange(48).view(2, 24)
    z = view.activations(tokens, ["blocks.0.attn.hook_z"])["blocks.0.attn.hook_z"]
    assert relative_error(view.mean_z(tokens, 0), z.float().mean(dim=(0, 1))) < 1e-5


# What the measures compute without forming matrices as large as the vocabulary is what the chapters' functions compute


@torch.no_grad()
def test_the_match_of_a_head_is_that_of_chapter_7(make):
    model = load_model(make("Llama", head_dim=16), "cpu")
    W = View(model)
    previous = torch.zeros(2, 4)
    previous[0, 3] = 0.9  # the only previous-token head
    positivity, match, first = real_models.matches(W, previous)
    circuit = W.W_E @ W.QK[1] @ W.OV[0, 3].T @ W.W_E.mT
    table = circuit.AB
    own, mean = table.diagonal(dim1=1, dim2=2).mean(dim=-1), table.mean(dim=(1, 2))
    assert first == 1 and positivity[0].isnan().all()
    assert relative_error(match[1], (own - mean) / 16**0.5) < 1e-4
    assert relative_error(positivity[1], weights.positivity(circuit.eigenvalues)) < 1e-3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_model_on_a_gpu_has_the_losses_of_the_cpu():
    rows = held_out_windows(7, 512)
    cpu, gpu = (View(load_model("attn-only-2l", device)).losses(rows.to(device)) for device in ("cpu", "cuda"))
    torch.testing.assert_close(gpu.cpu(), cpu, rtol=1e-3, atol=1e-3)
