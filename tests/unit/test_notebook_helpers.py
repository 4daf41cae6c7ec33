"""What every chapter starts with."""

import matplotlib
import torch

from transformer_circuits import notebook


def test_setup_says_something_only_where_a_release_differs(capsys, monkeypatch):
    with matplotlib.rc_context(), torch.enable_grad():
        notebook.setup()
        assert capsys.readouterr().out == "" and not torch.is_grad_enabled()
        assert matplotlib.rcParams["figure.constrained_layout.use"]
        monkeypatch.setattr(notebook, "TESTED", {"torch": "1.0"})
        notebook.setup()
        assert capsys.readouterr().out.startswith("This book was tested with torch 1.0; here: torch ")
