"""Right functions are accepted however they are written, wrong ones are rejected, and the message names the mistake."""

import re

import pytest
import torch

from transformer_circuits.exercises import EXERCISES, answered, check, helped
from transformer_circuits.exercises.check import PASSED, SINGLE, TOLERANCE, Wrong, close, judge
from transformer_circuits.exercises.inputs import random_model

two = random_model(2, 7)  # as in a notebook
ALL = None  # in place of a part of the solution: everything after its docstring


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
    old = code.partition('"""\n')[2] if old is ALL else old
    assert old in code
    exec(code.replace(old, new), names)
    return names[name]


ONE_HOT = "F.one_hot(tokens, model.cfg.d_vocab).float() @ model.W_E"  # single precision, also in a model of double precision
TURNED = """T = torch.linalg.qr(torch.randn(len(place), len(place), generator=torch.Generator().manual_seed(0))).Q
    return dict(W_E=token.T @ T, W_pos=place.T @ T, W_Q=T.T @ W_Q, W_K=T.T @ W_K, W_V=T.T @ W_V, W_O=W_O @ T, W_U=T.T @ out)"""
LOOKED_UP = """    _, cache = model.run_with_cache(tokens, names_filter=lambda name: "pattern" in name)
    return torch.stack([torch.stack([cache["pattern", layer][:, head, range(length + 1, 2 * length + 1), range(2, length + 2)].mean()
                                     for head in range(model.cfg.n_heads)]) for layer in range(model.cfg.n_layers)])"""
REMOVED = """    def remove(x, hook):
        return x - torch.einsum("rpd,dm->rpm", noted[0][:, :, writer], model.W_O[0, writer])
    noted = []
    hooks = [("blocks.0.attn.hook_z", lambda z, hook: noted.append(z)), (f"blocks.1.attn.{side}.hook_in", remove)]
    with model.hooks(fwd_hooks=hooks):
        return induction_scores(model, tokens, length)[1].float()"""


@pytest.mark.parametrize(("name", "old", "new"), [
    ("residual_parts", 'cache["z", layer][:, :, head] @ model.W_O[layer, head]',
     'torch.einsum("rpd,dm->rpm", cache["z", layer][:, :, head], model.W_O[layer, head])'),
    ("residual_parts", '[cache["embed"]]', f"[{ONE_HOT}]"),
    ("logits_by_order", "torch.stack(terms) @ model.W_U", "torch.stack([x.float() @ model.W_U.float() for x in terms])"),
    ("logit_lens", "torch.stack(stages)", "torch.stack([x.float() for x in stages])"),
    ("ov_row", "model.W_E[token]", "torch.eye(model.cfg.d_vocab)[token] @ model.W_E"),
    ("ov_row", "model.W_V[layer, head] @ model.W_O[layer, head]", "model.OV[layer, head].AB"),
    ("qk_column", "model.W_E @ model.W_Q[layer, head] @ key", "torch.stack([q @ key for q in model.W_E @ model.W_Q[layer, head]])"),
    ("first_layer_pattern", "return scores.masked_fill(ahead, -torch.inf).softmax(dim=-1)",
     "return F.scaled_dot_product_attention(queries, keys, torch.eye(len(tokens[0])).expand(len(tokens), -1, -1), is_causal=True)"),
    ("first_layer_pattern", "model.W_E[tokens]", f"({ONE_HOT})"),
    ("copying_positivity", "(model.W_U @ model.W_E) @ model.W_V", "model.W_U @ (model.W_E @ model.W_V)"),
    ("forced_bugs", ALL, "    hit = torch.zeros_like(wrong)\n    for d in range(len(right)):\n"
     "        hit[d] = ((right[d] & wrong).any(dim=1)[:, None] & right).any(dim=0)\n    return wrong & hit"),
    ("previous_token_scores", ".mean(dim=(1, 3))", ".float().mean(dim=3).mean(dim=1)"),
    ("induction_scores", ALL, LOOKED_UP),
    ("value_weighted", 'cache["pattern", layer] * size.mT[:, :, None, :]', 'torch.einsum("rhds,rsh->rhds", cache["pattern", layer], size)'),
    ("composition", "OV[None] @ reads[:, None]", 'torch.einsum("wij,rjk->rwik", OV, reads)'),
    ("induction_without", ALL, REMOVED),
    ("losses_by_order", "F.cross_entropy(logits.mT, tokens[:, 1:])", "-logits.log_softmax(-1).gather(-1, tokens[:, 1:, None]).mean()"),
    ("induction_by_hand", "return dict(W_E=token.T, W_pos=place.T, W_Q=W_Q, W_K=W_K, W_V=W_V, W_O=W_O, W_U=out)", TURNED),
    ("induction_by_hand", "* 20", "* 35"),
    ("ablation_costs", "z[:, :, head].mean(dim=(0, 1))", "z[:, :, head].flatten(0, 1).float().mean(dim=0)"),
])  # fmt: skip
def test_right_functions_are_accepted_however_they_are_written(name, old, new):
    assert said(name, torch.no_grad()(rewritten(name, old, new))) == ""


