"""O1 to O6: heads add up, a head is A (x) W_OV, the basis is free, only W_QK and W_OV matter, subspaces."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_models import BROKEN, EXACT, PLAIN_CASES, build, cases, forward_error, identity, random

from transformer_circuits.circuits.composition import composition_ratios
from transformer_circuits.circuits.paths import head_outputs, run
from transformer_circuits.circuits.qk_ov import ov
from transformer_circuits.circuits.subspaces import overlap, read_write_subspaces, virtual_weights
from transformer_circuits.circuits.weights import Weights, relative_error, reparametrize_heads, rotate_basis
from transformer_circuits.models.bridge import wrap

seeds = st.integers(0, 2**32 - 1)


def concatenated(case, residual):
    """What the plain module's first layer adds: heads side by side, then one projection."""
    positions = case.model.pos(torch.arange(len(case.tokens)))
    return case.model.layers[0].attn(residual[None], positions)[0][0]


@identity
@given(cases(min_layers=0))
def test_the_written_out_forward_pass_is_the_models(case):
    result = run(case.weights, case.tokens)
    assert relative_error(result.logits, case.logits) < EXACT
    assert relative_error(result.patterns, case.patterns) < EXACT


@pytest.mark.parametrize("case", PLAIN_CASES)
@pytest.mark.parametrize("name", ["W_Q", "W_K", "W_V", "W_O"])
def test_the_forward_pass_check_fails_when_heads_are_swapped(case, name):
    swapped = dataclasses.replace(case.weights, **{name: getattr(case.weights, name).flip(1)})
    assert forward_error(case, swapped) > BROKEN


@identity
@given(cases())
def test_o1_heads_add_up(case):
    x = case.weights.W_E[case.tokens]
    heads = head_outputs(case.weights, x, case.patterns[0], layer=0)
    assert relative_error(heads.sum(0), concatenated(case, x)) < EXACT


@pytest.mark.parametrize("case", PLAIN_CASES)
def test_o1_fails_without_one_head(case):
    x = case.weights.W_E[case.tokens]
    heads = head_outputs(case.weights, x, case.patterns[0], layer=0)
    assert relative_error(heads[1:].sum(0), concatenated(case, x)) > BROKEN


def as_tensor_product(case, transpose=False):
    """Head 0.0 as one big matrix, A (x) W_OV, times the residual stream laid out as one long vector."""
    A, circuit = case.patterns[0, 0], ov(case.weights, 0, 0).AB
    x = case.weights.W_E[case.tokens]
    return (torch.kron(A, (circuit if transpose else circuit.T).contiguous()) @ x.flatten()).reshape(x.shape)


def from_the_module(case):
    """Head 0.0 alone in the plain module: all other heads' output weights set to zero."""
    attention = case.model.layers[0].attn
    kept = attention.o.weight.clone()
    attention.o.weight[:, attention.d_head :] = 0
    alone = concatenated(case, case.weights.W_E[case.tokens])
    attention.o.weight.copy_(kept)
    return alone


@identity
@given(cases())
def test_o2_a_head_is_a_tensor_product(case):
    assert relative_error(as_tensor_product(case), from_the_module(case)) < EXACT


@pytest.mark.parametrize("case", PLAIN_CASES)
def test_o2_fails_with_the_transposed_ov(case):
    assert relative_error(as_tensor_product(case, transpose=True), from_the_module(case)) > BROKEN


@identity
@given(cases(), seeds)
def test_o2_with_its_pattern_frozen_a_head_is_linear(case, seed):
    x, y = random(2, len(case.tokens), case.weights.d_model, seed=seed)

    def head(z):
        return head_outputs(case.weights, z, case.patterns[0], layer=0)

    assert relative_error(head(3 * x - 2 * y), 3 * head(x) - 2 * head(y)) < EXACT


@pytest.mark.parametrize("case", PLAIN_CASES)
def test_o2_with_its_pattern_free_a_head_is_not_linear(case):
    x, y = random(2, len(case.tokens), case.weights.d_model)
    free = concatenated(case, 3 * x - 2 * y)
    assert relative_error(3 * concatenated(case, x) - 2 * concatenated(case, y), free) > BROKEN


def random_rotation(d_model, seed=0):
    return torch.linalg.qr(random(d_model, d_model, seed=seed)).Q


