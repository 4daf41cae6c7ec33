"""Figures of the chapter on melodies, and their sound."""

from __future__ import annotations

import base64
import html
import io
import wave
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int
from matplotlib.figure import Figure
from matplotlib.patches import Wedge
from matplotlib.ticker import NullFormatter
from torch import Tensor

from transformer_circuits.circuits.in_context import best_of_heads
from transformer_circuits.training.melodies import KEYS, OCTAVE

STYLES = ("-", "--", "-.", ":")
MARKERS = "os^Dv"


def phrases(source: Int[np.ndarray, " note"]) -> list[tuple[int, int, int]]:
    """(first note, one past the last note, where it was copied from) of each phrase that comes back, from `Melodies.source`."""
    found: list[tuple[int, int, int]] = []
    for t, place in enumerate(source.tolist()):
        if place < 0:
            continue
        if found and found[-1][1] == t and place == found[-1][2] + t - found[-1][0]:
            found[-1] = (found[-1][0], t + 1, found[-1][2])
        else:
            found.append((t, t + 1, place))
    return found


def melody(notes: Int[np.ndarray, " note"], source: Int[np.ndarray, " note"]) -> Figure:
    """A melody over time; below it an arc from each phrase to where it comes back, in the color of the notes that come back.

    Raises ValueError if there is not one source for each note.
    """
    if notes.shape != source.shape or notes.ndim != 1:
        raise ValueError(f"{notes.size} notes and {source.size} sources are not those of one melody: give one source a note")
    fig, (above, below) = plt.subplots(2, 1, figsize=(6.4, 5.0), sharex=True, height_ratios=[3, 2])
    plt.close(fig)
    new = source < 0
    above.plot(np.nonzero(new)[0], notes[new], "o", color="0.55", ms=4, ls="none", label="new")
    for i, (start, end, place) in enumerate(phrases(source)):
        look = {"color": f"C{i % 10}", "ls": "none", "marker": MARKERS[i % 5], "ms": 4}
        above.plot(np.arange(start, end), notes[start:end], **look)
        middle, half, wide = (place + start + end - start - 1) / 2, (start - place) / 2, end - start
        ring = Wedge((middle, 0), half + wide / 2, 0, 180, width=wide, color=f"C{i % 10}", alpha=0.45, lw=0)
        below.add_patch(ring)
    reach = max([(start - place + end - start) / 2 for start, end, place in phrases(source)], default=1)
    above.set(ylabel="key", ylim=(0, KEYS + 1))
    above.legend(handles=above.lines[:1], loc="upper right", bbox_to_anchor=(1, 1.13), handletextpad=0.1)
    below.set(xlabel="note", xlim=(-1, len(notes)), ylim=(0, 1.03 * reach), yticks=[])
    below.set_ylabel("comes back")
    below.spines["left"].set_visible(False)
    return fig


def training(logs: Mapping[str, pd.DataFrame], levels: Mapping[str, float]) -> Figure:
    """Held-out loss, best previous-token score and best induction score over notes heard, a line for each model.

    `logs`: what `models.cards.training_log` returns. `levels`: losses to mark in the first panel, by what reaches them.
    """
    fig, axes = plt.subplots(3, 1, figsize=(6.4, 8.0), sharex=True, height_ratios=[1.5, 1, 1])
    plt.close(fig)
    for i, (name, log) in enumerate(logs.items()):
        log = log[log["tokens"] > 0]
        look = {"color": f"C{i}", "ls": STYLES[i % 4], "label": name}
        heard = log["tokens"] / 1e6
        axes[0].plot(heard, log["held_out"], **look)
        for ax, key in zip(axes[1:], ("previous_token", "induction")):
            ax.plot(heard, best_of_heads(log[key]), **look)
    first = min(log["tokens"].max() for log in logs.values()) / 200e6  # nothing happens before
    for name, level in levels.items():
        axes[0].axhline(level, color="0.45", lw=0.9, ls=":", zorder=0)
        axes[0].text(1.08 * first, level + 0.03, name, fontsize=10, color="0.3", va="bottom")
    axes[0].set(ylabel="held-out loss (nats)", xscale="log", ylim=(min([*levels.values(), 2]) - 0.2, None))
    axes[1].set(ylabel="best previous-\ntoken score", ylim=(0, 1))
    axes[2].set(ylabel="best induction\nscore", ylim=(0, 1), xlabel="million notes heard", xlim=(first, None))
    axes[2].xaxis.set_minor_formatter(NullFormatter())
    axes[2].xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize=10)
    return fig


