"""Heat maps: who reads from whom, the parts of attention scores, and every path's share of a logit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from transformer_circuits.figures.style import diverging
from transformer_circuits.figures.tokens import show_token


def connections(
    ratios: Float[Tensor, "side reader writer"], at_random: Float[Tensor, "side reader writer"], layers: tuple[int, int]
) -> Figure:
    """Composition ratios of two layers, one panel for each of Q, K and V, and their distribution beside chance."""
    fig, axes = plt.subplots(2, 2, figsize=(6.4, 6.2))
    plt.close(fig)
    first, second = layers
    limits = {"vmin": 0.0, "vmax": max(2.0, float(ratios.max()))}
    for ax, side, values in zip(axes.flat, ("queries", "keys", "values"), ratios.numpy(force=True)):
        image = ax.imshow(values, origin="lower", **limits)
        ax.set_title(f"{side} read", fontsize=11)
        ax.set(xlabel=f"head of layer {first} that writes", ylabel=f"head of layer {second}")
        step = max(1, len(values) // 6)
        ax.set_xticks(range(0, len(values), step))
        ax.set_yticks(range(0, len(values), step))
        bar = fig.colorbar(image, ax=ax, shrink=0.8)
        bar.ax.tick_params(labelsize=10)
    last = axes.flat[3]
    bins = np.linspace(0, limits["vmax"], 41)
    last.hist(at_random.flatten().numpy(force=True), bins=bins, color="0.75", label="at random")
    last.hist(ratios.flatten().numpy(force=True), bins=bins, histtype="step", color="C2", lw=1.8, label="this model")
    last.set(xlabel="composition ratio", ylabel="pairs and sides", yscale="log")
    last.legend(fontsize=10)
    return fig


def score_terms(terms: Mapping[str, Float[Tensor, "destination source"]], tokens: Sequence[str]) -> Figure:
    """Parts of one head's scores, up to four, in one color scale; sources ahead of the destination are left out.

    Each row's mean is taken off: softmax does not see it, and it would hide what differs between sources. Raises ValueError for
    no parts or more than four, and for scores of another number of tokens.
    """
    if not 1 <= len(terms) <= 4:
        raise ValueError(f"there is room for one to four parts, not for {len(terms)}")
    if any(term.shape != (len(tokens), len(tokens)) for term in terms.values()):
        raise ValueError(f"{len(tokens)} tokens have {len(tokens)} by {len(tokens)} scores; cut the scores to the tokens shown")
    labels = [show_token(token) for token in tokens]
    hidden = np.triu(np.ones((len(labels), len(labels)), dtype=bool), 1)
    parts = {name: np.where(hidden, np.nan, term.numpy(force=True)) for name, term in terms.items()}
    parts = {name: part - np.nanmean(part, axis=1, keepdims=True) for name, part in parts.items()}
    scale = diverging(np.stack(list(parts.values())))
    fig, axes = plt.subplots(2, 2, figsize=(6.4, 6.4), sharex=True, sharey=True)
    plt.close(fig)
    for ax in axes.flat[len(parts) :]:
        ax.set_axis_off()
    for ax, (name, part) in zip(axes.flat, parts.items()):
        image = ax.imshow(part, **scale)
        ax.set_title(name, fontsize=11)
        _token_axes(ax, labels)
    for ax in axes[1]:
        ax.set_xlabel("source")
    for ax in axes[:, 0]:
        ax.set_ylabel("destination")
    fig.colorbar(image, ax=axes, location="bottom", shrink=0.7, aspect=40, label="part of the score, less its row's mean")
    return fig


def _token_axes(ax: Axes, labels: Sequence[str]) -> None:
    ax.set_xticks(range(len(labels)), labels, rotation=90)
    ax.set_yticks(range(len(labels)), labels)


def path_grid(grid: Float[Tensor, "last_head first_head"], layers: tuple[int, int]) -> Figure:
    """What every path of up to two heads adds to one logit. Row and column 0 stand for passing no head of that layer.

    The colors end at the largest path through a head; the direct path alone may exceed that.
    """
    values = grid.numpy(force=True)
    scale = diverging(values.flat[1:])
    fig, ax = plt.subplots(figsize=(6.4, 0.6 + 5.4 * len(values) / max(values.shape)))
    plt.close(fig)
    image = ax.imshow(values, origin="lower", **scale)
    for axis, layer, n in (("x", layers[0], values.shape[1]), ("y", layers[1], values.shape[0])):
        names = ["none"] + [f"{layer}.{head}" for head in range(n - 1)]
        getattr(ax, f"set_{axis}ticks")(range(n), names, fontsize=10, rotation=90 if axis == "x" else 0)
        getattr(ax, f"set_{axis}label")(f"head of layer {layer} on the path")
    fig.colorbar(image, ax=ax, shrink=0.8, label="part of the logit", extend="both")
    return fig


def path_bars(names: Sequence[str], parts: Float[Tensor, " path"], top: int = 15) -> Figure:
    """The paths that add most to a logit, either way, and the sum of all others.

    Raises ValueError unless there is a name for each path.
    """
    if len(names) != len(parts):
        raise ValueError(f"{len(parts)} paths need as many names, not {len(names)}")
    order = parts.abs().argsort(descending=True)
    chosen, rest = order[:top].tolist(), order[top:]
    labels = [names[i] for i in chosen] + ([f"{len(rest)} others"] if len(rest) else [])
    values = [parts[i].item() for i in chosen] + ([parts[rest].sum().item()] if len(rest) else [])
    fig, ax = plt.subplots(figsize=(6.4, 0.9 + 0.28 * len(values)))
    plt.close(fig)
    ax.barh(range(len(values)), values, color=["C0" if value >= 0 else "C2" for value in values])
    ax.set_yticks(range(len(values)), labels)
    ax.invert_yaxis()
    ax.axvline(0, color="0.3", lw=0.8, ls="-")
    ax.set_xlabel("part of the logit, above the mean token")
    return fig
