"""Chapter 19 on tiny random models of other architectures: its own cells run, and random heads stay at chance."""

import functools
import json
import shutil

import matplotlib.pyplot as plt
import pytest
import safetensors.torch
import torch
import transformers
from test_registry import OLD, old, write_old
from tokenizers import Tokenizer

from transformer_circuits import data, models
from transformer_circuits.circuits import head_map, heads, survey
from transformer_circuits.circuits.heads import relative_error
from transformer_circuits.measures import repeats, weights
from transformer_circuits.models import load_model
from transformer_circuits.models.architecture import ModelConfig, Transformer
from transformer_circuits.models.bridge import wrap
from transformer_circuits.models.shards import WeightsError, save_model
from transformer_circuits.paths import DATA, ROOT

SIZES = {
    "GPT2": dict(n_embd=32, n_layer=3, n_head=4, n_positions=96),
    "GPTNeoX": dict(hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64),
    "Bert": dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64),
}
SIZES["Llama"] = SIZES["Qwen2"] = {**SIZES["GPTNeoX"], "num_key_value_heads": 2}
SIZES["Olmo2"] = SIZES["Llama"] | {"num_hidden_layers": 2}
SIZES["Qwen3"] = SIZES["Olmo2"] | {"head_dim": 16}
SIZES["Gemma2"] = SIZES["Qwen3"] | {"sliding_window": 16, "attn_logit_softcapping": 5.0}
SIZES["GPTNeo"] = dict(
    hidden_size=32, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]], window_size=16
)
SIZES["Mistral"] = SIZES["Olmo2"] | {"sliding_window": 16}
SIZES["Mixtral"] = SIZES["Olmo2"] | {"num_local_experts": 4, "num_experts_per_tok": 2}
SIZES["Phi3"] = SIZES["Olmo2"] | {"pad_token_id": 0}
SIZES["Gemma3"] = SIZES["Qwen3"] | {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
SIZES["OPT"] = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=64, word_embed_proj_dim=32)
SIZES["Bloom"] = dict(hidden_size=32, n_layer=2, n_head=4)
SIZES["Mamba"] = dict(hidden_size=32, num_hidden_layers=2, state_size=8)
SIZES["T5"] = dict(d_model=32, num_layers=2, num_heads=4, d_kv=8, d_ff=64, decoder_start_token_id=0)
KINDS = ["GPT2", "GPTNeoX", "Llama", "Qwen2"]
CLASSES = {"GPT2": "GPT2LMHeadModel", "Bert": "BertForMaskedLM", "T5": "T5ForConditionalGeneration"}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory, tiny_tokenizer_file):
    """Return a function that makes a folder with a random model and a byte-level tokenizer, as `save_pretrained` writes them."""
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tiny_tokenizer_file), bos_token="<|start|>", eos_token="<|start|>"
    )

    @functools.cache
    def make(kind: str) -> str:
        folder = str(tmp_path_factory.mktemp(kind))
        positions = {} if kind in ("GPT2", "T5", "Bloom", "Mamba") else {"max_position_embeddings": 96}
        config = getattr(transformers, "Gemma3TextConfig" if kind == "Gemma3" else f"{kind}Config")(
            vocab_size=len(fast), bos_token_id=0, eos_token_id=0, **SIZES[kind], **positions
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = getattr(transformers, CLASSES.get(kind, f"{kind}ForCausalLM"))(config)
            for name, parameter in model.named_parameters():
                norm = "norm" in name or "ln_" in name
                torch.nn.init.normal_(parameter, mean=float(norm), std=0.2 if norm else 0.1)
        model.save_pretrained(folder)
        fast.save_pretrained(folder)
        return folder

    return make


def run_chapter(name: str, monkeypatch, dtype: torch.dtype = torch.float32) -> dict:
    """Run the chapter's cells with another name, and return their variables."""
    monkeypatch.setattr(models, "load_model", functools.partial(load_model, device="cpu", dtype=dtype))
    monkeypatch.setattr(repeats, "DRAWS", 2)  # half the time
    cells = json.loads((ROOT / "notebooks" / "19_your_own_model.ipynb").read_text(encoding="utf8"))["cells"]
    found: dict = {}
    with torch.no_grad(), plt.rc_context({"backend": "agg"}):
        for cell in cells:
            if cell["cell_type"] == "code" and cell["id"] != "set-up":
                source = "".join(cell["source"]).replace('NAME = "attn-only-2l"', f"NAME = {name!r}")
                source = source.replace('BESIDE = ["attn-only-2l"]', "BESIDE = []")
                exec(compile(source, cell["id"], "exec"), found)
    plt.close("all")
    assert found["NAME"] == name and list(found["models"]) == [name]
    return found


@pytest.mark.parametrize("kind, dtype", [*((kind, torch.float32) for kind in KINDS), ("Llama", torch.bfloat16)])
def test_random_models_of_other_architectures_are_at_chance_in_every_row(kind, dtype, tiny, monkeypatch, capsys):
    name = tiny(kind)
    found = run_chapter(name, monkeypatch, dtype)
    assert found["models"][name].W_E.dtype == dtype
    table = found["table"]["model"]
    assert [table[kind] for kind in ("previous-token heads", "heads without effect", "induction heads")] == [0, 0, 0]
    assert table["copying heads among working ones"] == 0
    even, scores = found["chance"][name], found["induction"][name].mean
    assert abs(scores.mean() - even["induction"]) < 0.01 and scores.max() < even["induction"] + 0.05
    assert abs(found["match"][name]) < 5 * found["random_match"][name]
    assert 0.5 < found["ratios"][name].min() and found["ratios"][name].max() < weights.COMPOSES
    intact, without, *others = found["best"][name]
    assert abs(without / intact - 1) < 0.2 and len(others) == 3
    assert "chance" in capsys.readouterr().out
    assert "Normalization" in found["found_differences"][0]


@pytest.mark.parametrize("kind", KINDS)
def test_patterns_are_those_of_transformers_and_normalizations_are_folded_as_transformer_lens_folds_them(kind, tiny):
    model, tokens = load_model(tiny(kind), "cpu"), torch.arange(48).view(2, 24)
    assert not model.training and not any(parameter.requires_grad for parameter in model.parameters())
    W = survey.read_weights(model)
    plain = transformers.AutoModelForCausalLM.from_pretrained(tiny(kind), attn_implementation="eager")
    with torch.no_grad():
        A = torch.stack(plain(tokens, output_attentions=True).attentions)
        torch.testing.assert_close(heads.patterns(model, tokens), A, rtol=1e-4, atol=1e-5)
        model.process_weights(fold_ln=True, center_writing_weights=False, center_unembed=False, fold_value_biases=False)
        assert relative_error(W.W_U, model.W_U) < 1e-5
        for ours, theirs in ((W.QK, model.QK), (W.OV, model.OV)):
            assert relative_error(ours.AB, theirs.AB) < 1e-5


def test_an_old_checkpoint_and_a_folder_of_the_trainer_go_through_the_chapter(tmp_path, monkeypatch):
    write_old(tmp_path / "old", old(biases=True)[1], OLD)
    save_model(Transformer(ModelConfig(1, 32, 4, 8, 60, 24)), tmp_path / "run" / "model", "mine", {})
    for folder, pairs in ((tmp_path / "old", True), (tmp_path / "run" / "model", False)):
        found = run_chapter(str(folder), monkeypatch)
        assert found["models"][str(folder)].tokenizer is None
        assert bool(found["reader"]) == pairs  # one layer has nothing to compose with


@pytest.mark.parametrize("kind, got", [
    ("Bert", "bidirectional attention, as in an encoder"),
    ("T5", "an encoder and a decoder"),
    ("Mamba", "attention in 0 of its 2 layers"),
    ("attn-only-0l", "attention in 0 of its 0 layers"),
])  # fmt: skip
def test_a_model_that_cannot_be_asked_is_one_sentence(kind, got, tiny):
    model = load_model(tiny(kind) if kind in SIZES else kind, "cpu")
    with pytest.raises(WeightsError, match=f"with attention heads in every layer, got {got}; choose"):
        survey.check(model)


def test_the_books_models_are_read_as_in_the_chapters():
    beyond = {
        "small-2l-mlp": ["Normalization", "MLPs"],
        "small-2l-standard-positions": ["Positions in the residual stream"],
        "small-2l": [],
    }
    for name, expected in beyond.items():
        model = load_model(name, "cpu")
        assert [line.partition(":")[0] for line in survey.differences(model)] == expected
    assert torch.equal(survey.text(model), data.held_out_windows(survey.ROWS, 256, 512))
    W = survey.read_weights(model)
    positivity = weights.factored_positivity(W.W_U @ W.W_E @ W.OV.A, W.OV.B)
    expected = weights.positivity((model.W_E @ model.OV @ model.W_U).eigenvalues)
    torch.testing.assert_close(positivity, expected, rtol=0, atol=1e-4)
    ratios = weights.composition_ratios(model.OV[0], model.QK[1], model.OV[1])
    for head in range(model.cfg.n_heads):
        torch.testing.assert_close(survey.composition(W, (1, head))[:, 0], ratios[:, head])


def test_other_models_read_the_same_text_in_their_own_tokens(tiny):
    model = load_model(tiny("GPT2"), "cpu")
    tokens = survey.text(model)
    assert tokens.shape == (survey.ROWS, 97) and (tokens[:, 0] == 0).all()
    windows = data.held_out_windows(survey.ROWS, 512)
    theirs = data.load_tokenizer().batch_decode(windows, skip_special_tokens=True)
    for row, text in zip(tokens, theirs):
        assert text.encode().startswith(model.tokenizer.decode(row[1:]).rstrip("\ufffd").encode())


def test_a_vocabulary_like_the_books_is_read_as_it_is():
    def own(d_vocab, n_ctx, tokenizer):
        return wrap(Transformer(ModelConfig(1, 16, 2, 8, d_vocab, n_ctx)), tokenizer)

    padded = own(576, 64, load_model("small-1l", "cpu").tokenizer)  # 512 tokens
    padded.cfg.start_token = 5
    assert survey.text(padded).max() < 512 and (survey.text(padded)[:, 0] == 5).all()
    assert head_map.windows_of(own(4_096, 128, data.load_tokenizer())).shape == (10, 129)
    content = json.loads((DATA / "tokenizer.json").read_text(encoding="utf8"))
    ids = content["model"]["vocab"]
    ids["e"], ids["t"] = ids["t"], ids["e"]
    other = transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(content)))
    model = own(4_096, 256, other)
    assert torch.equal(head_map.windows_of(model), survey.text(model, 10)[:, :257])


