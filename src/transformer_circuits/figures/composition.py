"""Composition: three ways to compose as drawings, heads joined by lines, maps and distributions of composition ratios."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch
from torch import Tensor

Head = tuple[int, int]  # (layer, head)
MARKS = ("s", "D", "^", "v", "P")  # for kinds of heads, each with its own colour
PLAIN = "0.55"


def three_ways() -> Figure:
    """What the first head moves (below), and where the second head (above) takes it in: query, key or value."""
    fig, axes = plt.subplots(1, 3, figsize=(7.2, 3.0))
    plt.close(fig)
    ways = {  # where the first head moves something from and to, and what the second head makes of it there
        "Q": (1.7, 2.7, "query", "changes what is looked for"),
        "K": (0.0, 1.0, "key", "changes where it is found"),
        "V": (0.0, 1.0, "value", "is itself moved on"),
    }
    for ax, (side, (start, end, entered, effect)) in zip(axes, ways.items()):
        ax.set(xlim=(-0.4, 3.2), ylim=(-1.25, 2.6))
        ax.text(1.4, -0.75, effect, ha="center", va="top", fontsize=10, style="italic")
        ax.axis("off")
        ax.set_title(f"{side}-composition", fontsize=12)
        for place in sorted({0.0, 1.0, 1.7, 2.7}):
            top = 2.2 if place == 2.7 else 1.1
            ax.plot([place, place], [0, top], color="0.85", ls="-", lw=1.2, zorder=0)
            ax.plot([place] * 2, [0, 1.1], "o", color="0.4", ms=5, ls="", zorder=3)
        ax.plot(2.7, 2.2, "o", color="0.4", ms=5, zorder=3)
        _arrow(ax, (start, 0), (end, 1.1), "C1")
        _arrow(ax, (1, 1.1), (2.7, 2.2), "C0")
        if side == "V":  # what the first head brought travels along
            ax.plot([1.12, 2.35], [1.1, 1.9], color="C1", ls="-", lw=2, zorder=2)
        ax.text(end + (0.15 if end > 2 else -0.1), 1.22, entered, ha="center" if end > 2 else "right", va="bottom", color="C2",
                fontsize=11, weight="bold", bbox={"fc": "w", "ec": "none", "pad": 0.5})  # fmt: skip
        ax.text(1, -0.2, "source", ha="center", va="top", fontsize=10)
        ax.text(2.7, -0.2, "destination", ha="center", va="top", fontsize=10)
    lines = [Line2D([], [], color=colour, ls="-", lw=2) for colour in ("C1", "C0")]
    fig.legend(lines, ["first-layer head", "second-layer head"], loc="outside lower center", ncols=2, fontsize=10)
    return fig


def _arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float], color: str) -> None:
    style = {"arrowstyle": "-|>", "mutation_scale": 14, "lw": 2, "shrinkA": 4, "shrinkB": 4}
    ax.add_patch(FancyArrowPatch(start, end, color=color, zorder=2, **style))


def network(
    panels: Mapping[str, Float[Tensor, "reader writer"]],
    layers: tuple[int, int],
    kinds: Mapping[Head, str] | None = None,
    threshold: float = 2.0,
    expected: float = 1.0,
    one_scale: bool = True,
) -> Figure:
    """The paper's figure: heads of two layers joined by lines as wide as their ratio is above what is expected at random.

    One scale of widths for all panels, or one for each. Pairs from `threshold` on are drawn dark. Heads named in `kinds` get a
    colour and a mark of their own.
    """
    kinds = kinds or {}
    names = list(dict.fromkeys(kinds.values()))
    widest = max(float(panel.max()) for panel in panels.values()) - expected
    n = max(len(panel) for panel in panels.values())
    fig, axes = plt.subplots(1, len(panels), figsize=(7.2, 1.6 + 0.3 * n), sharey=True, squeeze=False)
    plt.close(fig)
    for ax, (title, panel) in zip(axes[0], panels.items()):
        values = panel.numpy(force=True)
        widest = widest if one_scale else float(panel.max()) - expected
        for reader, writer in sorted(np.ndindex(values.shape), key=lambda pair: values[pair]):
            excess = values[reader, writer] - expected
            if excess > 0.02 * widest:
                strong = values[reader, writer] >= threshold
                ax.plot([0, 1], [writer, reader], ls="-", color="C0" if strong else "0.65", lw=9 * excess / widest,
                        alpha=0.9 if strong else 0.55, zorder=2 if strong else 1, solid_capstyle="butt")  # fmt: skip
        for x, layer, count, side in ((0, layers[0], values.shape[1], "right"), (1, layers[1], values.shape[0], "left")):
            for head in range(count):
                kind = kinds.get((layer, head))
                i = names.index(kind) if kind else None
                ax.plot(x, head, MARKS[i] if kind else "o", color=_colour(i) if kind else PLAIN, ms=9 if kind else 6, zorder=3)
                offset = -8 if side == "right" else 8
                ax.annotate(f"{layer}.{head}", (x, head), xytext=(offset, 0), textcoords="offset points", ha=side, va="center",
                            fontsize=10, weight="bold" if kind else "normal", annotation_clip=False)  # fmt: skip
        ax.set_title(title, fontsize=12)
        ax.set(xlim=(-0.42, 1.42), ylim=(n - 0.4, -0.6))
        ax.axis("off")
    if names:
        handles = [Line2D([], [], marker=MARKS[i], color=_colour(i), ls="", ms=9) for i in range(len(names))]
        fig.legend(handles, names, loc="outside lower center", ncols=len(names), fontsize=10, handletextpad=0.2, columnspacing=1.2)
    return fig


def _colour(i: int) -> str:
    return ("C1", "C4", "C2", "C5", "C9")[i]


def ratio_maps(panels: Mapping[str, Float[Tensor, "reader writer"]], layers: tuple[int, int]) -> Figure:
    """Composition ratios as numbers, one map below the other in one colour scale: white at chance, blue above, red below."""
    norm = TwoSlopeNorm(1.0, vmin=0.0, vmax=max(2.0, *(float(panel.max()) for panel in panels.values())))
    rows, columns = next(iter(panels.values())).shape
    fig, axes = plt.subplots(len(panels), 1, figsize=(6.4, 0.7 + len(panels) * (0.75 + 0.235 * rows)), sharex=True, squeeze=False)
    plt.close(fig)
    for ax, (title, panel) in zip(axes[:, 0], panels.items()):
        values = panel.numpy(force=True)
        image = ax.imshow(values, norm=norm, cmap="RdBu", aspect="auto")
        if columns <= 16:
            for reader, writer in np.ndindex(values.shape):
                value = values[reader, writer]
                ax.text(writer, reader, f"{value:.1f}", ha="center", va="center", fontsize=9,
                        color="white" if abs(norm(value) - 0.5) > 0.33 else "black")  # fmt: skip
        ax.set_title(title, fontsize=12)
        ax.set_yticks(range(rows), [f"{layers[1]}.{head}" for head in range(rows)], fontsize=9)
        ax.set_ylabel("reads")
    axes[-1, 0].set_xticks(range(columns), [f"{layers[0]}.{head}" for head in range(columns)], fontsize=9)
    axes[-1, 0].set_xlabel("writes")
    fig.colorbar(image, ax=axes, location="bottom", shrink=0.7, aspect=40, pad=0.015, label="composition ratio (1: chance)")
    return fig


def distribution(
    ratios: Mapping[str, Float[Tensor, "reader writer"]], at_random: Float[Tensor, "*any"], threshold: float = 2.0
) -> Figure:
    """How composition ratios are spread, one panel each for Q, K and V, beside those of heads turned at random."""
    top = max(threshold + 0.2, *(float(side.max()) for side in ratios.values())) + 0.1
    bins = np.linspace(0.4, top, int(25 * top))
    fig, axes = plt.subplots(len(ratios), 1, figsize=(6.4, 1.5 * len(ratios) + 0.8), sharex=True, squeeze=False)
    plt.close(fig)
    for ax, (name, side) in zip(axes[:, 0], ratios.items()):
        random = at_random.flatten().numpy(force=True)
        ax.hist(random, bins=bins, weights=np.full(len(random), side.numel() / len(random)), color="0.75", label="at random")
        ax.hist(side.flatten().numpy(force=True), bins=bins, histtype="step", ls="-", lw=1.8, color="C0", label="this model")
        ax.axvline(threshold, color="C2", ls="--", lw=1.2)
        ax.set(yscale="log", ylim=(0.7, None))
        ax.set_ylabel("pairs")
        ax.set_title(name, fontsize=12, loc="right")
    axes[-1, 0].set_xlabel("composition ratio")
    axes[0, 0].legend(fontsize=10, loc="upper center")
    return fig


def before_and_after(pairs: Mapping[str, tuple[Tensor, Tensor]], marked: Tensor) -> Figure:
    """The same ratios before (across) and after (up) a change that leaves the model as it is, a panel for each way to measure."""
    fig, axes = plt.subplots(1, len(pairs), figsize=(7.2, 3.9), squeeze=False)
    plt.close(fig)
    for ax, (title, (before, after)) in zip(axes[0], pairs.items()):
        x, y, special = (values.flatten().numpy(force=True) for values in (before, after, marked))
        ax.axline((1, 1), slope=1, color="0.6", ls="-", lw=0.8, zorder=0)
        ax.plot(x[~special], y[~special], "o", ms=4, alpha=0.5, color="C0", label="other pairs")
        ax.plot(x[special], y[special], "s", ms=5, alpha=0.8, color="C2", label="pairs of the squeezed head")
        ax.set_title(title, fontsize=12)
        ax.set_xlabel("ratio before")
    axes[0, 0].set_ylabel("ratio after")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=10)
    return fig


def term_map(sizes: Float[Tensor, "query key"], components: Sequence[str], name: str) -> Figure:
    """How much each term of a head's scores varies: query components downwards, key components to the right."""
    values = sizes.numpy(force=True)
    n = len(components)
    fig, ax = plt.subplots(figsize=(6.4, 6.2))
    plt.close(fig)
    image = ax.imshow(values, vmin=0, cmap="cividis")
    for query, key in np.ndindex(values.shape):
        if n <= 16 and values[query, key] >= 0.05 * values.max():
            dark = values[query, key] > 0.55 * values.max()
            ax.text(key, query, f"{values[query, key]:.1f}", ha="center", va="center", fontsize=8, color="black" if dark else "white")
    ax.set_xticks(range(n), components, rotation=90, fontsize=10)
    ax.set_yticks(range(n), components, fontsize=10)
    ax.set(xlabel="the key comes from", ylabel="the query comes from")
    fig.colorbar(image, ax=ax, shrink=0.75, label=f"standard deviation, scores of head {name}")
    return fig
