"""Pictures of chapter 12: what is left of a score when something is taken out."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
from matplotlib.figure import Figure


def left_over(scores: Mapping[str, float], intact: float, label: str) -> Figure:
    """A horizontal bar for each thing taken out: the score that is left. Raises ValueError for nothing taken out."""
    if not scores:
        raise ValueError("nothing was taken out: give the score that is left by name of what was")
    fig, ax = plt.subplots(figsize=(6.4, 0.9 + 0.6 * len(scores)))
    plt.close(fig)
    bars = ax.barh(range(len(scores)), list(scores.values()), color="C0", height=0.6)
    ax.bar_label(bars, fmt="%.2f", fontsize=10, padding=3)
    ax.axvline(intact, color="0.2", lw=1.0, ls="--", zorder=0)
    ax.annotate(f"intact: {intact:.2f}", (intact, -0.5), (-4, 2), textcoords="offset points", ha="right", va="bottom", fontsize=10)
    ax.set_yticks(range(len(scores)), list(scores), fontsize=10)
    ax.invert_yaxis()
    ax.set(xlabel=label, xlim=(0, 1.15 * max(intact, *scores.values())), ylim=(len(scores) - 0.5, -0.9))
    return fig