@pytest.mark.parametrize("kind", ["Gemma2", "Qwen3", "Olmo2"])
def test_gains_after_attention_and_of_queries_and_keys_are_in_the_circuits(kind, tiny):
    """Queries, keys, and what attention writes, from transformers' own modules, are what the folded matrices give up to their lengths."""
    model = load_model(tiny(kind), "cpu")
    W, offset = survey.read_weights(model), float(kind == "Gemma2")
    plain = transformers.AutoModelForCausalLM.from_pretrained(tiny(kind), attn_implementation="eager")
    layer, attn, noted = plain.model.layers[1], plain.model.layers[1].self_attn, {}
    watched = {"read": attn, "q": getattr(attn, "q_norm", attn.q_proj), "k": getattr(attn, "k_norm", attn.k_proj)}
    if kind != "Qwen3":
        watched["wrote"] = layer.post_attention_layernorm

    for name, module in watched.items():

        def note(module, args, kwargs, out, name=name):
            noted[name] = kwargs["hidden_states"] if name == "read" else out

        module.register_forward_hook(note, with_kwargs=True)
    tokens = torch.randint(1, 300, (2, 24), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        A = torch.stack(plain(tokens, output_attentions=True).attentions)
        torch.testing.assert_close(heads.patterns(model, tokens), A, rtol=1e-4, atol=1e-5)

    def same_direction(ours, theirs):
        assert (torch.cosine_similarity(ours, theirs, dim=-1) > 1 - 1e-5).all() and theirs.norm() > 0

    x = noted["read"]  # with the gains of the normalization before attention, which the matrices contain too
    if kind != "Olmo2":
        x = x / (layer.input_layernorm.weight + offset)
    for name, circuit, own in (("q", W.QK.A, 4), ("k", W.QK.B.mT, 2)):
        ours = torch.einsum("rpm,hmd->rphd", x, circuit[1])[:, :, :: 4 // own]
        theirs = noted[name].view(2, 24, own, -1)
        if kind == "Olmo2":  # one division over all heads
            ours, theirs = ours.flatten(2), theirs.flatten(2)
        same_direction(ours, theirs)
    if kind != "Qwen3":
        same_direction(torch.einsum("rhqk,rkm,hmd,hde->rqe", A[1], x, W.OV.A[1], W.OV.B[1]), noted["wrote"])


@pytest.mark.parametrize("kind, beyond", [
    ("Gemma2", ["Normalization", "Normalization after attention", "MLPs", "Positions of type 'rotary'", "Windows", "Soft-capped scores", "Soft-capped logits",
                "Grouped-query attention"]),
    ("Qwen3", ["Normalization", "Normalization of queries and keys", "MLPs", "Positions of type 'rotary'", "Grouped-query attention"]),
    ("GPTNeo", ["Normalization", "MLPs", "Positions in the residual stream", "Windows", "Biases"]),
    ("Mistral", ["Normalization", "MLPs", "Positions of type 'rotary'", "Windows", "Grouped-query attention"]),
    ("Mixtral", ["Normalization", "MLPs", "Positions of type 'rotary'", "Grouped-query attention"]),
    ("Phi3", ["Normalization", "MLPs", "Positions of type 'rotary'", "Grouped-query attention"]),
    ("Gemma3", ["Normalization", "Normalization after attention", "Normalization of queries and keys", "MLPs", "Positions of type 'rotary'", "Windows",
                "Grouped-query attention"]),
    ("OPT", ["Normalization", "MLPs", "Positions in the residual stream", "Biases"]),
    ("Bloom", ["Normalization", "MLPs", "Positions of type 'alibi'", "Biases"]),
])  # fmt: skip
def test_models_with_more_go_through_the_chapter_and_it_says_what_that_does(kind, beyond, tiny, monkeypatch, tmp_path):
    folder = shutil.copytree(tiny(kind), tmp_path / kind)
    for file in folder.glob("*token*"):
        file.unlink()  # random tokens then
    found = run_chapter(str(folder), monkeypatch)
    assert [line.partition(":")[0] for line in found["found_differences"]] == beyond
    windowed = " of 2 layers attend only to the last 16 tokens. The QK circuit says nothing about tokens farther back. The rows of the tests have 96"
    assert (windowed in " ".join(found["found_differences"])) == ("Windows" in beyond)
    assert not found["models"][str(folder)].tokenizer and found["text"][str(folder)].max() > 290
    table = found["table"]["model"]
    kept = [question for question in table.index if "kept without" in question]
    assert table["induction heads"] == 0 and not kept


@pytest.mark.parametrize("change, message", [
    (lambda W: W.pop("model.layers.1.self_attn.o_proj.weight"), "do not fit its configuration: missing model.layers.1.self_attn.o_proj.weight; fetch"),
    (lambda W: [W.pop(name) for name in list(W) if ".layers.1." in name], "missing model.layers.1.* and 6 more; fetch"),
    (lambda W: W.update(extra=torch.ones(2)), "unexpected extra;"),
    (lambda W: W.update({"model.norm.weight": torch.ones(31)}), "mismatched model.norm.weight;"),
    (lambda W: W["model.embed_tokens.weight"][7].fill_(torch.nan), "model.embed_tokens.weight in .* contains NaN or infinity"),
])  # fmt: skip
def test_weights_that_are_not_exactly_the_models_are_one_sentence(change, message, tiny, tmp_path):
    folder = shutil.copytree(tiny("Llama"), tmp_path / "damaged")
    state = safetensors.torch.load_file(folder / "model.safetensors")
    change(state)
    safetensors.torch.save_file(state, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(WeightsError, match=message) as error:
        load_model(folder, "cpu")
    assert error.value._render_traceback_() == [f"WeightsError: {error.value}"] and "\n" not in str(error.value)


def test_a_weight_file_that_is_cut_short_is_one_sentence(tiny, tmp_path):
    weights = shutil.copytree(tiny("Llama"), tmp_path / "cut") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    with pytest.raises(WeightsError, match=r"^[^\n]* could not be loaded: [^\n]*incomplete[^\n]*$"):
        load_model(weights.parent, "cpu")


def test_start_tokens_tokenizers_that_are_too_large_and_folders_of_a_training(tiny, tmp_path):
    model = load_model(tiny("Llama"), "cpu")
    model.original_model.config.bos_token_id = 5
    assert (survey.text(model)[:, 0] == 5).all()  # the tokenizer says 0
    model.original_model.config.bos_token_id = model.original_model.config.eos_token_id = None
    with pytest.raises(WeightsError, match="the start token must be 0 to 299, got 300"):
        survey.check(model, 300)
    survey.check(model, 7)
    assert (survey.text(model)[:, 0] == 7).all() and heads.measured_draws(model)[0].tokens[0, 0] == 7
    model.tokenizer = None
    with pytest.raises(WeightsError, match="names no start token; set model.cfg.start_token .*START in chapter 19"):
        survey.check(model)
    folder = shutil.copytree(tiny("Llama"), tmp_path / "large")
    data.load_tokenizer().save_pretrained(folder)  # 4,096 tokens
    model = load_model(folder, "cpu")
    assert len(model.tokenizer) == 4_096 and not survey.reads_text(model) and 290 < survey.text(model).max() < 300
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "training.jsonl").touch()
    with pytest.raises(WeightsError, match="mine is the folder of a training, not of its model; .*let it end"):
        load_model(tmp_path / "mine")
    (tmp_path / "mine" / "model").mkdir()
    with pytest.raises(WeightsError, match="not of its model; load .*mine/model"):
        load_model(tmp_path / "mine")
