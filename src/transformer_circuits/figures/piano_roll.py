"""A melody as a picture, for the chapter on sequences that are not text."""

import matplotlib.pyplot as plt
import numpy as np

from transformer_circuits.figures.plots import OTHERS, finding
from transformer_circuits.training.melodies import KEYS, Melodies


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
