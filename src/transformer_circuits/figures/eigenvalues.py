"""Eigenvalues of OV circuits, how far heads copy by several measures, and what chance would give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from jaxtyping import Bool, Complex, Float
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

POSITIVE, NEGATIVE = "C0", "C2"


def in_words(values: Complex[Tensor, " n"] | Float[Tensor, " n"]) -> str:
    """A few numbers, real or complex, to two decimals and largest real part first: "2, 0.5+0.87i, 0.5-0.87i"."""

    def word(z: complex) -> str:
        real, imaginary = round(z.real, 2) + 0.0, round(z.imag, 2)  # + 0.0 turns -0 into 0
        return f"{real:g}" + (f"{imaginary:+g}i" if imaginary else "")

    return ", ".join(word(z) for z in sorted(map(complex, values.tolist()), key=lambda z: (-round(z.real, 6), -z.imag)))


def polar_panels(values: Complex[Tensor, "head inner"], names: Sequence[str], titles: Sequence[str] | None = None) -> Figure:
    """Every head's eigenvalues in the complex plane: the radius is the logarithm of the modulus, in logits.

    Blue circles have a positive real part, red crosses a negative one; rings are powers of ten. All panels share one scale, and
    the smallest hundredth of the values lies at the center. Raises ValueError unless there is a name (and title) a head.
    """
    titles = [""] * len(names) if titles is None else titles
    if not len(values) == len(names) == len(titles):
        raise ValueError(f"{len(values)} heads need as many names and titles, not {len(names)} and {len(titles)}")
    numbers = values.numpy(force=True)
    moduli = np.log10(np.abs(numbers).clip(min=1e-30))
    low, high = float(np.quantile(moduli, 0.01)), float(moduli.max()) + 0.05
    n_columns = 3 if len(names) <= 12 else 4
    n_rows = -(-len(names) // n_columns)
    fig, axes = plt.subplots(
        n_rows, n_columns, figsize=(6.6, 0.3 + 7.0 / n_columns * n_rows), subplot_kw={"projection": "polar"}, squeeze=False
    )
    plt.close(fig)
    for ax in axes.flat[len(names) :]:
        ax.set_axis_off()
    for ax, name, title, head, sizes in zip(axes.flat, names, titles, numbers, moduli):
        for chosen, color, marker in ((head.real > 0, POSITIVE, "o"), (head.real <= 0, NEGATIVE, "x")):
            radius = (sizes[chosen] - low).clip(min=0)
            ax.scatter(np.angle(head[chosen]), radius, s=13, marker=marker, color=color, alpha=0.75, lw=1.0, zorder=3)
        ax.set_ylim(0, max(high - low, 0.5))
        ax.set_yticks([ring - low for ring in range(int(np.ceil(low)), int(np.floor(high)) + 1) if ring > low], [])
        ax.set_xticks(np.arange(4) * np.pi / 2, ["+", "", "−", ""], fontsize=12)
        ax.tick_params(pad=-3)
        ax.grid(color="0.85", lw=0.6)
        ax.spines["polar"].set_color("0.7")
        ax.set_title(f"{name}   {title}".rstrip(), fontsize=13, pad=4)
    ends = (f"{10**low:.2g}", f"{10**high:,.0f}")
    fig.supxlabel(f"radius: {ends[0]} logits at the center, {ends[1]} at the rim, rings at powers of ten", fontsize=12)
    return fig


def histogram(
    positivity: Float[Tensor, " head"],
    at_work: Bool[Tensor, " head"],
    initial: Float[Tensor, " untrained"],
    between: Float[Tensor, " random"],
    ginibre_sd: float,
    bar: float,
) -> Figure:
    """Positivity of a model's heads as a histogram, with chance below it: heads at initialization, and such heads `between`
    trained embeddings.

    The band reaches five times `ginibre_sd` to either side; the dashed line is the `bar` from which a head counts as copying.
    """
    values, busy = positivity.numpy(force=True), at_work.numpy(force=True)
    fig, (ax, chance) = plt.subplots(2, 1, figsize=(6.4, 5.0), sharex=True, height_ratios=(3, 2))
    plt.close(fig)
    bins = np.linspace(-1, 1, 21)
    ax.hist([values[busy], values[~busy]], bins, stacked=True, color=[POSITIVE, "0.8"], edgecolor="white", lw=0.6,
            label=["attends to text", "rests on the start token"])  # fmt: skip
    ax.set_ylabel("heads")
    ax.yaxis.get_major_locator().set_params(integer=True)
    fine = np.linspace(-1, 1, 81)
    outline = {"histtype": "step", "color": NEGATIVE, "lw": 1.6, "ls": "-", "label": "in trained embeddings"}
    for each, look in ((initial, {"color": "0.45", "label": "untrained"}), (between, outline)):
        numbers = each.numpy(force=True)
        chance.hist(numbers, bins=fine, weights=np.full(len(numbers), 100 / len(numbers)), **look)
    chance.legend(loc="upper left")
    chance.set(xlabel="positivity of the OV circuit", ylabel="% of heads", xlim=(-1.02, 1.02))
    for each in (ax, chance):
        each.axvspan(-5 * ginibre_sd, 5 * ginibre_sd, color="C1", alpha=0.22, lw=0, zorder=0)
        each.axvline(bar, color="0.2", ls="--", lw=1.2)
    ax.annotate("bar", (bar, 0.92), xycoords=("data", "axes fraction"), xytext=(4, 0), textcoords="offset points", fontsize=12)
    fig.legend(handles=ax.get_legend_handles_labels()[0], loc="outside upper center", ncols=2)
    return fig


def disk(
    initial: Complex[Tensor, "head inner"], ginibre: Complex[Tensor, "matrix inner"], trained: Complex[Tensor, "head inner"]
) -> Figure:
    """Left: eigenvalues at initialization in the complex plane. Right: how their moduli are distributed, and others'.

    All are in units in which each matrix has a mean squared modulus of one; a uniform disk then has radius sqrt(2).
    """
    fig, (plane, moduli) = plt.subplots(1, 2, figsize=(6.4, 3.4), width_ratios=(1, 1))
    plt.close(fig)
    points = initial.flatten().numpy(force=True)
    plane.scatter(points.real, points.imag, s=1.5, color="0.35", alpha=0.35, lw=0, rasterized=True)
    plane.add_patch(plt.Circle((0, 0), 2**0.5, fill=False, color=NEGATIVE, lw=1.4, ls="--"))
    limit = 1.05 * max(2**0.5, float(np.quantile(np.abs(points), 0.999)))
    plane.set(xlabel="real part", ylabel="imaginary part", aspect="equal", xlim=(-limit, limit), ylim=(-limit, limit))
    looks = {"color": "C1", "ls": "-", "lw": 3.2}, {"color": "k", "ls": ":"}, {"color": "C0", "ls": "--"}
    for name, values, look in zip(("Ginibre", "untrained", "trained"), (ginibre, initial, trained), looks):
        sizes = np.sort(np.abs(values.flatten().numpy(force=True)))
        moduli.plot(sizes, np.linspace(0, 100, len(sizes)), label=name, **look)
    moduli.set(xlabel="modulus", ylabel="eigenvalues below it (%)", xlim=(0, 3), ylim=(0, 101))
    moduli.legend(loc="lower right")
    return fig


def measures(table: pd.DataFrame, bars: Mapping[str, float], names: Sequence[str], at_work: Bool[Tensor, " head"]) -> Figure:
    """The other measures of copying against positivity, one panel below the other; dashed lines are the bars.

    `table`: a row a head, columns `positivity`, `positive`, `top_1`, `top_k` (shares of one). The last two are on a scale that is
    linear up to 0.1 % and logarithmic above. Raises ValueError unless there is a name a head.
    """
    if len(names) != len(table):
        raise ValueError(f"{len(table)} heads need as many names, not {len(names)}")
    panels = {"positive": "raise themselves", "top_k": "in their own top 10", "top_1": "raise themselves most"}
    busy = at_work.numpy(force=True)
    fig, axes = plt.subplots(3, 1, figsize=(6.4, 7.6), sharex=True)
    plt.close(fig)
    for ax, (column, label) in zip(axes, panels.items()):
        for chosen, face in ((busy, POSITIVE), (~busy, "white")):
            x, y = table["positivity"][chosen], 100 * table[column][chosen]
            ax.scatter(x, y, s=36, color=face, edgecolor=POSITIVE if face == "white" else "white", lw=1.0, zorder=3)
        ax.axvline(bars["positivity"], color="0.2", ls="--", lw=1.0)
        ax.axhline(100 * bars[column], color="0.2", ls="--", lw=1.0)
        ax.set_title(label, loc="left")
        ax.set(xlim=(-1.08, 1.08), ylim=(0, 105), ylabel="tokens (%)")
        if column != "positive":
            ax.set_yscale("symlog", linthresh=0.1)
            ax.set_ylim(-0.03, 110)
            ax.set_yticks([0, 0.1, 1, 10, 100], ["0", "0.1", "1", "10", "100"])
            ax.minorticks_off()
        for place, i in enumerate(table[column].nlargest(3).index):
            at = table["positivity"][i], 100 * table[column][i]
            offset, side = (((0, 6), "center"), ((0, -15), "center"), ((-6, -4), "right"))[place]
            ax.annotate(names[i], at, xytext=offset, textcoords="offset points", fontsize=11, ha=side)
    axes[-1].set_xlabel("positivity")
    marks = {"attends to text": POSITIVE, "rests on the start token": "white"}
    handles = [Line2D([], [], ls="", marker="o", ms=7, mfc=face, mec=POSITIVE, label=label) for label, face in marks.items()]
    handles.append(Line2D([], [], color="0.2", ls="--", lw=1.0, label="bar"))
    fig.legend(handles=handles, loc="outside upper center", ncols=3, columnspacing=1.2, handletextpad=0.4)
    return fig
