"""circuits.heads and measures: by patterns made by hand and against the plain module."""

from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from random_models import build, defined_in, differs, same
from transformer_lens import FactoredMatrix

from transformer_circuits.circuits import heads
from transformer_circuits.measures import attention, estimates, repeats, weights
from transformer_circuits.measures.repeats import repeated_random_tokens
from transformer_circuits.models.architecture import BOS
from transformer_circuits.models.bridge import from_matrices, matrices
from transformer_circuits.models.view import View, without_heads

REPEATED = repeated_random_tokens(d_vocab=90, n_ctx=60, rows=20, shortest=6)


def test_rows_are_the_start_token_noise_copies_noise():
    for row, start, length in zip(REPEATED.tokens, REPEATED.start.tolist(), REPEATED.length.tolist()):
        assert row[0] == BOS and not (row[1:] == BOS).any()
        copies = row[start : start + 2 * length].view(2, length)
        different = set(row[: start + length].tolist())
        assert (copies == copies[0]).all() and len(different) == start + length
    assert len(set(REPEATED.length.tolist())) > 5 and len(set(REPEATED.start.tolist())) > 5
    assert len(REPEATED.targets) == REPEATED.length.sum()  # that they are right: test_induction_circuit


@pytest.mark.parametrize("options", [{"n_ctx": 8}, {"d_vocab": 4}, {"frequency": torch.eye(30)[1]}])
def test_two_copies_must_fit(options):
    with pytest.raises(ValueError, match="two copies of 4 different tokens must fit"):
        repeated_random_tokens(**{"d_vocab": 30, "n_ctx": 20, "shortest": 4, **options})
    assert (repeated_random_tokens(12, 60).length == 11).all(), "all tokens of a small vocabulary"


def test_a_segment_of_text_is_written_twice_and_the_text_goes_on():
    text, sizes = torch.arange(60).expand(30, -1), {"n_ctx": 60, "d_vocab": 4096, "device": "cpu"}
    data = mock.MagicMock()  # how frequent tokens are is another thing
    data.held_out_windows().flatten().bincount.return_value = torch.ones(4096)
    given = {"torch": torch, "data": data, "repeats": repeats, "text": text} | sizes
    found = defined_in("07_induction_heads", "written-twice", **given).written_twice(text, seed=0)
    for row, start, length in zip(found.tokens, found.start.tolist(), found.length.tolist()):
        assert torch.equal(row, torch.cat([text[0, : start + length], text[0, start : 60 - length]]))
        assert 20 <= length <= 29 and 1 <= start and start + 2 * length <= 60
    assert len(set(found.length.tolist())) > 5 and len(set(found.start.tolist())) > 5


def test_the_error_of_a_ratio_is_that_of_resampled_pairs():
    generator = torch.Generator().manual_seed(0)
    wholes = 1 + torch.rand(3, 400, generator=generator)
    parts = 0.3 * wholes + 0.1 * torch.randn(3, 400, generator=generator)  # what varies in both is most of it
    ratio, error = estimates.ratio(parts, wholes)
    picked = torch.randint(400, (4000, 400), generator=generator)
    again = parts[:, picked].sum(dim=-1) / wholes[:, picked].sum(dim=-1)
    same(ratio, parts.mean(dim=1) / wholes.mean(dim=1), tolerance=1e-5)
    assert (error / again.std(dim=1) - 1).abs().max() < 0.05
    mean, of_mean = estimates.ratio(parts, torch.ones_like(parts))
    same(torch.stack([mean, of_mean]), torch.stack(estimates.mean(parts.T)), tolerance=1e-5)


