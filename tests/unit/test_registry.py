"""Finding models by name: shipped, in a folder, on the hub, in the old TransformerLens layout; or one clear sentence."""

import json
import math
import shutil

import pytest
import safetensors.torch
import torch

from transformer_circuits.models import legacy, list_models, load_model
from transformer_circuits.models.architecture import ModelConfig, Transformer
from transformer_circuits.models.registry import training_log
from transformer_circuits.models.shards import MANIFEST, WeightsError, save_model

CONFIG = ModelConfig(2, d_model=32, n_heads=4, d_head=8, d_vocab=300, n_ctx=24)


def make(seed: int = 0, **options) -> Transformer:
    torch.manual_seed(seed)
    return Transformer(ModelConfig(**(dict(vars(CONFIG)) | options))).half().float()


@pytest.fixture(autouse=True)
def repository(tmp_path, monkeypatch, tiny_tokenizer_file):
    """A repository with two shipped models and the tiny tokenizer, in place of the real one."""
    root = tmp_path / "repository"
    for seed, name in enumerate(["shipped-a", "shipped-b"]):
        save_model(make(seed), root / "weights" / name, name, {}, shard_bytes=20_000)
    (root / "data").mkdir()
    shutil.copy(tiny_tokenizer_file, root / "data" / "tokenizer.json")
    monkeypatch.setattr("transformer_circuits.paths.WEIGHTS", root / "weights")
    monkeypatch.setattr("transformer_circuits.paths.DATA", root / "data")
    monkeypatch.delenv("TRANSFORMER_CIRCUITS_WEIGHTS", raising=False)

    def no_network(*_, **__):
        raise OSError("the network is not there")

    monkeypatch.setattr("huggingface_hub.snapshot_download", no_network)
    return root


# --- ours --------------------------------------------------------------------------------------------------------------


def test_a_shipped_model_is_ready_to_read(repository):
    assert list_models() == ["shipped-a", "shipped-b"]
    bridge = load_model("shipped-b", device="cpu")
    tokens = bridge.to_tokens("the cat sat on the mat")
    torch.testing.assert_close(bridge(tokens), make(1)(tokens), rtol=0, atol=1e-6)
    assert not bridge.training and not any(module.training for module in bridge.modules())
    assert not any(parameter.requires_grad for parameter in bridge.parameters())
    assert not bridge(tokens).requires_grad
    assert bridge.cfg.model_name == "shipped-b" and tokens[0, 0] == 0
    assert bridge.tokenizer.bos_token == "<|start|>"


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtypes(dtype):
    bridge = load_model("shipped-a", device="cpu", dtype=dtype)
    logits = bridge("the cat")
    assert logits.dtype == bridge.W_E.dtype == bridge.W_pos.dtype == bridge.cfg.dtype == dtype
    expected = make(0)(bridge.to_tokens("the cat"))
    torch.testing.assert_close(logits.float(), expected, rtol=0, atol=1e-2 if dtype.itemsize == 2 else 1e-6)


def test_device_and_dtype_that_cannot_be_used_are_refused():
    with pytest.raises(ValueError, match="device 'marble' cannot be used here .* try 'cpu'"):
        load_model("shipped-a", device="marble")
    with pytest.raises(ValueError, match="dtype must be one of torch.float32"):
        load_model("shipped-a", dtype=torch.int8)


def test_an_unknown_name_lists_what_there_is():
    with pytest.raises(WeightsError, match="there is no model 'attn-only-9l'; there are: shipped-a, shipped-b "):
        load_model("attn-only-9l")
    for name in ("", "..", "../weights", "shipped-a/../shipped-b/.."):
        with pytest.raises(WeightsError):
            load_model(name)


def test_shipped_comes_before_the_folder_in_the_environment(tmp_path, monkeypatch):
    for name in ("shipped-a", "mine"):
        save_model(make(7), tmp_path / "local" / name, name, {})
    monkeypatch.setenv("TRANSFORMER_CIRCUITS_WEIGHTS", str(tmp_path / "local"))
    assert list_models() == ["mine", "shipped-a", "shipped-b"]
    tokens = torch.arange(6)[None]
    torch.testing.assert_close(load_model("shipped-a", "cpu")(tokens), make(0)(tokens), rtol=0, atol=1e-6)
    torch.testing.assert_close(load_model("mine", "cpu")(tokens), make(7)(tokens), rtol=0, atol=1e-6)


