"""Any model as a bridge, without the network: tiny stand-ins with random weights, in the same formats, loaded by the same function."""

from __future__ import annotations

import huggingface_hub
import pytest
import torch
from huggingface_hub import constants
from test_registry import old_state, write_old
from transformers import GPT2Config, GPT2LMHeadModel

from transformer_circuits.circuits import heads
from transformer_circuits.measures.repeats import repeated_random_tokens
from transformer_circuits.models import public
from transformer_circuits.models.shards import WeightsError

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
        patterns = plain(repeated.tokens, output_attentions=True).attentions
    A = torch.stack(patterns)  # [layer, row, head, destination, source]
    each = []
    for row, (start, length) in enumerate(zip(repeated.start.tolist(), repeated.length.tolist())):
        each += [A[:, row, :, i, i - length + 1] for i in range(start + length, start + 2 * length)]
    torch.testing.assert_close(found, torch.stack(each).mean(0), rtol=1e-4, atol=1e-5)
    assert (found - found.flip(1)).abs().max() > 1e-3  # heads differ, so a mix-up would be seen


@pytest.mark.parametrize("shortformer", [False, True])
def test_a_hub_name_goes_to_the_loader_that_knows_its_positions(tmp_path, monkeypatch, shortformer):
    """`NeelNanda/...`: TransformerLens's own loader, ours for Shortformer; files come from a folder here."""
    shape = {"d_model": 32, "n_layers": 2, "d_mlp": 64, "d_head": 8, "n_heads": 3, "n_ctx": 20, "d_vocab": 50}
    settings = {"act_fn": "gelu", "attn_only": True, "shortformer_pos": shortformer, "normalization": "LN"}
    state = old_state(normalization=True)
    folder = write_old(tmp_path / "old", state, shape | settings, "model_final.pth")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(folder))
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda repo, file, **_: str(folder / file))
    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", lambda *_, **__: ["model_final.pth"])
    bridge = public.load_public("NeelNanda/Attn_Only_2L512W_C4_Code", device="cpu")
    torch.testing.assert_close(bridge.W_E, state["embed.W_E"])
    assert bridge.cfg.positional_embedding_type == ("shortformer" if shortformer else "standard")
    if not shortformer:
        with pytest.raises(ValueError, match="names no start token"):  # it has no tokenizer here
            public.start_token(bridge)


@pytest.mark.parametrize("name", ["gpt2", "callummcdougall/attn_only_2L_half", "NeelNanda/Some_Model"])
def test_what_is_not_available_is_said_in_one_sentence(name):
    with pytest.raises(WeightsError, match=f"'{name}' could not be loaded: ") as raised:
        public.load_public(name, device="cpu")
    assert "\n" not in str(raised.value)
