"""Figures of the chapter on induction heads. They take numbers and compute nothing of their own but means for display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Bool, Float
from matplotlib.figure import Figure
from torch import Tensor

from transformer_circuits.figures.style import diverging
from transformer_circuits.figures.tokens import show_token


def moved_grid(
    maps: Float[Tensor, "head destination source"],
    names: Sequence[str],
    marked: Bool[Tensor, "destination source"],
    least: float = 0.03,
) -> Figure:
    """One panel a head, a dot for each pair of tokens whose number is `least` or more, larger for more; marked pairs in red.

    Dots stay visible where cells of a heat map would be a pixel wide. Raises ValueError for other names or marks than maps.
    """
    if len(names) != len(maps):
        raise ValueError(f"{len(names)} names for {len(maps)} heads: give one for each")
    _check_shapes(dict(zip(names, maps)), marked)
    rows, n = -(-len(maps) // 3), marked.shape[-1]
    fig, axes = plt.subplots(rows, 3, figsize=(6.4, 2.0 * rows + 0.7), sharex=True, sharey=True, squeeze=False)
    plt.close(fig)
    red = marked.numpy(force=True)
    for ax in axes.flat[len(maps) :]:
        ax.set_axis_off()
    for ax, values, name in zip(axes.flat, maps.numpy(force=True), names):
        for chosen, color in ((~red, "C0"), (red, "C2")):
            y, x = np.nonzero(chosen & (values >= least))
            ax.scatter(x, y, s=40 * values[y, x], color=color, lw=0, alpha=0.8)
        ax.plot([0, n], [0, n], color="0.85", lw=0.8, ls="-", zorder=0)
        ax.set_title(name, fontsize=12, pad=3)
        ax.set_xticks([]), ax.set_yticks([])
        ax.set(xlim=(-2, n), ylim=(n, -2), aspect="equal")
    fig.supxlabel("source token", fontsize=12)
    fig.supylabel("destination token", fontsize=12)
    return fig


def weighted_maps(
    maps: Mapping[str, Float[Tensor, "destination source"]], marked: Bool[Tensor, "destination source"]
) -> Figure:
    """Attention of one head in several weightings, each in the colours of its own largest number; marked cells have rings.

    Raises ValueError if a map is not of the marks' shape.
    """
    _check_shapes(maps, marked)
    rows = -(-len(maps) // 2)
    fig, axes = plt.subplots(rows, 2, figsize=(6.4, 3.1 * rows + 0.5), sharex=True, sharey=True, squeeze=False)
    plt.close(fig)
    y, x = np.nonzero(marked.numpy(force=True))
    for ax in axes.flat[len(maps) :]:
        ax.set_axis_off()
    for ax, (name, values) in zip(axes.flat, maps.items()):
        ax.imshow(values.numpy(force=True), cmap="Blues", vmin=0)
        rings = ax.plot(x, y, "o", mfc="none", mec="C2", ms=6, mew=0.9, ls="none", label="after an earlier\noccurrence")
        ax.set_title(name, fontsize=13)
        ax.set_xticks([]), ax.set_yticks([])
    if len(maps) % 2:
        axes.flat[-1].legend(handles=rings, loc="center", fontsize=12)
    fig.supxlabel("source token", fontsize=12)
    fig.supylabel("destination token", fontsize=12)
    return fig


def copy_curves(curves: Mapping[str, Float[Tensor, "copy bin"]], bag: float, uniform: float) -> Figure:
    """Loss along the copies of a sequence, a line per model; dotted: guessing evenly among all tokens, or among the sequence's."""
    fig, ax = plt.subplots(figsize=(6.4, 3.8))
    plt.close(fig)
    for line, (name, values) in enumerate(curves.items()):
        copies, bins = values.shape
        for copy, losses in enumerate(values.numpy(force=True)):
            x = copy + (np.arange(bins) + 0.5) / bins
            ax.plot(x, losses, f"C{line}", ls=("-", "--", "-.", ":")[line % 4], label=name if copy == 0 else None)
    for level, text in ((uniform, "all tokens alike"), (bag, "the sequence's tokens alike")):
        ax.axhline(level, color="0.45", lw=1.0, ls=":")
        ax.text(copies, level - 0.1, text, ha="right", va="top", fontsize=11, color="0.35")
    for copy in range(1, copies):
        ax.axvline(copy, color="0.8", lw=0.8, ls="-", zorder=0)
    ax.set_xticks(np.arange(copies) + 0.5, [f"copy {copy + 1}" for copy in range(copies)])
    ax.set(ylabel="loss (nats)", ylim=(0, None), xlim=(0, copies))
    ax.legend(fontsize=11, loc="lower left")
    return fig


