"""Finding models by name: shipped, in a folder, on the hub, in the formats of others; or one clear sentence. Without the network."""

import json
import shutil
from unittest.mock import Mock

import huggingface_hub
import pytest
import torch
from huggingface_hub.utils import filter_repo_objects

from transformer_circuits import paths
from transformer_circuits.measures.ablation import recorded_effects
from transformer_circuits.models import list_models, load_model
from transformer_circuits.models.architecture import ModelConfig, Transformer
from transformer_circuits.models.reading import start_token
from transformer_circuits.models.registry import training_log
from transformer_circuits.models.shards import WeightsError, save_model

CONFIG = ModelConfig(2, d_model=32, n_heads=4, d_head=8, d_vocab=300, n_ctx=24)
TOKENS = torch.arange(6)[None]


def make(seed: int = 0) -> Transformer:
    torch.manual_seed(seed)
    return Transformer(CONFIG).half().float()


def assert_is(bridge, seed: int) -> None:
    torch.testing.assert_close(bridge(TOKENS), make(seed)(TOKENS), rtol=0, atol=1e-6)


@pytest.fixture(autouse=True)
def repository(tmp_path, monkeypatch, tiny_tokenizer_file):
    """A repository with two shipped models and the tiny tokenizer, in place of the real one, on a machine that never saw the network."""
    root = tmp_path / "repository"
    for name in ("ROOT", "WEIGHTS", "DATA"):
        monkeypatch.setattr(paths, name, root if name == "ROOT" else root / name.lower())
    (root / "data").mkdir(parents=True)
    shutil.copy(tiny_tokenizer_file, root / "data" / "tokenizer.json")
    for seed, name in enumerate(["shipped-a", "shipped-b"]):
        save_model(make(seed), root / "weights" / name, name, {}, tiny_tokenizer_file.read_text(encoding="utf8"))

    no_network = Mock(side_effect=OSError("the network is not there\nmore lines"))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", no_network)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    return root


def test_a_shipped_model_is_ready_to_read():
    assert list_models() == ["shipped-a", "shipped-b"]
    bridge = load_model("shipped-b", device="cpu")
    assert_is(bridge, 1)
    assert not any(module.training for module in bridge.modules())
    assert not any(parameter.requires_grad for parameter in bridge.parameters())
    assert bridge.cfg.model_name == "shipped-b" and bridge.tokenizer.bos_token == "<|start|>"


@pytest.mark.parametrize("name, message", [
    ("attn-only-9l", "there is no model 'attn-only-9l' here, and the hub is not reached; there are shipped-a, shipped-b, .*"),
    ("shiped-a", "there is no model 'shiped-a' here, and the hub is not reached: did you mean shipped-a\\?"),
    ("runs/mine/modle", "there is no folder runs/mine/modle: did you mean .*runs/mine/model\\?"),
    ("mine/model", "there is no model 'mine/model' here, and the hub is not reached: did you mean ../mine/model\\?"),
    ("../nowhere/model", "there is no folder ../nowhere/model; check each part of the path"),
])  # fmt: skip
def test_a_name_that_is_not_found_says_what_there_is_or_which_is_meant(repository, monkeypatch, name, message):
    monkeypatch.setattr("transformer_circuits.paths.ROOT", repository)
    (repository / "mine" / "model").mkdir(parents=True)
    (repository / "notebooks" / "runs" / "mine" / "model").mkdir(parents=True)
    monkeypatch.chdir(repository / "notebooks")
    with pytest.raises(WeightsError, match=f"^{message}$"):
        load_model(name)
    with pytest.raises(WeightsError, match="there is no .*training.jsonl; .* are those of shipped-a, shipped-b"):
        training_log(name)
    with pytest.raises(WeightsError, match=f"'{name}' came without the ablation effects of its heads"):
        recorded_effects(name)


@pytest.mark.parametrize("device", ["cuda:9", "gpu", "xpu"])
def test_a_device_that_is_not_there_is_one_sentence(device):
    with pytest.raises(WeightsError, match=f"^there is no device '{device}' .*; pass 'cpu', or none$"):
        load_model("shipped-a", device)


def test_a_tokenizer_that_a_model_was_not_trained_with_or_that_is_missing_is_not_used(repository):
    folder, books = repository / "weights" / "shipped-a", repository / "data" / "tokenizer.json"
    own = books.read_text() + " "
    save_model(make(), folder, "shipped-a", {}, tokenizer=own)
    assert len(load_model("shipped-a", "cpu").tokenizer) == 300
    (folder / "tokenizer.json").write_text(own + "\n")
    with pytest.raises(WeightsError, match="is not the tokenizer that .*shipped-a was trained with"):
        load_model("shipped-a", "cpu")
    save_model(make(), folder, "shipped-a", {})
    assert load_model("shipped-a", "cpu").tokenizer is None
    for file in (books, books.parents[1] / "weights" / "shipped-b" / "tokenizer.json"):
        file.unlink()
    with pytest.raises(WeightsError, match="tokenizer.json is not a readable tokenizer .*No such file"):
        load_model("shipped-b", "cpu")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """`snapshot_download` from a folder; remembers which files it was asked for."""
    fetched = []

    def snapshot_download(name, **patterns):
        source, target = tmp_path / "hub" / name, tmp_path / "cache" / name
        target.mkdir(parents=True, exist_ok=True)
        files = [str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()]
        for file in filter_repo_objects(files, **patterns):
            shutil.copy(source / file, target / file)
            fetched.append(file)
        return str(target)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return tmp_path / "hub", fetched


