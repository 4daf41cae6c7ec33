"""Figures about training: what they draw is what they were given, and they refuse what does not fit."""

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.colors import to_hex

from transformer_circuits.figures import training as figures


def a_log(induction: bool = True) -> pd.DataFrame:
    log = {"tokens": [0, 10, 100, 1000], "held_out": [9.0, 6.0, 5.0, 4.0]}
    scores = [[[0.0, 0.1 * entry], [0.05, 0.0]] for entry in range(4)]
    return pd.DataFrame(log | ({"induction": scores} if induction else {}))


def test_every_models_curve_is_drawn_however_many_there_are() -> None:
    fig = figures.training_curves({f"model {i}": a_log(i > 0) for i in range(7)})
    loss, induction = fig.axes
    assert len(loss.lines) == 7 and len(induction.lines) == 6  # one has no heads
    assert np.allclose(induction.lines[0].get_ydata(), [0.1, 0.2, 0.3])


def some_sources() -> pd.DataFrame:
    rows = [("a", "prose", 900, 0.1), ("b", "python", 50, 0.4), ("c", "python", 150, 0.2)]
    return pd.DataFrame(rows, columns=["source", "kind", "tokens", "copy_oracle"])


def test_sources_are_dots_whose_area_is_their_share_and_a_kinds_mean_is_weighted() -> None:
    (ax,) = figures.sources_by_kind(some_sources()).axes
    assert [label.get_text() for label in ax.get_yticklabels()] == ["prose", "python"]
    python = ax.collections[1]
    assert np.allclose(python.get_offsets()[:, 0], [20, 40]) and python.get_sizes()[0] == pytest.approx(3 * python.get_sizes()[1])
    assert ax.lines[1].get_xdata()[0] == pytest.approx(25)  # (150 * 20 + 50 * 40) / 200, not the plain mean of 30
    with pytest.raises(ValueError, match="no column 'kind'"):
        figures.sources_by_kind(some_sources().drop(columns="kind"))


def test_shares_fill_each_bar_and_parts_keep_their_places() -> None:
    (ax,) = figures.shares({"one": {"x": 1.0, "y": 3.0}, "two": {"x": 0.0, "y": 5.0}}, "share (%)").axes
    widths = [patch.get_width() for patch in ax.patches]
    assert widths == [25, 0, 75, 100]  # x of both rows, then y of both
    assert [patch.get_x() for patch in ax.patches] == [0, 0, 25, 0]
    assert sorted(text.get_text() for text in ax.texts) == ["100", "25", "75"]
    wrong = [{"x": 1.0}, {"y": 1.0, "x": 1.0}, {"x": -1.0, "y": 2.0}, {"x": 0.0, "y": 0.0}]
    for row in wrong:
        with pytest.raises(ValueError, match="'two' must have the parts x, y"):
            figures.shares({"one": {"x": 1.0, "y": 3.0}, "two": row}, "share (%)")


def test_schedules_draw_the_line_and_the_logs_dots_in_one_color() -> None:
    line, dots = ([0, 0.5, 1], [1e-3, 2e-3, 1e-4]), ([0.5], [2e-3])
    (ax,) = figures.schedules({"a": line, "b": line}, {"b": dots}).axes
    assert len(ax.lines) == 3 and np.allclose(ax.lines[2].get_ydata(), [2])
    assert to_hex(ax.lines[1].get_color()) == to_hex(ax.lines[2].get_color()) != to_hex(ax.lines[0].get_color())
    with pytest.raises(ValueError, match="'a' has 2 rates for 1 moments"):
        figures.schedules({"a": ([1], [1, 2])})


def test_resting_heads_are_marks_at_their_attention_with_a_label_for_each_layer_once() -> None:
    attention = {"one": torch.tensor([[0.1, 0.95]]), "two": torch.tensor([[0.2, 0.3], [1.0, 0.0]])}
    fig = figures.resting(attention)
    marks = [line for line in fig.axes[0].lines if line.get_marker() not in ("", "None")]
    assert [line.get_xdata().tolist() for line in marks] == [values.tolist() for x in attention.values() for values in x]
    assert [text.get_text() for text in fig.legends[0].get_texts()] == ["head of layer 0", "head of layer 1"]
    with pytest.raises(ValueError, match="'none' has no heads"):
        figures.resting({"none": torch.empty(0, 12)})


def test_seeds_of_one_setting_share_a_look_and_a_name() -> None:
    line = ([0, 1, 10], [8.0, 4.0, 2.0])
    fig = figures.bits_by_bytes({"all": {"a": [line, line], "b": [line]}, "code": {"c": [line]}})
    assert [ax.get_title(loc="left") for ax in fig.axes] == ["all", "code"]
    lines = fig.axes[0].lines
    assert len(lines) == 3 and lines[0].get_color() == lines[1].get_color() != lines[2].get_color()
    assert lines[0].get_xdata().tolist() == [1, 10]  # a logarithmic axis has no place for zero
    assert [text.get_text() for text in fig.axes[0].get_legend().get_texts()] == ["a", "b"]
    assert {tick.get_text() for tick in fig.axes[0].get_yticklabels()} >= {"2", "3", "4"}
    wrong = {"no curves": [{}, {"all": {}}, {"all": {"a": []}}], "'a' has 2 losses for 1": [{"all": {"a": [([1], [1, 2])]}}]}
    for message, panels in ((message, panels) for message, cases in wrong.items() for panels in cases):
        with pytest.raises(ValueError, match=message):
            figures.bits_by_bytes(panels)
