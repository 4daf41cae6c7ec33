"""The paper's questions, put to tiny random models of other architectures: what they read, that random heads stay at chance, one sentence for the rest."""

import contextlib
import shutil

import matplotlib.pyplot as plt
import nbformat
import pytest
import safetensors.torch
import torch
import transformers
from tokenizers import Tokenizer, models

from transformer_circuits import data
from transformer_circuits.circuits import heads, removal, survey
from transformer_circuits.measures import attention, weights
from transformer_circuits.models import bridge, load_model, reading
from transformer_circuits.models.shards import WeightsError
from transformer_circuits.paths import ROOT

CHAPTER = nbformat.read(ROOT / "notebooks" / "19_your_own_model.ipynb", as_version=4)
QUESTIONS = ("imports", "texts", "scores", "copying", "reads", "composition", "answers", "answers-reader")


def ask(model) -> tuple:
    """Put all of the chapter's questions, by its own cells."""
    survey.check(model)
    cells = {cell.id: cell.source for cell in CHAPTER.cells}
    found = {"models": {"own": model}, "TEXT": None}
    with torch.no_grad(), plt.rc_context():  # which the chapter's set-up changes
        for id in QUESTIONS:
            exec(cells[id], found)
    seen, read = found["seen"]["own"], found["read"]["own"]
    return seen, read, found["of_all_heads"](seen, *found["copied"]["own"]) + found["of_reader"](read, seen)


def test_a_random_model_of_another_architecture_is_at_chance_in_every_row(make):
    model = load_model(make("Llama"), "cpu", torch.bfloat16)
    assert model.W_E.dtype == torch.bfloat16
    seen, read, rows = ask(model)
    table = {question: answer for question, answer, _ in rows}
    counted = ("previous-token heads", "induction heads", "heads without effect", "copying heads among working ones")
    assert [table[question] for question in counted] == [0, 0, 0, 0]
    even, scores = seen.even["induction"], seen.induction.mean
    assert abs(scores.mean() - even) < 0.01 and scores.max() < even + 0.05
    assert abs(read.match) < 5 * read.of_random
    assert 0.5 < read.ratios.min() and read.ratios.max() < weights.COMPOSES
    left = removal.remove(model, read.reader, [read.writer], {})
    assert all(abs(left.kept(name)[0] - 1) < 0.2 for name in left.left)
    assert not torch.equal(left.left["keys"], left.left["keys, past MLPs"]), "MLPs keep their outputs"


@pytest.mark.parametrize("kind, beyond", [
    ("Gemma2", ["Normalization", "Normalization after attention", "MLPs", "Positions of type 'rotary'", "Windows of 16 tokens", "Soft-capped scores", "Soft-capped logits",
                "Grouped-query attention"]),
    ("GPT2", ["Normalization", "MLPs", "Positions in the residual stream", "Biases"]),
])  # fmt: skip
def test_models_with_more_are_asked_everything_and_it_is_said_what_that_does(kind, beyond, make):
    model = load_model(make(kind, tokenizer=False), "cpu")
    assert [line.partition(":")[0] for line in survey.differences(model)] == beyond
    assert "reads random tokens, because it has no tokenizer" in reading.of(model).words
    assert dict((question, answer) for question, answer, _ in ask(model)[-1])["induction heads"] == 0


def padded(name: str, rows: int):
    """Return a shipped model whose vocabulary is padded with rows that no token has."""
    model = load_model(name, "cpu")
    W = bridge.matrices(model)
    W["W_E"] = torch.cat([W["W_E"], torch.full((rows, W["W_E"].shape[1]), 0.3)])
    W["W_U"] = torch.cat([W["W_U"], torch.zeros(len(W["W_U"]), rows)], dim=1)
    return bridge.from_matrices(**W, tokenizer=model.tokenizer)


def test_rows_that_no_token_has_change_no_score():
    """Reported elsewhere; with random tokens from all rows, head 1.0 of the book's model was no induction head any more."""
    plain, more = (heads.measured_draws(model) for model in (load_model("small-2l", "cpu"), padded("small-2l", 1_024)))
    assert all(torch.equal(a.tokens, b.tokens) for a, b in zip(plain, more, strict=True))
    assert survey.text(padded("small-2l", 64)).max() < 512


def test_other_models_read_the_same_text_in_their_own_tokens(make):
    model = load_model(make("GPT2"), "cpu")
    tokens = survey.text(model)
    assert tokens.shape == (attention.PATTERN_WINDOWS, 97) and (tokens[:, 0] == 0).all()
    windows = data.held_out_windows(attention.PATTERN_WINDOWS, 512)
    theirs = data.load_tokenizer().batch_decode(windows, skip_special_tokens=True)
    for row, text in zip(tokens, theirs):
        assert text.encode().startswith(model.tokenizer.decode(row[1:]).rstrip("\ufffd").encode())


WORDS = {"<s>": 3, "<pad>": 1, "[UNK]": 0, "the": 2, "cat": 4}


def words(unknown: str | None = "[UNK]", **names: str):
    tokenizer = Tokenizer(models.WordLevel(WORDS, unk_token=unknown) if unknown else models.WordLevel(WORDS))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=unknown, **names)


