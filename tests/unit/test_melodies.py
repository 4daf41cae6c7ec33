"""Melodies: that they are drawn by their rules, what can be known of them, and the figures of their chapter."""

import dataclasses
import hashlib
import io
import math
import wave

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure

from transformer_circuits.figures import melodies as figures
from transformer_circuits.training import melodies
from transformer_circuits.training.melodies import KEYS, OCTAVE, counted_losses, draw, ideal_losses, looked_up_losses, steps
from transformer_circuits.training.train import read_config


@pytest.fixture(scope="module")
def drawn():
    return draw(200, 128, seed=5)


# ---- the generator ---------------------------------------------------------------------------------------------------------


def test_notes_are_keys_and_every_key_is_played(drawn):
    assert drawn.notes.shape == drawn.source.shape == (200, 128)
    assert set(np.unique(drawn.notes)) == set(range(1, KEYS + 1))
    counts = np.bincount(drawn.notes.ravel())[1:]
    assert counts.max() < 2 * counts.min()  # no key is special


def test_returning_notes_are_copies_of_earlier_ones(drawn):
    melody, note = drawn.again.nonzero()
    source = drawn.source[melody, note]
    assert (source < note).all() and (drawn.notes[melody, note] == drawn.notes[melody, source]).all()
    assert not drawn.again[:, :16].any()  # a phrase of eight must have come, and as much again


def test_phrases_go_on_note_for_note_and_are_of_the_lengths_asked_for(drawn):
    for notes, source in zip(drawn.notes, drawn.source):
        found = figures.phrases(source)
        assert sum(end - start for start, end, _ in found) == (source >= 0).sum()
        for start, end, place in found:
            assert (source[start:end] == np.arange(place, place + end - start)).all()
            assert (notes[start:end] == notes[place : place + end - start]).all()
    lengths = [end - start for source in drawn.source for start, end, _ in figures.phrases(source) if end < 128]
    assert min(lengths) == 8 and {8, 24} <= set(lengths)
    assert np.mean(np.array(lengths) <= 24) > 0.97  # now and then one goes on where the last one has just ended


def test_distances_between_a_phrase_and_its_return_differ(drawn):
    distances = {start - place for source in drawn.source for start, _, place in figures.phrases(source)}
    assert len(distances) > 80


def test_new_notes_keep_the_direction_as_often_as_asked():
    for keeps in (0.95, 0.5, 0.0):
        melody = draw(300, 128, seed=3, keeps_direction=keeps, comes_back=0.0)
        assert not melody.again.any()
        step = steps(melody.notes)
        assert (1 <= abs(step)).all() and (abs(step) <= OCTAVE).all()
        kept = np.sign(step[:, 1:]) == np.sign(step[:, :-1])
        assert kept.mean() == pytest.approx(keeps, abs=0.01)
        sizes = np.bincount(abs(step).ravel(), minlength=OCTAVE + 1)[1:]
        assert sizes.max() < 1.1 * sizes.min()  # all distances alike


def test_share_of_notes_that_begin_to_come_back():
    melody = draw(300, 128, seed=4, comes_back=0.1)
    free = ~melody.again[:, 16:] | (melody.place[:, 16:] == 0)  # notes at which a phrase could have begun
    assert (melody.place[:, 16:] == 0).sum() / free.sum() == pytest.approx(0.1, abs=0.01)


def test_place_counts_the_notes_of_a_phrase():
    source = np.array([[-1, -1, -1, 0, 1, 2, 0, 1, -1, 5, 6]])
    melody = melodies.Melodies(np.ones_like(source), source)
    assert melody.place.tolist() == [[-1, -1, -1, 0, 1, 2, 0, 1, -1, 0, 1]]
    assert melody.again.tolist() == [[False] * 3 + [True] * 5 + [False, True, True]]
    assert figures.phrases(source[0]) == [(3, 6, 0), (6, 8, 0), (9, 11, 5)]


def test_steps_go_the_shorter_way_around():
    assert steps(np.array([[1, 88, 1, 45, 1, 3]])).tolist() == [[-1, 1, -44, -44, 2]]


def test_the_same_seed_gives_the_same_melodies():
    assert (draw(5, 64, seed=1).notes == draw(5, 64, seed=1).notes).all()
    assert (draw(5, 64, seed=1).notes != draw(5, 64, seed=2).notes).any()