@identity
@given(cases(min_layers=0), seeds)
def test_o3_no_privileged_basis(case, seed):
    rotated = rotate_basis(case.weights, random_rotation(case.weights.d_model, seed))
    assert relative_error(rotated.W_E, case.weights.W_E) > BROKEN
    assert forward_error(case, rotated) < EXACT


@pytest.mark.parametrize("case", PLAIN_CASES)
@pytest.mark.parametrize("name", ["W_E", "W_pos", "W_Q", "W_K", "W_V", "W_O", "W_U"])
def test_o3_fails_when_one_matrix_is_not_rotated(case, name):
    if name == "W_pos" and not case.weights.W_pos.any():
        return  # a model without positions has nothing to forget
    rotated = rotate_basis(case.weights, random_rotation(case.weights.d_model))
    assert forward_error(case, dataclasses.replace(rotated, **{name: getattr(case.weights, name)})) > BROKEN


@identity
@given(cases(), seeds)
def test_o4_only_w_qk_and_w_ov_matter(case, seed):
    weights = case.weights
    shape = (weights.n_layers, weights.n_heads, weights.d_head, weights.d_head)
    R = random(2, *shape, seed=seed) + 3 * torch.eye(weights.d_head, dtype=torch.float64)
    R = torch.where(torch.linalg.cond(R)[..., None, None] < 100, R, torch.eye(weights.d_head, dtype=torch.float64) * 2)
    other = reparametrize_heads(weights, *R)
    assert relative_error(other.W_Q, weights.W_Q) > BROKEN and relative_error(other.W_O, weights.W_O) > BROKEN
    assert forward_error(case, other) < EXACT


@pytest.mark.parametrize("case", PLAIN_CASES)
def test_o4_fails_without_the_inverse_transpose(case):
    R = random(case.weights.d_head, case.weights.d_head)
    right = reparametrize_heads(case.weights, R, R)
    wrong_keys = case.weights.W_K @ torch.linalg.inv(R)
    wrong_outputs = torch.linalg.inv(R).T @ case.weights.W_O
    assert forward_error(case, dataclasses.replace(right, W_K=wrong_keys)) > BROKEN
    assert forward_error(case, dataclasses.replace(right, W_O=wrong_outputs)) > BROKEN


def what_second_layer_reads(case, part, writers):
    """Queries, keys or values of head 1.0, as a sum over what it reads from each writer through virtual weights."""
    weights, tokens = case.weights, case.tokens
    one_hot = torch.eye(len(weights.W_E), dtype=torch.float64)[tokens]
    inputs = {"embed": one_hot}
    for head in range(weights.n_heads):
        inputs[0, head] = case.patterns[0, head] @ weights.W_E[tokens] @ weights.W_V[0, head]
    chosen = inputs if writers is None else writers
    return sum(inputs[writer] @ virtual_weights(weights, writer, (1, 0, part)).AB for writer in chosen)


def directly(case, part):
    residual = case.model.tok_embed(case.tokens)[None]
    residual = residual + case.model.layers[0].attn(residual, case.model.pos(torch.arange(len(case.tokens))))[0]
    return getattr(case.model.layers[1].attn, part.lower())(residual)[0, :, : case.weights.d_head]


@identity
@given(cases(min_layers=2), st.sampled_from("QKV"))
def test_o5_virtual_weights_carry_all_that_a_later_head_reads(case, part):
    assert relative_error(what_second_layer_reads(case, part, None), directly(case, part)) < EXACT


@pytest.mark.parametrize("part", "QKV")
def test_o5_fails_without_one_writer(part):
    case = PLAIN_CASES[1]
    assert relative_error(what_second_layer_reads(case, part, ["embed", (0, 0)]), directly(case, part)) > BROKEN


@identity
@given(cases(min_layers=2))
def test_o5_connections_are_ratios_of_norms_of_the_products(case):
    weights = case.weights
    ratios = composition_ratios(weights, 0, 1)
    reader, writer = weights.n_heads - 1, 0
    W_OV = weights.W_V[0, writer] @ weights.W_O[0, writer]
    W_QK = weights.W_Q[1, reader] @ weights.W_K[1, reader].T
    for side, W_in in enumerate([W_QK, W_QK.T, weights.W_V[1, reader] @ weights.W_O[1, reader]]):
        norms = torch.linalg.norm(W_OV @ W_in) / (torch.linalg.norm(W_OV) * torch.linalg.norm(W_in))
        expected = norms * math.sqrt(weights.d_model)
        assert abs(ratios[side, reader, writer] / expected - 1) < 1e-8  # the norm may be that of a small remainder


