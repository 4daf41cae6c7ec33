"""Public models, without the network: tiny stand-ins with random weights, in the same formats, loaded by the same function."""

from __future__ import annotations

import json
import time

import huggingface_hub
import pytest
import safetensors.torch
import torch
from huggingface_hub import constants
from transformers import GPT2Config, GPT2LMHeadModel

from transformer_circuits.circuits import hooked
from transformer_circuits.circuits.induction import Repeated, repeated_random_tokens
from transformer_circuits.models import public
from transformer_circuits.models.architecture import ModelConfig, Transformer
from transformer_circuits.models.shards import WeightsError, save_model

START = 50256  # GPT-2's, the last of its vocabulary


@pytest.fixture(autouse=True)
def no_network(monkeypatch, tmp_path):
    """Nothing can be reached, and every try is noted; nor is anything found that this machine has fetched earlier."""
    tried = []

    def refused(*where, **_):
        tried.append(where)
        raise OSError("the network is not there")

    monkeypatch.setattr("socket.socket.connect", refused)
    monkeypatch.setattr("socket.getaddrinfo", refused)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    return tried


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


@pytest.fixture(scope="module")
def bridge(gpt2):
    return public.load_public(gpt2, online=False, device="cpu")


def eager(folder: str, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Patterns [layer, head, destination, source] and logits as transformers itself computes them, without any hook."""
    model = GPT2LMHeadModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        out = model(tokens[None], output_attentions=True)
    return torch.cat(out.attentions), out.logits[0]


def sequences(rows: int = 3) -> list[Repeated]:
    return repeated_random_tokens(50257, 96, rows=rows, start=START)


def test_a_gpt2_has_its_vocabulary_and_start_token(bridge):
    assert (bridge.cfg.d_vocab, bridge.cfg.n_layers, bridge.cfg.n_heads) == (50257, 2, 4)
    assert public.start_token(bridge) == START
    assert bridge.tokenizer is None or bridge.tokenizer.bos_token_id != START  # what transformers makes up would mislead
    assert not bridge.training and not any(p.requires_grad for p in bridge.parameters())
    for s in sequences():
        assert s.tokens[0] == START and (s.tokens[1:] != START).all()


def test_patterns_and_logits_are_those_of_transformers(bridge, gpt2):
    for s in sequences():
        found, logits = hooked.patterns(bridge, s.tokens)
        expected, expected_logits = eager(gpt2, s.tokens)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(logits, expected_logits, rtol=1e-4, atol=1e-5)
        wrong = torch.stack([found[:, list(order)] for order in ((1, 0, 2, 3), (3, 2, 1, 0))])
        assert (wrong - expected).abs().amax() > 0.1  # heads differ, so a mix-up would be seen


def test_scores_are_what_transformers_patterns_give(bridge, gpt2):
    """Both measurements of claim W7, recomputed entry by entry."""
    drawn = sequences(2)
    found, losses = hooked.scores(bridge, drawn)
    induction, previous, lost = torch.zeros(2, 4), torch.zeros(2, 4), torch.zeros(3)
    for s in drawn:
        A, logits = eager(gpt2, s.tokens)
        places = range(1 + s.length, len(s.tokens))
        induction += torch.stack([A[:, :, i, i - s.length + 1] for i in places]).mean(0) / len(drawn)
        cost = -logits.log_softmax(-1)[torch.arange(len(s.tokens) - 1), s.tokens[1:]]
        for copy in range(3):
            lost[copy] += cost[copy * s.length + 1 : (copy + 1) * s.length].mean() / len(drawn)
    torch.testing.assert_close(found, induction, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(losses, lost, rtol=1e-4, atol=1e-4)

    windows = torch.stack([s.tokens[:40] for s in drawn])
    for window in windows:
        A, _ = eager(gpt2, window)
        previous += torch.stack([A[:, :, i, i - 1] for i in range(2, 40)]).mean(0) / len(windows)
    torch.testing.assert_close(hooked.previous_token(bridge, windows), previous, rtol=1e-4, atol=1e-5)


def old_checkpoint(folder, d_vocab: int = 50):
    """Two layers of three heads as HookedTransformer wrote them: see test_registry for what they compute."""
    generator = torch.Generator().manual_seed(5)
    shapes = {"embed.W_E": (d_vocab, 32), "pos_embed.W_pos": (64, 32), "unembed.W_U": (32, d_vocab)}
    for i in range(2):
        shapes |= {f"blocks.{i}.attn.W_{name}": (3, 32, 8) for name in "QKV"} | {f"blocks.{i}.attn.W_O": (3, 8, 32)}
    state = {name: torch.randn(*shape, generator=generator) / shape[-1] ** 0.5 for name, shape in shapes.items()}
    folder.mkdir(parents=True)
    safetensors.torch.save_file(state, folder / "model.safetensors")
    settings = {"positional_embedding_type": "shortformer", "normalization_type": None, "attn_only": True}
    (folder / "config.json").write_text(json.dumps(settings))
    return state


def test_an_old_shortformer_checkpoint_is_read_by_the_same_function(tmp_path):
    state = old_checkpoint(tmp_path / "attn_only_2L")
    bridge = public.load_public(str(tmp_path / "attn_only_2L"), online=False, device="cpu")
    torch.testing.assert_close(bridge.W_pos, state["pos_embed.W_pos"])
    assert public.start_token(bridge) == 0
    drawn = repeated_random_tokens(50, 64, rows=2, start=public.start_token(bridge))
    scores, losses = hooked.scores(bridge, drawn)
    assert scores.shape == (2, 3) and losses.shape == (3,)
    # Layer one by hand: positions are added where queries and keys are computed.
    s = drawn[0]
    seen = state["embed.W_E"][s.tokens] + state["pos_embed.W_pos"][: len(s.tokens)]
    scaled = torch.einsum("qm,hmd,hnd,kn->hqk", seen, state["blocks.0.attn.W_Q"], state["blocks.0.attn.W_K"], seen) / 8**0.5
    expected = scaled.masked_fill(torch.ones(len(seen), len(seen)).triu(1).bool(), -torch.inf).softmax(-1)
    torch.testing.assert_close(hooked.patterns(bridge, s.tokens)[0][0], expected, rtol=1e-3, atol=1e-5)


def test_a_hub_name_of_the_old_family_goes_to_its_loader(tmp_path, monkeypatch):
    """`NeelNanda/...`: standard positions, layer normalization; files fetched one by one, here from a folder."""
    folder, generator = tmp_path / "hub", torch.Generator().manual_seed(1)
    shape = {"d_model": 16, "n_layers": 2, "d_mlp": 64, "d_head": 4, "n_heads": 4, "n_ctx": 64, "d_vocab": 40}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(shape | {"act_fn": "gelu", "attn_only": True, "normalization": "LN"}))
    sizes = {"embed.W_E": (40, 16), "pos_embed.W_pos": (64, 16), "unembed.W_U": (16, 40), "unembed.b_U": (40,),
             "ln_final.w": (16,), "ln_final.b": (16,)}  # fmt: skip
    for i in range(2):
        sizes |= {f"blocks.{i}.attn.W_{x}": (4, 16, 4) for x in "QKV"} | {f"blocks.{i}.attn.b_{x}": (4, 4) for x in "QKV"}
        sizes |= {f"blocks.{i}.attn.W_O": (4, 4, 16), f"blocks.{i}.attn.b_O": (16,), f"blocks.{i}.ln1.w": (16,),
                  f"blocks.{i}.ln1.b": (16,)}  # fmt: skip
    torch.save({name: torch.randn(*size, generator=generator) for name, size in sizes.items()}, folder / "model_final.pth")
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda repo, file, **_: str(folder / file))
    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", lambda *_, **__: ["config.json", "model_final.pth"])
    bridge = public.load_public("NeelNanda/Attn_Only_2L16W", online=True, device="cpu")
    torch.testing.assert_close(bridge.W_E, torch.load(folder / "model_final.pth")["embed.W_E"])
    scores, _ = hooked.scores(bridge, repeated_random_tokens(40, 64, rows=2, longest=20))
    assert scores.shape == (2, 4) and (0 < scores).all() and (scores < 1).all()
    with pytest.raises(ValueError, match="names no start token"):  # it has no tokenizer here
        public.start_token(bridge)


def test_a_shipped_model_is_found_by_its_name(tmp_path, monkeypatch, tiny_tokenizer_file):
    torch.manual_seed(0)
    save_model(Transformer(ModelConfig(1, 16, 2, 8, 300, 24)), tmp_path / "mine", "mine", {})
    monkeypatch.setenv("TRANSFORMER_CIRCUITS_WEIGHTS", str(tmp_path))
    assert public.load_public("mine", online=False, device="cpu").cfg.n_layers == 1


@pytest.mark.parametrize("name", ["gpt2", "callummcdougall/attn_only_2L_half", "NeelNanda/Attn_Only_2L512W_C4_Code"])
def test_without_the_network_each_kind_gives_one_sentence_and_nothing_is_tried(name, no_network):
    with pytest.raises(WeightsError) as raised:
        public.load_public(name, online=False, device="cpu")
    reason = "there is no network, and this machine holds no copy that can be read without it"
    assert str(raised.value) == f"{name!r} was left out: {reason}"
    assert no_network == []  # retries would take minutes
    assert not constants.HF_HUB_OFFLINE  # only for as long as it took


def test_damage_is_named_as_such(tmp_path):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(WeightsError, match="broken' could not be loaded: ") as raised:
        public.load_public(str(tmp_path / "broken"), online=False)
    assert "\n" not in str(raised.value)
    with pytest.raises(ValueError, match="device 'marble' cannot be used"):
        public.load_public("gpt2", online=False, device="marble")


def test_whether_the_hub_answers(monkeypatch):
    class Session:
        def __init__(self, status=None, wait=0.0):
            self.status, self.wait, self.asked = status, wait, 0

        def head(self, url, timeout):
            self.asked += 1
            time.sleep(self.wait)
            if self.status is None:
                raise OSError("no route to host")
            return type("Response", (), {"status_code": self.status})

    for status, expected in ((200, True), (307, True), (503, False), (None, False)):
        monkeypatch.setattr(huggingface_hub, "get_session", lambda session=Session(status): session)
        assert public.hub_answers() is expected
    slow = Session(200, wait=0.5)
    monkeypatch.setattr(huggingface_hub, "get_session", lambda: slow)
    assert public.hub_answers(timeout=0.05) is False  # it does not wait for a lookup that hangs
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert public.hub_answers() is False and slow.asked == 1  # not even asked
