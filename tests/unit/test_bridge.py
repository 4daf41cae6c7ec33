"""The TransformerLens bridge tells the truth about the plain module it wraps."""

import copy
import math
import socket
import warnings

import pytest
import torch
from torch import nn
from transformer_lens import FactoredMatrix

from transformer_circuits.models.architecture import BOS, ModelConfig, Transformer
from transformer_circuits.models.bridge import as_pretrained, head_results, wrap

N_CTX, D_VOCAB = 40, 300
SHAPES = [
    pytest.param(dict(n_layers=n, normalization=normalization, d_mlp=d_mlp), id=f"{n}L-{normalization}-mlp{d_mlp}")
    for n, normalization, d_mlp in [
        (0, None, None),
        (1, None, None),
        (2, None, None),
        (3, None, None),
        (0, "LN", None),
        (2, "LN", None),
        (2, None, 24),
        (2, "LN", 24),
    ]
]
WITH_LAYERS = [shape for shape in SHAPES if shape.values[0]["n_layers"]]


def plain_model(dtype=torch.float64, **options) -> Transformer:
    """Weights of order one, so that no term can hide; d_model, heads x d_head and d_head all differ."""
    torch.manual_seed(0)
    model = Transformer(ModelConfig(**(dict(d_model=32, n_heads=3, d_head=8, d_vocab=D_VOCAB, n_ctx=N_CTX) | options)))
    for name, parameter in model.named_parameters():
        if name != "pos.weight":
            fan_in = parameter.shape[-1] if "embed" not in name and parameter.ndim == 2 else 1
            nn.init.normal_(parameter, std=fan_in**-0.5)
    return model.to(dtype).eval()


def some_tokens(batch: int = 2, n: int = 11) -> torch.Tensor:
    tokens = torch.randint(1, D_VOCAB, (batch, n), generator=torch.Generator().manual_seed(1))
    tokens[:, 0] = BOS
    return tokens


def close(actual, expected, tolerance=1e-10):
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.fixture(scope="module")
def tokenizer(tiny_tokenizer_file):
    return as_pretrained(tiny_tokenizer_file)


@pytest.fixture(scope="module")
def two_layers(tokenizer):
    model = plain_model(n_layers=2).requires_grad_(False)
    return model, wrap(model, tokenizer, "two-layers")


# --- the same function -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_logits_equal_the_plain_module_with_and_without_a_cache(shape, dtype, tolerance):
    model = plain_model(dtype, **shape)
    bridge = wrap(model)
    tokens = some_tokens(3)
    close(bridge(tokens), model(tokens), tolerance)
    logits, _ = bridge.run_with_cache(tokens)
    close(logits, model(tokens), tolerance)
    assert logits.dtype == dtype and bridge.cfg.dtype == dtype


def test_wrapping_leaves_the_plain_module_alone_and_shares_no_memory():
    model = plain_model(n_layers=2)
    before = copy.deepcopy(model.state_dict())
    bridge = wrap(model)
    with torch.no_grad():
        for parameter in bridge.parameters():
            parameter.zero_()
    assert type(model.layers[0].attn.q) is nn.Linear and list(before) == list(model.state_dict())
    assert all(torch.equal(before[key], tensor) for key, tensor in model.state_dict().items())
    assert not bridge(some_tokens()).any() and model(some_tokens()).any()


def test_building_and_running_a_bridge_says_nothing(tokenizer, capfd, caplog):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for shape in SHAPES:
            bridge = wrap(plain_model(**shape.values[0]), tokenizer)
            bridge.run_with_cache("the cat")
    output = capfd.readouterr()
    assert (output.out, output.err, caplog.text) == ("", "", "")


# --- the cache ---------------------------------------------------------------------------------------------------------


