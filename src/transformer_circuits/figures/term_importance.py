"""Bars of losses with and without terms; virtual heads by norm, and how they look two tokens back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from transformer_circuits.circuits.term_importance import Estimate

GROUPS = {  # the names of claim T11 as a reader wants to see them, in blocks
    "by order": {"order_0": "direct path", "order_1": "single heads", "order_2": "virtual heads"},
    "layer 1": {"layer_1_alone": "alone", "layer_1_given_2": "after layer 2"},
    "layer 2": {"layer_2_alone": "alone", "layer_2_given_1": "after layer 1"},
}


def reductions(ours: Mapping[str, Estimate], paper: Mapping[str, float]) -> Figure:
    """What each kind of term takes off the loss, ours above the paper's; thin lines are 95 % intervals.

    `ours` and `paper` have the names of claim T11. Raises ValueError if one of them lacks a name.
    """
    names = [name for group in GROUPS.values() for name in group]
    if missing := [name for name in names if name not in ours or name not in paper]:
        raise ValueError(f"no number for {', '.join(missing)}: both need all of {', '.join(names)}")
    fig, ax = plt.subplots(figsize=(6.4, 5.0))
    plt.close(fig)
    places, labels, place = {}, [], 0.0
    for group, members in GROUPS.items():
        for name, label in members.items():
            places[name] = place
            labels.append(label if group == "by order" else f"{group} {label}")
            place += 1
        place += 0.5
    at = np.array(list(places.values()))
    means, margins = [ours[name].mean for name in names], [ours[name].margin for name in names]
    thin = {"lw": 1.2, "ecolor": "0.2", "capsize": 2}
    ax.barh(at - 0.2, means, 0.4, color="C0", xerr=margins, error_kw=thin, label="this model")
    ax.barh(at + 0.2, [paper[name] for name in names], 0.4, color="C3", hatch="///", edgecolor="white", label="paper")
    for y, mean, margin, name in zip(at, means, margins, names):
        ax.annotate(f"{mean:.2f}", (max(mean + margin, 0), y - 0.2), (4, 0), textcoords="offset points", va="center", fontsize=10)
        ax.annotate(f"{paper[name]:g}", (paper[name], y + 0.2), (4, 0), textcoords="offset points", va="center", fontsize=10)
    ax.set_yticks(at, labels)
    ax.invert_yaxis()
    ax.margins(x=0.1)
    ax.axvline(0, color="0.3", lw=0.8, ls="-")
    ax.set_xlabel("reduction of the loss (nats a token)")
    fig.legend(*ax.get_legend_handles_labels(), loc="outside upper right", ncols=2)
    return fig


def rises(effects: Mapping[str, Estimate]) -> Figure:
    """How much the loss rises without each of some things: one bar each, with its 95 % interval."""
    fig, ax = plt.subplots(figsize=(6.4, 0.9 + 0.5 * len(effects)))
    plt.close(fig)
    means, margins = [e.mean for e in effects.values()], [e.margin for e in effects.values()]
    ax.barh(range(len(means)), means, 0.6, color="C0", xerr=margins, error_kw={"lw": 1.2, "ecolor": "0.2", "capsize": 3})
    for y, (mean, margin) in enumerate(zip(means, margins)):
        ax.annotate(f"{mean:.2f}", (max(mean + margin, 0), y), (4, 0), textcoords="offset points", va="center", fontsize=10)
    ax.set_yticks(range(len(means)), list(effects))
    ax.invert_yaxis()
    ax.margins(x=0.1)
    ax.axvline(0, color="0.3", lw=0.8, ls="-")
    ax.set_xlabel("rise of the loss (nats a token)")
    return fig


def rises_by_head(sides: Mapping[str, Mapping[str, Estimate]]) -> Figure:
    """The same for every head of a layer, one panel for each side that goes without that head."""
    fig, axes = plt.subplots(len(sides), 1, figsize=(6.4, 0.4 + 2.2 * len(sides)), sharex=True, sharey=True, squeeze=False)
    plt.close(fig)
    for ax, (side, effects) in zip(axes[:, 0], sides.items()):
        means, margins = [e.mean for e in effects.values()], [e.margin for e in effects.values()]
        ax.bar(range(len(means)), means, color="C0", yerr=margins, error_kw={"lw": 1.2, "ecolor": "0.2", "capsize": 2})
        ax.axhline(0, color="0.3", lw=0.8, ls="-")
        ax.set_title(side, fontsize=11, loc="left")
        ax.set_xticks(range(len(means)), list(effects), fontsize=10)
    axes[-1, 0].set_xlabel("first-layer head that is left out")
    fig.supylabel("rise of the loss (nats a token)", fontsize=11)
    return fig


def virtual_norms(
    ratios: Float[Tensor, "second_head first_head"], at_random: Float[Tensor, "draw"], layers: tuple[int, int] = (0, 1)
) -> Figure:
    """Norm of each virtual head's OV circuit as a multiple of chance: a map of all pairs, and their distribution."""
    fig, (ax, hist) = plt.subplots(2, 1, figsize=(5.6, 7.4), height_ratios=(2.2, 1))
    plt.close(fig)
    values = ratios.numpy(force=True)
    image = ax.imshow(values, origin="lower", vmin=0, vmax=max(2.0, values.max()))
    first, second = layers
    ax.set(xlabel=f"head of layer {first}, passed first", ylabel=f"head of layer {second}, passed second")
    ax.set_xticks(range(values.shape[1])), ax.set_yticks(range(values.shape[0]))
    fig.colorbar(image, ax=ax, shrink=0.8, label="norm, multiple of chance")
    edges = np.linspace(0, max(2.0, float(values.max()), float(at_random.max())), 41)
    random = at_random.flatten().numpy(force=True)
    hist.hist(random, edges, weights=np.full(random.size, values.size / random.size), color="0.75", label="at random")
    hist.hist(values.flatten(), edges, histtype="step", color="C2", ls="-", lw=1.8, label="this model")
    hist.set(xlabel="norm, multiple of chance", ylabel="virtual heads", yscale="symlog")
    hist.set_ylim(bottom=0)
    hist.legend()
    return fig


def two_back(
    splits: Float[Tensor, "split pair"], names: Sequence[str], single: Mapping[str, float]
) -> Figure:
    """Attention two tokens back: virtual heads as stacked bars of the three ways to get there, and single heads for comparison.

    Split k: the second head goes k tokens back, the first one 2 - k.
    Raises ValueError unless there are three splits, and a name for every pair.
    """
    if len(splits) != 3 or splits.shape[1] != len(names):
        shape = tuple(splits.shape)
        raise ValueError(f"two tokens back has three splits, and a name for every pair: not {shape} for {len(names)} names")
    fig, ax = plt.subplots(figsize=(6.4, 1.5 + 0.32 * (len(names) + len(single))))
    plt.close(fig)
    parts = 100 * splits[[1, 0, 2]].numpy(force=True)
    labels = ("one back, and one back", "two back by the first head", "two back by the second")
    left = np.zeros(len(names))
    for part, label, color, hatch in zip(parts, labels, ("C0", "C1", "C3"), ("", "///", "...")):
        ax.barh(range(len(names)), part, left=left, color=color, hatch=hatch, edgecolor="white", lw=0, label=label)
        left = left + part
    at = np.arange(len(single)) + len(names) + 0.5
    ax.barh(at, [100 * value for value in single.values()], color="0.5", label="single head")
    ax.set_yticks([*range(len(names)), *at], [*names, *single])
    ax.invert_yaxis()
    ax.set_xlabel("mean attention two tokens back (%)")
    fig.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize=10)
    return fig