# Each wrong function with its message; most mistakes have no message of their own
FIXED = "torch.stack([wide(place @ one_back), wide(place @ torch.eye(n_ctx).roll(3 - n_ctx // 2, dims=1))])"
WRONG = [
    ("residual_parts", "_, cache", "tokens[0] = 0; _, cache", "It changes `tokens` in place. Change a copy, such as `tokens.clone()`."),
    ("residual_parts", "_, cache", "model.W_U.mul_(2); _, cache", "It changes `model` in place."),
    ("residual_parts", "_, cache", 'model.add_hook("blocks.0.attn.hook_z", lambda z, hook: z); _, cache', "It leaves a hook on the model."),
    ("residual_parts", "model.cfg.n_heads", "two.cfg.n_heads - 1", "got [9, 7, 17, 12]. It was tried with a model with n_layers 2, d_model 12, n_heads 5, "
     "d_head 6, d_vocab 19, n_ctx 24, tokens [7, 17]. It reads `two` from the notebook. Did you mean an argument?"),
    ("residual_parts", "parts.append(cache", "parts[0] += 0 * parts[0]; parts.append(parts[0]); (cache",
     "the same everywhere along the axis `part`. If you collect a tensor in a list and then change it in place"),
    ("ov_row", "model.W_E[token]", "torch.eye(model.cfg.d_vocab, dtype=torch.float64)[token] @ model.W_E", "raises RuntimeError: expected"),
    ("ov_row", "model, layer: int, head: int", "model, head: int", "must be (model, layer, head, token), got (model, head, token)"),
    ("first_layer_pattern", ALL, '    return model.run_with_cache(tokens)[1]["pattern", 0][:, head]', "Your function runs the model."),
    ("forced_bugs", "return wrong & (ways > 0)", "wrong &= ways > 0; return wrong", "It changes `wrong` in place."),
    ("forced_bugs", "double()", "to(torch.int8)", "It was tried with right [40, 40], wrong [40, 40]. Other trials were right."),
    ("forced_bugs", "return wrong & (ways > 0)", "return wrong * (ways > 0).float()", "must be True or False, got torch.float32."),
    ("forced_bugs", "wrong.double().T", "wrong.T", "raises RuntimeError: expected"),
    ("induction_scores", "torch.zeros(model.cfg.n_layers", "torch.zeros(2", "raises IndexError: "),
    ("composition", '"K": QK.mT', '"K": QK', "Your queries and keys read the same matrix."),
    ("composition", '"Q": QK,', '"Q": QK.mT,', "Your queries and keys read the same matrix."),
    ("composition", '"V": model.OV[1].AB', '"V": QK', "side='V'. Other trials were right."),
    ("composition", "product = norm(OV[None] @ reads[:, None])", "return (norm(OV[None] @ reads[:, None]) / norm(OV) / norm(reads)[:, None] * model.cfg.d_model**0.5).mT", "transposed. Its last two axes must be [reader, writer]"),
    ("losses_by_order", ALL, "    return torch.stack([F.cross_entropy(x.mT, tokens[:, 1:]) for x in logits_by_order(model, tokens[:, :-1]).cumsum(0)])",
     "Your function calls the book's path expansion"),
    ("induction_by_hand", "torch.stack([wide(place @ one_back), wide(token)])", FIXED, "the attention of head 1.0 to the token after the first"),
    ("induction_by_hand", "* 20", "", "the attention of head 0.0 to the previous token is in between and should be near 1"),
    ("induction_by_hand", "W_Q=W_Q", "W_Q=W_Q[0]", "W_Q must be [layer, head, d_model=84, d_head], got [1, 84, 24]"),
    ("induction_by_hand", "W_U=out", "W_U=out * torch.nan", "W_U contains NaN or infinity"),
    ("induction_by_hand", "W_U=out", "", "missing 1 required positional argument: 'W_U'"),
    ("induction_by_hand", "(n_ctx).roll", "(d_vocab).roll", "Line "),
    ("copying_positivity", "return values", "values", "returns nothing"),
    ("copying_positivity", "return", "return [1.0] or", "must return a tensor, got list."),
    ("copying_positivity", "values.abs().sum(-1)", "(values.abs().sum(-1) + 0j)", "must be real numbers, got torch.complex"),
    ("copying_positivity", ALL, "    return model.W_E.numpy()", "got ndarray. See `torch.stack` or `torch.from_numpy`."),
    ("copying_positivity", ALL, "    return torch.ones(5, 2)", "must be [layer, head], here [2, 5], got [5, 2]. The axes are in a different order."),
    ("copying_positivity", "values.real.sum(-1)", "values.real.sum(-1) * 0 / 0", "At layer 0, head 0 it gives nan and should give"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "old", "new", "message"), WRONG)
