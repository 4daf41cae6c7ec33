"""Composition: three ways to compose as drawings, heads joined by lines, maps and distributions of composition ratios."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch
from torch import Tensor

Head = tuple[int, int]  # (layer, head)
MARKS = ("s", "D", "^", "v", "P")  # for kinds of heads ...
COLORS = ("C1", "C4", "C2", "C5", "C9")  # ... each with a color of its own
PLAIN = "0.55"


def three_ways() -> Figure:
    """What the first head moves (below), and where the second head (above) takes it in: query, key or value."""
    fig, axes = plt.subplots(3, 1, figsize=(6.4, 6.6))
    plt.close(fig)
    ways = {  # where the first head moves something from and to, and what the second head makes of it there
        "Q": (3.4, 5.4, "query", "what the first head moved\nchanges what is looked for"),
        "K": (0.0, 2.0, "key", "what the first head moved\nchanges where it is found"),
        "V": (0.0, 2.0, "value", "what the first head moved\nis itself moved on"),
    }
    for ax, (side, (start, end, entered, effect)) in zip(axes, ways.items()):
        ax.set(xlim=(-0.4, 9.4), ylim=(-0.75, 2.6))
        ax.axis("off")
        ax.text(6.2, 1.95, f"{side}-composition", fontsize=13, weight="bold", va="center")
        ax.text(6.2, 0.35, effect, fontsize=12, va="center")
        for place in (0.0, 2.0, 3.4, 5.4):
            top = 2.2 if place == 5.4 else 1.1
            ax.plot([place, place], [0, top], color="0.85", ls="-", lw=1.2, zorder=0)
            ax.plot([place] * 2, [0, 1.1], "o", color="0.4", ms=6, ls="", zorder=3)
        ax.plot(5.4, 2.2, "o", color="0.4", ms=6, zorder=3)
        _arrow(ax, (start, 0), (end, 1.1), "C1")
        _arrow(ax, (2, 1.1), (5.4, 2.2), "C0")
        if side == "V":  # what the first head brought travels along
            ax.plot([2.3, 4.9], [1.07, 1.92], color="C1", ls="-", lw=2, zorder=2)
        ax.text(end + (0.15 if end > 5 else -0.15), 1.22 if end < 5 else 1.1, entered, ha="left" if end > 5 else "right",
                va="center" if end > 5 else "bottom", color="C2", fontsize=12, weight="bold")  # fmt: skip
        ax.text(2, -0.22, "source", ha="center", va="top", fontsize=11)
        ax.text(5.4, -0.22, "destination", ha="center", va="top", fontsize=11)
    lines = [Line2D([], [], color=color, ls="-", lw=2) for color in ("C1", "C0")]
    fig.legend(lines, ["first-layer head", "second-layer head"], loc="outside lower center", ncols=2)
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

    One panel below the other, in each the writers below and the readers above. One scale of widths for all panels, or one for
    each. Pairs from `threshold` on are drawn blue. Heads named in `kinds` get a color and a mark of their own. Raises ValueError
    for no panels, panels of different shapes, or more kinds than there are marks.
    """
    kinds = kinds or {}
    names = list(dict.fromkeys(kinds.values()))
    rows, columns = _common_shape(panels)
    if len(names) > len(MARKS):
        raise ValueError(f"there are marks for {len(MARKS)} kinds of heads, not for {len(names)}")
    largest = {title: float(panel.max()) - expected for title, panel in panels.items()}
    n = max(rows, columns)
    fig, axes = plt.subplots(len(panels), 1, figsize=(6.4, 0.5 + 2.5 * len(panels)), squeeze=False)
    plt.close(fig)
    for ax, (title, panel) in zip(axes[:, 0], panels.items()):
        values = panel.numpy(force=True)
        widest = max(largest.values()) if one_scale else largest[title]
        for reader, writer in sorted(np.ndindex(values.shape), key=lambda pair: values[pair]):
            excess = values[reader, writer] - expected
            if excess > max(0.02 * widest, 0):  # thinner lines could not be seen; at chance or below there is none
                strong = values[reader, writer] >= threshold
                ax.plot([writer, reader], [0, 1], ls="-", color="C0" if strong else "0.65", lw=9 * excess / widest,
                        alpha=0.9 if strong else 0.55, zorder=2 if strong else 1, solid_capstyle="butt")  # fmt: skip
        for y, layer, count in ((0, layers[0], columns), (1, layers[1], rows)):
            for head in range(count):
                i = names.index(kinds[layer, head]) if (layer, head) in kinds else None
                mark, color = ("o", PLAIN) if i is None else (MARKS[i], COLORS[i])
                ax.plot(head, y, mark, color=color, ms=6 if i is None else 9, zorder=3)
                ax.annotate(f"{layer}.{head}", (head, y), xytext=(0, 9 if y else -9), textcoords="offset points", ha="center",
                            va="bottom" if y else "top", fontsize=11 if n <= 12 else 9, rotation=90 if n > 16 else 0,
                            weight="normal" if i is None else "bold", annotation_clip=False)  # fmt: skip
        ax.set_title(title, fontsize=13, pad=18 if n <= 16 else 26)
        ax.set(xlim=(-0.5, n - 0.5), ylim=(-0.25, 1.2))
        ax.axis("off")
    if names:
        handles = [Line2D([], [], marker=MARKS[i], color=COLORS[i], ls="", ms=9) for i in range(len(names))]
        fig.legend(handles, names, loc="outside lower center", ncols=len(names), handletextpad=0.2, columnspacing=1.2)
    return fig


