"""Right functions are accepted however they are written, wrong ones are rejected, and the message names the mistake."""

from pathlib import Path

import pytest
import torch
import yaml

from workbooks import EXERCISES, answered, check, helped
from workbooks.check import PASSED, TOLERANCE, Wrong, close, judge
from workbooks.inputs import random_model

two = random_model(2, 7)  # as in a notebook
VARIANTS = yaml.safe_load(Path(__file__).with_name("exercise_variants.yml").read_text(encoding="utf8"))


def said(name, function) -> str:
    """Return what the judge says about a function; "" if it is right."""
    try:
        judge(EXERCISES[name], function)
    except Wrong as wrong:
        return str(wrong)
    return ""


def rewritten(name, old, new):
    """Return the solution of an exercise with a part of its code replaced."""
    code, names = EXERCISES[name].code, dict(EXERCISES[name].solution.__globals__, two=two)
    old = code.partition('"""\n')[2] if old is None else old
    assert old in code
    exec(code.replace(old, new), names)
    return names[name]


@pytest.mark.parametrize(("name", "old", "new"), VARIANTS["right"])
def test_right_functions_are_accepted_however_they_are_written(name, old, new):
    assert said(name, torch.no_grad()(rewritten(name, old, new))) == ""


@pytest.mark.parametrize(("name", "old", "new", "message"), VARIANTS["wrong"])
def test_wrong_functions_are_rejected_with_what_is_wrong(name, old, new, message):
    assert message in said(name, rewritten(name, old, new))


@torch.no_grad()
def fails(model, tokens):
    return model.run_with_cache(tokens)[1]["resid", 0]


def test_an_error_is_named_by_the_line_of_the_readers_function_also_under_a_decorator():
    line, found = (fails.__wrapped__.__code__.co_firstlineno + 2, 'return model.run_with_cache(tokens)[1]["resid", 0]')
    assert f"Line {line}, `{found}`, raises KeyError: " in said("residual_parts", fails)
    assert "n_layers 2, d_model 12" in said("residual_parts", fails)


@pytest.mark.parametrize("name", EXERCISES)
def test_every_typical_mistake_gets_its_message_with_a_wide_margin(name, monkeypatch):
    monkeypatch.setitem(close.__globals__, "TOLERANCE", 5 * TOLERANCE)
    exercise = EXERCISES[name]
    assert len(exercise.mistakes) >= 3 and len(exercise.code.splitlines()) <= 20
    for mistake in exercise.mistakes:
        assert [exercise.code.count(right) for right in mistake["instead"]] == [1] * len(mistake["instead"])
    assert said(name, exercise.solution) == ""
    for message, mistaken in exercise.mistaken:
        assert said(name, mistaken) == message
    text = helped(name).data
    assert text.count("<details>") == len(exercise.hints) + 1 == text.count("</details>")
    assert f"```python\ndef {name}(" in text and "@exercise" not in text


def test_check_prints_one_line_returns_what_is_right_and_opens_the_answers(capsys):
    name, solution = "copying_positivity", EXERCISES["copying_positivity"].solution

    def unwritten(model):
        raise NotImplementedError

    def right(model, extra=0):
        return solution(model)

    PASSED.clear()
    for function, returned, says in (
        (unwritten, solution, "is not written yet: it raises NotImplementedError.\nThe cells below use"),
        (lambda model: 3, solution, "is not right yet. It must return a tensor, got int."),
        (right, right, "is right. It agrees with the book's version."),
    ):
        function.__name__ = name
        assert "<details><summary>Answer to Predict</summary>" in answered(name, Prediction="3").data
        assert check(function) is returned
        assert capsys.readouterr().out.startswith(f"{name} {says}")
    assert "<details open>" in answered(name, Prediction="3").data
    check(len)
    assert "no exercise named len. Pass one of" in capsys.readouterr().out
