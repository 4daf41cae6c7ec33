"""Every typical mistake gets its own message, and every general message is heard. (tests/notebooks: every solution is right.)"""

import functools

import pytest
import torch

from transformer_circuits.exercises import EXERCISES, check, helped
from transformer_circuits.exercises.check import TOLERANCE, Wrong, close, judge
from transformer_circuits.exercises.inputs import random_model

every_exercise = pytest.mark.parametrize("name", EXERCISES)


def said(name, function) -> str:
    """Return what the judge says about a function; "" if it is right."""
    try:
        judge(EXERCISES[name], function)
    except Wrong as wrong:
        return str(wrong)
    return ""


def changed(name, change):
    """Return the solution of an exercise with a change to its result."""
    solution = EXERCISES[name].solution

    @functools.wraps(solution)
    def function(*args):
        return change(solution(*args))

    return function


@every_exercise
def test_every_mistake_is_in_the_solution_and_gets_its_message_with_a_wide_margin(name, monkeypatch):
    monkeypatch.setitem(close.__globals__, "TOLERANCE", 100 * TOLERANCE)
    exercise = EXERCISES[name]
    assert len(exercise.mistakes) >= 3
    for mistake in exercise.mistakes:
        assert [exercise.code.count(right) for right in mistake["instead"]] == [1] * len(mistake["instead"])
    for message, mistaken in exercise.mistaken():
        assert said(name, mistaken) == message


# ---- general messages -------------------------------------------------------------------------------------------------------


def leaves_a_hook(model, tokens):
    model.add_hook("blocks.0.attn.hook_z", lambda z, hook: z)
    return EXERCISES["residual_parts"].solution(model, tokens)


def changes_weights(model, tokens):
    model.W_U.mul_(2)
    return EXERCISES["residual_parts"].solution(model, tokens)


def fails(model, tokens):
    _, cache = model.run_with_cache(tokens)
    return cache["resid", 0]


def wrong_for_values(model, side):
    return EXERCISES["composition"].solution(model, "Q" if side == "V" else side)


@pytest.mark.parametrize(
    ("name", "function", "message"),
    [
        ("ov_row", lambda model, head, token: 0, "(model, layer, head, token), got (model, head, token)"),
        ("residual_parts", fails, f"Line {fails.__code__.co_firstlineno + 2} raises KeyError"),
        ("residual_parts", leaves_a_hook, "leaves a hook on the model"),
        ("residual_parts", changes_weights, "changes the model's own weights"),
        ("forced_bugs", lambda right, wrong: wrong & (right @ wrong.T), "raises NotImplementedError: "),
        ("composition", wrong_for_values, "It was tried with a model of 2 layers, side='V'."),
    ],
)
def test_messages_about_functions(name, function, message):
    assert message in said(name, function)
    assert said(name, EXERCISES[name].solution) == "", "the model must be as it was"
    assert not any(point.fwd_hooks for point in random_model(2).hook_dict.values())


def with_seven(result, *at):
    result[at] = 7
    return result


@pytest.mark.parametrize(("name", "change", "message"), [
    ("copying_positivity", lambda found: None, "returns nothing"),
    ("copying_positivity", lambda found: [1.0], "must return a tensor, got list. `torch.stack` joins a list of tensors."),
    ("copying_positivity", lambda found: found.T, "[layer, head], here [2, 5], got [5, 2]. The axes are in a different order."),
    ("copying_positivity", lambda found: torch.ones(3), "here [2, 5], got [3]."),
    ("copying_positivity", lambda found: found + 0j, "must be real, got complex numbers"),
    ("copying_positivity", lambda found: found / 0, "NaN or infinity, first at layer 0, head 0."),
    ("copying_positivity", lambda found: 0 * found, "all zeros."),
    ("copying_positivity", lambda found: -2 * found, "Every entry is -2 times what it should be."),
    ("copying_positivity", lambda found: found.flip(0), "in a different order along the axis `layer`."),
    ("copying_positivity", lambda found: found if len(found) == 2 else found * torch.arange(5), "a model of 1 layer. Earlier trials were right."),
    ("copying_positivity", lambda found: with_seven(found, 1, 2), "At layer 1, head 2 it gives 7 and should give"),
    ("residual_parts", lambda found: with_seven(found, 10, 0), "Everything at part 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 is right."),
    ("induction_scores", lambda found: 0 * found, "Either the hook did not run"),
    ("forced_bugs", lambda found: found * 1.0, "must be True or False, got torch.float32."),
    ("composition", lambda found: found.T, "transposed. Its last two axes must be [reader, writer]"),
    ("losses_by_order", lambda found: found.roll(1), "one place late along the axis `order`"),
    ("induction_by_hand", lambda found: found | {"W_Q": found["W_Q"] / 20},
     "the attention of head 0.0 to the previous token is in between and should be near 1"),
    ("induction_by_hand", lambda found: found | {"W_Q": found["W_Q"][0]}, "W_Q must be [layer=2, head=1, d_model=84, d_head], got [1, 84, 24]."),
    ("induction_by_hand", lambda found: {"W_E": found["W_E"]}, "W_O, W_U, got W_E."),
    ("induction_by_hand", lambda found: found | {"W_U": found["W_U"] * torch.nan}, "W_U contains NaN or infinity."),
])  # fmt: skip
def test_messages_about_results(name, change, message):
    assert message in said(name, changed(name, change))


def test_check_prints_one_line_and_returns_what_is_right(capsys):
    solution = EXERCISES["copying_positivity"].solution

    def unwritten(model):
        raise NotImplementedError

    def right(model, extra=0):
        return solution(model)

    for function, returned, says in (
        (unwritten, solution, "is not written yet. The cells below use the book's version."),
        (lambda model: 3, solution, "is not right yet. It must return a tensor, got int."),
        (right, right, "is right. It agrees with the book's version."),
    ):
        function.__name__ = "copying_positivity"
        assert check(function) is returned
        assert capsys.readouterr().out == f"copying_positivity {says}\n"
    assert check(len) is len
    assert "no exercise named len. The names are residual_parts, " in capsys.readouterr().out


@every_exercise
def test_help_has_hints_and_the_solution_without_its_decorator(name):
    text = helped(EXERCISES[name].solution, answer="Because.").data
    assert text.count("<details>") == len(EXERCISES[name].hints) + 2 == text.count("</details>")
    assert f"```python\ndef {name}(" in text and "@exercise" not in text and "Because." in text
    assert "Answer" not in helped(EXERCISES[name].solution).data