def _common_shape(panels: Mapping[str, Float[Tensor, "reader writer"]]) -> tuple[int, int]:
    shapes = {tuple(panel.shape) for panel in panels.values()}
    if len(shapes) != 1:
        raise ValueError(f"give one or more panels of one shape, not {sorted(shapes)}")
    return shapes.pop()


def ratio_maps(panels: Mapping[str, Float[Tensor, "reader writer"]], layers: tuple[int, int]) -> Figure:
    """Composition ratios as numbers, one map below the other in one color scale: white at chance, blue above, red below.

    Raises ValueError for no panels, or panels of different shapes.
    """
    rows, columns = _common_shape(panels)
    norm = TwoSlopeNorm(1.0, vmin=0.0, vmax=max(2.0, *(float(panel.max()) for panel in panels.values())))
    fig, axes = plt.subplots(len(panels), 1, figsize=(6.4, 0.7 + len(panels) * (0.75 + 0.26 * rows)), sharex=True, squeeze=False)
    plt.close(fig)
    for ax, (title, panel) in zip(axes[:, 0], panels.items()):
        values = panel.numpy(force=True)
        image = ax.imshow(values, norm=norm, cmap="RdBu", aspect="auto")
        if columns <= 16:
            for reader, writer in np.ndindex(values.shape):
                value = values[reader, writer]
                ax.text(writer, reader, f"{value:.1f}", ha="center", va="center", fontsize=11 if columns <= 12 else 9,
                        color="white" if abs(norm(value) - 0.5) > 0.33 else "black")  # fmt: skip
        ax.set_title(title, fontsize=13)
        ax.set_yticks(range(rows), [f"{layers[1]}.{head}" for head in range(rows)], fontsize=11 if rows <= 16 else 8)
        ax.set_ylabel("reads")
    names = [f"{layers[0]}.{head}" for head in range(columns)]
    if columns <= 16:
        axes[-1, 0].set_xticks(range(columns), names, fontsize=11)
    else:
        axes[-1, 0].set_xticks(range(columns), names, fontsize=8, rotation=90)
    axes[-1, 0].set_xlabel("writes")
    fig.colorbar(image, ax=axes, location="bottom", shrink=0.7, aspect=40, pad=0.015, label="composition ratio (1: chance)")
    return fig