@pytest.mark.parametrize("side", range(3))
def test_o5_connections_find_the_side_that_reads(side):
    """A head whose queries (or keys, or values) read exactly what an earlier head writes stands out there alone.

    With a transposed factor, as in several reproductions, that signal sinks into the chance level.
    """
    weights = build(n_heads=3, d_model=64, d_head=4, d_vocab=64).weights
    name = f"W_{'QKV'[side]}"
    W = getattr(weights, name).clone()
    W[1, 2] = weights.W_O[0, 1].T
    ratios = composition_ratios(dataclasses.replace(weights, **{name: W}), 0, 1)
    found = ratios.flatten().argmax().item()
    assert found == side * 9 + 2 * 3 + 1
    assert ratios.flatten().topk(2).values[0] > 2 * ratios.flatten().topk(2).values[1]


def test_o5_connections_at_random_have_root_mean_square_one():
    weights = build(n_heads=6, d_model=32, d_head=4, d_vocab=9).weights
    at_random = composition_ratios(weights, 0, 1, at_random=torch.Generator().manual_seed(0))
    assert at_random.square().mean().sqrt().item() == pytest.approx(1, abs=0.05)
    same = dataclasses.replace(weights, W_V=weights.W_O.mT, W_Q=weights.W_O.mT, W_K=weights.W_O.mT)
    aligned = dataclasses.replace(same, W_O=same.W_O[:1].expand(2, -1, -1, -1), W_V=same.W_V[:1].expand(2, -1, -1, -1),
                                  W_Q=same.W_Q[:1].expand(2, -1, -1, -1), W_K=same.W_K[:1].expand(2, -1, -1, -1))  # fmt: skip
    assert composition_ratios(aligned, 0, 1).diagonal(dim1=1, dim2=2).min() > 1.5  # rotation takes even that alignment away:
    rotated = composition_ratios(aligned, 0, 1, at_random=torch.Generator().manual_seed(0))
    assert rotated.square().mean().sqrt().item() == pytest.approx(1, abs=0.05)


@identity
@given(cases())
def test_o6_read_and_write_subspaces(case):
    weights = case.weights
    spaces = read_write_subspaces(weights, 0, 0)
    rank = min(weights.d_head, weights.d_model)
    assert spaces.read.shape == spaces.write.shape == (weights.d_model, rank)
    eye = torch.eye(rank, dtype=torch.float64)
    assert relative_error(spaces.read.T @ spaces.read, eye) < EXACT
    assert relative_error(spaces.write.T @ spaces.write, eye) < EXACT
    dense = torch.linalg.svdvals(weights.W_V[0, 0] @ weights.W_O[0, 0])[:rank]
    assert relative_error(spaces.gain, dense) < EXACT
    x = weights.W_E[case.tokens]
    moved = (x @ spaces.read * spaces.gain) @ spaces.write.T
    assert relative_error(moved, x @ weights.W_V[0, 0] @ weights.W_O[0, 0]) < EXACT


@pytest.mark.parametrize("case", PLAIN_CASES)
def test_o6_fails_when_reading_and_writing_change_places(case):
    spaces = read_write_subspaces(case.weights, 0, 0)
    x = case.weights.W_E[case.tokens]
    moved = (x @ spaces.write * spaces.gain) @ spaces.read.T
    assert relative_error(moved, x @ case.weights.W_V[0, 0] @ case.weights.W_O[0, 0]) > BROKEN


def test_o6_overlap_of_subspaces():
    Q = random_rotation(12)
    assert overlap(Q[:, :3], Q[:, :3]) == pytest.approx(1)
    assert overlap(Q[:, :3], Q[:, 1:8]) == pytest.approx(2 / 3)
    assert overlap(Q[:, :3], Q[:, 3:8]) == pytest.approx(0)


@pytest.mark.parametrize("n_layers", [0, 1, 2])
def test_weights_of_a_bridge_are_those_of_the_model_in_it(n_layers):
    case = build(n_layers=n_layers)
    bridge = Weights.of(wrap(case.model))
    for field in dataclasses.fields(Weights):
        assert torch.equal(getattr(bridge, field.name), getattr(case.weights, field.name)), field.name


def test_weights_of_weights_are_themselves():
    weights = PLAIN_CASES[0].weights
    again = Weights.of(weights, dtype=torch.float32)
    assert again.W_E.dtype == torch.float32 and torch.equal(again.W_Q, weights.W_Q.float())
