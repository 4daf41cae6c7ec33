"""What the logit lens shows: predictions by depth, losses by depth, and what the stream holds that it does not read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float, Int
from matplotlib.figure import Figure
from torch import Tensor

from transformer_circuits.circuits.logit_lens import Interval
from transformer_circuits.figures.tokens import show_token

MARKERS = "osD^v<>"


def lens_grid(
    tokens: Sequence[str],
    predictions: Sequence[Sequence[str]],
    probabilities: Float[Tensor, "stage position"],
    ranks: Int[Tensor, "stage position"],
    stages: Sequence[str],
) -> Figure:
    """A row a position, a column a stage: the most likely next token, darker the more likely, and the true token's rank.

    `tokens` has one more than there are positions, the true next token of the last one. A frame marks a prediction that is right.
    Raises ValueError if the numbers do not fit one another.
    """
    n = len(tokens) - 1
    if probabilities.shape != (len(stages), n) or ranks.shape != probabilities.shape or any(len(row) != n for row in predictions):
        shape = tuple(probabilities.shape)
        raise ValueError(f"{len(stages)} stages of {n} predictions are needed, not probabilities of shape {shape}")
    values = probabilities.numpy(force=True).T
    fig, ax = plt.subplots(figsize=(5.4, 0.9 + 0.27 * n))
    plt.close(fig)
    image = ax.imshow(values, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for row in range(n):
        for column in range(len(stages)):
            dark = values[row, column] > 0.55
            color, rank = "white" if dark else "0.1", int(ranks[column, row])
            top = show_token(predictions[column][row])[:10]
            ax.text(column - 0.46, row, top, va="center", fontsize=10, color=color, parse_math=False)
            faint = color if dark else "0.35"
            ax.text(column + 0.46, row, f"{rank + 1}", va="center", ha="right", fontsize=9, color=faint)
            if rank == 0:
                ax.add_patch(plt.Rectangle((column - 0.48, row - 0.45), 0.96, 0.9, fill=False, ec="#bd1f01", lw=1.6))
    labels = [f"{show_token(now)[:9]} → {show_token(then)[:8]}" for now, then in zip(tokens, tokens[1:])]
    ax.set_yticks(range(n), labels, fontsize=10, parse_math=False)
    ax.set_xticks(range(len(stages)), stages)
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    fig.colorbar(image, ax=ax, location="bottom", shrink=0.6, aspect=40, pad=0.01, label="probability of the top prediction")
    return fig


def losses_by_depth(curves: Mapping[str, Sequence[Interval]], stages: Sequence[str]) -> Figure:
    """A line for each kind of token: mean loss of the lens at every stage, with its interval.

    Raises ValueError if a line has not one value a stage.
    """
    if wrong := [name for name, values in curves.items() if len(values) != len(stages)]:
        raise ValueError(f"{wrong[0]!r} has {len(curves[wrong[0]])} values for {len(stages)} stages")
    fig, ax = plt.subplots(figsize=(6.4, 4.2))
    plt.close(fig)
    for i, (name, values) in enumerate(curves.items()):
        means = np.array([v.mean for v in values])
        errors = np.abs(np.array([[v.low for v in values], [v.high for v in values]]) - means)
        at = np.arange(len(stages)) + 0.04 * (i - (len(curves) - 1) / 2)
        ax.errorbar(at, means, errors, marker=MARKERS[i % len(MARKERS)], capsize=3, label=name, elinewidth=1.2)
    ax.set_xticks(range(len(stages)), stages)
    ax.set_xlim(-0.3, len(stages) - 0.7)
    ax.set_ylim(bottom=0)
    ax.set_ylabel("loss (nats a token)")
    fig.legend(*ax.get_legend_handles_labels(), loc="outside upper left", ncols=2, fontsize=10)
    return fig


def gains(groups: Mapping[str, Mapping[str, Sequence[Interval]]], steps: Sequence[str]) -> Figure:
    """What each layer takes off the lens's loss: one panel a group, in it a pair of bars for every kind.

    Raises ValueError if a kind has not one value a step.
    """
    for kinds in groups.values():
        if wrong := [name for name, values in kinds.items() if len(values) != len(steps)]:
            raise ValueError(f"{wrong[0]!r} has {len(kinds[wrong[0]])} values for {len(steps)} steps")
    counts = [len(kinds) for kinds in groups.values()]
    size = (6.4, 1.4 + 0.55 * sum(counts))
    fig, axes = plt.subplots(len(groups), 1, figsize=size, height_ratios=counts, sharex=True, squeeze=False)
    plt.close(fig)
    width = 0.8 / len(steps)
    for ax, (title, kinds) in zip(axes[:, 0], groups.items()):
        for s, (step, hatch) in enumerate(zip(steps, ("", "///", "..."))):
            means = np.array([values[s].mean for values in kinds.values()])
            ends = np.array([[values[s].low for values in kinds.values()], [values[s].high for values in kinds.values()]])
            at = np.arange(len(kinds)) + (s - (len(steps) - 1) / 2) * width
            thin = {"lw": 1.2, "ecolor": "0.2", "capsize": 2}
            look = {"color": f"C{s}", "hatch": hatch, "edgecolor": "white", "error_kw": thin}
            ax.barh(at, means, width, xerr=np.abs(ends - means), label=step, **look)
        ax.set_yticks(range(len(kinds)), list(kinds), fontsize=10)
        ax.invert_yaxis()
        ax.axvline(0, color="0.3", lw=0.8, ls="-")
        ax.set_title(title, loc="left", fontsize=11)
    axes[-1, 0].set_xlabel("reduction of the loss (nats a token)")
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper right", ncols=len(steps), fontsize=10)
    return fig


def readers(
    unembed: Float[Tensor, " head"], keys: Float[Tensor, " head"], names: Sequence[str], marked: Sequence[int] = ()
) -> Figure:
    """Each first-layer head by how strongly the unembedding reads its output, and the keys of the next layer; 1 is chance.

    The `marked` heads are drawn as red squares. Raises ValueError if there are not as many names as heads.
    """
    if not len(unembed) == len(keys) == len(names):
        raise ValueError(f"{len(names)} names for {len(unembed)} and {len(keys)} heads")
    fig, ax = plt.subplots(figsize=(5.6, 4.4))
    plt.close(fig)
    x, y = unembed.numpy(force=True), keys.numpy(force=True)
    for i, name in enumerate(names):
        marker, size, color = ("s", 8, "C2") if i in marked else ("o", 6, "C0")
        ax.plot(x[i], y[i], marker=marker, ms=size, color=color, ls="")
        ahead = (x - x[i]) / np.ptp(x)
        beside = np.abs(y - y[i]) < 0.05 * np.ptp(y)
        taken = ((ahead > 0) & (ahead < 0.1) & beside).any()  # another head stands where the label would go
        place = {"xytext": (-6, 3), "ha": "right"} if taken else {"xytext": (6, 3), "ha": "left"}
        ax.annotate(name, (x[i], y[i]), textcoords="offset points", fontsize=10, **place)
    ax.axhline(1, color="0.6", lw=0.8, ls=":")
    ax.axvline(1, color="0.6", lw=0.8, ls=":")
    ax.margins(0.12)
    ax.set(xlabel="read by the unembedding (multiple of chance)", ylabel="read by a head's keys\n(the most, multiple of chance)")
    return fig


def found_within(ranks: Mapping[str, Int[Tensor, " position"]], d_vocab: int, others: int = 0) -> Figure:
    """For each way to read: at what share of positions is the token looked for among the top k, over all k.

    The first `others` readings are drawn thin and gray, under one label. Raises ValueError if there is nothing to draw.
    """
    if not ranks:
        raise ValueError("there are no ranks to draw: give at least one way to read")
    fig, ax = plt.subplots(figsize=(6.4, 3.8))
    plt.close(fig)
    k = np.unique(np.geomspace(1, d_vocab, 200).round())
    for i, (name, found) in enumerate(ranks.items()):
        share = (found.numpy(force=True)[:, None] < k).mean(axis=0) * 100
        if i < others:
            ax.plot(k, share, color="0.75", lw=1, ls="-", label="keys of the other heads" if i == 0 else None)
        else:
            style = i - others
            ax.plot(k, share, color=f"C{(2, 0, 4)[style % 3]}", ls=("-", "--", ":")[style % 3], lw=2.2, label=name)
    ax.plot(k, 100 * k / d_vocab, color="0.4", lw=1, ls=":", label="chance")
    ax.set(xscale="log", xlabel="k", ylabel="previous token in the top k\n(% of positions)", ylim=(0, 102))
    fig.legend(*ax.get_legend_handles_labels(), loc="outside upper left", ncols=2, fontsize=10)
    return fig