def test_standard_positions_are_a_part_of_the_residual_stream():
    model = plain_model(n_layers=2, standard_positions=True)
    bridge, tokens = wrap(model), some_tokens()
    logits, cache = bridge.run_with_cache(tokens)
    close(logits, model(tokens))
    close(cache["resid_pre", 0], model.tok_embed.weight[tokens] + model.W_pos[: tokens.shape[1]])
    parts, names = cache.decompose_resid(return_labels=True)
    assert names[:2] == ["embed", "pos_embed"]
    close(parts.sum(dim=0), cache["resid_post", 1])
    without = bridge.run_with_hooks(tokens, fwd_hooks=[("hook_pos_embed", lambda positions, hook: torch.zeros_like(positions))])
    model.pos.weight.data.zero_()
    close(without, model(tokens))


@pytest.mark.parametrize("shape", SHAPES)
def test_cached_activations_are_those_of_an_explicit_computation(shape):
    model = plain_model(**shape)
    tokens = some_tokens()
    _, cache = wrap(model).run_with_cache(tokens)
    n = tokens.shape[1]
    residual = model.tok_embed.weight[tokens]
    close(cache["hook_embed"], residual)
    close(cache["positions.hook_out"], model.W_pos[None, :n])
    for i, layer in enumerate(model.layers):
        close(cache["resid_pre", i], residual)
        read = layer.ln1(residual)
        q, k, v = (
            (x @ getattr(layer.attn, part).weight.T).reshape(2, n, 3, 8)
            for part, x in zip("qkv", (read + model.W_pos[:n], read + model.W_pos[:n], read), strict=True)
        )
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(8)
        scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -math.inf)
        z = torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v)
        for name, expected in dict(q=q, k=k, v=v, z=z, attn_scores=scores, pattern=scores.softmax(-1)).items():
            close(cache[name, i], expected)
        out = z.flatten(-2) @ layer.attn.o.weight.T
        close(cache["attn_out", i], out)
        residual = residual + out
        if shape["d_mlp"]:
            close(cache["resid_mid", i], residual)
            residual = residual + layer.mlp(layer.ln2(residual))
        close(cache["resid_post", i], residual)


@pytest.mark.parametrize("shape", SHAPES)
def test_decompositions_sum_to_the_final_residual_stream_without_positions(shape):
    model = plain_model(**shape)
    tokens = some_tokens()
    _, cache = wrap(model).run_with_cache(tokens)
    final = cache["resid_post", -1] if shape["n_layers"] else cache["hook_embed"]
    close(model.ln_out(final) @ model.head.weight.T, model(tokens))
    parts, labels = cache.decompose_resid(return_labels=True)
    assert "pos_embed" not in labels and "hook_pos_embed" not in cache.keys()
    close(parts.sum(0), final)
    mlps = sum(part for part, label in zip(parts, labels, strict=True) if label.endswith("mlp_out"))
    heads, head_labels = cache.stack_head_results(return_labels=True)
    assert head_labels == [f"L{layer}H{head}" for layer in range(shape["n_layers"]) for head in range(3)]
    close(cache["hook_embed"] + heads.sum(0) + mlps, final)


@pytest.mark.parametrize("shape", WITH_LAYERS)
def test_head_results_three_ways_and_by_hand(shape):
    model = plain_model(**shape)
    tokens = some_tokens()
    bridge = wrap(model)
    logits, cache = bridge.run_with_cache(tokens)
    bridge.set_use_attn_result(True)
    logits_apart, cache_apart = bridge.run_with_cache(tokens)
    close(logits_apart, logits)
    stacked = cache.stack_head_results().unflatten(0, (-1, 3))
    for i, layer in enumerate(model.layers):
        by_hand = torch.stack(
            [cache["z", i][:, :, h] @ layer.attn.o.weight[:, 8 * h : 8 * h + 8].T for h in range(3)], dim=2
        )
        assert by_hand.shape == (2, 11, 3, 32)
        close(head_results(cache, i), by_hand)
        close(cache_apart["result", i], by_hand)
        close(stacked[i], by_hand.permute(2, 0, 1, 3))


