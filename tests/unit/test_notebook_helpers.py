"""Helpers of the notebooks: what every chapter starts with, and the figure style."""

from __future__ import annotations

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from transformer_circuits import notebook
from transformer_circuits.figures import diverging, use_style


def test_setup_says_something_only_where_a_release_differs(capsys, monkeypatch):
    with matplotlib.rc_context(), torch.enable_grad():
        notebook.setup()
        assert capsys.readouterr().out == "" and not torch.is_grad_enabled()
        monkeypatch.setattr(notebook, "TESTED", {"torch": "1.0"})
        notebook.setup()
        assert capsys.readouterr().out.startswith("This book was tested with torch 1.0; here: torch ")


def test_style_is_applied_and_colors_are_distinct():
    with matplotlib.rc_context():
        use_style()
        assert plt.rcParams["image.cmap"] == "cividis" and plt.rcParams["figure.constrained_layout.use"]
        cycle = plt.rcParams["axes.prop_cycle"].by_key()
        assert len(set(cycle["color"])) == 10 and len(set(cycle["linestyle"])) == 4


@pytest.mark.parametrize(
    "values, limit", [([-3.0, 1.0], 3), ([[0.5, np.nan], [0.25, np.inf]], 0.5), ([0.0], 1)]
)
def test_diverging_colors_are_centered_at_zero(values, limit):
    settings = diverging(values)
    assert settings["vmax"] == limit == -settings["vmin"]
