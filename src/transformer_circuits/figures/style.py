"""The style of every figure, and the one way to color signed numbers."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import ArrayLike

STYLE = Path(__file__).with_name("style.mplstyle")


def use_style(format: str = "svg") -> None:
    """Use the book's style from here on. In a notebook figures become SVG: sharp at any width, and small.

    A figure of more than some 10,000 points is lighter as a picture: `use_style("png")`, or `rasterized=True` for the points.
    """
    plt.style.use(STYLE)
    try:
        from matplotlib_inline.backend_inline import set_matplotlib_formats

        set_matplotlib_formats("retina" if format == "png" else format)
    # Not in a notebook: AttributeError is what get_ipython() being None raises.
    except (ImportError, AttributeError):
        pass


def diverging(values: ArrayLike) -> dict[str, object]:
    """Arguments for imshow and the like that color signed numbers: red below zero, blue above, white at exactly zero.

    >>> plt.imshow(scores, **diverging(scores))
    """
    finite = np.abs(np.asarray(values, dtype=float))
    limit = float(finite[np.isfinite(finite)].max(initial=0.0)) or 1.0
    return {"cmap": "RdBu", "vmin": -limit, "vmax": limit}
