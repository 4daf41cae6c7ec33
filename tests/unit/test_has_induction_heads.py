"""The script that stands alone, on small models of four families, agrees with the library's own score."""

import re
import runpy
import sys

import pytest
import torch
import transformers

from transformer_circuits.circuits import heads
from transformer_circuits.measures.repeats import Repeated
from transformer_circuits.models import load_model
from transformer_circuits.paths import ROOT

SIZES = dict(vocab_size=120, num_hidden_layers=2, hidden_size=32, num_attention_heads=4, intermediate_size=48)
FAMILIES = {
    "GPT-2": lambda: transformers.GPT2Config(
        vocab_size=120, n_positions=64, n_embd=32, n_layer=2, n_head=4, bos_token_id=0
    ),
    "Llama": lambda: transformers.LlamaConfig(
        **SIZES, num_key_value_heads=2, max_position_embeddings=64, bos_token_id=0
    ),
    "GPT-NeoX": lambda: transformers.GPTNeoXConfig(**SIZES, max_position_embeddings=64, bos_token_id=0),
    "Gemma": lambda: transformers.GemmaConfig(
        **SIZES, num_key_value_heads=1, head_dim=8, max_position_embeddings=64, bos_token_id=0
    ),
    "characters, no start token": lambda: transformers.GPT2Config(
        vocab_size=30, n_positions=128, n_embd=32, n_layer=2, n_head=4, bos_token_id=None, eos_token_id=None
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_script_gives_the_librarys_score(family, tmp_path, monkeypatch, capsys):
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(FAMILIES[family]())
    for parameter in model.parameters():
        parameter.data *= 15 if parameter.ndim > 1 else 1  # attention that is not even
    model.save_pretrained(tmp_path / "model")
    monkeypatch.setattr(sys, "argv", ["has_induction_heads.py", str(tmp_path / "model")])
    ran = runpy.run_path(str(ROOT / "book" / "_static" / "has_induction_heads.py"))
    n = ran["n"]
    draw = Repeated(ran["tokens"], torch.ones(8, dtype=torch.long), torch.full((8,), n))
    found = heads.induction_scores(load_model(tmp_path / "model", device="cpu"), draw)
    torch.testing.assert_close(ran["scores"], found, atol=1e-4, rtol=1e-3)
    assert found.max() - found.min() > 0.005
    assert f"the best score is {found.max():.2f}" in capsys.readouterr().out


def test_the_lines_for_a_plain_module_score_a_perfect_head_as_one(capsys):
    n = 10
    even, perfect = torch.full((2 * n, 2 * n), 1 / (2 * n)), torch.zeros(2 * n, 2 * n)
    perfect[torch.arange(n, 2 * n), torch.arange(1, n + 1)] = 1  # from the second copy, to what followed in the first
    A = torch.stack([even, perfect]).expand(8, -1, -1, -1)  # [row, head, destination, source]
    page = (ROOT / "book" / "questions.md").read_text(encoding="utf-8")
    lines = next(code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "your module" in code)
    exec(lines, {"torch": torch, "d_vocab": 120, "n": n, "model": lambda tokens: (tokens, [A, A])})
    assert "[[0.0500, 1.0000],\n        [0.0500, 1.0000]]" in capsys.readouterr().out