def test_wrong_functions_are_rejected_with_what_is_wrong(name, old, new, message):
    assert message in said(name, rewritten(name, old, new))


@torch.no_grad()
def fails(model, tokens):
    return model.run_with_cache(tokens)[1]["resid", 0]


def test_an_error_is_named_by_the_line_of_the_readers_function_also_under_a_decorator():
    line, found = (
        fails.__wrapped__.__code__.co_firstlineno + 2,
        'return model.run_with_cache(tokens)[1]["resid", 0]',
    )
    assert f"Line {line}, `{found}`, raises KeyError: " in said("residual_parts", fails)
    assert "n_layers 2, d_model 12" in said("residual_parts", fails)


@pytest.mark.parametrize("name", EXERCISES)
def test_every_typical_mistake_gets_its_message_with_a_wide_margin(name, monkeypatch):
    monkeypatch.setitem(close.__globals__, "TOLERANCE", 100 * TOLERANCE)
    monkeypatch.setitem(close.__globals__, "SINGLE", 5 * SINGLE)
    exercise = EXERCISES[name]
    assert len(exercise.mistakes) >= 3 and len(exercise.code.splitlines()) <= 20
    for mistake in exercise.mistakes:
        assert [exercise.code.count(right) for right in mistake["instead"]] == [1] * len(mistake["instead"])
    for message, mistaken in exercise.mistaken():
        assert said(name, mistaken) == message
    text = helped(name).data
    assert text.count("<details>") == len(exercise.hints) + 1 == text.count("</details>")
    assert f"```python\ndef {name}(" in text and "@exercise" not in text


def test_check_prints_one_line_returns_what_is_right_and_opens_the_answers(capsys, monkeypatch):
    solution = EXERCISES["copying_positivity"].solution

    def unwritten(model):
        raise NotImplementedError

    def right(model, extra=0):
        return solution(model)

    monkeypatch.setattr(EXERCISES["copying_positivity"], "calls", 1)
    PASSED.clear()
    for function, returned, says in (
        (unwritten, solution, "is not written yet. The cells below use the book's version."),
        (lambda model: 3, solution, "is not right yet. It must return a tensor, got int.*"),
        (right, right, "is right. It agrees with the book's version."),
    ):
        function.__name__ = "copying_positivity"
        assert "<details><summary>Found</summary>" in answered("copying_positivity", Found="3").data
        assert check(function) is returned
        assert re.fullmatch(f"copying_positivity {says}\n", capsys.readouterr().out)
    assert "<details open>" in answered("copying_positivity", Found="3").data
    monkeypatch.setattr(EXERCISES["copying_positivity"], "calls", 1e9)
    assert check(right) is solution and "With it, the cells below would take about" in capsys.readouterr().out
    assert check(len) is len and "no exercise named len. Pass one of" in capsys.readouterr().out
    check(torch.ones(2))
    assert (
        "Got a Tensor. Pass one of these functions without calling it: residual_parts, "
        in capsys.readouterr().out
    )
