"""Helpers of the notebooks: versions, recorded numbers, the figure style."""

from __future__ import annotations

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from transformer_circuits.figures import diverging, use_style
from transformer_circuits.notebook import record_number, setup


def test_setup_prints_versions_and_device(capsys):
    setup()
    printed = capsys.readouterr().out
    assert f"torch {torch.__version__}" in printed and "TransformerLens 4.3.0" in printed and "device: " in printed


@pytest.mark.parametrize("value", [0.5, torch.tensor(0.5), np.float32(0.5), torch.tensor([0.5])])
def test_numbers_are_printed_outside_the_book(value, capsys, monkeypatch):
    monkeypatch.delenv("TRANSFORMER_CIRCUITS_BOOK", raising=False)
    record_number("half", value)
    assert capsys.readouterr().out == "half = 0.5\n"


def test_numbers_are_glued_as_plain_floats_in_the_book(monkeypatch):
    import myst_nb

    glued = {}
    monkeypatch.setenv("TRANSFORMER_CIRCUITS_BOOK", "1")
    monkeypatch.setattr(myst_nb, "glue", lambda name, value, display: glued.update({name: (value, display)}))
    record_number("third", np.float64(1) / 3)
    assert glued == {"third": (1 / 3, False)} and type(glued["third"][0]) is float


@pytest.mark.parametrize("value", [torch.ones(2), "many", None])
def test_only_one_number_can_be_recorded(value):
    with pytest.raises(ValueError, match="takes one number"):
        record_number("many", value)


def test_style_is_applied_and_colours_are_distinct():
    with matplotlib.rc_context():
        use_style()
        assert plt.rcParams["image.cmap"] == "cividis" and plt.rcParams["figure.constrained_layout.use"]
        cycle = plt.rcParams["axes.prop_cycle"].by_key()
        assert len(set(cycle["color"])) == 10 and len(set(cycle["linestyle"])) == 4


@pytest.mark.parametrize("values, limit", [([-3.0, 1.0], 3), ([[0.5, np.nan], [0.25, np.inf]], 0.5), ([0.0], 1)])
def test_diverging_colours_are_centred_at_zero(values, limit):
    settings = diverging(values)
    assert settings["vmax"] == limit == -settings["vmin"]
