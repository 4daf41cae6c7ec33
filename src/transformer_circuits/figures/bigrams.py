"""Models beside bigram tables."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor


def agreement(table: Float[Tensor, "pair"], model: Float[Tensor, "pair"]) -> Figure:
    """Log-probabilities of frequent pairs: the bigram table's against the model's, as a density."""
    fig, ax = plt.subplots(figsize=(4.8, 4.0))
    plt.close(fig)
    low = min(float(table.min()), float(model.quantile(0.001)))
    bins = ax.hexbin(
        table.numpy(), model.numpy(), gridsize=60, bins="log", mincnt=1, extent=(low, 0, low, 0), cmap="cividis_r"
    )
    ax.axline((0, 0), slope=1, color="black", lw=0.8, ls="--")
    ax.set(xlabel="log P in the bigram table (nats)", ylabel="log P by the model (nats)", xlim=(low, 0), ylim=(low, 0))
    fig.colorbar(bins, label="pairs")
    return fig


def rank_histogram(ranks: Float[Tensor, "token"], d_vocab: int) -> Figure:
    """Where each token stands in its own row, from 1 (the most boosted) to d_vocab, on a log scale."""
    fig, ax = plt.subplots(figsize=(5.6, 3.0))
    plt.close(fig)
    edges = sorted({int(round(d_vocab ** (i / 26))) for i in range(27)})
    ax.hist((ranks + 1).numpy(), bins=[*edges, d_vocab + 1], edgecolor="white", lw=0.4)
    ax.set(xscale="log", xlabel="rank of the token in its own row of $W_E W_U$", ylabel="tokens")
    return fig


def kept_pairs(frame: pd.DataFrame) -> Figure:
    """Share of idiomatic and of grammatical pairs that the direct path of each model ranks in its top 1 %.

    `frame`: a row per model, columns `idiomatic` and `grammatical` (shares of one), models in the index.
    """
    fig, ax = plt.subplots(figsize=(5.6, 3.0))
    plt.close(fig)
    for i, (column, hatch) in enumerate((("idiomatic", ""), ("grammatical", "///"))):
        places = [x + 0.4 * i - 0.2 for x in range(len(frame))]
        bars = ax.bar(places, 100 * frame[column], 0.38, label=f"{column} pairs", hatch=hatch, edgecolor="white")
        ax.bar_label(bars, fmt="%.0f", fontsize=9)
    ax.axhline(1, color="black", lw=0.8, ls=":")
    ax.set_xticks(range(len(frame)), frame.index)
    ax.set(ylabel="per cent in the row's top 1 %", ylim=(0, 120))
    ax.legend(loc="upper center", ncols=2, fontsize=9)
    return fig
