"""Plots that chapters share, by what they put on the axes."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd

from transformer_circuits.figures.plots import over_training


def test_over_training_leaves_out_the_snapshot_at_zero_and_says_tokens_plainly():
    _, (upper, lower) = plt.subplots(2, 1)
    curve = pd.Series([0.5, 0.1, 0.2], [0.0, 0.2, 20.0])
    for ax in (upper, lower):
        over_training({"one layer": curve, "other": curve / 2}, mark=0.3, ax=ax)
    upper.figure.canvas.draw()
    first, other, mark = lower.lines
    assert first.get_xydata().tolist() == [[0.2, 0.1], [20, 0.2]] and first.get_color() == "0.5"
    assert other.get_label() == "other" and other.get_color() != "0.5" and mark.get_ydata()[0] == 0.3
    shown = [label.get_text() for label in lower.get_xticklabels()]
    assert {"0.2", "0.5", "1", "10"} <= set(shown) and (upper.get_xlabel(), lower.get_xlabel()) == (
        "",
        "million tokens read",
    )
    plt.close()
