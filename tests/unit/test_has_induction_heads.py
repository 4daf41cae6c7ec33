"""The script that stands alone, on small models of four families, agrees with the library's own score."""

import re
import runpy
import sys

import pytest
import torch

from transformer_circuits.circuits import heads
from transformer_circuits.measures.repeats import Repeated
from transformer_circuits.models import load_model
from transformer_circuits.paths import ROOT


@pytest.mark.parametrize("family", ["GPT2", "Llama", "GPTNeoX", "Gemma2"])
def test_the_script_gives_the_librarys_score(family, make, monkeypatch, capsys):
    folder = make(family, std=0.3)  # attention that is not even
    monkeypatch.setattr(sys, "argv", ["has_induction_heads.py", folder])
    ran = runpy.run_path(str(ROOT / "book" / "_static" / "has_induction_heads.py"))
    n = ran["n"]
    draw = Repeated(ran["tokens"], torch.ones(8, dtype=torch.long), torch.full((8,), n))
    found = heads.induction_scores(load_model(folder, device="cpu"), draw)
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
