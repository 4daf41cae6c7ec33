"""The TransformerLens bridge computes what the plain module computes, and its hooks act where they say."""

import math
import socket
from unittest.mock import Mock

import pytest
import torch
from random_models import build

from transformer_circuits.models.architecture import BOS, Transformer
from transformer_circuits.models.bridge import matrices, wrap
from transformer_circuits.models.tokenizer import as_pretrained

N_CTX, D_VOCAB = 40, 300
OPTIONS = [{}, {"normalization": "LN", "d_mlp": 24}, {"smeared_keys": True}, {"standard_positions": True}]
SHAPES = [{"n_layers": 0}, {"n_layers": 0, "normalization": "LN"}, *({"n_layers": 2} | more for more in OPTIONS)]
ids = pytest.mark.parametrize("shape", SHAPES, ids=str)


def random_model(n_layers: int, **options) -> Transformer:
    """Return a plain model; d_model, heads times d_head and d_head all differ."""
    sizes = dict(d_model=32, n_heads=3, d_head=8, d_vocab=D_VOCAB, length=N_CTX)
    return build(n_layers, **sizes, seed=n_layers, **options).plain


def some_tokens(batch: int = 2, n: int = 11) -> torch.Tensor:
    tokens = torch.randint(1, D_VOCAB, (batch, n), generator=torch.Generator().manual_seed(1))
    tokens[:, 0] = BOS
    return tokens


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


@pytest.fixture(scope="module")
def two_layers(tiny_tokenizer_file):
    model = random_model(2)
    return model, wrap(model, as_pretrained(tiny_tokenizer_file))


@ids
@pytest.mark.filterwarnings("error")
def test_logits_and_cached_activations_are_those_of_an_explicit_computation(shape):
    model, tokens = random_model(**shape), some_tokens()
    bridge = wrap(model)
    logits, cache = bridge.run_with_cache(tokens)
    n, embedding = tokens.shape[1], model.tok_embed.weight[tokens]
    residual, positions = embedding, model.W_pos[:n]
    if in_stream := "standard_positions" in shape:
        residual, positions = embedding + positions, 0
    close(cache["hook_embed"], embedding)
    close(cache["hook_pos_embed" if in_stream else "positions.hook_out"][0], model.W_pos[:n])
    for i, layer in enumerate(model.layers):
        close(cache["resid_pre", i], residual)
        read = layer.ln1(residual)
        reads = {"q": read + positions, "k": read + positions, "v": read}
        q, k, v = ((x @ getattr(layer.attn, part).weight.T).reshape(2, n, 3, 8) for part, x in reads.items())
        keys = k
        if "smeared_keys" in shape:
            own = layer.attn.smear.sigmoid()[:, None]  # [head, 1]
            keys = torch.cat([k[:, :1], own * k[:, 1:] + (1 - own) * k[:, :-1]], dim=1)
        scores = torch.einsum("bihd,bjhd->bhij", q, keys) / math.sqrt(8)
        scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -math.inf)
        pattern = scores.softmax(-1)
        z = torch.einsum("bhij,bjhd->bihd", pattern, v)
        result = torch.einsum("bihd,hdm->bihm", z, layer.attn.o.weight.T.unflatten(0, (3, 8)))
        expected = dict(q=q, k=k, v=v, attn_scores=scores, pattern=pattern, z=z)
        for name, tensor in (expected | {"attn_out": result.sum(dim=2)}).items():
            close(cache[name, i], tensor)
        residual = residual + result.sum(dim=2)
        if shape.get("d_mlp"):
            close(cache["resid_mid", i], residual)
            residual = residual + layer.mlp(layer.ln2(residual))
        close(cache["resid_post", i], residual)
    for computed in (logits, bridge(tokens), model(tokens)):
        close(computed, model.ln_out(residual) @ model.head.weight.T)
    parts, labels = cache.decompose_resid(return_labels=True)
    close(parts.sum(0), residual)
    assert ("pos_embed" in labels) == ("hook_pos_embed" in cache.keys()) == in_stream
    for parameter in bridge.parameters():
        parameter.zero_()
    close(model(tokens), logits)  # the bridge has weights of its own


@ids
def test_every_hook_there_is_fires(shape):
    """A hook that never fires lets an edit silently do nothing."""
    bridge = wrap(random_model(**shape))
    bridge.set_use_hook_mlp_in(True)
    fired = set()
    hooks = [(name, lambda tensor, hook, name=name: fired.add(name)) for name in bridge.hook_dict]
    bridge.run_with_hooks(some_tokens(1, 3), fwd_hooks=hooks)
    assert fired == set(bridge.hook_dict) and len(fired) > 8


def test_what_could_not_work_is_rejected_by_name(two_layers):
    _, bridge = two_layers
    for name in ("hook_pos_embed", "blocks.0.hook_attn_in", "blocks.0.attn.hook_q_input", "blocks.0.hook_mlp_in"):
        with pytest.raises(KeyError, match="does not exist on this model"):
            bridge.run_with_hooks(some_tokens(), fwd_hooks=[(name, lambda tensor, hook: tensor)])
    for error, message, call in (
        (RuntimeError, "does not support compatibility mode", bridge.enable_compatibility_mode),
        (NotImplementedError, "result computation is unavailable", lambda: bridge.set_use_attn_result(True)),
        (ValueError, "pad on the right", lambda: bridge(["the dog", "the cat sat on"], padding_side="left")),
        (NotImplementedError, "one sequence at a time", lambda: bridge.generate(["the dog", "the cat"], verbose=False)),
        (ValueError, "token ids", lambda: bridge(torch.randn(1, 4, 32))),
        (ValueError, f"1 to {N_CTX} tokens", lambda: bridge(torch.zeros(1, N_CTX + 1, dtype=torch.long))),
        (ValueError, "has layer normalization", lambda: matrices(wrap(random_model(2, normalization="LN")))),
    ):
        with pytest.raises(error, match=message):
            call()


def test_text_has_one_start_token_and_needs_no_network(two_layers, tiny_tokenizer_file, monkeypatch):
    monkeypatch.setattr(socket.socket, "connect", Mock(side_effect=AssertionError("the network was used")))
    model, _ = two_layers
    bridge = wrap(model, as_pretrained(tiny_tokenizer_file))  # made without the network, too
    tokens = bridge.to_tokens("the cat")
    assert tokens[0, 0] == BOS and (tokens[0, 1:] != BOS).all()
    for text in ("  two  spaces", "a ,b .c n't", "tab\tand\nlines\n\n", "</script> <td", "ünï ©ode 🙂"):
        assert bridge.to_string(bridge.to_tokens(text)[0, 1:]) == text
    expected = tokens
    for _ in range(3):
        expected = torch.cat([expected, model(expected)[:, -1:].argmax(-1)], dim=1)
    options = dict(max_new_tokens=3, do_sample=False, stop_at_eos=False, verbose=False)
    assert torch.equal(bridge.generate(tokens, **options), expected)
