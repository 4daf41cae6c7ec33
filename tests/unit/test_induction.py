"""T7 to T10 and T14 on heads made by hand, whose scores are known, and the mistakes that such scores invite."""

import math

import pytest
import torch

from transformer_circuits.circuits import heads
from transformer_circuits.circuits.induction import (
    after_earlier,
    excess_by_source,
    last_target,
    self_match_share,
)
from transformer_circuits.measures import prediction
from transformer_circuits.measures.repeats import Repeated, repeated_random_tokens
from transformer_circuits.measures.weights import positivity
from transformer_circuits.models.bridge import from_matrices, matrices

D_VOCAB, N_CTX = 40, 64
PREVIOUS, IDLE, INDUCTION = (0, 0), (0, 1), (1, 0)


def hand_made(sharpness=60.0):
    """Induction by K-composition, on a stream of [content | what came before | position], all one-hot.

    0.0 fetches the content of the token before into the second part; 0.1 and 1.1 do nothing; 1.0 is the induction head: queries read
    content, keys what came before, and it copies content to the logits.
    """
    V, n = D_VOCAB, N_CTX
    content, before, position = torch.eye(2 * V + n).split([V, V, n])  # [part, d_model]
    W_Q, W_K, W_V = (torch.zeros(2, 2, 2 * V + n, n) for _ in range(3))
    W_O, gain = torch.zeros(2, 2, n, 2 * V + n), sharpness * math.sqrt(n)
    W_Q[0, 0], W_K[0, 0] = (
        gain * position.T,
        position.T @ torch.diag(torch.ones(n - 1), 1),
    )  # key of j is that of query j + 1
    W_V[0, 0, :, :V], W_O[0, 0, :V] = content.T, before
    W_Q[1, 0, :, :V], W_K[1, 0, :, :V] = gain * content.T, before.T
    W_V[1, 0, :, :V], W_O[1, 0, :V] = content.T, 10 * content
    return from_matrices(content.clone(), position.clone(), W_Q, W_K, W_V, W_O, content.T.clone())


MODEL = hand_made()
REPEATED = repeated_random_tokens(D_VOCAB, N_CTX, rows=20, shortest=5)


def test_targets_follow_earlier_occurrences():
    tokens = torch.tensor([[0, 5, 6, 7, 5, 6, 7, 5, 6, 7], [0, 4, 4, 1, 2, 3, 1, 9, 8, 1]])
    assert last_target(tokens).tolist() == [
        [-1, -1, -1, -1, 2, 3, 4, 5, 6, 7],
        [-1, -1, 2, -1, -1, -1, 4, -1, -1, 7],
    ]
    assert after_earlier(tokens)[0, 7].nonzero().flatten().tolist() == [2, 5]
    assert after_earlier(tokens[1])[2].nonzero().flatten().tolist() == [2]  # twice in a row: its own target


def test_targets_are_those_of_repeated_random_tokens():
    found = last_target(REPEATED.tokens)[REPEATED.rows, REPEATED.destinations]
    assert torch.equal(found, REPEATED.targets)


def test_a_perfect_induction_head_scores_one_and_the_others_do_not():
    scores = heads.induction_scores(MODEL, REPEATED)
    assert scores[INDUCTION] == pytest.approx(1, abs=1e-5)
    assert scores[0].max() < 0.2


def test_it_predicts_the_second_copy_and_only_that():
    first, second = REPEATED.by_copy(heads.losses(MODEL, REPEATED.tokens)).tolist()
    assert second < 0.1 and first > math.log(5)
    guesses = prediction.first_guesses(MODEL, REPEATED.tokens).float()
    assert REPEATED.by_copy(guesses)[1] == 1 and REPEATED.by_copy(guesses)[0] < 0.5


def test_without_the_previous_token_head_induction_collapses_and_without_another_it_does_not():
    means = [heads.mean_z(MODEL, REPEATED.tokens, layer=0)]
    scores = [
        heads.induction_scores(MODEL, REPEATED, heads.without_heads([head], means))[INDUCTION]
        for head in (PREVIOUS, IDLE)
    ]
    assert scores[0] < 0.2 and scores[1] == pytest.approx(1, abs=1e-5)


def test_the_key_comes_from_the_token_before():
    parts = excess_by_source(MODEL, REPEATED, INDUCTION[1])
    assert parts[0, 1] / parts.sum() == pytest.approx(1, abs=1e-5)


def test_a_head_that_matches_the_target_itself_has_no_such_share():
    """Keys read their own content, and queries look for the token with the next number: right on texts that count."""
    changed = {name: W.clone() for name, W in matrices(MODEL).items()}
    changed["W_K"][1, 0] = changed["W_V"][1, 0]
    changed["W_Q"][1, 0, :D_VOCAB] = changed["W_Q"][1, 0, :D_VOCAB].roll(-1, 0)
    counting = Repeated(torch.tensor([[0] + 2 * list(range(3, 15))]), torch.tensor([1]), torch.tensor([12]))
    parts = excess_by_source(from_matrices(**changed), counting, 0)
    assert parts[0, 0] > 1 and parts[:, 1].abs().max() < 1e-4 * parts[0, 0]


def test_its_circuits_are_positive_and_each_token_matches_itself_best():
    match = MODEL.W_E @ MODEL.QK[1] @ MODEL.OV[PREVIOUS].T @ MODEL.W_E.mT
    assert positivity(match.eigenvalues)[0] == pytest.approx(1) and self_match_share(match[0]) == 1
    assert positivity((MODEL.W_E @ MODEL.OV[INDUCTION] @ MODEL.W_U).eigenvalues) == pytest.approx(1)
    shifted = {name: W.clone() for name, W in matrices(MODEL).items()}
    shifted["W_Q"][1, 0, :D_VOCAB] = shifted["W_Q"][1, 0, :D_VOCAB].roll(1, 0)
    other = from_matrices(**shifted)
    assert self_match_share((other.W_E @ other.QK[1] @ other.OV[PREVIOUS].T @ other.W_E.mT)[0]) == 0


@pytest.mark.parametrize(
    "says, call",
    [
        ("unknown head 1.2", lambda: excess_by_source(MODEL, REPEATED, 2)),
        ("square", lambda: self_match_share(MODEL.W_E @ MODEL.OV[1, 0] @ MODEL.W_U[:, :5])),
    ],
)
def test_bad_input_is_rejected_in_a_sentence(says, call):
    with pytest.raises(ValueError, match=says):
        call()