def head_scores(scores: Mapping[str, Float[Tensor, "layer head"]], marks: Mapping[str, float] | None = None) -> Figure:
    """Scores of every head, a panel per layer, a marker per score.

    `marks`: by the name of a score, the level from which on it counts, drawn as a dashed line. Raises ValueError for other names.
    """
    if unknown := set(marks or ()) - set(scores):
        raise ValueError(f"levels are marked for {', '.join(sorted(unknown))}, but the scores are {', '.join(scores)}")
    n_layers, n_heads = next(iter(scores.values())).shape
    fig, axes = plt.subplots(n_layers, 1, figsize=(6.4, 0.7 + 2.1 * n_layers), sharex=True, sharey=True, squeeze=False)
    plt.close(fig)
    for layer, ax in enumerate(axes[:, 0]):
        for i, (name, values) in enumerate(scores.items()):
            ax.plot(range(n_heads), values[layer].numpy(force=True), "os^Dv"[i % 5], color=f"C{i}", ls="none", ms=7, label=name)
            if marks and name in marks:
                ax.axhline(marks[name], color=f"C{i}", lw=0.8, ls="--", zorder=0)
        ax.set(ylim=(-0.04, 1.04), ylabel=f"layer {layer}")
    axes[-1, 0].set_xticks(range(n_heads))
    axes[-1, 0].set_xlabel("head")
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=len(scores), fontsize=11)
    return fig


def source_map(
    matrix: Float[Tensor, "query_source key_source"], queries: Sequence[str], keys: Sequence[str], label: str
) -> Figure:
    """One score by the token that query content came from (rows) and key content came from (columns).

    Raises ValueError if there are not as many names as rows and columns.
    """
    if matrix.shape != (len(queries), len(keys)):
        shape = " by ".join(map(str, matrix.shape))
        raise ValueError(f"{len(queries)} and {len(keys)} names for a map of {shape}: one is needed for each row and column")
    values = matrix.numpy(force=True)
    fig, ax = plt.subplots(figsize=(6.4, 1.6 + 0.27 * len(queries)))
    plt.close(fig)
    image = ax.imshow(values, aspect="auto", **diverging(values))
    ax.set_xticks(range(len(keys)), [_label(t) for t in keys], rotation=90, fontsize=10)
    ax.set_yticks(range(len(queries)), [_label(t) for t in queries], fontsize=10)
    ax.set(xlabel="key content from", ylabel="query content from")
    fig.colorbar(image, ax=ax, shrink=0.8, label=label)
    return fig


def part_map(parts: Float[Tensor, "query_part key_part"], names: Sequence[str]) -> Figure:
    """Parts of a score by kind of source, with their numbers."""
    values = parts.numpy(force=True)
    fig, ax = plt.subplots(figsize=(5.6, 4.0))
    plt.close(fig)
    image = ax.imshow(values, **diverging(values))
    strong = np.abs(values).max() * 0.6
    for (row, column), value in np.ndenumerate(values):
        ax.text(column, row, f"{value:+.2f}", ha="center", va="center", color="white" if abs(value) > strong else "black")
    ax.set_xticks(range(len(names)), [n.replace(" ", "\n") for n in names], fontsize=11)
    ax.set_yticks(range(len(names)), [n.replace(" ", "\n") for n in names], fontsize=11)
    ax.set(xlabel="key content from", ylabel="query content from")
    fig.colorbar(image, ax=ax, shrink=0.8, label="part of the excess")
    return fig


def corner(
    ov: Float[Tensor, " head"], k: Float[Tensor, " head"], names: Sequence[str], score: Float[Tensor, " head"], edge: float = 0.5
) -> Figure:
    """Heads by positivity of OV circuit and of K-composition circuit, larger for a higher induction score; corner shaded."""
    fig, ax = plt.subplots(figsize=(6.0, 5.2))
    plt.close(fig)
    x, y, s = (values.numpy(force=True) for values in (ov, k, score))
    ax.axhline(0, color="0.8", lw=0.8, ls="-", zorder=0)
    ax.axvline(0, color="0.8", lw=0.8, ls="-", zorder=0)
    ax.fill_between([edge, 1.08], edge, 1.08, color="C0", alpha=0.1, lw=0)
    ax.scatter(x, y, s=30 + 500 * s, color="C0", alpha=0.55, edgecolor="black", lw=0.8)
    placed: list[tuple[float, float]] = []
    for name, a, b in sorted(zip(names, x, y), key=lambda point: -point[2]):
        level = b - 0.01
        while any(abs(a - u) < 0.32 and abs(level - v) < 0.085 for u, v in placed):
            level -= 0.03
        placed.append((a, level))
        side = "right" if a > 0.7 else "left"
        ax.annotate(name, (a, b), (a - 0.07 if side == "right" else a + 0.05, level), ha=side, va="center", fontsize=10)
    ax.set(xlim=(-1.08, 1.08), ylim=(min(-1.08, y.min() - 0.1), 1.08))
    ax.set(xlabel="positivity of the OV circuit", ylabel="positivity of the K-composition circuit")
    return fig


