"""Melodies: the data of the shipped models can be had again, and how a melody sounds."""

import hashlib
import io
import wave

import numpy as np

from transformer_circuits.figures.piano_roll import RATE, Sound
from transformer_circuits.training import melodies


def test_the_shipped_models_data_can_be_had_again(tmp_path):
    melodies.main(["--out", str(tmp_path)])
    melodies.main(["--out", str(tmp_path / "no-direction"), "--keeps-direction", "0.5"])
    for name, digest in {
        "train": "e262c2c4fd6ab9f7e37de95b96a49c2d",
        "held_out": "c55af03f8b0afbf031c9dd4df0018486",
        "no-direction/held_out": "3ece449f88f6693c02b37ae648a49df8",
    }.items():
        tokens = np.load(tmp_path / f"{name}.npy")
        assert tokens.dtype == np.uint16
        assert hashlib.sha256(tokens.tobytes()).hexdigest().startswith(digest)


def test_a_melody_sounds_the_notes_that_were_played():
    sound = Sound([49, 61], 'an "octave"')
    with wave.open(io.BytesIO(sound.data)) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16)
    for note, pitch in zip(np.split(samples, 2), [440, 880]):
        spectrum = np.abs(np.fft.rfft(note))
        assert abs(np.fft.rfftfreq(len(note), 1 / RATE)[spectrum.argmax()] - pitch) <= RATE / len(note)