def test_a_folder_that_is_given_is_the_only_place(tmp_path):
    save_model(make(7), tmp_path / "local" / "shipped-a", "shipped-a", {})
    tokens = torch.arange(6)[None]
    for folder in (tmp_path / "local", str(tmp_path / "local" / "shipped-a")):
        logits = load_model("shipped-a", "cpu", folder=folder)(tokens)
        torch.testing.assert_close(logits, make(7)(tokens), rtol=0, atol=1e-6)
    with pytest.raises(WeightsError, match=r"local has no model 'shipped-b' .* it has: shipped-a"):
        load_model("shipped-b", folder=tmp_path / "local")
    with pytest.raises(WeightsError, match="there is no folder .*nowhere"):
        load_model("shipped-a", folder=tmp_path / "nowhere")


def test_damage_is_reported_and_nothing_is_built(repository, monkeypatch):
    def built(*_, **__):
        raise AssertionError("a bridge was built from damaged weights")

    monkeypatch.setattr("transformer_circuits.models.bridge.wrap", built)
    folder = repository / "weights" / "shipped-a"
    shard = sorted(folder.glob("*.safetensors"))[1]
    content = bytearray(shard.read_bytes())
    content[-7] ^= 16
    shard.write_bytes(content)
    expected = json.loads((folder / MANIFEST).read_text())["shards"][1]["sha256"]
    message = f"{shard.name} is damaged: its SHA-256 is [0-9a-f]{{64}} .* expected {expected}"
    with pytest.raises(WeightsError, match=message):
        load_model("shipped-a")
    shard.unlink()
    with pytest.raises(WeightsError, match=f"{shard.name} is missing"):
        load_model("shipped-a")
    (folder / MANIFEST).unlink()
    with pytest.raises(WeightsError, match="shipped-a has no manifest.json"):
        load_model("shipped-a")
    assert list_models() == ["shipped-b"]


