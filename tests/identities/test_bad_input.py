"""Wrong input gets a ValueError of one clear sentence."""

import pytest
import torch
from random_models import PLAIN_CASES, build, random
from transformer_lens import FactoredMatrix

from transformer_circuits.circuits.composition import composition_ratios
from transformer_circuits.circuits.paths import expand, expand_scores, run
from transformer_circuits.circuits.positions import mean_by_offset, position_scores, position_terms
from transformer_circuits.circuits.qk_ov import eigenvalues, full_ov, full_path, full_qk, ov, qk
from transformer_circuits.circuits.subspaces import read_write_subspaces, virtual_weights
from transformer_circuits.circuits.weights import Weights, relative_error, rotate_basis
from transformer_circuits.models.architecture import ModelConfig, Transformer
from transformer_circuits.models.bridge import wrap

CASE = PLAIN_CASES[1]
W, TOKENS = CASE.weights, CASE.tokens


@pytest.mark.parametrize("function", [ov, qk, full_ov, full_qk, read_write_subspaces])
@pytest.mark.parametrize("layer, head, sentence", [
    (2, 0, "there is no layer 2: this model has 2 layers, counted from 0"),
    (-1, 0, "there is no layer -1"),
    (0, 2, "there is no head 2: each layer has 2 heads, counted from 0"),
    (1, -1, "there is no head -1"),
])  # fmt: skip
def test_a_head_that_does_not_exist(function, layer, head, sentence):
    with pytest.raises(ValueError, match=sentence):
        function(W, layer, head)


def test_a_head_that_does_not_exist_in_scores_and_positions():
    patterns = run(W, TOKENS).patterns
    for call in (
        lambda: expand_scores(W, TOKENS, patterns, 1, 5),
        lambda: position_terms(W, TOKENS, 5),
        lambda: position_scores(W, 0, 5, 4),
        lambda: virtual_weights(W, (0, 5), "unembed"),
        lambda: virtual_weights(W, (0, 0), (1, 5, "V")),
    ):
        with pytest.raises(ValueError, match="there is no head 5"):
            call()


def test_a_model_without_layers_has_no_heads():
    with pytest.raises(ValueError, match="there is no layer 0: this model has no layers"):
        ov(build(n_layers=0).weights, 0, 0)


@pytest.mark.parametrize("length", [0, 7])
def test_a_prompt_that_is_empty_or_too_long(length):
    tokens = torch.zeros(length, dtype=torch.long)
    patterns = torch.zeros(2, 2, length, length, dtype=torch.float64)
    for call in (
        lambda: run(W, tokens),
        lambda: expand(W, tokens, patterns),
        lambda: expand_scores(W, tokens, patterns, 1, 0),
        lambda: position_terms(W, tokens, 0),
        lambda: position_scores(W, 0, 0, length),
        lambda: run(W, torch.zeros(length, 11, dtype=torch.float64)),
    ):
        with pytest.raises(ValueError, match=f"a prompt must have 1 to 6 tokens, this one has {length}"):
            call()


def test_a_token_outside_the_vocabulary():
    for token in (11, -1):
        with pytest.raises(ValueError, match=f"token ids run from 0 to 10, this prompt has {token}"):
            run(W, torch.tensor([1, token]))
    with pytest.raises(ValueError, match="token ids run from 0 to 10"):
        expand(W, TOKENS, run(W, TOKENS).patterns).logits(W, 11)


@pytest.mark.parametrize("option, sentence", [
    ({"normalization": "LN"}, "this model has layer normalization: fold it with `circuits.layer_norm.fold` first"),
    ({"d_mlp": 4}, "this model has MLPs: these identities are for attention-only models"),
    ({"smeared_keys": True}, "this model has smeared keys: a score depends on two source tokens there"),
    ({"standard_positions": True}, "this model has standard positions: heads move them along with tokens there"),
])  # fmt: skip
def test_a_model_for_which_the_identities_do_not_hold(option, sentence):
    with pytest.raises(ValueError, match=sentence):
        Weights.of(Transformer(ModelConfig(1, 4, 1, 2, 5, 4, **option)))
    with pytest.raises(ValueError, match=sentence):
        Weights.of(wrap(Transformer(ModelConfig(1, 4, 1, 2, 5, 4, **option))))


def test_a_model_with_biases():
    model = Transformer(ModelConfig(1, 4, 1, 2, 5, 4))
    model.layers[0].attn.q = torch.nn.Linear(4, 2)
    with pytest.raises(ValueError, match="this model has biases"):
        Weights.of(model)


def test_something_that_is_not_a_model():
    with pytest.raises(ValueError, match="a str has no weights: pass a model"):
        Weights.of("attn-only-1l")


def test_patterns_of_another_prompt():
    with pytest.raises(ValueError, match="patterns must have shape"):
        run(W, TOKENS[:3], patterns=run(W, TOKENS).patterns)


def test_matrices_of_the_wrong_kind():
    with pytest.raises(ValueError, match="must be an orthogonal 8 by 8 matrix"):
        rotate_basis(W, random(8, 8))
    with pytest.raises(ValueError, match="only a square matrix has eigenvalues, this one is 3 by 4"):
        eigenvalues(FactoredMatrix(random(3, 2), random(2, 4)))
    with pytest.raises(ValueError, match="9 offsets do not fit into 6 positions"):
        mean_by_offset(random(6, 6), 9)
    with pytest.raises(ValueError, match="shapes differ"):
        relative_error(random(3), random(3, 1))


def test_connections_that_cannot_be():
    with pytest.raises(ValueError, match="a writer is 'embed' or"):
        virtual_weights(W, "unembed", "unembed")
    with pytest.raises(ValueError, match="a reader is 'unembed' or"):
        virtual_weights(W, "embed", (0, 0, "O"))
    with pytest.raises(ValueError, match="layer 0 cannot read what layer 0 writes"):
        virtual_weights(W, (0, 0), (0, 1, "V"))
    with pytest.raises(ValueError, match="layer 1 cannot read what layer 1 writes"):
        composition_ratios(W, 1, 1)
    with pytest.raises(ValueError, match="there is no layer 2"):
        composition_ratios(W, 0, 2)
    with pytest.raises(ValueError, match="a path passes from earlier to later layers"):
        full_path(W, ((1, 0), (0, 0)))