def test_accumulated_stream_and_logit_attributions(two_layers):
    model, bridge = two_layers
    tokens = some_tokens()
    logits, cache = bridge.run_with_cache(tokens)
    stream, labels = cache.accumulated_resid(return_labels=True)
    assert labels == ["0_pre", "1_pre", "final_post"]
    close(stream[0], model.tok_embed.weight[tokens])
    close(stream[-1] @ bridge.W_U, logits)
    targets = (tokens + 7) % D_VOCAB
    close(cache.logit_attrs(cache.decompose_resid(), targets).sum(0), logits.gather(-1, targets[..., None])[..., 0])
    whole = cache.stack_head_results(incl_remainder=True)
    close(whole.sum(0), cache["resid_post", -1])
    close(whole[-1], cache["hook_embed"])


def test_batch_dimension_can_be_removed(two_layers):
    _, bridge = two_layers
    tokens = some_tokens(1)
    _, cache = bridge.run_with_cache(tokens, remove_batch_dim=True)
    assert cache["pattern", 1].shape == (3, 11, 11) and head_results(cache, 1).shape == (11, 3, 32)
    close(cache.decompose_resid().sum(0), cache["resid_post", -1])


# --- interventions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", WITH_LAYERS)
@pytest.mark.parametrize("how", ["hook_pattern", "hook_z", "hook_result"])
def test_zeroing_a_head_removes_exactly_that_head(shape, how):
    """Compared with the plain module after that head's columns of W_O are zeroed."""
    model = plain_model(**shape)
    bridge = wrap(model)
    bridge.set_use_attn_result(how == "hook_result")
    tokens = some_tokens()
    untouched = bridge(tokens)
    for layer, head in [(0, 1), (shape["n_layers"] - 1, 2)]:
        without = copy.deepcopy(model)
        without.layers[layer].attn.o.weight.data[:, 8 * head : 8 * head + 8] = 0

        def zero(tensor, hook, head=head):
            if how == "hook_pattern":
                tensor[:, head] = 0
            else:
                tensor[:, :, head] = 0
            return tensor

        edited = bridge.run_with_hooks(tokens, fwd_hooks=[(f"blocks.{layer}.attn.{how}", zero)])
        close(edited, without(tokens))
        assert (edited - untouched).abs().max() > 1e-2
        close(bridge(tokens), untouched)  # hooks are gone


def test_zeroing_a_pattern_of_the_last_layer_by_hand(two_layers):
    model, bridge = two_layers
    tokens = some_tokens()
    logits, cache = bridge.run_with_cache(tokens)

    def zero(pattern, hook):
        pattern[:, 1] = 0
        return pattern

    edited = bridge.run_with_hooks(tokens, fwd_hooks=[("blocks.1.attn.hook_pattern", zero)])
    close(logits - edited, head_results(cache, 1)[:, :, 1] @ bridge.W_U)


def test_editing_scores_takes_effect(two_layers):
    """Forbidding one source is the same as removing it from the pattern and renormalizing."""
    _, bridge = two_layers
    tokens = some_tokens()

    def forbid(scores, hook):
        scores[:, :, 3:, 2] = -math.inf
        return scores

    def remove(pattern, hook):
        pattern[:, :, 3:, 2] = 0
        return pattern / pattern.sum(-1, keepdim=True)

    by_scores = bridge.run_with_hooks(tokens, fwd_hooks=[("blocks.0.attn.hook_attn_scores", forbid)])
    by_pattern = bridge.run_with_hooks(tokens, fwd_hooks=[("blocks.0.attn.hook_pattern", remove)])
    close(by_scores, by_pattern)
    assert (by_scores - bridge(tokens)).abs().max() > 1e-2


def test_frozen_patterns_make_the_model_linear_in_its_embedding(two_layers):
    _, bridge = two_layers
    tokens = some_tokens()
    logits, cache = bridge.run_with_cache(tokens)
    freeze = [(f"blocks.{i}.attn.hook_pattern", lambda _, hook, i=i: cache["pattern", i]) for i in range(2)]
    double = [("hook_embed", lambda embedding, hook: 2 * embedding)]
    close(bridge.run_with_hooks(tokens, fwd_hooks=freeze), logits)
    close(bridge.run_with_hooks(tokens, fwd_hooks=freeze + double), 2 * logits)
    assert (bridge.run_with_hooks(tokens, fwd_hooks=double) - 2 * logits).abs().max() > 1e-2


