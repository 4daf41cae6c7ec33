"""Helpers of the notebooks: what every chapter starts with, and the figure style."""

from __future__ import annotations

import matplotlib
import numpy as np
import torch

from transformer_circuits import notebook
from transformer_circuits.figures import diverging


def test_setup_says_something_only_where_a_release_differs(capsys, monkeypatch):
    with matplotlib.rc_context(), torch.enable_grad():
        notebook.setup()
        assert capsys.readouterr().out == "" and not torch.is_grad_enabled()
        assert matplotlib.rcParams["figure.constrained_layout.use"]
        monkeypatch.setattr(notebook, "TESTED", {"torch": "1.0"})
        notebook.setup()
        assert capsys.readouterr().out.startswith("This book was tested with torch 1.0; here: torch ")


def test_diverging_colors_are_centered_at_zero():
    for values, limit in (([-3.0, 1.0], 3), ([[0.5, np.nan], [0.25, np.inf]], 0.5), ([0.0], 1)):
        assert diverging(values) == {"cmap": "RdBu", "vmin": -limit, "vmax": limit}
