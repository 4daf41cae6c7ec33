"""A melody as a picture and as a sound, for the chapter on sequences that are not text."""

import html
from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import Audio

from transformer_circuits.figures.plots import OTHERS, finding
from transformer_circuits.training.melodies import KEYS, Melodies

SECONDS, RATE = 0.15, 11_025  # of a note, and numbers per second


def melody(melodies: Melodies, row: int, title: str) -> None:
    """Plot one melody over time, all gray but its longest phrase that recurs, with an arrow to where it recurs."""
    _, ax = plt.subplots()
    notes, place = melodies.notes[row], melodies.place[row]
    last = int(place.argmax())  # of the longest phrase; notes in it are counted from 0
    length = int(place[last]) + 1
    again, first = last - length + 1, int(melodies.source[row, last]) - length + 1
    ax.plot(notes, "o", color=OTHERS, ms=3.5, ls="none")
    for start in (first, again):
        ax.axvspan(start - 0.5, start + length - 0.5, color="band", zorder=0)
        ax.plot(np.arange(start, start + length), notes[start : start + length], "o", color="second", ms=6, ls="none")
    arrow = {"arrowstyle": "-|>", "color": "second", "lw": 2, "connectionstyle": "arc3,rad=-0.25"}
    ax.annotate("", (again + length / 2, KEYS), (first + length / 2, KEYS), arrowprops=arrow)
    words = {"ha": "center", "color": "second", "weight": "bold"}
    ax.text((again + first + length) / 2, KEYS + 14, f"these {length} notes again", **words)
    ax.set(xlabel="note", ylabel="key", xlim=(-1, len(notes) + 1), ylim=(0, KEYS + 20))
    finding(title, ax)


class Sound(Audio):
    """Notes as a player in a notebook, with nothing to fetch: pure tones. `label` says what is heard."""

    def __init__(self, notes: Sequence[int] | np.ndarray, label: str) -> None:
        time = np.arange(int(SECONDS * RATE)) / RATE
        fade = np.minimum(1, np.minimum(time, time[-1] - time) / 0.01) * np.exp(-4 * time / SECONDS)
        pitch = 440 * 2 ** ((np.asarray(notes)[:, None] - 49) / 12)  # key 49 is 440 Hz
        super().__init__((np.sin(2 * np.pi * pitch * time) * fade).ravel(), rate=RATE)
        self.label = label

    def _repr_html_(self) -> str:
        start = f'<audio aria-label="{html.escape(self.label)}" style="max-width: 100%"'
        return super()._repr_html_().replace("<audio", start, 1)

    def __repr__(self) -> str:
        return f"sound: {self.label}"