def test_the_shipped_models_data_can_be_had_again(tmp_path):
    melodies.write(tmp_path, n_train=1000)
    melodies.write(tmp_path / "plain", n_train=10, keeps_direction=0.5)
    held_out, train = (np.load(tmp_path / f"{side}.npy") for side in ("held_out", "train"))
    assert held_out.dtype == np.uint16 and len(held_out) == 500 * 128 and len(train) == 1000 * 128
    for tokens, start in [
        (held_out, "c55af03f8b0afbf031c9dd4df0018486135402b379dcb463915c10205305d99c"),
        (np.load(tmp_path / "plain" / "held_out.npy"), "3ece449f88f6693c02b37ae648a49df8d84a6179fa40f82a49e3339f26bd0bd1"),
        (draw(40_000, 128, seed=0).notes.astype(np.uint16), "e262c2c4fd6ab9f7e37de95b96a49c2d74a942155f62d613225854ab53791c4b"),
    ]:
        assert hashlib.sha256(tokens.tobytes()).hexdigest() == start


@pytest.mark.parametrize(
    "settings, says",
    [
        ({"keeps_direction": 1.5}, "keeps_direction must be a chance"),
        ({"comes_back": -0.1}, "comes_back must be a chance"),
        ({"shortest": 1}, "two notes or more"),
        ({"shortest": 9, "longest": 8}, "the shortest first"),
        ({"length": 15}, "cannot be drawn"),
        ({"n": 0}, "cannot be drawn"),
    ],
)
def test_settings_that_draw_refuses(settings, says):
    with pytest.raises(ValueError, match=says):
        draw(**{"n": 2, "length": 64, "seed": 0} | settings)


def test_command_line(tmp_path, capsys):
    with pytest.raises(SystemExit, match="keeps_direction must be a chance"):
        melodies.main(["--out", str(tmp_path), "--keeps-direction", "2"])


@pytest.mark.parametrize("name", ["melodies-1l", "melodies-2l"])
def test_a_window_of_the_models_is_one_melody(name):
    _, shape, _ = read_config(name)
    assert shape.d_vocab == KEYS + 1 and shape.n_ctx == 128


def test_one_layer_and_two_differ_in_nothing_else():
    (_, one, training), (_, two, same) = (read_config(f"melodies-{n}l") for n in (1, 2))
    assert training == same and dataclasses.replace(one, n_layers=2) == two


# ---- what can be known -----------------------------------------------------------------------------------------------------


def test_without_returns_the_ideal_loss_is_that_of_the_rules():
    """ln 12 for the distance, and the entropy of the direction, from the third note on."""
    notes = draw(100, 40, seed=6, comes_back=0.0).notes
    losses = ideal_losses(notes, comes_back=0.0)
    kept = np.sign(steps(notes)[:, 1:]) == np.sign(steps(notes)[:, :-1])
    assert np.allclose(losses[:, 0], math.log(88)) and np.allclose(losses[:, 1], math.log(24))
    assert np.allclose(losses[:, 2:], -np.log(np.where(kept, 0.95, 0.05) / 12))


def test_ideal_chances_of_all_continuations_add_up_to_one():
    """Exactly, wherever in the melody: the observer's chances are those of a proper prediction."""
    drawn = draw(40, 48, seed=7, shortest=3, longest=6, comes_back=0.3)
    rules = {"shortest": 3, "longest": 6, "comes_back": 0.3}
    for melody, t in [(0, 6), (1, 20), (2, 30), (3, 47)]:
        total = 0.0
        for note in range(1, KEYS + 1):
            heard = drawn.notes[melody : melody + 1, : t + 1].copy()
            heard[0, t] = note
            try:
                total += math.exp(-ideal_losses(heard, **rules)[0, t])
            except ValueError:  # a leap to a note that was never played
                continue
        assert total == pytest.approx(1, abs=1e-12)