def test_a_hub_model_is_fetched_by_its_manifest_even_beside_a_file_of_nearly_its_name(hub, tmp_path, monkeypatch):
    folder, fetched = hub
    (tmp_path / "someone.py").touch()
    monkeypatch.chdir(tmp_path)
    save_model(make(3), folder / "someone/circuits", "circuits", {})
    (folder / "someone/circuits/modeling.py").write_text("raise SystemExit('remote code ran')")
    (folder / "someone/circuits/unrelated.bin").write_bytes(b"large")
    assert_is(load_model("someone/circuits", "cpu"), 3)
    assert not {"modeling.py", "unrelated.bin"} & set(fetched)


def test_hub_models_that_cannot_be_loaded_are_not_fetched(hub):
    folder, fetched = hub
    (folder / "big/llm").mkdir(parents=True)
    (folder / "big/llm/config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    (folder / "big/llm/pytorch_model.bin").write_bytes(b"large")
    with pytest.raises(WeightsError, match="big/llm has no model"):
        load_model("big/llm")
    assert fetched == ["config.json"]


def test_old_models_of_the_hub_go_to_transformer_lens(hub, monkeypatch):
    name, random = "NeelNanda/Some_Model", torch.randn
    state = {"embed.W_E": random(50, 32), "pos_embed.W_pos": random(20, 32)}
    state |= {"unembed.W_U": random(32, 50), "unembed.b_U": random(50)}
    for layer in range(2):
        at = f"blocks.{layer}.attn"
        state |= {f"{at}.W_{side}": random(3, 32, 8) for side in "QKV"} | {f"{at}.W_O": random(3, 8, 32)}
        state |= {f"{at}.b_{side}": random(3, 8) for side in "QKV"} | {f"{at}.b_O": random(32)}
    for norm in ("ln_final", "blocks.0.ln1", "blocks.1.ln1"):
        state |= {f"{norm}.w": random(32), f"{norm}.b": random(32)}
    settings = dict(d_model=32, n_layers=2, d_mlp=64, n_heads=3, d_head=8, n_ctx=20, d_vocab=50)
    settings |= {"act_fn": "gelu", "attn_only": True, "shortformer_pos": False, "normalization": "LN"}
    folder = hub[0] / name
    folder.mkdir(parents=True)
    torch.save(state, folder / "model_final.pth")
    (folder / "config.json").write_text(json.dumps(settings))
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda repo, file: str(folder / file))
    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", lambda *_: ["model_final.pth"])
    bridge = load_model(name, "cpu")
    torch.testing.assert_close(bridge.W_E, state["embed.W_E"])
    with pytest.raises(WeightsError, match="names no start token"):  # it has no tokenizer here
        start_token(bridge)


def config(**settings) -> dict[str, str]:
    return {"config.json": json.dumps(settings), "own.py": "raise SystemExit('remote code ran')"}


@pytest.mark.parametrize("files, said", [
    ({"notes.md": ""}, "has no model .a manifest.json with its shards, or a config.json with its model_type"),
    ({"weights-00001-of-00001.safetensors": ""}, "has shards of a model without their manifest.json"),
    ({"training.jsonl": ""}, "is the folder of a training; load its folder `model`"),
    ({"adapter_config.json": ""}, "has only an adapter; merge it into its base model"),
    ({"ckpt.pt": ""}, "has a checkpoint of nanoGPT; copy its tensors into transformers' GPT2LMHead"),
    ({"x.gguf": ""}, "has a GGUF file; load it by its path"),
    (config(model_type="none", auto_map={"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}), "it needs code of its own, which is not run"),
    (config(model_type="nothing"), "TransformerLens has no bridge for its architecture; choose another one"),
    (config(model_type="xlnet", architectures=["XLNetLMHeadModel"]), "TransformerLens has no bridge for its architecture"),
    (config(model_type="gpt2", architectures=["GPT2LMHeadModel"]), "it has no weights in a format of the transformers library"),
])  # fmt: skip
def test_a_folder_without_a_model_that_can_be_loaded_is_one_sentence_and_its_code_is_not_run(tmp_path, files, said):
    folder = tmp_path / "folder"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_text(content)
    with pytest.raises(WeightsError, match=rf"^[^\n]*folder'? (could not be loaded: )?{said}[^\n]*$"):
        load_model(folder)
