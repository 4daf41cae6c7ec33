"""What the paper's algebra says of models with rotary positions, normalized queries and keys, and shared keys: exact statements, on random ones."""

import functools

import pytest
import torch
import transformers

from transformer_circuits.circuits import heads
from transformer_circuits.measures import weights
from transformer_circuits.models import load_model
from transformer_circuits.models.view import View
from transformer_circuits.real import real_models

SIZES = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48)


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    @functools.cache
    def make(kind: str):
        """Return a random model with rotary positions and shared keys; Qwen3 normalizes queries and keys."""
        config = getattr(transformers, f"{kind}Config")(
            **SIZES, head_dim=16, vocab_size=200, bos_token_id=0, eos_token_id=0, max_position_embeddings=64
        )
        torch.manual_seed(0)
        model = getattr(transformers, f"{kind}ForCausalLM")(config)
        for name, parameter in model.named_parameters():
            torch.nn.init.normal_(parameter, mean=float("norm" in name), std=0.2)
        folder = tmp_path_factory.mktemp(kind)
        model.save_pretrained(folder)
        return load_model(str(folder))

    return make


@pytest.fixture
def tokens():
    return torch.randint(1, 200, (1, 24), generator=torch.Generator().manual_seed(0))


def normalized(model, cache, layer):
    """Return what the layer reads, divided by its length; the gains are in the matrices."""
    stream = cache[f"blocks.{layer}.hook_resid_pre"][0].double()
    eps = model.original_model.config.rms_norm_eps
    return stream / (stream.square().mean(dim=-1, keepdim=True) + eps).sqrt()


def rotations(model, tokens, layer):
    """Return the matrix with which a layer turns queries and keys (as rows) at each position."""
    names = [f"blocks.{layer}.attn.hook_{part}" for part in ("cos", "sin")]
    cos, sin = (x[0].double() for x in View(model).activations(tokens, names).values())  # [pos, d_head]
    half = cos.shape[-1] // 2
    one = torch.eye(2 * half, dtype=cos.dtype, device=cos.device)
    turned = torch.cat([-one[:, half:], one[:, :half]], dim=1)  # x -> (-x2, x1)
    return one * cos[:, None] + turned * sin[:, None]


def QK_at(W, turn, head):
    """Return W_QK of a head for one distance: W_Q R W_K^T, with R the rotation from the key's place to the query's."""
    return W.QK.A[head].double() @ turn @ W.QK.B[head].double()


@pytest.mark.parametrize("kind", ["Llama", "Qwen3"])
@torch.no_grad()
def test_a_score_is_an_entry_of_the_QK_circuit_of_its_distance_times_a_number_of_either_token(make, tokens, kind):
    model, layer, distance = make(kind), 1, 5
    W, (_, cache) = View(model), model.run_with_cache(tokens)
    turns = rotations(model, tokens, layer)
    x = normalized(model, cache, layer)
    n = tokens.shape[1]
    for head in range(4):
        scores = cache["attn_scores", layer][0, head].double()
        expected = torch.stack([
            torch.stack([x[i] @ QK_at(W, turns[i - j], (layer, head)) @ x[j] for j in range(i + 1)] + [x.new_zeros(())] * (n - 1 - i))
            for i in range(n)
        ]) / 16**0.5  # fmt: skip
        if kind == "Qwen3":  # the length of each query and each key
            lengths = [
                (x @ W.QK.A[layer, head].double() / model.blocks[layer].attn.q_norm.w.double()).square().mean(-1),
                (x @ W.QK.B[layer, head].mT.double() / model.blocks[layer].attn.k_norm.w.double()).square().mean(-1),
            ]
            query, key = ((each + model.original_model.config.rms_norm_eps).sqrt() for each in lengths)
            expected = expected / query[:, None] / key
        assert heads.relative_error(scores.tril(), expected) < 1e-4
        # A circuit without the distance would be wrong.
        flat = x @ QK_at(W, turns[0], (layer, head)) @ x.mT
        assert (flat.diagonal(-distance) / 4 - expected.diagonal(-distance)).abs().max() > 1e-2


# What the measures compute without forming matrices as large as the vocabulary is what the chapters' functions compute


@torch.no_grad()
def test_the_match_of_a_head_is_that_of_chapter_7(make):
    model = make("Llama")
    W = View(model)
    previous = torch.zeros(2, 4)
    previous[0, 3] = 0.9  # the only previous-token head
    positivity, match, first = real_models.matches(W, previous)
    circuit = W.W_E @ W.QK[1] @ W.OV[0, 3].T @ W.W_E.mT
    table = circuit.AB
    own, mean = table.diagonal(dim1=1, dim2=2).mean(dim=-1), table.mean(dim=(1, 2))
    assert first == 1 and positivity[0].isnan().all()
    assert heads.relative_error(match[1], (own - mean) / 16**0.5) < 1e-4
    assert heads.relative_error(positivity[1], weights.positivity(circuit.eigenvalues)) < 1e-3
