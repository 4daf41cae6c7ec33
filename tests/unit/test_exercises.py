"""Every solution is right, every typical mistake gets its own message, and every general message is heard."""

from __future__ import annotations

import inspect
import itertools

import pytest
import torch

from transformer_circuits.exercises import EXERCISES, check, helped
from transformer_circuits.exercises.check import TOLERANCE, Wrong, judge, run
from transformer_circuits.exercises.inputs import random_model

LONGEST = 12  # lines of code of a solution, without its signature and docstring

every_exercise = pytest.mark.parametrize("name", EXERCISES)


def said(name, function) -> str:
    """Return what the judge says about a function; "" if it is right."""
    try:
        judge(EXERCISES[name], function)
    except Wrong as wrong:
        return str(wrong)
    return ""


def apart(one, other) -> float:
    """Return the largest difference of two results as a fraction of the largest entry, infinite for different shapes."""
    if one.shape != other.shape:
        return torch.inf
    one, other = one.double(), other.double()
    return float(
        (one - other).abs().max() / torch.maximum(one.abs().max(), other.abs().max()).clamp(min=1e-9)
    )


def test_there_are_fifteen():
    assert len(EXERCISES) == 15


@every_exercise
def test_the_solution_is_right_and_short(name):
    solution = EXERCISES[name].solution
    assert said(name, solution) == ""
    body = inspect.getsource(solution).partition('"""')[2].partition('"""')[2]
    assert len([line for line in body.splitlines() if line.strip()]) <= LONGEST


@every_exercise
def test_every_mistake_gets_its_message(name):
    assert len({message for message, _ in EXERCISES[name].mistakes}) >= 3
    for message, mistake in EXERCISES[name].mistakes:
        assert said(name, mistake) == message


@every_exercise
def test_solution_and_mistakes_are_far_apart(name):
    """On the first arguments that distinguish two of them they differ by much more than the tolerance."""
    exercise = EXERCISES[name]
    functions = [("", exercise.solution), *exercise.mistakes]
    cases = list(exercise.cases())
    results = [[run(exercise, function, args) for args in cases] for _, function in functions]
    for (i, (one, _)), (j, (other, _)) in itertools.combinations(enumerate(functions), 2):
        if one != other:
            distances = [apart(a, b) for a, b in zip(results[i], results[j], strict=True)]
            assert next((d for d in distances if d > TOLERANCE), 0) > 1e-3, (one, other)


# ---- general messages, each by one small function ---------------------------------------------------------------------------


def solved(name):
    return EXERCISES[name].solution


def leaves_a_hook(model, tokens):
    model.add_hook("blocks.0.attn.hook_z", lambda z, hook: z)
    return solved("residual_parts")(model, tokens)


def changes_weights(model, tokens):
    model.W_U.mul_(2)
    return solved("residual_parts")(model, tokens)


def fails(model, tokens):
    _, cache = model.run_with_cache(tokens)
    return cache["resid", 0]


def one_entry_wrong(model):
    scores = solved("copying_positivity")(model).clone()
    scores[1, 2] = 7
    return scores


def wrong_for_one_layer(model):
    return solved("copying_positivity")(model) * (1 if model.cfg.n_layers == 2 else torch.arange(5))


def wrong_for_values(model, side):
    return solved("composition")(model, "Q" if side == "V" else side)


def one_part_wrong(model, tokens):
    parts = solved("residual_parts")(model, tokens)
    parts[10, 0] = 7
    return parts


