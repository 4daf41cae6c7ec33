"""T7 to T10, T14, T15 on heads made by hand, whose scores are known, and the mistakes that such scores invite."""

import math

import pytest
import torch

from transformer_circuits.circuits import heads
from transformer_circuits.circuits.induction import after_earlier, excess_by_source, key_effects, last_target, self_match_share
from transformer_circuits.models.bridge import from_matrices, matrices
from transformer_circuits.training.scores import repeated_random_tokens

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
    W_Q[0, 0], W_K[0, 0] = gain * position.T, position.T @ torch.diag(torch.ones(n - 1), 1)  # key of j is that of query j + 1
    W_V[0, 0, :, :V], W_O[0, 0, :V] = content.T, before
    W_Q[1, 0, :, :V], W_K[1, 0, :, :V] = gain * content.T, before.T
    W_V[1, 0, :, :V], W_O[1, 0, :V] = content.T, 10 * content
    return from_matrices(content.clone(), position.clone(), W_Q, W_K, W_V, W_O, content.T.clone())


MODEL = hand_made()
THREE = repeated_random_tokens(D_VOCAB, N_CTX, rows=20, copies=3, shortest=5)
TWO = repeated_random_tokens(D_VOCAB, N_CTX, rows=10, copies=2, shortest=5)


def test_targets_follow_earlier_occurrences():
    tokens = torch.tensor([[0, 5, 6, 7, 5, 6, 7, 5, 6, 7], [0, 4, 4, 1, 2, 3, 1, 9, 8, 1]])
    assert last_target(tokens).tolist() == [[-1, -1, -1, -1, 2, 3, 4, 5, 6, 7], [-1, -1, 2, -1, -1, -1, 4, -1, -1, 7]]
    assert after_earlier(tokens)[0, 7].nonzero().flatten().tolist() == [2, 5]
    assert after_earlier(tokens[1])[2].nonzero().flatten().tolist() == [2]  # twice in a row: its own target


def test_targets_are_those_of_repeated_random_tokens():
    found = last_target(THREE.tokens)[THREE.rows, THREE.destinations]
    assert torch.equal(found, THREE.targets)


def test_a_perfect_induction_head_scores_one_on_two_copies_and_shares_in_the_third():
    assert heads.induction_scores(MODEL, TWO)[INDUCTION] == pytest.approx(1, abs=1e-5)
    scores = heads.induction_scores(MODEL, THREE)
    assert scores[INDUCTION] == pytest.approx(0.75, abs=1e-5)
    assert scores.flatten()[:2].max() < 0.2


def test_its_loss_falls_below_that_of_any_predictor_without_order():
    first, second, third = THREE.by_copy(heads.losses(MODEL, THREE.tokens)).tolist()
    assert second < 0.1 and third < 0.1 < math.log(5) < first


def test_without_the_previous_token_head_induction_collapses_and_without_another_it_does_not():
    means = [heads.mean_z(MODEL, THREE.tokens, layer=0)]
    scores = [heads.induction_scores(MODEL, THREE, heads.without_heads([head], means))[INDUCTION] for head in (PREVIOUS, IDLE)]
    assert scores[0] < 0.2 and scores[1] == pytest.approx(0.75, abs=1e-5)


def test_the_key_comes_from_the_token_before():
    parts = excess_by_source(MODEL, THREE, INDUCTION[1])
    assert parts[0, 1] / parts.sum() == pytest.approx(1, abs=1e-5)


def test_a_head_that_matches_the_target_itself_has_no_such_share():
    """Keys read their own content, and queries look for the token with the next number: right on texts that count."""
    changed = {name: W.clone() for name, W in matrices(MODEL).items()}
    changed["W_K"][1, 0] = changed["W_V"][1, 0]
    changed["W_Q"][1, 0, :D_VOCAB] = changed["W_Q"][1, 0, :D_VOCAB].roll(-1, 0)
    counting = type(THREE)(torch.tensor([[0] + 3 * list(range(3, 15))]), torch.tensor([1]), torch.tensor([12]), 3)
    parts = excess_by_source(from_matrices(**changed), counting, 0)
    assert parts[0, 0] > 1 and parts[:, 1].abs().max() < 1e-4 * parts[0, 0]


def test_its_circuits_are_positive_and_each_token_matches_itself_best():
    match = MODEL.W_E @ MODEL.QK[1] @ MODEL.OV[PREVIOUS].T @ MODEL.W_E.mT
    assert heads.positivity(match.eigenvalues)[0] == pytest.approx(1) and self_match_share(match[0]) == 1
    assert heads.positivity((MODEL.W_E @ MODEL.OV[INDUCTION] @ MODEL.W_U).eigenvalues) == pytest.approx(1)
    shifted = {name: W.clone() for name, W in matrices(MODEL).items()}
    shifted["W_Q"][1, 0, :D_VOCAB] = shifted["W_Q"][1, 0, :D_VOCAB].roll(1, 0)
    other = from_matrices(**shifted)
    assert self_match_share((other.W_E @ other.QK[1] @ other.OV[PREVIOUS].T @ other.W_E.mT)[0]) == 0


def test_gradients_vanish_where_the_head_is_certain_and_ablation_does_not():
    for sharpness, certain in ((60.0, True), (0.5, False)):
        model = hand_made(sharpness)
        effects = key_effects(model, TWO, INDUCTION, PREVIOUS, torch.zeros(N_CTX))
        if certain:
            assert effects.attention.min() > 0.99 and effects.ablation.min() > 5 and effects.gradient.abs().max() < 1e-4
        else:
            ratio = effects.gradient / effects.ablation
            assert effects.attention.max() < 0.2 and 0.5 < ratio.min() and ratio.max() < 1.5


@pytest.mark.parametrize(
    "says, call",
    [
        ("no head 1.2", lambda: excess_by_source(MODEL, THREE, 2)),
        ("square", lambda: self_match_share(MODEL.W_E @ MODEL.OV[1, 0] @ MODEL.W_U[:, :5])),
        ("no head 1.3", lambda: key_effects(MODEL, TWO, (1, 3), PREVIOUS, torch.zeros(N_CTX))),
        ("cannot read", lambda: key_effects(MODEL, TWO, (0, 1), PREVIOUS, torch.zeros(N_CTX))),
    ],
)
def test_bad_input_is_declined_in_a_sentence(says, call):
    with pytest.raises(ValueError, match=says):
        call()
