"""Losses with kinds of paths left out: how much each kind of term matters.

Paper: "Term Importance Analysis"; claims T11 and T12. For attention-only models, but for `losses_by_order` of two
layers; others raise ValueError.
"""

import itertools
from collections import defaultdict

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from tqdm.auto import tqdm
from transformer_lens import FactoredMatrix
from transformer_lens.model_bridge import TransformerBridge

from transformer_circuits.circuits.factored import entries, row_blocks
from transformer_circuits.models.architecture import causal_attention
from transformer_circuits.models.bridge import matrices
from transformer_circuits.models.view import BATCH, View

# Held-out windows behind T11 and T12. Target: a standard error of the ratio of K- to Q-composition of at most 0.05.
WINDOWS = 48
ROWS = 512  # logits formed at a time: 8 MB at 4,096 tokens, which stay in the processor's cache


def losses_by_terms(
    model: TransformerBridge, windows: Int[Tensor, "window pos"]
) -> dict[str, Float[Tensor, " window"]]:
    """Return the mean loss (nats per token) of each window with terms left out (claims T11, T12), from one pass.

    "order n": paths through at most n heads, with patterns frozen. "layer 1", "layer 2": the direct path and that
    layer's single heads. "without K", "without Q": the whole model, except that the second layer's keys or queries are
    computed from the embedding and the position alone. The direct path is looked up, because it sees one token only.
    """
    _check(model)
    direct = FactoredMatrix(model.W_E, model.W_U)
    normalizer = torch.cat([block.logsumexp(dim=-1) for _, block in row_blocks(direct)])
    # Results go into tensors made beforehand: small ones between large ones would keep the heap from being reused.
    found = defaultdict(lambda: normalizer.new_empty(len(windows), dtype=torch.float64))
    for at in tqdm(range(0, len(windows), BATCH), desc="losses", leave=False, delay=2):
        part = slice(at, at + BATCH)
        tokens, targets = windows[part, :-1], windows[part, 1:]
        pair = entries(direct, tokens.flatten(), targets.flatten()).view_as(tokens)
        found["order 0"][part] = (normalizer[tokens] - pair).mean(dim=-1)
        embedding = model.W_E[tokens]
        seen = embedding + _write(model, 0, *_read(model, embedding, 0))  # what the second layer sees
        (Q, K, V), (Q_0, K_0, V_0) = _read(model, seen, 1), _read(model, embedding, 1)
        # The model's own patterns, computed once; the second values lack the first layer's output.
        moved = causal_attention(Q, K, torch.cat([V, V_0], dim=-1)).chunk(2, dim=-1)
        whole, single = (_out(model, 1, z) for z in moved)
        streams = {"order 1": seen + single, "order 2": seen + whole, "layer 1": seen, "layer 2": embedding + single}
        streams["without K"] = seen + _write(model, 1, Q, K_0, V)
        streams["without Q"] = seen + _write(model, 1, Q_0, K, V)
        for name, stream in streams.items():
            found[name][part] = _nats(stream, model.W_U, targets).mean(dim=-1)
    return dict(found)


@torch.no_grad()
def losses_by_order(model: View | TransformerBridge, rows: Int[Tensor, "row pos"]) -> list[float]:
    """Return the mean loss (nats) over rows with frozen patterns and only paths through at most 0, 1, ... heads: the
    paper's algorithm in one pass, for any number of layers (claim T11)."""
    view, tokens = View.of(model), rows[:, :-1]
    orders = [view.W_E[tokens]]  # entry n: what all paths through exactly n heads have written so far
    for pattern, V, O in zip(view.patterns(tokens), view.OV.A, view.OV.B):
        wrote = []
        for x in orders:
            values = (x @ V.transpose(0, 1).flatten(1)).unflatten(-1, V.shape[::2]).transpose(1, 2)
            wrote.append((pattern @ values).transpose(1, 2).flatten(-2) @ O.flatten(0, 1))
        orders = [a + b for a, b in zip([*orders, 0.0], [0.0, *wrote])]
    streams = itertools.accumulate(orders)
    return [float(F.cross_entropy((x @ view.W_U).float().flatten(0, 1), rows[:, 1:].flatten())) for x in streams]


def losses_by_ablation(
    model: TransformerBridge, windows: Int[Tensor, "window pos"]
) -> dict[str, Float[Tensor, " window"]]:
    """Return the mean loss (nats) of each window if the second layer's keys or queries read something else.

    "mean Q": its mean over these windows and positions. "other K", "other Q": its output at the same positions of the
    window before, in a circle, so that windows should be far apart in the text. (A "mean K" equals "without K" above.)
    """
    _check(model)
    parts = [slice(at, at + BATCH) for at in range(0, len(windows), BATCH)]
    wrote = torch.cat([_write(model, 0, *_read(model, model.W_E[windows[part, :-1]], 0)) for part in parts])
    mean, others = wrote.mean(dim=(0, 1)), wrote.roll(1, dims=0)
    found = defaultdict(lambda: wrote.new_empty(len(windows), dtype=torch.float64))
    for part in tqdm(parts, desc="losses", leave=False, delay=2):
        embedding = model.W_E[windows[part, :-1]]
        seen, other = embedding + wrote[part], embedding + others[part]
        Q, K, V = _read(model, seen, 1)
        Q_other, K_other, _ = _read(model, other, 1)
        Q_mean = _read(model, embedding + mean, 1)[0]
        for name, sides in (("mean Q", (Q_mean, K)), ("other K", (Q, K_other)), ("other Q", (Q_other, K))):
            stream = seen + _write(model, 1, *sides, V)
            found[name][part] = _nats(stream, model.W_U, windows[part, 1:]).mean(dim=-1)
    return dict(found)


def _check(model: TransformerBridge) -> None:
    matrices(model)  # a model is nothing beyond them
    if model.cfg.n_layers != 2:
        raise ValueError(f"the model must have two layers, got {model.cfg.n_layers}")


def _read(model: TransformerBridge, stream: Float[Tensor, "row pos d_model"], layer: int) -> list[Tensor]:
    """Return queries, keys, and values, [row, head, pos, d_head]: all heads in one product."""
    placed = stream + model.W_pos[: stream.shape[1]]
    sides = ((placed, model.W_Q), (placed, model.W_K), (stream, model.W_V))
    return [(x @ W[layer].transpose(0, 1).flatten(1)).unflatten(-1, W.shape[1::2]).transpose(1, 2) for x, W in sides]


def _write(model: TransformerBridge, layer: int, Q: Tensor, K: Tensor, V: Tensor) -> Float[Tensor, "row pos d_model"]:
    return _out(model, layer, causal_attention(Q, K, V))


def _out(
    model: TransformerBridge, layer: int, z: Float[Tensor, "row head pos d_head"]
) -> Float[Tensor, "row pos d_model"]:
    return z.transpose(1, 2).flatten(-2) @ model.W_O[layer].flatten(0, 1)


def _nats(stream: Tensor, W_U: Tensor, targets: Int[Tensor, "row pos"]) -> Float[Tensor, "row pos"]:
    blocks = zip(stream.flatten(0, 1).split(ROWS), targets.flatten().split(ROWS))
    losses = [F.cross_entropy(part @ W_U, wanted, reduction="none") for part, wanted in blocks]
    return torch.cat(losses).view_as(targets)