def test_a_log_is_a_table_with_a_row_for_each_snapshot(repository):
    lines = [{"name": "shipped-a"}, {"step": 0, "held_out": 5.5}, {"step": 9, "held_out": 5.0, "induction": [[0.1, 0.2]]}]
    (repository / "weights" / "shipped-a" / "training.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    log = training_log("shipped-a")
    assert log["step"].tolist() == [0, 9] and log["induction"].iloc[-1] == [[0.1, 0.2]]
    with pytest.raises(WeightsError, match="'shipped-b' has no training.jsonl"):
        training_log("shipped-b")


def test_a_missing_tokenizer_is_named_and_one_of_another_size_is_not_used(repository):
    save_model(make(d_vocab=123), repository / "weights" / "other", "other", {})
    assert load_model("other").tokenizer is None
    with pytest.raises(AssertionError, match="tokenizer"):
        load_model("other").to_tokens("the cat")
    (repository / "data" / "tokenizer.json").rename(repository / "data" / "elsewhere.json")
    with pytest.raises(WeightsError, match="there is no .*tokenizer.json"):
        load_model("shipped-a")
    shutil.copy(repository / "data" / "elsewhere.json", repository / "weights" / "shipped-a" / "tokenizer.json")
    assert load_model("shipped-a").to_tokens("the").shape[1] >= 2


def test_a_tokenizer_has_the_checksum_that_the_manifest_says(repository):
    text = (repository / "data" / "tokenizer.json").read_text()
    folder = repository / "weights" / "shipped-a"
    for own in (False, True):
        save_model(make(), folder, "shipped-a", {}, tokenizer=text, own_tokenizer=own)
        assert len(load_model("shipped-a", "cpu").tokenizer) == 300
        file = (folder if own else repository / "data") / "tokenizer.json"
        assert file.read_text() == text
        file.write_text(text.replace('"the"', '"teh"', 1))
        with pytest.raises(WeightsError, match=r"tokenizer.json is not the tokenizer that .*shipped-a was trained with: its SHA-256 is .* expected"):
            load_model("shipped-a", "cpu")
        file.write_text(text)


@pytest.mark.parametrize("content", ["", "garbage", "{}", '{"model": {"type": "BPE", "vocab": 3}}', "\x00\x01"])
def test_a_tokenizer_that_is_none_or_too_large_is_one_sentence(repository, content):
    folder = repository / "weights" / "shipped-a"
    (folder / "tokenizer.json").write_text(content)
    with pytest.raises(WeightsError, match="tokenizer.json is not a readable tokenizer .*; fetch it again") as error:
        load_model("shipped-a", "cpu")
    assert "\n" not in str(error.value)
    save_model(make(d_vocab=299), folder, "shipped-a", {}, tokenizer=(repository / "data" / "tokenizer.json").read_text())
    with pytest.raises(WeightsError, match="has token ids up to 299, but the model's vocabulary has 299; put the model's own"):
        load_model("shipped-a", "cpu")


def test_a_log_that_is_damaged_is_one_sentence(repository):
    (repository / "weights" / "shipped-a" / "training.jsonl").write_text('{"name": "shipped-a"}\n{"step": 0, "held')
    with pytest.raises(WeightsError, match="training.jsonl is not a readable log"):
        training_log("shipped-a")


# --- the hub -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """`snapshot_download` from a folder; remembers which files it was asked for."""
    from fnmatch import fnmatch

    fetched = []

    def snapshot_download(name, allow_patterns):
        source, target = tmp_path / "hub" / name, tmp_path / "cache" / name
        if not source.is_dir():
            raise OSError(f"404: no repository {name}\nmore lines")
        target.mkdir(parents=True, exist_ok=True)
        for path in source.iterdir():
            if any(fnmatch(path.name, pattern) for pattern in allow_patterns):
                shutil.copy(path, target / path.name)
                fetched.append(path.name)
        return str(target)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    return tmp_path / "hub", fetched


def test_a_hub_model_is_fetched_by_its_manifest(hub):
    folder, fetched = hub
    save_model(make(3), folder / "someone/circuits", "circuits", {}, shard_bytes=20_000)
    (folder / "someone/circuits/modeling.py").write_text("raise SystemExit('remote code ran')")
    (folder / "someone/circuits/unrelated.bin").write_bytes(b"large")
    tokens = torch.arange(6)[None]
    torch.testing.assert_close(load_model("someone/circuits", "cpu")(tokens), make(3)(tokens), rtol=0, atol=1e-6)
    assert not {"modeling.py", "unrelated.bin"} & set(fetched)


def test_hub_models_that_cannot_be_loaded_are_not_fetched(hub):
    folder, fetched = hub
    (folder / "big/llm").mkdir(parents=True)
    (folder / "big/llm/config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    (folder / "big/llm/pytorch_model.bin").write_bytes(b"large")
    with pytest.raises(WeightsError, match="only causal attention-only Shortformer models"):
        load_model("big/llm")
    assert fetched == ["config.json"]
    with pytest.raises(WeightsError, match="^'some/thing' is not on this machine .* hub: 404: no repository some/thing$"):
        load_model("some/thing")


def test_without_the_network_a_hub_name_gives_one_sentence():
    with pytest.raises(WeightsError, match="could not be fetched from the Hugging Face hub: the network is not there"):
        load_model("someone/circuits")


# --- old TransformerLens checkpoints -----------------------------------------------------------------------------------

OLD = dict(positional_embedding_type="shortformer", normalization_type=None, attn_only=True, d_head=8, attn_scale=8**0.5)


def old_state(normalization: bool = False, n_layers: int = 2) -> dict[str, torch.Tensor]:
    """d_model 32, 3 heads of 8: a checkpoint as HookedTransformer wrote it, with learned positions."""
    generator = torch.Generator().manual_seed(5)

    def normal(*shape):
        return torch.randn(*shape, generator=generator) / shape[-1] ** 0.5

    state = {"embed.W_E": normal(50, 32), "pos_embed.W_pos": normal(20, 32), "unembed.W_U": normal(32, 50)}
    state["unembed.b_U"] = torch.zeros(50)
    for i in range(n_layers):
        for name in "QKV":
            state[f"blocks.{i}.attn.W_{name}"] = normal(3, 32, 8) * 2
            state[f"blocks.{i}.attn.b_{name}"] = torch.zeros(3, 8)
        state[f"blocks.{i}.attn.W_O"] = normal(3, 8, 32) * 2
        state[f"blocks.{i}.attn.b_O"] = torch.zeros(32)
        state[f"blocks.{i}.attn.mask"] = torch.ones(20, 20).tril().bool()
        state[f"blocks.{i}.attn.IGNORE"] = torch.tensor(-1e5)
        if normalization:
            state |= {f"blocks.{i}.ln1.w": normal(32) + 1, f"blocks.{i}.ln1.b": normal(32)}
    if normalization:
        state |= {"ln_final.w": normal(32) + 1, "ln_final.b": normal(32)}
    return state


def old_forward(state, tokens, normalization: bool) -> torch.Tensor:
    """HookedTransformer's Shortformer, written out: positions are added to the (normalized) inputs of W_Q and W_K."""

    def norm(x, name):
        if not normalization:
            return x
        x = x - x.mean(-1, keepdim=True)
        return x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * state[f"{name}.w"] + state[f"{name}.b"]

    n = tokens.shape[1]
    residual = state["embed.W_E"][tokens]
    for i in range(sum(key.endswith("W_Q") for key in state)):
        x = norm(residual, f"blocks.{i}.ln1")
        with_positions = x + state["pos_embed.W_pos"][:n]
        q = torch.einsum("bpm,hmd->bphd", with_positions, state[f"blocks.{i}.attn.W_Q"])
        k = torch.einsum("bpm,hmd->bphd", with_positions, state[f"blocks.{i}.attn.W_K"])
        v = torch.einsum("bpm,hmd->bphd", x, state[f"blocks.{i}.attn.W_V"])
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(8)
        pattern = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -math.inf).softmax(-1)
        z = torch.einsum("bhqk,bkhd->bqhd", pattern, v)
        residual = residual + torch.einsum("bqhd,hdm->bqm", z, state[f"blocks.{i}.attn.W_O"])
    return norm(residual, "ln_final") @ state["unembed.W_U"]


def write_old(folder, state, settings=OLD, file="model.safetensors"):
    folder.mkdir(parents=True)
    if file.endswith(".safetensors"):
        safetensors.torch.save_file({key: tensor.contiguous() for key, tensor in state.items()}, folder / file)
    else:
        torch.save(state, folder / file)
    if settings is not None:
        (folder / "config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize("normalization", [False, True])
@pytest.mark.parametrize("n_layers", [0, 1, 2])
@pytest.mark.parametrize("file", ["model.safetensors", "model.pth"])
def test_old_checkpoints_compute_what_they_computed(tmp_path, file, n_layers, normalization):
    state = old_state(normalization, n_layers)
    settings = OLD | {"normalization_type": "LN" if normalization else None}
    write_old(tmp_path / "old" / "checkpoint", state, settings, file)
    bridge = load_model("checkpoint", "cpu", folder=tmp_path / "old")
    tokens = torch.randint(50, (2, 15))
    torch.testing.assert_close(bridge(tokens), old_forward(state, tokens, normalization), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(bridge.W_pos, state["pos_embed.W_pos"])
    torch.testing.assert_close(bridge.W_U, state["unembed.W_U"])
    assert bridge.tokenizer is None
    for i in range(n_layers):
        for name in ("W_Q", "W_K", "W_V", "W_O"):
            torch.testing.assert_close(getattr(bridge, name)[i], state[f"blocks.{i}.attn.{name}"])


def test_half_precision_checkpoints_are_read_in_full(tmp_path):
    state = {key: tensor.half() if tensor.is_floating_point() else tensor for key, tensor in old_state().items()}
    model = legacy.read_legacy(write_old(tmp_path / "old", state, file="model.pth"))
    assert model.W_pos.dtype == model.head.weight.dtype == torch.float32
    tokens = torch.randint(50, (2, 15))
    expected = old_forward({key: tensor.float() for key, tensor in state.items()}, tokens, False)
    torch.testing.assert_close(model(tokens), expected, rtol=1e-4, atol=1e-5)


def test_learned_positions_are_not_lost_by_saving(tmp_path):
    model = legacy.read_legacy(write_old(tmp_path / "old", old_state()))
    with pytest.raises(ValueError, match="positions are not the sinusoids"):
        save_model(model, tmp_path / "new", "new", {})


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(positional_embedding_type="standard"), "positional_embedding_type = 'standard'"),
        (dict(positional_embedding_type="rotary"), "positional_embedding_type = 'rotary'"),
        (dict(normalization_type="LNPre"), "normalization_type = 'LNPre'"),
        (dict(attn_only=False), "attn_only = False"),
        (dict(attention_dir="bidirectional"), "attention_dir"),
        (dict(use_attn_scale=False), "use_attn_scale"),
        (dict(attn_scale=1.0), "attn_scale = 1.0"),
        (dict(scale_attn_by_inverse_layer_idx=True), "scale_attn_by_inverse_layer_idx"),
        (dict(use_local_attn=True, window_size=4, attn_types=["local", "local"]), "use_local_attn = True"),
        (dict(final_rms=True), "final_rms = True"),
        (dict(post_embedding_ln=True), "post_embedding_ln = True"),
        (dict(use_qk_norm=True), "use_qk_norm = True"),
        (dict(attn_scores_soft_cap=50.0), "attn_scores_soft_cap = 50.0"),
        (dict(output_logits_soft_cap=30.0), "output_logits_soft_cap = 30.0"),
        (dict(use_normalization_before_and_after=True), "use_normalization_before_and_after = True"),
        (dict(eps="small"), "eps = 'small'"),
        (dict(n_heads=4), "has n_heads = 3, its configuration says 4"),
        (dict(n_key_value_heads=1), "n_key_value_heads"),
        (dict(alibi=True, colour="red"), r"settings that are not known here \(alibi, colour\); remove them"),
    ],
)
def test_old_checkpoints_of_other_kinds_are_declined(tmp_path, change, message):
    write_old(tmp_path / "old", old_state(), OLD | change)
    with pytest.raises(WeightsError, match=message):
        load_model("old", folder=tmp_path)