def test_positions_can_be_switched_off_and_reach_only_queries_and_keys(two_layers):
    model, bridge = two_layers
    tokens = some_tokens()
    _, cache = bridge.run_with_cache(tokens)
    without_positions = copy.deepcopy(model)
    without_positions.pos.weight.data.zero_()
    off = [("positions.hook_out", lambda positions, hook: torch.zeros_like(positions))]
    with bridge.hooks(fwd_hooks=off):
        logits, cache_off = bridge.run_with_cache(tokens)
    close(logits, without_positions(tokens))
    close(cache_off["v", 0], cache["v", 0])
    assert (cache_off["q", 0] - cache["q", 0]).abs().max() > 1e-2


@pytest.mark.parametrize("shape", SHAPES)
def test_every_hook_there_is_fires(shape):
    """A hook that never fires lets an edit silently do nothing."""
    bridge = wrap(plain_model(**shape))
    if shape["n_layers"]:
        bridge.set_use_attn_result(True)
    bridge.set_use_hook_mlp_in(True)
    fired = set()
    hooks = [(name, lambda tensor, hook, name=name: fired.add(name)) for name in bridge.hook_dict]
    bridge.run_with_hooks(some_tokens(1, 3), fwd_hooks=hooks)
    assert fired == set(bridge.hook_dict) and len(fired) > 8


def test_hooks_that_could_not_work_are_refused_by_name(two_layers):
    _, bridge = two_layers
    gone = ("hook_attn_in", "attn.hook_q_input", "attn.hook_hidden_states", "hook_mlp_in")
    for name in ("hook_pos_embed", *(f"blocks.0.{hook}" for hook in gone)):
        with pytest.raises(KeyError, match="does not exist on this model"):
            bridge.run_with_hooks(some_tokens(), fwd_hooks=[(name, lambda tensor, hook: tensor)])
    with pytest.raises(ValueError, match=r"Call set_use_attn_result\(True\) first"):
        bridge.run_with_hooks(some_tokens(), fwd_hooks=[("blocks.0.attn.hook_result", lambda tensor, hook: tensor)])
    with pytest.raises(RuntimeError, match="does not support compatibility mode"):
        bridge.enable_compatibility_mode()


def test_gradients_reach_patterns_and_scores():
    bridge = wrap(plain_model(n_layers=2))
    _, cache = bridge.run_with_cache(some_tokens(), return_type="loss", incl_bwd=True)
    for name in ("hook_pattern_grad", "hook_attn_scores_grad"):
        gradient = cache[f"blocks.0.attn.{name}"]
        assert gradient.shape == (2, 3, 11, 11) and gradient.isfinite().all() and gradient.any()


# --- weights -----------------------------------------------------------------------------------------------------------


def test_weights_have_the_shapes_and_the_orientation_of_transformer_lens(two_layers):
    model, bridge = two_layers
    close(bridge.W_E, model.tok_embed.weight)
    close(bridge.W_U, model.head.weight.T)
    close(bridge.W_pos, model.pos.weight)
    close(bridge.W_E_pos, torch.cat([model.tok_embed.weight, model.pos.weight]))
    assert bridge.W_pos.shape == (N_CTX, 32) and not bridge.b_U.any()
    x = torch.randn(5, 32, dtype=torch.float64)
    for i, layer in enumerate(model.layers):
        for name, part in dict(W_Q="q", W_K="k", W_V="v").items():
            weight = getattr(bridge, name)
            assert weight.shape == (2, 3, 32, 8)
            expected = getattr(layer.attn, part)(x).unflatten(-1, (3, 8))
            close(torch.einsum("pm,hmd->phd", x, weight[i]), expected)
        z = torch.randn(5, 3, 8, dtype=torch.float64)
        assert bridge.W_O.shape == (2, 3, 8, 32)
        close(torch.einsum("phd,hdm->pm", z, bridge.W_O[i]), layer.attn.o(z.flatten(-2)))