@pytest.mark.parametrize("tokenizer, config, start, said", [
    # The configuration's class has 1 by default, which is <pad> here.
    ({"bos_token": "<s>", "pad_token": "<pad>"}, {}, 3, "starts with <s> (3)"),
    ({"pad_token": "<pad>", "eos_token": "<s>"}, {"bos_token_id": 1, "eos_token_id": 3}, 3, "starts with <s> (3)"),
    ({"additional_special_tokens": ["<s>"]}, {"bos_token_id": 3}, 3, "starts with <s> (3)"),
    ({}, {"bos_token_id": 9}, None, "random tokens from 1 to 4"),
    (None, {}, 1, "starts with token (1); random tokens from 0 to 49; reads random tokens, because it has no tokenizer"),
])  # fmt: skip
def test_start_tokens_come_from_tokenizer_and_configuration_together(tokenizer, config, start, said):
    given = None if tokenizer is None else words(**tokenizer)
    found = reading.decide(50, given, transformers.LlamaConfig(**config))
    assert found.start == start and found.words.startswith(said)
    special = set() if given is None else set(given.all_special_ids)
    assert not {start, *special} & set(found.drawn.tolist())


def test_what_is_read_is_judged_by_the_ids_that_text_needs(make, own_tokenizer, tmp_path):
    """An added [PAD] that the model was not resized for, and a tokenizer without special tokens, read text all the same."""
    folder = shutil.copytree(make("Llama"), tmp_path / "pad")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    tokenizer.save_pretrained(folder)
    model = load_model(folder, "cpu")
    assert tokenizer.pad_token_id == 300
    assert reading.of(model).words.endswith("to 299; reads text with its own tokenizer")
    assert len(own_tokenizer) == 300 and survey.text(model).max() < 300
    bare = transformers.PreTrainedTokenizerFast(tokenizer_object=own_tokenizer.backend_tokenizer)
    assert reading.decide(300, bare, transformers.LlamaConfig(bos_token_id=0)).reads_text

    large = reading.decide(300, data.load_tokenizer())
    assert large.words.endswith("reads random tokens, because its tokenizer has 4,096 tokens and its vocabulary 300")
    for unknown in ("[UNK]", None):
        assert reading.decide(50, words(unknown)).words.endswith("its tokenizer does not know English text")


def test_a_start_token_can_be_chosen_and_must_be_one(make):
    model = load_model(make("Llama", tokenizer=False, bos_token_id=None, eos_token_id=None), "cpu")
    with pytest.raises(WeightsError, match="names no start token; .*START in chapter 19"):
        survey.check(model)
    with pytest.raises(WeightsError, match="the start token must be 0 to 299, got 300"):
        reading.choose(model, start=300)
    reading.choose(model, start=7)
    survey.check(model)
    drawn = heads.measured_draws(model)[0].tokens
    assert (survey.text(model)[:, 0] == 7).all() and (drawn[:, 0] == 7).all() and not (drawn[:, 1:] == 7).any()


@pytest.mark.parametrize("kind, settings, got", [
    ("Bert", {}, "with attention heads in every layer, got bidirectional attention, as in an encoder; choose"),
    ("T5", {}, "got an encoder and a decoder; choose"),
    ("attn-only-0l", {}, "got attention in 0 of its 0 layers; choose"),
    ("OPT", {}, "has embeddings of 16 dimensions and a projection to the 32 of the residual stream; choose"),
    ("OpenAIGPT", {}, "normalizes the residual stream after attention; .*; choose a model with normalization before attention"),
    # TransformerLens divides scores by the square root of d_head, whatever the configuration says.
    ("GPT2", {"scale_attn_weights": False}, "as the transformers library computes it: .* logits differ by 0[.].* .at most 0.001 is rounding"),
    # A library's own words are no advice.
    ("Falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}, r"could not be loaded: transformers or TransformerLens cannot read it \(.*\); choose another model$"),
])  # fmt: skip
def test_a_model_that_cannot_be_asked_is_one_sentence_at_the_start(kind, settings, got, make):
    with pytest.raises(WeightsError, match=got) as error:
        survey.check(load_model(kind if kind.startswith("attn") else make(kind, **settings), "cpu"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind, change, message", [
    ("Llama", lambda W: W.pop("model.layers.1.self_attn.o_proj.weight"), "do not fit its configuration: missing model.layers.1.self_attn.o_proj.weight; fetch"),
    ("Llama", lambda W: W["model.embed_tokens.weight"][7].fill_(torch.nan), "model.embed_tokens.weight in .* contains NaN or infinity"),
    ("Llama", lambda W: [W.update({f"_orig_mod.{name}": W.pop(name)}) for name in list(W)], "do not fit its configuration: unexpected _orig_mod[.]"),
    # What old checkpoints hold beside their weights
    ("Llama", lambda W: W.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}), None),
    ("GPT2", lambda W: W.update({f"transformer.h.0.attn.{name}": torch.ones(1) for name in ("bias", "masked_bias")}), None),
])  # fmt: skip
def test_weights_are_exactly_the_models_or_one_sentence(kind, change, message, make, tmp_path):
    folder = shutil.copytree(make(kind), tmp_path / "changed")
    state = safetensors.torch.load_file(folder / "model.safetensors")
    change(state)
    safetensors.torch.save_file(state, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(WeightsError, match=message) if message else contextlib.nullcontext():
        load_model(folder, "cpu")


def test_weights_that_are_cut_off_are_one_sentence_in_a_notebook_too(make, tmp_path):
    file = shutil.copytree(make("Llama"), tmp_path / "cut") / "model.safetensors"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(WeightsError, match=r"^[^\n]* could not be loaded: [^\n]*incomplete[^\n]*$") as error:
        load_model(file.parent, "cpu")
    assert error.value._render_traceback_() == [f"WeightsError: {error.value}"]
