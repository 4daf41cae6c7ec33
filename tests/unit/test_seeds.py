"""The figures of the chapter on seeds: counts that stand in them, and input that cannot be drawn."""

import pandas as pd
import pytest
import torch

from transformer_circuits.figures import seeds


def texts(fig) -> list[str]:
    return [text.get_text() for ax in fig.axes for text in ax.texts]


VALUES = {"a": torch.tensor([0.1, 0.5, -0.2]), "b": torch.tensor([0.3, 0.31, 0.9])}


def test_dots_count_heads_from_the_bar_on():
    fig = seeds.dots(VALUES, {"a": 0.5, "b": 0.305}, "score", apart=1)
    assert texts(fig) == ["1 of 3", "2 of 3"]
    assert [label.get_text() for label in fig.axes[0].get_yticklabels()] == ["a", "b"]
    points = sum(len(line.get_xdata()) for line in fig.axes[0].lines if line.get_marker() == "o")
    assert points == 6 and not fig.legends


def test_dots_name_only_heads_that_count_and_draw_circles():
    hollow = {"a": torch.tensor([True, False, False])}
    fig = seeds.dots(VALUES, {"a": 0.5, "b": 0.4}, "score", hollow, {"a": ["0.0", "0.1", "0.2"]})
    assert texts(fig) == ["1 of 3", "0.1", "1 of 3"]
    circles = [line.get_xdata() for line in fig.axes[0].lines if line.get_markerfacecolor() == "white"]
    assert [len(x) for x in circles] == [1, 0] and circles[0][0] == pytest.approx(0.1)
    assert len(fig.legends) == 1


def test_dots_refuse_what_does_not_belong_together():
    with pytest.raises(ValueError, match="'b' has no bar"):
        seeds.dots(VALUES, {"a": 0.5}, "score")
    with pytest.raises(ValueError, match="'a' has 3 heads and 2 names"):
        seeds.dots(VALUES, {"a": 0.5, "b": 0.5}, "score", names={"a": ["x", "y"]})
    with pytest.raises(ValueError, match="'b' has 3 heads and 1 circles"):
        seeds.dots(VALUES, {"a": 0.5, "b": 0.5}, "score", hollow={"b": torch.tensor([True])})


def test_maps_share_a_scale_and_frame_the_cell_that_they_name():
    panels = {"a": torch.tensor([[1.0, 1.2], [3.0, 0.5]]), "b": torch.ones(2, 3), "c": torch.ones(2, 2)}
    fig = seeds.maps(panels, {"a": (1, 0)}, "ratio")
    images = [ax.images[0] for ax in fig.axes if ax.images]
    assert len(images) == 3 and len({(image.norm.vmin, image.norm.vcenter, image.norm.vmax) for image in images}) == 1
    assert images[0].norm.vcenter == 1.0 and images[0].norm.vmax == 3.0
    assert fig.axes[0].get_title() == "a\n1.1 reads 0.0: 3.0" and fig.axes[1].get_title() == "b"
    (frame,) = fig.axes[0].patches
    assert frame.get_xy() == (-0.5, 0.5)  # column 0, row 1
    with pytest.raises(ValueError, match="'b' has no cell 2, 0: its map is 2 by 3"):
        seeds.maps(panels, {"b": (2, 0)}, "ratio")


LOG = pd.DataFrame(
    {
        "tokens": [0, 1_000_000, 4_000_000],
        "held_out": [7.0, 5.0, 4.0],
        "induction": [[[0.0, 0.0]], [[0.1, 0.2]], [[0.05, 0.4]]],
    }
)


def test_curves_show_the_best_head_and_leave_out_the_start():
    deep = LOG.assign(induction=[[*scores, [0.5, 0.1]] for scores in LOG["induction"]])
    fig = seeds.over_training({"one": LOG, "two": deep}, {"one": 2.5}, bar=0.3)
    one, point, two, bar = fig.axes[0].lines
    assert list(one.get_xdata()) == [1.0, 4.0] and list(one.get_ydata()) == [0.2, 0.4] and one.get_linestyle() == "--"
    assert list(two.get_ydata()) == [0.5, 0.5] and two.get_linestyle() == "-"
    assert point.get_xdata()[0] == 2.5 and point.get_ydata()[0] == pytest.approx(0.3)
    assert list(fig.axes[1].lines[1].get_ydata()) == [5.0, 4.0]