def test_ideal_loss_by_enumeration():
    """The chance of a short melody, summed over everything that the generator might have done."""
    rules = {"shortest": 2, "longest": 3, "comes_back": 0.4, "keeps_direction": 0.8}
    notes = draw(30, 9, seed=8, **rules).notes

    def chance(row, t, source, left, direction):
        if t == len(row):
            return 1.0
        if t > 1:
            step = int(steps(row[None, t - 2 : t])[0, 0])
            direction = direction if step == 0 else int(np.sign(step))
        if left:
            return chance(row, t + 1, source + 1, left - 1, direction) if row[t] == row[source] else 0.0
        step = int(steps(row[None, t - 1 : t + 1])[0, 0])
        free = 0.0
        if 1 <= abs(step) <= 12:
            free = (0.8 if np.sign(step) == direction else 0.2) / 12 * chance(row, t + 1, source, 0, direction)
        if t < 4:
            return free
        back = 0.0
        for s in range(t - 2):
            for length in (2, 3):
                if row[t] == row[s]:
                    back += chance(row, t + 1, s + 1, min(length, t - s) - 1, direction) / (t - 2) / 2
        return 0.6 * free + 0.4 * back

    ours = ideal_losses(notes, **rules).sum(axis=1)
    for row, loss in zip(notes, ours):
        expected = sum(chance(row, 1, 0, 0, d) for d in (-1, 1)) / 2 / 88
        assert loss == pytest.approx(-math.log(expected), abs=1e-9)


def test_nobody_loses_less_than_the_ideal_observer(drawn):
    counted, notes = draw(2000, 128, seed=9).notes, drawn.notes[:60]
    one, two = (counted_losses(notes, counted, memory) for memory in (1, 2))
    back = looked_up_losses(notes, two, 0.6)
    ideal = ideal_losses(notes)
    assert ideal.mean() < back.mean() < two.mean() < one.mean() < math.log(88)
    wrong = ideal_losses(notes, comes_back=0.4), ideal_losses(notes, keeps_direction=0.5)
    assert all(ideal.mean() < w.mean() for w in wrong)  # the right rules are the best ones
    rest = drawn.place[:60] >= 3
    assert ideal[rest].mean() < 0.3 < two[rest].mean()


def test_without_direction_the_note_before_the_last_is_worth_nothing():
    here, counted = (draw(n, 64, seed=seed, keeps_direction=0.5).notes for n, seed in [(200, 1), (8_000, 2)])
    one, two = (counted_losses(here, counted, memory).mean() for memory in (1, 2))
    assert two == pytest.approx(one, abs=0.02)


def test_counted_losses_are_those_of_the_table():
    counted = np.array([[1, 2, 3, 5]])  # steps 1, 1, 2
    here = np.array([[10, 11, 12, 14, 20]])  # steps 1, 1, 2, 6
    one = counted_losses(here, counted, 1)[0]
    total = 3 + 44  # half a note for each step
    expected = [math.log(88), -math.log(2.5 / total), -math.log(2.5 / total), -math.log(1.5 / total), -math.log(0.5 / total)]
    assert np.allclose(one, expected)
    two = counted_losses(here, counted, 2)[0]
    assert np.allclose(two[:2], one[:2])
    assert np.allclose(two[2:], [-math.log(1.5 / 46), -math.log(1.5 / 46), -math.log(0.5 / 44)])


def test_looking_back_shares_among_what_followed():
    notes = np.array([[5, 6, 5, 7, 5, 6]])
    losses = np.full(notes.shape, math.log(10))
    found = looked_up_losses(notes, losses, 0.5)[0]
    # Note 3: after 5 came 6, not 7. Note 5: after 5 came 6 and 7, so that 6 has half. Others follow notes that are new.
    expected = [0.1, 0.1, 0.1, 0.05, 0.1, 0.05 + 0.5 / 2]
    assert np.allclose(np.exp(-found), expected)
    assert np.allclose(looked_up_losses(notes, losses, 0.0)[0], losses[0])


def test_bad_questions_about_losses(drawn):
    with pytest.raises(ValueError, match="one or two notes"):
        counted_losses(drawn.notes, drawn.notes, 3)
    with pytest.raises(ValueError, match="a weight from 0 to below 1"):
        looked_up_losses(drawn.notes, np.ones(drawn.notes.shape), 1.0)
    with pytest.raises(ValueError, match="losses of the same notes"):
        looked_up_losses(drawn.notes, np.ones((2, 2)), 0.5)
    with pytest.raises(ValueError, match="chance between 0 and 1"):
        ideal_losses(drawn.notes, comes_back=2)
    with pytest.raises(ValueError, match="note 2 of melody 1 cannot occur"):
        ideal_losses(np.array([[1, 2, 3, 4], [1, 2, 40, 41]]))


# ---- figures ---------------------------------------------------------------------------------------------------------------


