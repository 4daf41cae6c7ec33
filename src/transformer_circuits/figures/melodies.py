"""A melody as a picture and as a sound, for the chapter on sequences that are not text."""

from __future__ import annotations

import base64
import html
import io
import wave
from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Wedge

from transformer_circuits.training.melodies import KEYS, Melodies


def phrases(melodies: Melodies, row: int) -> list[tuple[int, int, int]]:
    """(first note, one past the last note, where it was copied from) of each phrase that comes back in one melody."""
    source, place = melodies.source[row], melodies.place[row]
    ends = np.flatnonzero((place >= 0) & (np.append(place[1:], -1) <= 0)) + 1
    return [(int(end - place[end - 1] - 1), int(end), int(source[end - 1] - place[end - 1])) for end in ends]


def melody(melodies: Melodies, row: int) -> Axes:
    """One melody over time; below it an arc from each phrase to where it comes back, in the color of the notes that come back."""
    _, (above, below) = plt.subplots(2, 1, figsize=(6.4, 5.0), sharex=True, height_ratios=[3, 2])
    notes, new = melodies.notes[row], melodies.source[row] < 0
    above.plot(np.flatnonzero(new), notes[new], "o", color="0.55", ms=4, ls="none")
    reach = 1.0
    for i, (start, end, place) in enumerate(phrases(melodies, row)):
        above.plot(np.arange(start, end), notes[start:end], color=f"C{i % 10}", ls="none", marker="os^Dv"[i % 5], ms=4)
        half, wide = (start - place) / 2, end - start
        reach = max(reach, half + wide / 2)
        middle = place + half + (wide - 1) / 2
        below.add_patch(Wedge((middle, 0), half + wide / 2, 0, 180, width=wide, color=f"C{i % 10}", alpha=0.45, lw=0))
    above.set(ylabel="key", ylim=(0, KEYS + 1))
    below.set(xlabel="note", ylabel="comes back", xlim=(-1, len(notes)), ylim=(0, 1.03 * reach), yticks=[])
    below.spines["left"].set_visible(False)
    return above


class Sound:
    """Notes as a player in a notebook, with nothing to fetch. `label` says what is heard."""

    def __init__(self, notes: Sequence[int], label: str, seconds: float = 0.15, rate: int = 11_025) -> None:
        """Pure tones, as a piano is tuned: key 49 is 440 Hz. Raises ValueError for keys that a piano does not have."""
        keys = np.asarray(notes)
        if keys.ndim != 1 or not keys.size or keys.min() < 1 or keys.max() > KEYS:
            raise ValueError(f"a sound is of keys from 1 to {KEYS}, one after the other, and of one at least")
        time = np.arange(int(seconds * rate)) / rate
        fade = np.minimum(1, time / 0.01) * np.exp(-4 * time / seconds) * np.minimum(1, (time[-1] - time) / 0.01)
        tones = np.sin(2 * np.pi * 440 * 2 ** ((keys[:, None] - 49) / 12) * time) * fade
        buffer = io.BytesIO()
        with wave.open(buffer, "wb") as file:
            file.setnchannels(1), file.setsampwidth(1), file.setframerate(rate)  # eight bits: half the page's weight
            file.writeframes((127.5 + 120 * tones).round().astype(np.uint8).tobytes())
        self.wav, self.label = buffer.getvalue(), label

    def _repr_html_(self) -> str:
        data = base64.b64encode(self.wav).decode()
        name = html.escape(self.label, quote=True)
        return f'<audio controls preload="none" aria-label="{name}" style="max-width: 100%" src="data:audio/wav;base64,{data}"></audio>'

    def __repr__(self) -> str:
        return f"sound: {self.label}"