def distribution(
    ratios: Mapping[str, Float[Tensor, "reader writer"]], at_random: Float[Tensor, "*any"], threshold: float = 2.0
) -> Figure:
    """How composition ratios are spread, one panel each for Q, K and V, beside those of heads turned at random."""
    top = max(threshold + 0.2, *(float(side.max()) for side in ratios.values())) + 0.1
    bins = np.linspace(0.4, top, int(25 * top))
    fig, axes = plt.subplots(len(ratios), 1, figsize=(6.4, 1.6 * len(ratios) + 0.9), sharex=True, squeeze=False)
    plt.close(fig)
    random = at_random.flatten().numpy(force=True)
    for ax, (name, side) in zip(axes[:, 0], ratios.items()):
        ax.hist(random, bins=bins, weights=np.full(len(random), side.numel() / len(random)), color="0.75", label="at random")
        ax.hist(side.flatten().numpy(force=True), bins=bins, histtype="step", ls="-", lw=1.8, color="C0", label="this model")
        ax.axvline(threshold, color="C2", ls="--", lw=1.2)
        ax.set(yscale="log", ylim=(0.7, None))
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_formatter("")
        ax.set_ylabel("pairs")
        ax.set_title(name, fontsize=12, loc="right")
    axes[-1, 0].set_xlabel("composition ratio")
    axes[0, 0].legend(loc="upper center")
    return fig


def before_and_after(
    pairs: Mapping[str, tuple[Float[Tensor, "*any"], Float[Tensor, "*any"]]], marked: Bool[Tensor, "*any"]
) -> Figure:
    """The same ratios before (across) and after (up) a change that leaves the model as it is, a panel for each way to measure."""
    fig, axes = plt.subplots(1, len(pairs), figsize=(6.4, 3.9), squeeze=False)
    plt.close(fig)
    for ax, (title, (before, after)) in zip(axes[0], pairs.items()):
        x, y, special = (values.flatten().numpy(force=True) for values in (before, after, marked))
        ax.axline((1, 1), slope=1, color="0.6", ls="-", lw=0.8, zorder=0)
        ax.plot(x[~special], y[~special], "o", ms=4, alpha=0.5, color="C0", label="other pairs")
        ax.plot(x[special], y[special], "s", ms=5, alpha=0.8, color="C2", label="pairs of the squeezed head")
        ax.locator_params(nbins=5)
        ax.set_title(title)
        ax.set_xlabel("ratio before")
    axes[0, 0].set_ylabel("ratio after")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=2)
    return fig


def term_map(sizes: Float[Tensor, "query key"], components: Sequence[str], name: str) -> Figure:
    """How much each term of a head's scores varies: query components downwards, key components to the right.

    Raises ValueError unless there is a name for each component.
    """
    n = len(components)
    if sizes.shape != (n, n):
        raise ValueError(f"{n} components have {n} by {n} terms, not {' by '.join(map(str, sizes.shape))}")
    values = sizes.numpy(force=True)
    fig, ax = plt.subplots(figsize=(6.4, 7.4))
    plt.close(fig)
    image = ax.imshow(values, vmin=0, cmap="cividis")
    for query, key in np.ndindex(values.shape):
        if n <= 16 and values[query, key] >= 0.05 * values.max():
            ax.text(key, query, f"{values[query, key]:.1f}", ha="center", va="center", fontsize=10,
                    color="black" if values[query, key] > 0.55 * values.max() else "white")  # fmt: skip
    size = 11 if n <= 16 else 8
    ax.set_xticks(range(n), components, rotation=90, fontsize=size)
    ax.set_yticks(range(n), components, fontsize=size)
    ax.set(xlabel="the key comes from", ylabel="the query comes from")
    fig.colorbar(image, ax=ax, location="bottom", shrink=0.8, aspect=40, label=f"standard deviation, scores of head {name}")
    return fig
