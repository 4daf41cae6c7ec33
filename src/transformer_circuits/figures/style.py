"""The style of every figure."""

from pathlib import Path

import matplotlib.pyplot as plt
from IPython import get_ipython
from matplotlib_inline.backend_inline import set_matplotlib_formats

STYLE = Path(__file__).with_name("style.mplstyle")


def use_style() -> None:
    """Use the book's style from here on. In a notebook figures become SVG: sharp at any width, and small."""
    plt.style.use(STYLE)
    if get_ipython():
        set_matplotlib_formats("svg")