def test_scores_of_heads_made_by_hand():
    rest = torch.zeros(9, 9)
    rest[:, 0] = 1
    uniform = torch.ones(9, 9).tril() / torch.arange(1, 10)[:, None]
    pattern = torch.stack([torch.diag(torch.ones(8), -1), rest, uniform])
    late, all_but_first = (sum(1 / i for i in range(first, 10)) / (10 - first) for first in (3, 2))
    assert attention.previous_token_score(pattern).tolist() == pytest.approx([1, 0, late])
    assert attention.start_token_score(pattern).tolist() == pytest.approx([1 / 8, 1, all_but_first])
    assert attention.current_token_score(pattern).tolist() == pytest.approx([0, 0, all_but_first])


@pytest.fixture(scope="module")
def case():
    return build(n_layers=2, n_heads=3, d_vocab=90, length=60, seed=3)


def test_scores_of_a_model_are_those_of_its_patterns(case):
    tokens = REPEATED.tokens  # more rows than run together
    _, cache = case.model.run_with_cache(tokens)
    pattern = torch.stack([cache["pattern", layer] for layer in (0, 1)])
    same(View(case.model).patterns(tokens), pattern)
    expected = torch.stack([attention.induction_score(layer, REPEATED) for layer in pattern])
    same(heads.induction_scores(case.model, REPEATED), expected)
    same(heads.previous_token_scores(case.model, tokens), attention.previous_token_score(pattern).mean(1))


def test_losses_and_first_guesses_are_the_plain_modules(case):
    tokens = REPEATED.tokens
    expected = F.cross_entropy(case.plain(tokens[:, :-1]).mT, tokens[:, 1:], reduction="none")
    same(View(case.model).losses(tokens), expected)
    guesses = case.plain(tokens[:, :-1]).argmax(dim=-1)
    right = guesses == tokens[:, 1:]
    assert torch.equal(View(case.model).losses_and_guesses(tokens)[1], right)
    # Without what comes after the second copies, in another order: what is before stays.
    both = View(case.model).losses_and_guesses(tokens, ends=REPEATED.ends)
    for found, whole in zip(both, (expected, right)):
        assert found.shape == whole.shape
        same(REPEATED.by_copy(found.double()), REPEATED.by_copy(whole.double()))
    assert not both[0][REPEATED.ends.argmin(), -1]  # the shortest row was cut off


def test_removing_heads_is_a_model_without_their_output(case):
    gone, W = without_heads([(0, 2), (1, 0), (1, 1)]), matrices(case.model)
    W_O = W["W_O"].clone()
    W_O[[0, 1, 1], [2, 0, 1]] = 0
    without = from_matrices(**W | {"W_O": W_O})
    measures = {View.losses: REPEATED.tokens, View.patterns: REPEATED.tokens, heads.induction_scores: REPEATED}
    view, other = View(case.model), View(without)
    for measure, data in measures.items():
        before = measure(view, data)
        same(measure(view, data, gone), measure(other, data))
        differs(measure(view, data, gone), before)
        assert torch.equal(measure(view, data), before)  # the hooks are gone


def test_turning_at_random_is_a_rotation_between_the_two_heads():
    generator = torch.Generator().manual_seed(5)
    V, O, Q, K = torch.randn(4, 96, 8, dtype=torch.float64, generator=generator)
    O[:, 1:] *= 1e-3  # heads that write, and read, along one direction: their chance varies most
    K[:, 1:] *= 1e-3
    OV, QK = V @ O.T, Q @ K.T
    writers, readers = (FactoredMatrix(M.expand(20, -1, -1), N.T.expand(20, -1, -1)) for M, N in ((V, O), (Q, K)))
    found, expected = weights.turned(writers, readers, readers)[1].flatten(), []
    for _ in range(200):  # all of the rotation, between all of the matrices
        R = torch.linalg.qr(torch.randn(96, 96, dtype=torch.float64, generator=generator)).Q
        expected.append((OV @ R @ QK.T).norm() / OV.norm() / QK.norm() * 96**0.5)
    expected = torch.stack(expected)
    assert abs(found.mean() - expected.mean()) < 4 * expected.std() * (1 / 200 + 1 / 400) ** 0.5
    assert abs(found.std() / expected.std() - 1) < 0.2 and found.std() > 0.4