def looks(
    maps: Mapping[str, Float[Tensor, "destination source"]], marked: Bool[Tensor, "destination source"], least: float = 0.05
) -> Figure:
    """Attention as dots, larger for more, a panel a head; light squares behind them where an induction head should look.

    Raises ValueError if a map is not of the marks' shape.
    """
    for name, values in maps.items():
        if values.shape != marked.shape:
            shapes = f"{tuple(values.shape)}, the marks are {tuple(marked.shape)}"
            raise ValueError(f"the map {name!r} is {shapes}: give both the same notes")
    n = marked.shape[-1]
    fig, axes = plt.subplots(len(maps), 1, figsize=(5.6, 0.9 + 4.8 * len(maps)), sharex=True, squeeze=False)
    plt.close(fig)
    below, right = np.nonzero(marked.numpy(force=True))
    for ax, (name, values) in zip(axes[:, 0], maps.items()):
        y, x = np.nonzero(values.numpy(force=True) >= least)
        ax.plot(right, below, "s", color="C1", alpha=0.45, ms=5, mew=0, ls="none", label="where the next note was copied from")
        sizes = 30 * values.numpy(force=True)[y, x]
        ax.scatter(x, y, s=sizes, color="0.1", lw=0, zorder=3, label="attention", rasterized=len(x) > 2000)
        ax.plot([0, n], [0, n], color="0.85", lw=0.8, ls="-", zorder=0)
        ax.set(title=name, ylabel="destination note", xlim=(-2, n), ylim=(n, -2), aspect="equal")
    axes[-1, 0].set_xlabel("source note")
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize=11)
    return fig


def along_phrases(losses: Mapping[str, Sequence[float]], new: Mapping[str, float]) -> Figure:
    """Loss at the first, second, ... note of a phrase that comes back, a line a name; left of it the loss on new notes.

    Raises ValueError unless both have the same names.
    """
    if list(losses) != list(new):
        raise ValueError(f"losses are of {', '.join(losses)}, those on new notes of {', '.join(new)}: give both for each")
    fig, ax = plt.subplots(figsize=(6.4, 4.2))
    plt.close(fig)
    for i, (name, values) in enumerate(losses.items()):
        look = {"color": f"C{i}", "marker": MARKERS[i % 5], "ms": 5}
        ax.plot(np.arange(len(values)) + 1, values, ls=STYLES[i % 4], label=name, **look)
        ax.plot([-1 + 0.15 * i - 0.07 * (len(losses) - 1)], [new[name]], ls="none", **look)
    n = max(map(len, losses.values()))
    ax.axvline(0, color="0.8", lw=0.8, ls="-", zorder=0)
    ticks = [1, *range(4, n + 1, 4)]
    ax.set_xticks([-1, *ticks], ["new\nnotes", *map(str, ticks)])
    ax.set(xlabel="note of a phrase that comes back", ylabel="loss (nats)", ylim=(0, None))
    fig.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize=10)
    return fig


def by_interval(lines: Mapping[str, Float[Tensor, "interval=88"]]) -> Figure:
    """Means over all pairs of keys so far apart, from 44 below to 43 above, a panel each; shaded within an octave."""
    rows = -(-len(lines) // 2)
    fig, axes = plt.subplots(rows, 2, figsize=(6.4, 0.5 + 2.6 * rows), sharex=True, squeeze=False)
    plt.close(fig)
    for ax in axes.flat[len(lines) :]:
        ax.set_axis_off()
    for i, (ax, (name, values)) in enumerate(zip(axes.flat, lines.items())):
        ax.axvspan(-OCTAVE, OCTAVE, color="0.93", lw=0, zorder=0)
        ax.axhline(0, color="0.6", lw=0.8, ls="-", zorder=1)
        ax.plot(range(-KEYS // 2, KEYS // 2), values.numpy(force=True), color=f"C{i}", ls="-")
        ax.set_title(name, fontsize=11)
        ax.set_xticks([-36, -12, 0, 12, 36])
    fig.supxlabel("interval in keys", fontsize=12)
    return fig


class Sound:
    """Notes as a player in a notebook, with nothing to fetch. `label` says what is heard."""

    def __init__(self, notes: Sequence[int], label: str, seconds: float = 0.15, rate: int = 11_025) -> None:
        """Pure tones, as a piano is tuned: key 49 is 440 Hz. Raises ValueError for keys that a piano does not have."""
        keys = np.asarray(notes)
        if keys.ndim != 1 or not keys.size or keys.min() < 1 or keys.max() > KEYS:
            raise ValueError(f"a sound is of keys from 1 to {KEYS}, one after the other, and of one at least")
        time = np.arange(int(seconds * rate)) / rate
        fade = np.minimum(1, np.minimum(time / 0.01, 1)) * np.exp(-4 * time / seconds) * np.minimum(1, (time[-1] - time) / 0.01)
        tones = np.sin(2 * np.pi * 440 * 2 ** ((keys[:, None] - 49) / 12) * time) * fade
        samples = (127.5 + 120 * tones).round().astype(np.uint8).ravel()  # eight bits: half the page's weight
        buffer = io.BytesIO()
        with wave.open(buffer, "wb") as file:
            file.setnchannels(1), file.setsampwidth(1), file.setframerate(rate)
            file.writeframes(samples.tobytes())
        self.wav, self.label, self.n = buffer.getvalue(), label, keys.size

    def _repr_html_(self) -> str:
        data = base64.b64encode(self.wav).decode()
        name = html.escape(self.label, quote=True)
        return f'<audio controls preload="none" aria-label="{name}" style="max-width: 100%" src="data:audio/wav;base64,{data}"></audio>'

    def __repr__(self) -> str:
        return f"{self.n} notes: {self.label}"