def test_circuits_are_factored_and_oriented(two_layers):
    model, bridge = two_layers
    OV, QK = bridge.OV, bridge.QK
    assert isinstance(OV, FactoredMatrix) and OV.shape == (2, 3, 32, 32) and QK.shape == (2, 3, 32, 32)
    tokens = some_tokens(1)
    _, cache = bridge.run_with_cache(tokens, remove_batch_dim=True)
    embedding = cache["hook_embed"]
    for h in range(3):
        close(cache["pattern", 0][h] @ (embedding @ OV[0, h].AB), head_results(cache, 0)[:, h])
        both = embedding + bridge.W_pos[:11]
        scores = both @ QK[0, h].AB @ both.T / math.sqrt(8)
        close(scores.tril(), cache["attn_scores", 0][h].masked_fill(torch.ones(11, 11).triu(1).bool(), 0))


def test_svd_of_a_factored_matrix(two_layers):
    """`.Vh` once returned V under the name Vh; `.V` is what it says, and U S V^T is the matrix."""
    OV = two_layers[1].OV[1, 2]
    close(OV.U @ OV.S.diag() @ OV.V.T, OV.AB)
    assert OV.V.shape == (32, 8)
    close(OV.V.T @ OV.V, torch.eye(8, dtype=torch.float64))
    with pytest.warns(DeprecationWarning, match="returned V"):
        close(OV.Vh, OV.V)
    close(OV.eigenvalues.sum().real, OV.AB.trace())


def test_composition_scores_by_hand(two_layers):
    """Row convention: Q ||OV0 QK1||, K ||OV0 QK1^T||, V ||OV0 OV1||, each over the product of the norms."""
    _, bridge = two_layers
    first, second = bridge.OV.AB[0], dict(Q=bridge.QK.AB[1], K=bridge.QK.AB[1].mT, V=bridge.OV.AB[1])
    for mode, right in second.items():
        scores = bridge.all_composition_scores(mode).scores
        assert scores.shape == (2, 3, 2, 3) and not scores[1].any() and not scores[0, :, 0].any()
        for a in range(3):
            for b in range(3):
                expected = (first[a] @ right[b]).norm() / (first[a].norm() * right[b].norm())
                close(scores[0, a, 1, b], expected)


def test_a_model_without_layers_has_embeddings_and_says_that_it_has_no_heads():
    model = plain_model(n_layers=0)
    bridge = wrap(model)
    close(bridge.W_E @ bridge.W_U, model.tok_embed.weight @ model.head.weight.T)
    assert bridge.W_pos.shape == (N_CTX, 32) and bridge.all_head_labels == []
    for read in (lambda: bridge.W_Q, lambda: bridge.OV):
        with pytest.raises(AttributeError, match="No blocks resolve"):
            read()
    with pytest.raises(ValueError, match="No attention layers found"):
        bridge.all_composition_scores("K")


# --- text --------------------------------------------------------------------------------------------------------------


def test_the_start_token_comes_first_exactly_once(two_layers):
    _, bridge = two_layers
    tokens = bridge.to_tokens("the cat")
    assert tokens[0, 0] == BOS and (tokens[0, 1:] != BOS).all() and tokens.dtype == torch.long
    assert torch.equal(bridge.to_tokens("the cat", prepend_bos=False), tokens[:, 1:])
    assert torch.equal(bridge.to_tokens(""), torch.tensor([[BOS]]))
    assert bridge.to_str_tokens("the cat")[0] == "<|start|>" and "".join(bridge.to_str_tokens("the cat")[1:]) == "the cat"
    assert bridge.to_string(tokens) == ["<|start|>the cat"] and bridge.to_string(tokens[0, 1:]) == "the cat"
    assert bridge.to_single_token(bridge.to_str_tokens("the cat")[1]) == tokens[0, 1]
    assert bridge.tokenizer("the cat")["input_ids"] == tokens[0].tolist()
    close(bridge("the cat"), bridge(tokens))


