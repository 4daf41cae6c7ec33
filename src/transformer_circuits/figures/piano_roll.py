"""A melody as a picture and as a sound, for the chapter on sequences that are not text."""

import html
from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import Audio
from matplotlib.axes import Axes

from transformer_circuits.figures.plots import OTHERS, finding
from transformer_circuits.training.melodies import KEYS, Melodies

SECONDS, RATE = 0.15, 11_025  # of a note, and numbers per second


def phrases(melodies: Melodies, row: int) -> list[tuple[int, int, int]]:
    """Return (first note, one past the last note, where it was copied from) of phrases that recur in a melody."""
    source, place = melodies.source[row], melodies.place[row]
    ends = np.flatnonzero((place >= 0) & (np.append(place[1:], -1) <= 0)) + 1
    return [(int(end - place[end - 1] - 1), int(end), int(source[end - 1] - place[end - 1])) for end in ends]


def melody(melodies: Melodies, row: int, title: str = "") -> Axes:
    """Plot one melody over time, all gray but its longest phrase that recurs, with an arrow to where it recurs."""
    _, ax = plt.subplots()
    notes = melodies.notes[row]
    start, end, place = max(phrases(melodies, row), key=lambda phrase: phrase[1] - phrase[0])
    wide, top = end - start, KEYS + 6
    ax.plot(notes, "o", color=OTHERS, ms=3.5, ls="none")
    for first in (place, start):
        ax.axvspan(first - 0.5, first + wide - 0.5, color="band", zorder=0)
        ax.plot(np.arange(first, first + wide), notes[first : first + wide], "o", color="second", ms=6, ls="none")
    arrow = {"arrowstyle": "-|>", "color": "second", "lw": 2, "connectionstyle": "arc3,rad=-0.25"}
    ax.annotate("", (start + wide / 2, KEYS), (place + wide / 2, KEYS), arrowprops=arrow)
    ax.text(
        (start + place + wide) / 2, top + 8, f"these {wide} notes again", ha="center", color="second", weight="bold"
    )
    ax.set(xlabel="note", ylabel="key", xlim=(-1, len(notes)), ylim=(0, top + 14))
    finding(title, ax)
    return ax


class Sound(Audio):
    """Notes as a player in a notebook, with nothing to fetch: pure tones. `label` says what is heard."""

    def __init__(self, notes: Sequence[int], label: str) -> None:
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
