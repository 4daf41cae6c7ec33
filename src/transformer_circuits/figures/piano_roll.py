"""A melody as a picture and as a sound, for the chapter on sequences that are not text."""

import html
from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import Audio
from matplotlib.axes import Axes
from matplotlib.patches import Wedge

from transformer_circuits.training.melodies import KEYS, Melodies

SECONDS, RATE = 0.15, 11_025  # of a note, and numbers per second


def phrases(melodies: Melodies, row: int) -> list[tuple[int, int, int]]:
    """Return (first note, one past the last note, where it was copied from) of phrases that recur in a melody."""
    source, place = melodies.source[row], melodies.place[row]
    ends = np.flatnonzero((place >= 0) & (np.append(place[1:], -1) <= 0)) + 1
    return [(int(end - place[end - 1] - 1), int(end), int(source[end - 1] - place[end - 1])) for end in ends]


def melody(melodies: Melodies, row: int) -> Axes:
    """Plot one melody over time in gray, and the longest phrase that returns, with an arc to where it does, in blue."""
    _, (above, below) = plt.subplots(2, 1, figsize=(5.4, 4.0), sharex=True, height_ratios=[3, 1])
    notes = melodies.notes[row]
    start, end, place = max(phrases(melodies, row), key=lambda phrase: phrase[1] - phrase[0])
    above.plot(notes, "o", color="other", ms=4, ls="none")
    for first in (place, start):
        at = np.arange(first, first + end - start)
        above.plot(at, notes[at], "o", color="second", ms=5, ls="none")
    radius, middle = (start - place + end - start) / 2, (place + end - 1) / 2
    below.add_patch(Wedge((middle, 0), radius, 0, 180, width=end - start, color="second", alpha=0.4, lw=0))
    above.set(ylabel="key", ylim=(0, KEYS + 1))
    below.set(xlabel="note", xlim=(-1, len(notes)), ylim=(0, 1.03 * radius), yticks=[])
    below.spines["left"].set_visible(False)
    above.figure.suptitle("A phrase returns, note for note", x=0.01, ha="left")
    return above


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
