"""Heat maps and spectra: what they draw of the numbers given, and what they refuse."""

import numpy as np
import pytest
import torch

from transformer_circuits.figures import heatmaps, spectra


def test_score_terms_take_the_mean_of_each_row_off_and_hide_the_future():
    terms = {"token": torch.arange(9.0).reshape(3, 3) + 100, "position": torch.zeros(3, 3)}
    fig = heatmaps.score_terms(terms, ["<s>", " a", "b"])
    drawn = [ax.images[0].get_array().filled(np.nan) for ax in fig.axes[:2]]
    assert np.allclose(drawn[0], [[0, np.nan, np.nan], [-0.5, 0.5, np.nan], [-1, 0, 1]], equal_nan=True)
    assert np.nanmax(abs(drawn[1])) == 0
    assert drawn[0].shape == (3, 3) and fig.axes[0].images[0].get_clim() == fig.axes[1].images[0].get_clim() == (-1, 1)
    assert [label.get_text() for label in fig.axes[0].get_yticklabels()] == ["<s>", "·a", "b"]
    assert not fig.axes[2].axison and not fig.axes[3].axison  # room for four, two are given


def test_connections_compare_with_chance_in_one_scale():
    ratios = torch.rand(3, 4, 4, generator=torch.Generator().manual_seed(0)) * 3
    fig = heatmaps.connections(ratios, torch.ones(3, 4, 4), layers=(0, 1))
    limits = {ax.images[0].get_clim() for ax in fig.axes[:3]}
    assert limits == {(0.0, ratios.max().item())}


def test_a_grid_whose_direct_path_dwarfs_the_rest():
    grid = torch.tensor([[100.0, 1, -2], [0.5, 0, 0]])
    fig = heatmaps.path_grid(grid, layers=(0, 1))
    assert fig.axes[0].images[0].get_clim() == (-2, 2)
    assert [label.get_text() for label in fig.axes[0].get_xticklabels()] == ["none", "0.0", "0.1"]


def test_bars_of_the_largest_paths_and_the_rest():
    names, parts = ["a", "b", "c", "d"], torch.tensor([1.0, -5, 2, 0.5])
    fig = heatmaps.path_bars(names, parts, top=2)
    assert [label.get_text() for label in fig.axes[0].get_yticklabels()] == ["b", "c", "2 others"]
    assert [patch.get_width() for patch in fig.axes[0].patches] == [-5, 2, 1.5]
    assert len(heatmaps.path_bars(names, parts).axes[0].patches) == 4  # no rest


def test_spectra():
    fig = spectra.cumulative_variance({"W_E": torch.tensor([0.5, 0.3, 0.2])})
    assert fig.axes[0].lines[0].get_ydata() == pytest.approx([50, 80, 100])
    fig = spectra.joint_parts(torch.tensor([0.0, 0.5, 1.0]), torch.tensor([1.0, 2, 4]))
    assert np.asarray(fig.axes[0].collections[-1].get_offsets())[:, 1].tolist() == pytest.approx([0, 50, 100])
    fig = spectra.singular_values({"layer 0": torch.rand(2, 5) + 1, "layer 1": torch.rand(3, 5) + 1}, d_head=4)
    assert [len(ax.lines) for ax in fig.axes] == [3, 4]  # heads, and the mark at d_head


def test_deletion_draws_every_layer():
    n = 9  # more layers than there are marks
    fig = spectra.deletion(torch.linspace(0, 1, n), torch.linspace(1, -1, n), [f"{i}.0" for i in range(n)], range(n))
    assert sum(len(points.get_offsets()) for points in fig.axes[0].collections) == n
    named = {text.get_text() for text in fig.axes[0].texts}
    assert {"8.0", "7.0", "6.0"} < named and "0.0" not in named  # nearest to deleting: attend to the present token, negative


def test_what_cannot_be_drawn():
    square = torch.zeros(2, 2)
    wrong = {
        "room for one to four parts, not for 5": lambda: heatmaps.score_terms({str(i): square for i in range(5)}, ["a", "b"]),
        "room for one to four parts, not for 0": lambda: heatmaps.score_terms({}, ["a", "b"]),
        "3 tokens have 3 by 3 scores": lambda: heatmaps.score_terms({"all": square}, ["a", "b", "c"]),
        "2 paths need as many names, not 1": lambda: heatmaps.path_bars(["a"], torch.zeros(2)),
        "2 heads need as many names and layers, not 1 and 2": lambda: spectra.deletion(square[0], square[0], ["0.0"], [0, 0]),
    }
    for message, call in wrong.items():
        with pytest.raises(ValueError, match=message):
            call()
