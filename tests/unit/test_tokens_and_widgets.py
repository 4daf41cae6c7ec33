"""Tables and figures show any token literally (test_widgets: tables in a browser)."""

import matplotlib.pyplot as plt
import pytest
import torch

from transformer_circuits.figures import drawings, plots
from transformer_circuits.figures.tokens import show_token

SEEN = ["日本", "e\u0301", "¶", "😀", "—", "�", "ﬁ", "±½", "<td", "é", ""]
SHOWN = {" the": "·the", "\n": "↵", "\t\t": "⇥⇥", "\r\n": "⇤↵", "\x00": "␀", "\x7f": "␡"}
# C1 control, soft hyphen, zero width, em space, separator, right-to-left, filler, private use, variation selector.
UNSEEN = [0x85, 0xAD, 0x200B, 0x200D, 0x2003, 0x2028, 0x202E, 0x3164, 0xE000, 0xFE0F, 0xFEFF, 0xE0101]


def test_what_cannot_be_seen_is_made_visible_and_the_rest_stays():
    assert {token: show_token(token) for token in SHOWN} == SHOWN
    assert [show_token(token) for token in SEEN] == SEEN
    assert [show_token(f"a{chr(code)} b") for code in UNSEEN] == [f"a<U+{code:04X}>·b" for code in UNSEEN]


@pytest.mark.filterwarnings("error")
def test_figures_show_tokens_literally():
    """`$$` and `$x^` are mathematics to matplotlib, and its font lacks some tokens."""
    names = ["$$", " $x^", "x^2$$", "日", "plain"]
    ax, drawn = plots.heatmap(torch.eye(5), x=names), drawings.skip_trigram(*names[:3], title="")
    for figure in (ax.figure, drawn.figure):
        figure.canvas.draw()
        plt.close(figure)
    labels = [text.get_text() for text in ax.get_xticklabels()]
    assert labels == [r"\$\$", r"·\$x^", r"x^2\$\$", "<U+65E5>", "plain"]
    assert [text.get_text() for text in drawn.texts[:3]] == labels[:3]