@pytest.mark.parametrize(
    ("name", "function", "message"),
    [
        (
            "ov_row",
            lambda model, head, token: None,
            "must be (model, layer, head, token), got (model, head, token)",
        ),
        ("residual_parts", fails, f"Line {fails.__code__.co_firstlineno + 2} raises KeyError"),
        ("residual_parts", leaves_a_hook, "leaves a hook on the model"),
        ("residual_parts", changes_weights, "changes the model's own weights"),
        ("copying_positivity", lambda model: None, "returns nothing"),
        (
            "copying_positivity",
            lambda model: [1.0],
            "must return a tensor, got list. `torch.stack` joins a list of tensors.",
        ),
        (
            "copying_positivity",
            lambda model: solved("copying_positivity")(model).T,
            "must be [layer, head], here [2, 5], got [5, 2]. The axes are in a different order.",
        ),
        ("copying_positivity", lambda model: torch.ones(3), "here [2, 5], got [3]."),
        ("copying_positivity", lambda model: torch.ones(2, 5) * 1j, "must be real"),
        (
            "copying_positivity",
            lambda model: torch.ones(2, 5) / 0,
            "NaN or infinity, first at layer 0, head 0.",
        ),
        ("copying_positivity", lambda model: torch.zeros(2, 5), "all zeros."),
        ("induction_scores", lambda model, tokens, length: torch.zeros(2, 5), "Either the hook did not run"),
        (
            "forced_bugs",
            lambda right, wrong: wrong & (right @ wrong.T @ right),
            "raises NotImplementedError: ",
        ),
        ("forced_bugs", lambda right, wrong: wrong * 1.0, "must be True or False, got torch.float32."),
        (
            "copying_positivity",
            lambda model: solved("copying_positivity")(model) + 0j,
            "must be real, got complex numbers",
        ),
        (
            "copying_positivity",
            lambda model: solved("copying_positivity")(model).flip(0),
            "in a different order along the axis `layer`.",
        ),
        ("copying_positivity", wrong_for_one_layer, "a model of 1 layer. Earlier trials were right."),
        ("residual_parts", one_part_wrong, "Everything at part 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 is right."),
        ("composition", wrong_for_values, "It was tried with a model of 2 layers, side='V'."),
        (
            "composition",
            lambda model, side: solved("composition")(model, side).T,
            "transposed. Its last two axes must be [reader, writer]",
        ),
        (
            "copying_positivity",
            lambda model: -2 * solved("copying_positivity")(model),
            "Every entry is -2 times what it should be.",
        ),
        (
            "losses_by_order",
            lambda model, tokens: solved("losses_by_order")(model, tokens).roll(1),
            "one place late along the axis `order`",
        ),
        (
            "losses_by_order",
            lambda model, tokens: solved("losses_by_order")(model, tokens).roll(-1),
            "one place early along the axis `order`",
        ),
        ("copying_positivity", one_entry_wrong, "At layer 1, head 2 it gives 7 and should give"),
        ("copying_positivity", one_entry_wrong, "90% of all entries are right."),
        (
            "induction_by_hand",
            lambda d_vocab, n_ctx: (
                (m := solved("induction_by_hand")(d_vocab, n_ctx)) | {"W_Q": m["W_Q"] / 20}
            ),
            "the attention of head 0.0 to the previous token is in between and should be near 1",
        ),
        (
            "induction_by_hand",
            lambda d_vocab, n_ctx: (m := solved("induction_by_hand")(d_vocab, n_ctx)) | {"W_Q": m["W_Q"][0]},
            "W_Q must be [layer=2, head=1, d_model=84, d_head], got [1, 84, 24].",
        ),
        (
            "induction_by_hand",
            lambda d_vocab, n_ctx: solved("induction_by_hand")(d_vocab, n_ctx - 1),
            "W_pos must be [n_ctx=24, d_model=83], got [23, 83].",
        ),
        (
            "induction_by_hand",
            lambda d_vocab, n_ctx: {"W_E": torch.eye(3)},
            "W_O, W_U, got W_E.",
        ),
        (
            "induction_by_hand",
            lambda d_vocab, n_ctx: (
                (m := solved("induction_by_hand")(d_vocab, n_ctx)) | {"W_U": m["W_U"] * torch.nan}
            ),
            "W_U contains NaN or infinity.",
        ),
    ],
)
def test_general_messages(name, function, message):
    assert message in said(name, function)
    assert said(name, solved(name)) == "", "the model must be as it was"


def test_a_hook_that_stays_is_removed():
    assert "hook" in said("residual_parts", leaves_a_hook)
    assert not any(point.fwd_hooks for point in random_model(2).hook_dict.values())


def test_check_prints_one_line_and_returns_what_is_right(capsys):
    def copying_positivity(model):
        raise NotImplementedError

    assert check(copying_positivity) is EXERCISES["copying_positivity"].solution
    unwritten = "copying_positivity is not written yet. The cells below use the book's version.\n"
    assert capsys.readouterr().out == unwritten

    def copying_positivity(model):
        return 3

    assert check(copying_positivity) is EXERCISES["copying_positivity"].solution
    assert (
        capsys.readouterr().out == "copying_positivity is not right yet. It must return a tensor, got int.\n"
    )

    def copying_positivity(model, extra=0):
        return EXERCISES["copying_positivity"](model)

    assert check(copying_positivity) is copying_positivity
    assert capsys.readouterr().out == "copying_positivity is right. It agrees with the book's version.\n"

    def something_else(): ...

    assert check(something_else) is something_else
    assert "no exercise named something_else. The names are residual_parts, " in capsys.readouterr().out


@every_exercise
def test_help_has_hints_and_the_solution_without_its_decorator(name):
    text = helped(EXERCISES[name].solution, answer="Because.").data
    assert text.count("<details>") == len(EXERCISES[name].hints) + 2 == text.count("</details>")
    assert f"```python\ndef {name}(" in text and "@exercise" not in text and "Because." in text
    assert "Answer" not in helped(EXERCISES[name].solution).data
