"""Wrong input gets a ValueError of one clear sentence."""

import pytest
import torch
from random_models import PLAIN_CASES, build, random
from transformer_lens import FactoredMatrix

from transformer_circuits.circuits import factored, heads
from transformer_circuits.measures.attention import induction_score
from transformer_circuits.measures.repeats import repeated_random_tokens

MODEL = PLAIN_CASES[1].model  # two layers of two heads, six positions
REPEATED = repeated_random_tokens(30, 20, rows=2, shortest=4)


def repeats(**options):
    return repeated_random_tokens(**{"d_vocab": 30, "n_ctx": 20, "shortest": 4, **options})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: heads.check_head(MODEL, 2, 0), "unknown head 2.0; this model has 2 layers of 2 heads"),
        (lambda: heads.check_head(MODEL, 0, -1), "unknown head 0.-1"),
        (lambda: heads.check_head(build(n_layers=0).model, 0, 0), "this model has 0 layers"),
        (lambda: heads.relative_error(random(3), random(3, 1)), "shapes must be equal"),
        (lambda: induction_score(torch.zeros(2, 1, 19, 19), REPEATED), "must have 20 positions, got 19"),
        (lambda: repeats(n_ctx=8), "two copies of 4 different tokens must fit"),
        (lambda: repeats(d_vocab=4), "two copies of 4 different tokens must fit"),
        (lambda: repeats(frequency=torch.eye(30)[1]), "two copies of 4 different tokens must fit"),
        (
            lambda: factored.top_k(FactoredMatrix(random(3, 2), random(2, 11)), 12),
            "k must be 1 to 11, .* got 12",
        ),
    ],
)
def test_wrong_input_gets_a_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()