def test_all_settings_that_the_old_class_wrote_are_known(tmp_path):
    from transformer_lens.config import TransformerBridgeConfig  # has them all, at the old class's defaults

    shape = dict(d_model=32, d_head=8, n_heads=3, n_layers=2, n_ctx=20, d_vocab=50)
    new = ("architecture", "layer_norm_folding", "uses_rms_norm", "split_attention_weights", "qk_norm_after_rope", "rotary_interleaved_cos_sin",
           "per_layer_head_dim", "per_layer_num_key_value_heads", "attn_implementation", "tokenizer_appends_eos")  # fmt: skip
    fields = vars(TransformerBridgeConfig(**shape, initializer_range=0.02))
    old = {key: value for key, value in fields.items() if key not in new and not key.startswith(("is_", "vision_", "mm_", "_"))}
    settings = json.loads(json.dumps(old | OLD, default=str))
    assert len(settings) > 60
    state = old_state()
    tokens = torch.randint(50, (2, 15))
    model = legacy.read_legacy(write_old(tmp_path / "old", state, settings))
    torch.testing.assert_close(model(tokens), old_forward(state, tokens, False), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bias", ["blocks.1.attn.b_V", "blocks.0.attn.b_O", "unembed.b_U"])
def test_old_checkpoints_with_biases_are_declined(tmp_path, bias):
    state = old_state()
    state[bias].view(-1)[3] = 1e-3
    write_old(tmp_path / "old", state)
    with pytest.raises(WeightsError, match=f"a bias that is not zero, {bias}"):
        load_model("old", folder=tmp_path)


def test_incomplete_and_foreign_old_checkpoints_are_declined(tmp_path):
    state = old_state()
    without = {key: tensor for key, tensor in state.items() if key != "blocks.1.attn.W_K"}
    with pytest.raises(WeightsError, match="has no tensor blocks.1.attn.W_K"):
        legacy.read_legacy(write_old(tmp_path / "a", without))
    with pytest.raises(WeightsError, match="no place for: blocks.0.mlp.W_in"):
        legacy.read_legacy(write_old(tmp_path / "b", state | {"blocks.0.mlp.W_in": torch.ones(32, 8)}))
    with pytest.raises(WeightsError, match="has no config.json"):
        legacy.read_legacy(write_old(tmp_path / "c", state, settings=None))
    with pytest.raises(WeightsError, match="has no tensor blocks.0.ln1.w"):  # the old class normalized unless told otherwise
        legacy.read_legacy(write_old(tmp_path / "h", state, settings={key: value for key, value in OLD.items() if key != "normalization_type"}))
    with pytest.raises(WeightsError, match="do not fit its configuration"):
        legacy.read_legacy(write_old(tmp_path / "d", state | {"blocks.1.attn.W_V": torch.ones(2, 32, 8)}))
    for name, (tensor, message) in enumerate([
        (torch.ones(32, 24), r"blocks.1.attn.W_Q in .* is \(32, 24\), expected \[head, d_model, d_head\]"),
        (torch.full((3, 32, 8), torch.nan), "blocks.1.attn.W_Q in .* is no table of finite numbers"),
        (torch.ones(3, 32, 8, dtype=torch.int64), "blocks.1.attn.W_Q in .* is no table of finite numbers"),
    ]):  # fmt: skip
        with pytest.raises(WeightsError, match=message):
            legacy.read_legacy(write_old(tmp_path / f"g{name}", state | {"blocks.1.attn.W_Q": tensor}))
    with pytest.raises(WeightsError, match=r"positions in .* are \(20, 30\), expected \(20, 32\)"):
        legacy.read_legacy(write_old(tmp_path / "f", state | {"pos_embed.W_pos": torch.ones(20, 30)}))
    write_old(tmp_path / "e", state)
    torch.save(state, tmp_path / "e" / "second.pth")
    with pytest.raises(WeightsError, match="must hold one state dict .* it holds 2"):
        legacy.read_legacy(tmp_path / "e")


@pytest.mark.parametrize("file", ["model.pth", "model.safetensors", "config.json"])
@pytest.mark.parametrize("content", [b"", b"garbage", b"\x80\x04K", b"\xff" * 1000, b"[" * 100_000])
def test_garbage_in_an_old_checkpoint_is_one_sentence(tmp_path, file, content):
    write_old(tmp_path / "old", old_state(), file=file if file != "config.json" else "model.pth")
    (tmp_path / "old" / file).write_bytes(content)
    with pytest.raises(WeightsError, match="is not a (state dict of tensors|readable configuration)") as error:
        load_model("old", folder=tmp_path)
    assert "\n" not in str(error.value)


def test_pickled_code_is_not_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return (print, ("code ran",))

    write_old(tmp_path / "old", {"embed.W_E": Evil()}, file="model.pth")
    with pytest.raises(WeightsError, match="is not a state dict of tensors"):
        load_model("old", folder=tmp_path)


def test_a_published_checkpoint_without_config_is_known_by_its_hub_name(hub):
    folder, _ = hub
    state = old_state()
    write_old(folder / "callummcdougall/attn_only_2L_half", state, settings=None, file="attn_only_2L_half.pth")
    tokens = torch.randint(50, (2, 15))
    bridge = load_model("callummcdougall/attn_only_2L_half", "cpu")
    torch.testing.assert_close(bridge(tokens), old_forward(state, tokens, False), rtol=1e-4, atol=1e-5)
