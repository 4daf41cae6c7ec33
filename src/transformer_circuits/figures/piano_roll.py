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
    """Plot one melody over time; below it an arc from each phrase to where it recurs, in its color."""
    _, (above, below) = plt.subplots(2, 1, figsize=(6.4, 5.0), sharex=True, height_ratios=[3, 2])
    notes, new = melodies.notes[row], melodies.source[row] < 0
    above.plot(np.flatnonzero(new), notes[new], "o", color="0.55", ms=4, ls="none")
    reach = 1.0
    colors = ["C0", "C1", "C2", "C4", "C5"]  # C3 looks like the gray of new notes
    for i, (start, end, place) in enumerate(phrases(melodies, row)):
        marker, color = "os^Dv"[i % 5], colors[i % 5]
        above.plot(np.arange(start, end), notes[start:end], marker, color=color, ls="none", ms=4)
        half, wide = (start - place) / 2, end - start
        radius, middle = half + wide / 2, place + half + (wide - 1) / 2
        reach = max(reach, radius)
        below.add_patch(Wedge((middle, 0), radius, 0, 180, width=wide, color=color, alpha=0.45, lw=0))
    above.set(ylabel="key", ylim=(0, KEYS + 1))
    below.set(xlabel="note", ylabel="returns", xlim=(-1, len(notes)), ylim=(0, 1.03 * reach), yticks=[])
    below.spines["left"].set_visible(False)
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
