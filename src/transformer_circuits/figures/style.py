"""The style of every figure, and the one way to color signed numbers."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from IPython import get_ipython
from matplotlib_inline.backend_inline import set_matplotlib_formats
from numpy.typing import ArrayLike

STYLE = Path(__file__).with_name("style.mplstyle")


def use_style() -> None:
    """Use the book's style from here on. In a notebook figures become SVG: sharp at any width, and small."""
    plt.style.use(STYLE)
    if get_ipython():
        set_matplotlib_formats("svg")


def diverging(values: ArrayLike) -> dict[str, object]:
    """Arguments for imshow and the like that color signed numbers: red below zero, blue above, white at exactly zero."""
    finite = np.abs(np.asarray(values, dtype=float))
    limit = float(finite[np.isfinite(finite)].max(initial=0.0)) or 1.0
    return {"cmap": "RdBu", "vmin": -limit, "vmax": limit}
