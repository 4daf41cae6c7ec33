"""Chapter 15 on tiny random models of other architectures: its own cells run, and random heads stay at chance."""

import functools
import json

import matplotlib.pyplot as plt
import pytest
import torch
import transformers
from test_registry import OLD, old, write_old

from transformer_circuits import data, models
from transformer_circuits.circuits import survey
from transformer_circuits.circuits.heads import relative_error
from transformer_circuits.measures import weights
from transformer_circuits.models import load_model
from transformer_circuits.models.architecture import ModelConfig, Transformer
from transformer_circuits.models.shards import save_model
from transformer_circuits.paths import ROOT

SIZES = {
    "GPT2": dict(n_embd=32, n_layer=3, n_head=4, n_positions=96),
    "GPTNeoX": dict(hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64),
    "Bert": dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64),
}
SIZES["Llama"] = SIZES["Qwen2"] = {**SIZES["GPTNeoX"], "num_key_value_heads": 2}
KINDS = ["GPT2", "GPTNeoX", "Llama", "Qwen2"]
CLASSES = {"GPT2": "GPT2LMHeadModel", "Bert": "BertForMaskedLM"}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory, tiny_tokenizer_file):
    """Return a function that makes a folder with a random model and a byte-level tokenizer, as `save_pretrained` writes them."""
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tiny_tokenizer_file), bos_token="<|start|>", eos_token="<|start|>"
    )

    @functools.cache
    def make(kind: str) -> str:
        folder = str(tmp_path_factory.mktemp(kind))
        positions = {} if kind == "GPT2" else {"max_position_embeddings": 96}
        config = getattr(transformers, f"{kind}Config")(
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
    cells = json.loads((ROOT / "notebooks" / "15_your_own_model.ipynb").read_text(encoding="utf8"))["cells"]
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


@pytest.mark.parametrize(
    "kind, dtype", [*((kind, torch.float32) for kind in KINDS), ("Llama", torch.bfloat16)]
)
def test_random_models_of_other_architectures_are_at_chance_in_every_row(
    kind, dtype, tiny, monkeypatch, capsys
):
    name = tiny(kind)
    found = run_chapter(name, monkeypatch, dtype)
    assert found["models"][name].W_E.dtype == dtype
    table = found["table"]["model"]
    assert [table[f"{kind} heads"] for kind in ("previous-token", "resting", "induction")] == [0, 0, 0]
    assert table["copying heads, resting ones left out"] == 0
    even, scores = found["chance"][name], found["induction"][name].mean
    assert abs(scores.mean() - even["induction"]) < 0.01 and scores.max() < even["induction"] + 0.05
    assert abs(found["match"][name]) < 5 * found["random_match"][name]
    assert 0.5 < found["ratios"][name].min() and found["ratios"][name].max() < weights.COMPOSES
    assert abs(found["without"][name] / found["intact"][name] - 1) < 0.2
    assert "chance" in capsys.readouterr().out and not found["orders"]
    assert "Normalization" in found["found"][0]


@pytest.mark.parametrize("kind", KINDS)
def test_normalizations_are_folded_as_transformer_lens_folds_them(kind, tiny):
    model = load_model(tiny(kind), "cpu")
    W = survey.read_weights(model)
    with torch.no_grad():
        model.process_weights(
            fold_ln=True, center_writing_weights=False, center_unembed=False, fold_value_biases=False
        )
        assert relative_error(W.W_U, model.W_U) < 1e-5
        for ours, theirs in ((W.QK, model.QK), (W.OV, model.OV)):
            assert relative_error(ours.AB, theirs.AB) < 1e-5


def test_an_old_checkpoint_and_a_folder_of_the_trainer_go_through_the_chapter(tmp_path, monkeypatch):
    write_old(tmp_path / "old", old(biases=True)[1], OLD)
    save_model(Transformer(ModelConfig(1, 32, 4, 8, 60, 24)), tmp_path / "run" / "model", "mine", {})
    for folder, pairs in ((tmp_path / "old", True), (tmp_path / "run" / "model", False)):
        found = run_chapter(str(folder), monkeypatch)
        assert found["models"][str(folder)].tokenizer is None and not found["orders"]
        assert bool(found["reader"]) == pairs  # one layer has nothing to compose with


@pytest.mark.parametrize("kind, got", [
    ("Bert", "bidirectional attention, as in an encoder"),
    ("attn-only-0l", "attention in 0 of its 0 layers"),
])  # fmt: skip
def test_a_model_that_cannot_be_asked_is_one_sentence(kind, got, tiny):
    model = load_model(tiny(kind) if kind in SIZES else kind, "cpu")
    with pytest.raises(ValueError, match=f"with attention heads in every layer, got {got}; choose"):
        survey.check(model)


def test_the_books_models_are_read_as_in_the_chapters():
    model = load_model("small-2l", "cpu")
    assert survey.differences(model) == []
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


@pytest.mark.parametrize("name, beyond", [
    ("small-2l-mlp", ["Normalization", "MLPs"]),
    ("small-2l-standard-positions", ["Positions in the residual stream"]),
])  # fmt: skip
def test_what_a_model_has_beyond_the_papers_is_said(name, beyond):
    assert [line.partition(":")[0] for line in survey.differences(load_model(name, "cpu"))] == beyond