def test_melody_has_a_mark_for_each_note_and_an_arc_for_each_phrase(drawn):
    notes, source = drawn.notes[0], drawn.source[0]
    figure = figures.melody(notes, source)
    above, below = figure.axes
    marks = {(x, y) for line in above.lines for x, y in zip(line.get_xdata(), line.get_ydata())}
    assert marks == set(enumerate(notes.tolist()))
    arcs = [(patch.center[0] - patch.r, patch.center[0] + patch.r) for patch in below.patches]
    assert np.allclose(arcs, [(place - 0.5, end - 0.5) for _, end, place in figures.phrases(source)])
    with pytest.raises(ValueError, match="one source a note"):
        figures.melody(notes, source[:-1])


def test_a_melody_without_returns_has_no_arcs():
    notes = draw(1, 32, seed=0, comes_back=0.0)
    assert not figures.melody(notes.notes[0], notes.source[0]).axes[1].patches


def test_training_shows_the_best_head_and_the_levels():
    log = pd.DataFrame({
        "tokens": [0, 1e5, 1e6], "held_out": [4.5, 4.0, 2.0],
        "induction": [[[0.0, 0.0], [0.0, 0.1]]] * 2 + [[[0.0, 0.1], [0.6, 0.2]]],
        "previous_token": [[[0.1, 0.2], [0.0, 0.0]]] * 3,
    })  # fmt: skip
    figure = figures.training({"a": log, "b": log}, {"ideal": 1.5})
    loss, previous, induction = figure.axes
    assert loss.lines[0].get_xdata().tolist() == [0.1, 1.0] and loss.lines[0].get_ydata().tolist() == [4.0, 2.0]
    assert induction.lines[0].get_ydata().tolist() == [0.1, 0.6] and previous.lines[0].get_ydata().tolist() == [0.2, 0.2]
    assert [text.get_text() for text in loss.texts] == ["ideal"] and loss.get_ylim()[0] < 1.5
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b"]


def test_looks_draws_what_is_above_the_least():
    attention = torch.eye(6) * 0.5 + 0.01
    marked = torch.zeros(6, 6, dtype=torch.bool)
    marked[4, 2] = True
    figure = figures.looks({"head": attention}, marked)
    points = figure.axes[0].collections[0].get_offsets()
    assert points.tolist() == [[i, i] for i in range(6)]
    squares = figure.axes[0].lines[0]
    assert (squares.get_xdata().tolist(), squares.get_ydata().tolist()) == ([2], [4])  # source to the right
    with pytest.raises(ValueError, match="give both the same notes"):
        figures.looks({"head": attention}, marked[:5])


def test_along_phrases_needs_both_numbers_of_each():
    assert isinstance(figures.along_phrases({"a": [3, 1, 0]}, {"a": 2.0}), Figure)
    with pytest.raises(ValueError, match="give both for each"):
        figures.along_phrases({"a": [3, 1, 0]}, {"b": 2.0})


def test_intervals_run_from_below_to_above():
    curve = torch.arange(88.0)
    figure = figures.by_interval({"one": curve, "two": curve, "three": curve})
    line = figure.axes[0].lines[-1]
    assert (line.get_xdata()[0], line.get_xdata()[-1], len(figure.axes)) == (-44, 43, 4)
    assert not figure.axes[3].axison


def test_sound_is_what_was_played():
    sound = figures.Sound([49, 61], 'an "octave"', seconds=0.2, rate=8000)
    with wave.open(io.BytesIO(sound.wav)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate(), file.getnframes()) == (1, 1, 8000, 3200)
        samples = np.frombuffer(file.readframes(3200), np.uint8) - 127.5
    for half, pitch in [(samples[:1600], 440), (samples[1600:], 880)]:
        spectrum = np.abs(np.fft.rfft(half))
        assert abs(np.fft.rfftfreq(1600, 1 / 8000)[spectrum.argmax()] - pitch) <= 5
    page = sound._repr_html_()
    assert "<audio controls" in page and 'aria-label="an &quot;octave&quot;"' in page and "http" not in page
    assert len(figures.Sound(range(1, 41), "forty notes")._repr_html_()) < 100_000
    assert repr(sound) == '2 notes: an "octave"'


@pytest.mark.parametrize("notes", [[], [0, 5], [89], [[1, 2]]])
def test_a_piano_has_88_keys(notes):
    with pytest.raises(ValueError, match="keys from 1 to 88"):
        figures.Sound(notes, "nothing")