@pytest.mark.parametrize("text", ["  two  spaces", "a ,b .c n't", "tab\tand\nlines\n\n", "</script> <td", "ünï ©ode 🙂"])
def test_text_survives_the_round_trip(two_layers, text):
    _, bridge = two_layers
    assert bridge.to_string(bridge.to_tokens(text)[0, 1:]) == text


def test_tokenizer_is_made_without_the_network(tiny_tokenizer_file, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    bridge = wrap(plain_model(n_layers=1), as_pretrained(tiny_tokenizer_file))
    tokenizer = bridge.tokenizer
    assert tokenizer.bos_token == tokenizer.eos_token == tokenizer.pad_token == "<|start|>"
    assert tokenizer.bos_token_id == BOS and tokenizer.unk_token is None and len(tokenizer) == D_VOCAB


def test_tokenizer_files_that_cannot_serve_are_refused(tmp_path):
    from tokenizers import Tokenizer, models

    with pytest.raises(ValueError, match="there is no tokenizer file"):
        as_pretrained(tmp_path / "tokenizer.json")
    Tokenizer(models.BPE()).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match=r"does not have <\|start\|> as token 0"):
        as_pretrained(tmp_path / "tokenizer.json")


def test_losses(two_layers):
    model, bridge = two_layers
    tokens = some_tokens()
    expected = nn.functional.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    close(bridge(tokens, return_type="loss"), expected)
    logits, loss = bridge(tokens, return_type="both")
    close(loss, expected)
    per_token = bridge(tokens, return_type="loss", loss_per_token=True)
    assert per_token.shape == (2, 10)
    close(per_token.mean(), expected)


def test_prompts_of_unequal_length_are_padded_on_the_right(two_layers):
    model, bridge = two_layers
    short, long = "the dog", "the cat sat on the mat"
    both = bridge([short, long])
    close(both[:1, : bridge.to_tokens(short).shape[1]], bridge(short))
    close(both[1:], bridge(long))
    with pytest.raises(ValueError, match="pad on the right"):
        bridge([short, long], padding_side="left")
    with pytest.raises(NotImplementedError, match="one sequence at a time"):
        bridge.generate([short, long], max_new_tokens=2, verbose=False)


def test_greedy_generation_is_the_plain_modules(two_layers):
    model, bridge = two_layers
    tokens = bridge.to_tokens("the cat")
    generated = bridge.generate(tokens, max_new_tokens=5, do_sample=False, stop_at_eos=False, verbose=False)
    expected = tokens
    for _ in range(5):
        expected = torch.cat([expected, model(expected)[:, -1:].argmax(-1)], dim=1)
    assert torch.equal(generated, expected)
    assert bridge.generate("the cat", max_new_tokens=3, verbose=False).startswith("the cat")


def test_prompts_of_the_wrong_length_are_refused_in_one_sentence(two_layers):
    _, bridge = two_layers
    for n in (0, N_CTX + 1):
        tokens = torch.zeros(1, n, dtype=torch.long)
        with pytest.raises(ValueError, match=f"^a prompt must have 1 to {N_CTX} tokens, this one has {n}$"):
            bridge(tokens)
        with pytest.raises(ValueError, match=f"this one has {n}"):
            bridge.run_with_cache(tokens)
    with pytest.raises(ValueError, match="this one has 0"):
        bridge("", prepend_bos=False)
    with pytest.raises(ValueError, match="token ids"):
        bridge(torch.randn(1, 4, 32))
    with pytest.raises(ValueError, match="this one has 41"):
        bridge.generate("the cat", max_new_tokens=60, stop_at_eos=False, verbose=False)


def test_a_bridge_survives_deepcopy_and_a_change_of_dtype(two_layers):
    _, bridge = two_layers
    again = copy.deepcopy(bridge)
    close(again(some_tokens()), bridge(some_tokens()))
    again.to(torch.float32)
    close(again(some_tokens()), bridge(some_tokens()).float(), 1e-4)
