"""Chapter 12's picture shows what it is given."""

import pytest

from transformer_circuits.figures.architectures import left_over


def test_a_bar_for_each_thing_taken_out_and_a_line_for_the_intact_score():
    fig = left_over({"tokens, from keys": 0.05, "positions, from queries": 0.4}, 0.5, "induction score")
    (ax,) = fig.axes
    assert [bar.get_width() for bar in ax.patches] == [0.05, 0.4]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["tokens, from keys", "positions, from queries"]
    assert ax.lines[0].get_xdata()[0] == 0.5 and ax.get_xlabel() == "induction score"
    assert {text.get_text() for text in ax.texts} == {"0.05", "0.40", "intact: 0.50"}
    assert ax.get_ylim()[0] > ax.get_ylim()[1]  # the first on top


def test_nothing_taken_out():
    with pytest.raises(ValueError, match="nothing was taken out"):
        left_over({}, 0.5, "induction score")
