"""Public models, without the network: tiny stand-ins with random weights, in the same formats, loaded by the same function."""

from __future__ import annotations

import json

import huggingface_hub
import pytest
import safetensors.torch
import torch
from huggingface_hub import constants
from transformers import GPT2Config, GPT2LMHeadModel

from transformer_circuits.circuits import heads
from transformer_circuits.models import public
from transformer_circuits.models.shards import WeightsError
from transformer_circuits.training.scores import repeated_random_tokens

START = 50256  # GPT-2's, the last of its vocabulary


@pytest.fixture(autouse=True)
def no_network(monkeypatch, tmp_path):
    """Nothing can be reached, nor is anything found that this machine has fetched earlier."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    """A GPT-2 of two layers with the true vocabulary, and attention far from uniform, so that no head passes for another."""
    folder = tmp_path_factory.mktemp("gpt2")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=4, n_embd=32, n_positions=96))
        for block in model.transformer.h:
            torch.nn.init.normal_(block.attn.c_attn.weight, std=0.5)
            torch.nn.init.normal_(block.attn.c_attn.bias, std=0.5)
    model.save_pretrained(folder)
    return str(folder)


def test_a_gpt2_gives_the_scores_that_transformers_own_patterns_give(gpt2):
    """The measurement of claim W7, recomputed entry by entry without any hook."""
    bridge = public.load_public(gpt2, device="cpu")
    assert public.start_token(bridge) == START
    assert not bridge.training and not any(p.requires_grad for p in bridge.parameters())
    repeated = repeated_random_tokens(50257, 96, rows=3)
    repeated.tokens[:, 0] = START
    found = heads.induction_scores(bridge, repeated)
    plain = GPT2LMHeadModel.from_pretrained(gpt2, attn_implementation="eager").eval()
    with torch.no_grad():
        A = torch.stack(plain(repeated.tokens, output_attentions=True).attentions)  # [layer, row, head, destination, source]
    each = []
    for row, (start, length) in enumerate(zip(repeated.start.tolist(), repeated.length.tolist())):
        each += [A[:, row, :, i, i - length + 1] for i in range(start + length, start + 3 * length)]
    torch.testing.assert_close(found, torch.stack(each).mean(0), rtol=1e-4, atol=1e-5)
    assert (found - found.flip(1)).abs().max() > 1e-3  # heads differ, so a mix-up would be seen


def test_an_old_shortformer_checkpoint_is_read_by_the_same_function(tmp_path):
    generator = torch.Generator().manual_seed(5)
    shapes = {"embed.W_E": (50, 32), "pos_embed.W_pos": (64, 32), "unembed.W_U": (32, 50)}
    for i in range(2):
        shapes |= {f"blocks.{i}.attn.W_{name}": (3, 32, 8) for name in "QKV"} | {f"blocks.{i}.attn.W_O": (3, 8, 32)}
    state = {name: torch.randn(*shape, generator=generator) / shape[-1] ** 0.5 for name, shape in shapes.items()}
    safetensors.torch.save_file(state, tmp_path / "model.safetensors")
    settings = {"positional_embedding_type": "shortformer", "normalization_type": None, "attn_only": True}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    bridge = public.load_public(str(tmp_path), device="cpu")
    assert public.start_token(bridge) == 0
    # Layer one by hand: positions are added where queries and keys are computed.
    tokens = torch.randint(50, (1, 64), generator=generator)
    seen = state["embed.W_E"][tokens[0]] + state["pos_embed.W_pos"]
    scaled = torch.einsum("qm,hmd,hnd,kn->hqk", seen, state["blocks.0.attn.W_Q"], state["blocks.0.attn.W_K"], seen) / 8**0.5
    expected = scaled.masked_fill(torch.ones(64, 64).triu(1).bool(), -torch.inf).softmax(-1)
    torch.testing.assert_close(heads.patterns(bridge, tokens)[0][0], expected, rtol=1e-3, atol=1e-5)


def test_a_hub_name_of_the_old_family_goes_to_its_loader(tmp_path, monkeypatch):
    """`NeelNanda/...`: standard positions, layer normalization; files fetched one by one, here from a folder."""
    generator = torch.Generator().manual_seed(1)
    shape = {"d_model": 16, "n_layers": 1, "d_mlp": 64, "d_head": 4, "n_heads": 4, "n_ctx": 64, "d_vocab": 40}
    (tmp_path / "config.json").write_text(json.dumps(shape | {"act_fn": "gelu", "attn_only": True, "normalization": "LN"}))
    sizes = {"embed.W_E": (40, 16), "pos_embed.W_pos": (64, 16), "unembed.W_U": (16, 40), "unembed.b_U": (40,),
             "ln_final.w": (16,), "ln_final.b": (16,), "blocks.0.ln1.w": (16,), "blocks.0.ln1.b": (16,),
             "blocks.0.attn.W_O": (4, 4, 16), "blocks.0.attn.b_O": (16,)}  # fmt: skip
    sizes |= {f"blocks.0.attn.W_{x}": (4, 16, 4) for x in "QKV"} | {f"blocks.0.attn.b_{x}": (4, 4) for x in "QKV"}
    torch.save({name: torch.randn(*size, generator=generator) for name, size in sizes.items()}, tmp_path / "model_final.pth")
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda repo, file, **_: str(tmp_path / file))
    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", lambda *_, **__: ["config.json", "model_final.pth"])
    bridge = public.load_public("NeelNanda/Attn_Only_2L512W_C4_Code", device="cpu")
    torch.testing.assert_close(bridge.W_E, torch.load(tmp_path / "model_final.pth")["embed.W_E"])
    with pytest.raises(ValueError, match="names no start token"):  # it has no tokenizer here
        public.start_token(bridge)


@pytest.mark.parametrize("name", ["gpt2", "callummcdougall/attn_only_2L_half", "NeelNanda/Attn_Only_2L512W_C4_Code"])
def test_what_cannot_be_had_is_said_in_one_sentence(name):
    with pytest.raises(WeightsError, match=f"'{name}' could not be loaded: ") as raised:
        public.load_public(name, device="cpu")
    assert "\n" not in str(raised.value)