def ablation_bars(names: Sequence[str], scores: Float[Tensor, " head"], intact: float, special: int) -> Figure:
    """A score without each head in turn, beside the score with all of them; `special` is the head to set apart."""
    fig, ax = plt.subplots(figsize=(6.4, 3.2))
    plt.close(fig)
    colors = ["C2" if i == special else "C0" for i in range(len(names))]
    bars = ax.bar(range(len(names)), scores.numpy(force=True), color=colors)
    ax.bar_label(bars, fmt="%.2f", fontsize=9, padding=2)
    ax.axhline(intact, color="0.2", lw=1.0, ls="--", zorder=0)
    ax.text(len(names) - 0.4, 1.14 * intact, f"dashed: all heads there, {intact:.2f}", ha="right", va="bottom", fontsize=10)
    ax.set_xticks(range(len(names)), names, fontsize=9)
    ax.set(xlabel="first-layer head removed", ylabel="best induction score", ylim=(0, 1.3 * max(intact, float(scores.max()))))
    return fig


def attribution(
    attention: Float[Tensor, " position"], effects: Mapping[str, Float[Tensor, " position"]], certain: float, fewest: int = 20
) -> Figure:
    """Mean effects by how certain the head is, on an axis stretched towards one; bins of fewer positions are left out."""

    def stretched(a: np.ndarray) -> np.ndarray:
        return -np.log10(1 - np.clip(a, 0, 1 - 1e-6))

    x = stretched(attention.numpy(force=True).astype(float))
    bins = np.floor(x * 4).astype(int)  # four to each factor of ten in one less attention
    parts = [part for b in range(bins.max() + 1) if len(part := np.nonzero(bins == b)[0]) >= fewest]
    fig, ax = plt.subplots(figsize=(6.4, 3.6))
    plt.close(fig)
    ends = [1.0]
    for i, (name, values) in enumerate(effects.items()):
        y = values.numpy(force=True)
        ax.plot([x[p].mean() for p in parts], [y[p].mean() for p in parts], "os^"[i % 3], color=f"C{i}", ls="-", label=name)
        ends += [x[p].mean() for p in parts]
    ax.axvline(stretched(np.array(certain)), color="0.45", lw=1.0, ls=":")
    ticks = [a for a in (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999) if stretched(np.array(a)) <= max(ends) + 0.5]
    ax.set_xticks([stretched(np.array(a)) for a in ticks], [f"{a:g}" for a in ticks])
    ax.axhline(0, color="0.8", lw=0.8, ls="-", zorder=0)
    ax.set(xlabel="attention to the target", ylabel="effect on the logit (nats)")
    ax.legend(fontsize=11)
    return fig


def where_it_looks(
    by_length: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    by_rank: Mapping[str, tuple[Sequence[float], Sequence[float]]],
) -> Figure:
    """Attention by length of the segment (above) and by how common the token is (below); each a line of (x, y)."""
    fig, axes = plt.subplots(2, 1, figsize=(6.4, 5.6), sharey=True)
    plt.close(fig)
    for ax, lines in zip(axes, (by_length, by_rank)):
        for i, (name, (x, y)) in enumerate(lines.items()):
            ax.plot(x, y, "os^D"[i % 4], color=f"C{i}", ls="-", ms=6, label=name)
        ax.set(ylim=(0, 1), ylabel="attention")
    axes[0].set_xlabel("length of the sequence")
    axes[1].set_xlabel("rank of the present token (0: the most common)")
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(by_length), fontsize=10)
    return fig


def _label(token: str) -> str:
    """A token as matplotlib shows it literally: dollar signs would begin a formula."""
    return show_token(token).replace("$", r"\$")


def _check_shapes(maps: Mapping[str, Tensor], marked: Tensor) -> None:
    for name, values in maps.items():
        if values.shape != marked.shape:
            shapes = f"{tuple(values.shape)}, the marks are {tuple(marked.shape)}"
            raise ValueError(f"the map {name!r} is {shapes}: give both the same tokens")
