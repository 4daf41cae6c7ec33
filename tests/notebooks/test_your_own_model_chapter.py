"""Chapter 19 on a model and a text of the reader's: what it measures is measured there, and what cannot be asked is a sentence."""

import json

import matplotlib.pyplot as plt
import pytest
import torch

from transformer_circuits.paths import ROOT

CHAPTER = json.loads((ROOT / "notebooks" / "19_your_own_model.ipynb").read_text(encoding="utf-8"))
CELLS = {cell["id"]: "".join(cell["source"]) for cell in CHAPTER["cells"] if cell["cell_type"] == "code"}


def run(last: str, **names) -> dict:
    """Run the chapter up to a cell, with other values for its names."""
    shown = []
    found = {"display": shown.append, "shown": shown}
    for id, source in CELLS.items():
        if id == "set-up":
            continue
        for name, value in names.items():
            source = "\n".join(
                f"{name} = {value!r}" if line.startswith(f"{name} =") else line for line in source.split("\n")
            )
        with torch.no_grad(), plt.rc_context():
            exec(source, found)
            plt.close("all")
        if id == last:
            return found
    raise ValueError(last)


@pytest.fixture
def own(tmp_path):
    text = (ROOT / "data" / "passages" / "candide.txt").read_text(encoding="utf8").upper()
    (tmp_path / "own.txt").write_text(text * 40, encoding="utf8")
    return str(tmp_path / "own.txt")


def test_a_text_of_the_readers_is_what_is_measured(own):
    found = run("scores", NAME="small-2l", BESIDE=[], TEXT=own)
    model, rows = found["models"]["small-2l"], found["text"]["small-2l"]
    assert rows.shape == (16, found["row_length"](model.cfg.n_ctx) + 1) and (rows[:, 0] == 0).all()
    assert model.tokenizer.decode(rows[0, 1:30]).isupper()
    book = run("scores", NAME="small-2l", BESIDE=[])
    assert not torch.equal(found["seen"]["small-2l"].previous, book["seen"]["small-2l"].previous)


def test_a_model_of_one_layer_is_answered_in_a_sentence(capsys):
    found = run("table", NAME="small-1l", BESIDE=[])
    assert "small-1l: no working head before a second layer, so none reads another." in capsys.readouterr().out
    assert found["read"] == {"small-1l": None} and found["shown"]
