"""Wrong input gets a ValueError of one clear sentence."""

import pytest
import torch
from random_models import PLAIN_CASES, build, random
from transformer_lens import FactoredMatrix

from transformer_circuits.circuits import factored, heads
from transformer_circuits.circuits.subspaces import spectrum
from transformer_circuits.models.architecture import ModelConfig, Transformer
from transformer_circuits.models.bridge import from_matrices, matrices, wrap
from transformer_circuits.training.scores import induction_score, repeated_random_tokens

MODEL = PLAIN_CASES[1].model  # two layers of two heads, six positions


@pytest.mark.parametrize("length", [0, 7])
def test_a_prompt_that_is_empty_or_too_long(length):
    tokens = torch.zeros(1, length, dtype=torch.long)
    for call in (
        lambda: MODEL(tokens),
        lambda: MODEL.run_with_cache(tokens),
        lambda: MODEL.run_with_hooks(tokens),
        lambda: heads.patterns(MODEL, tokens),
        lambda: heads.losses(MODEL, torch.zeros(1, length + 1, dtype=torch.long)),
        lambda: heads.previous_token_scores(MODEL, tokens),
    ):
        with pytest.raises(ValueError, match=f"a prompt must (have 1 to 6 tokens, this one has {length}|be 1 to 6 token ids)"):
            call()


@pytest.mark.parametrize("layer, head", [(2, 0), (-1, 0), (0, 2), (1, -1)])
def test_a_head_that_does_not_exist(layer, head):
    with pytest.raises(ValueError, match=f"there is no head {layer}.{head}: this model has 2 layers of 2 heads, both counted from 0"):
        heads.check_head(MODEL, layer, head)
    with pytest.raises(ValueError, match="this model has 0 layers"):
        heads.check_head(build(n_layers=0).model, 0, 0)


@pytest.mark.parametrize("option, extra", [
    ({"normalization": "LN"}, "layer normalization"),
    ({"d_mlp": 4}, "MLPs"),
    ({"smeared_keys": True}, "smeared keys"),
    ({"standard_positions": True}, "positions in the residual stream"),
])  # fmt: skip
def test_a_model_that_is_more_than_its_matrices(option, extra):
    with pytest.raises(ValueError, match=f"this model has {extra}: it is more than its matrices"):
        matrices(wrap(Transformer(ModelConfig(1, 4, 1, 2, 5, 4, **option))))


def test_matrices_that_do_not_fit_together():
    with pytest.raises((ValueError, RuntimeError)):
        from_matrices(**{**matrices(MODEL), "W_O": matrices(MODEL)["W_V"]})


def test_tensors_that_do_not_belong_together():
    with pytest.raises(ValueError, match="shapes differ"):
        heads.relative_error(random(3), random(3, 1))  # broadcasting would compare something else
    repeated = repeated_random_tokens(30, 20, rows=2, shortest=4)
    with pytest.raises(ValueError, match="patterns of 19 positions are not those of 20 tokens"):
        induction_score(torch.zeros(2, 1, 19, 19), repeated)


@pytest.mark.parametrize("options", [{"copies": 1}, {"n_ctx": 12}, {"d_vocab": 4}, {"frequency": torch.eye(30)[1]}])
def test_repeats_that_cannot_be_drawn(options):
    with pytest.raises(ValueError, match="two or more copies of 4 different tokens are needed"):
        repeated_random_tokens(**{"d_vocab": 30, "n_ctx": 20, "shortest": 4, **options})


def test_matrices_of_which_something_cannot_be_had():
    with pytest.raises(ValueError, match="only a square matrix has a diagonal, this one is 4 by 3"):
        factored.diagonal(FactoredMatrix(random(4, 2), random(2, 3)))
    for k in (0, -1, 12):
        with pytest.raises(ValueError, match=f"a row of 11 entries has no {k} largest"):
            factored.top_k(FactoredMatrix(random(3, 2), random(2, 11)), k)
    with pytest.raises(ValueError, match="the vectors are all the same"):
        spectrum(torch.ones(5, 3))
