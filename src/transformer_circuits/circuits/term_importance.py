"""How much each kind of term matters: losses with terms left out, all attention patterns held as they were.

Paper: "Term Importance Analysis" (two-layer models); claims T11 and T12. The n-th order terms of the logits are the paths
through n heads. There are (1 + n_heads)^n_layers paths, but nobody has to list them: the paths through at most n heads end in a
residual stream that takes no more than one forward pass per order, at any depth.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from tqdm.auto import tqdm

from transformer_circuits.circuits.factored import entries
from transformer_circuits.circuits.paths import attention_scores, causal_softmax, head_outputs
from transformer_circuits.circuits.qk_ov import direct
from transformer_circuits.circuits.weights import Weights

Streams = dict[str, Float[Tensor, "*batch position d_model"]]


def up_to_order(
    weights: Weights,
    tokens: Int[Tensor, "*batch position"],
    patterns: Float[Tensor, "layer *batch head destination source"],
    order: int,
) -> Float[Tensor, "order+1 *batch position d_model"]:
    """The paper's algorithm: for each n up to `order`, the final residual stream of all paths through at most n heads.

    The model runs again and again with frozen `patterns`. In every re-run a head's output is noted down, and what is added to
    the stream in its place is the output noted down in the re-run before (zero in the first one). So the first stream holds the
    direct path, and the heads have seen paths of order 0; the second one holds order 1, and the heads have seen that; and so on.
    With `order` = n_layers the last stream is the model's own.
    Raises ValueError for a negative order, patterns of another shape, or bad tokens.
    """
    weights.check_tokens(tokens)
    if order < 0:
        raise ValueError(f"a path passes through 0 or more heads, not {order}: choose an order from 0 to {weights.n_layers}")
    n = tokens.shape[-1]
    shape = (weights.n_layers, *tokens.shape[:-1], weights.n_heads, n, n)
    if tuple(patterns.shape) != shape:
        raise ValueError(f"patterns must have shape {shape} for these tokens, not {tuple(patterns.shape)}: take those of `run`")
    embedded = weights.W_E[tokens]
    noted = [torch.zeros_like(embedded)] * weights.n_layers
    streams = []
    for _ in range(order + 1):
        residual, before, noted = embedded, noted, []
        for layer in range(weights.n_layers):
            noted.append(head_outputs(weights, residual, patterns[layer], layer).sum(dim=-3))
            residual = residual + before[layer]
        streams.append(residual)
    return torch.stack(streams)


def ablations(weights: Weights, tokens: Int[Tensor, "*batch position"], sides: Sequence[str] = ()) -> Streams:
    """Final residual streams with terms left out, all from one pass through the layers (claims T11, T12).

    "order n", n >= 1: paths through at most n heads; the last of them is the model's own stream. ("order 0" is W_E[tokens], and
    `direct_losses` costs less.) "layer l": the direct path and the single heads of layer l. "without K", and so on for each of
    `sides`: the last layer computes its keys ("K"), queries ("Q"), both ("QK") or values ("V") from embeddings and positions
    alone, without the output of the layers before; all else stays, and patterns follow the altered scores.

    The orders advance side by side. A head adds to the paths of at most n what it reads from those of at most n - 1:
    streams[n] += layer(streams[n - 1]). That is `up_to_order` without re-runs, and needs no recorded patterns.
    Raises ValueError for other sides, for a model with no layers, or one with a single layer if sides are asked for.
    """
    weights.check_tokens(tokens)
    weights.check_head(0, 0)
    if wrong := [side for side in sides if side not in ("K", "Q", "QK", "V")]:
        raise ValueError(f"a head's sides are 'K', 'Q', 'QK' and 'V', not {wrong[0]!r}")
    if sides and weights.n_layers < 2:
        raise ValueError("composition needs two layers: this model has one")
    words, places = tokens.unique(return_inverse=True)  # what is read from embeddings is computed once a word
    streams, result = [weights.W_E[tokens]], {}
    for layer in range(weights.n_layers):
        read = _reader(weights, layer, streams, lambda W: (weights.W_E[words] @ W)[places])
        seen = layer  # the model's own stream: before layer l a path has passed l heads at most
        if layer == weights.n_layers - 1:
            for side in sides:
                order = {letter: 0 if letter in side else seen for letter in "QKV"}
                result[f"without {side}"] = streams[seen] + read(order["Q"], order["K"], order["V"])
        written = [read(seen, seen, values) for values in range(len(streams))]
        result[f"layer {layer}"] = streams[0] + written[0]
        streams = [streams[0], *(stream + new for stream, new in zip([*streams[1:], streams[seen]], written))]
    return result | {f"order {n}": stream for n, stream in enumerate(streams) if n}


def _reader(
    weights: Weights, layer: int, streams: Sequence[Tensor], embedded_times: Callable[[Tensor], Tensor]
) -> Callable[[int, int, int], Tensor]:
    """read(q, k, v): what the layer writes if queries, keys and values read the streams of these orders.

    Every projection is made once.
    """

    @functools.cache
    def project(letter: str, order: int) -> Float[Tensor, "*batch head position d_head"]:
        return _project(weights, layer, letter, streams[order], None if order else embedded_times)

    return lambda q, k, v: _attend(weights, layer, project("Q", q), project("K", k), project("V", v))


def _project(
    weights: Weights,
    layer: int,
    letter: str,
    stream: Float[Tensor, "*batch position d_model"],
    times: Callable[[Tensor], Tensor] | None = None,
) -> Float[Tensor, "*batch head position d_head"]:
    """Queries ("Q"), keys ("K") or values ("V") of all heads, in one product; `times`, a cheaper way to multiply the stream."""
    W = getattr(weights, f"W_{letter}")[layer].movedim(0, 1).flatten(1)
    projected = times(W) if times else stream @ W
    if letter != "V":
        projected = projected + weights.W_pos[: stream.shape[-2]] @ W
    return projected.unflatten(-1, (weights.n_heads, -1)).movedim(-2, -3).contiguous()  # attention reads it a third faster so


def _attend(
    weights: Weights,
    layer: int,
    Q: Float[Tensor, "*batch head position d_head"],
    K: Float[Tensor, "*batch head position d_head"],
    V: Float[Tensor, "*batch head position d_head"],
) -> Float[Tensor, "*batch position d_model"]:
    """The sum of a layer's heads. The fused kernel keeps no patterns and skips the future: a third of the time."""
    mixed = scaled_dot_product_attention(Q, K, V, is_causal=True)
    return mixed.movedim(-3, -2).flatten(-2) @ weights.W_O[layer].flatten(0, 1)


def without_heads(weights: Weights, tokens: Int[Tensor, "*batch position"], side: str = "K") -> Streams:
    """Final residual streams of a two-layer model whose last layer's keys lack the output of one first-layer head (claim T12).

    One stream by the name of each head, "0.0" and so on, and "intact". With `side` "Q" or "V" the queries or values go without
    it; the two other sides see everything. Raises ValueError for another side, and unless the model has two layers.
    """
    weights.check_tokens(tokens)
    if side not in ("K", "Q", "V"):
        raise ValueError(f"a head's sides are 'K', 'Q' and 'V', not {side!r}")
    if weights.n_layers != 2:
        raise ValueError(f"this compares the first of two layers with the second: the model has {weights.n_layers}")
    embedded = weights.W_E[tokens]
    outputs = head_outputs(weights, embedded, causal_softmax(attention_scores(weights, embedded, 0)), 0)
    streams = {"intact": embedded + outputs.sum(dim=-3)}
    read = {letter: _project(weights, 1, letter, streams["intact"]) for letter in "QKV"}
    result = {}
    for head in [None, *range(weights.n_heads)]:
        lacking = {} if head is None else {side: _project(weights, 1, side, streams["intact"] - outputs[..., head, :, :])}
        name = "intact" if head is None else f"0.{head}"
        result[name] = streams["intact"] + _attend(weights, 1, **(read | lacking))
    return result


def token_losses(
    weights: Weights,
    residual: Float[Tensor, "*batch position d_model"],
    targets: Int[Tensor, "*batch position"],
) -> Float[Tensor, "*batch position"]:
    """Nats for each next token. All it needs of the logits is their log-sum-exp and one of them.

    Raises ValueError if there are not as many targets as positions.
    """
    if residual.shape[:-1] != targets.shape:
        raise ValueError(f"{tuple(targets.shape)} targets do not fit {tuple(residual.shape[:-1])} positions")
    target_logits = (residual * weights.W_U.T[targets]).sum(dim=-1)
    return log_sum_exp(residual.flatten(0, -2), weights.W_U).view(targets.shape) - target_logits


def direct_losses(weights: Weights, windows: Int[Tensor, "window position+1"]) -> Float[Tensor, " window"]:
    """Mean nats a token of the direct path alone, by window.

    It sees the present token only, so d_vocab rows are enough for a text of any length.
    Raises ValueError for windows as `mean_losses` does.
    """
    _check_windows(weights, windows)
    normalizer, logits = log_sum_exp(weights.W_E, weights.W_U), direct(weights)
    return torch.stack([(normalizer[row[:-1]] - entries(logits, row[:-1], row[1:])).double().mean() for row in windows])


def log_sum_exp(
    residual: Float[Tensor, "row d_model"], W_U: Float[Tensor, "d_model d_vocab"], block: int = 512
) -> Float[Tensor, " row"]:
    """log of the sum of exp(residual W_U) along each row, a block of rows at a time.

    One buffer serves all blocks and is worked on in place: asking for fresh memory each time takes a fifth longer.
    """
    logits = residual.new_empty(min(block, len(residual)), W_U.shape[1])
    result = residual.new_empty(len(residual))
    for rows, out in zip(residual.split(block), result.split(block)):
        part = torch.mm(rows, W_U, out=logits[: len(rows)])
        largest = part.amax(dim=1, keepdim=True)
        out.copy_(part.sub_(largest).exp_().sum(dim=1).log_() + largest[:, 0])
    return result


def mean_losses(
    weights: Weights,
    streams_of: Callable[[Int[Tensor, "batch position"]], Mapping[str, Float[Tensor, "batch position d_model"]]],
    windows: Int[Tensor, "window position+1"],
    batch: int = 8,
    every: int = 1,
    progress: str = "windows",
) -> dict[str, Float[Tensor, " window"]]:
    """Mean nats a token of every stream that `streams_of(inputs)` returns, by window, with a progress bar.

    Windows as `data.held_out_windows` cuts them: the last column is target only. With `every` 4, say, only each fourth position
    is unembedded, which is what costs most. Double precision from the losses on.
    Raises ValueError if there are no windows, none as long as two tokens, or token ids outside the vocabulary, and for a
    `batch` or `every` below 1.
    """
    _check_windows(weights, windows)
    if batch < 1 or every < 1:
        raise ValueError(f"{batch} windows at a time and each position of {every}: both must be 1 or more")
    parts: dict[str, list[Tensor]] = {}
    with torch.no_grad(), tqdm(total=len(windows), desc=progress) as bar:
        for some in windows.split(batch):
            for name, stream in streams_of(some[:, :-1]).items():
                losses = token_losses(weights, stream[:, ::every], some[:, 1::every])
                parts.setdefault(name, []).append(losses.double().mean(dim=1))
            bar.update(len(some))
    return {name: torch.cat(losses) for name, losses in parts.items()}


def _check_windows(weights: Weights, windows: Tensor) -> None:
    if windows.ndim != 2 or not len(windows) or windows.shape[1] < 2:
        raise ValueError(f"windows must be [window, position + 1], with at least one target, not {tuple(windows.shape)}")
    weights.check_tokens(windows[:, :-1])
    weights.check_tokens(windows[:, 1:])  # targets too: on a GPU a wrong one would end the process, not raise


class Estimate(NamedTuple):
    """A mean, in nats, with its standard error."""

    mean: float
    standard_error: float

    @property
    def margin(self) -> float:
        """Half the width of a 95 % confidence interval."""
        return 1.96 * self.standard_error


def reduction(
    before: Float[Tensor, " window"] | float, after: Float[Tensor, " window"], neighbours: int = 1
) -> Estimate:
    """Mean of `before` - `after`, two losses of the same windows, with the standard error of that paired difference.

    Windows cut from one book are alike, and a book spreads over windows that stand side by side. So `neighbours` of them in a row
    are averaged first, and the standard error is that of these averages; a shorter rest at the end counts into the mean only.
    Raises ValueError if the losses are of different windows, or make fewer than two such groups.
    """
    if isinstance(before, Tensor) and before.shape != after.shape:
        raise ValueError(f"a paired difference needs the losses of the same windows, not {len(before)} and {len(after)} of them")
    difference = (before - after).double()
    groups = len(difference) // neighbours if neighbours > 0 else 0
    if groups < 2:
        raise ValueError(f"{len(difference)} windows make fewer than two groups of {neighbours}: take more windows")
    means = difference[: groups * neighbours].view(groups, neighbours).mean(dim=1)
    return Estimate(difference.mean().item(), (means.std() / math.sqrt(groups)).item())


def reductions(
    losses: Mapping[str, Float[Tensor, " window"]], d_vocab: int, neighbours: int = 1
) -> dict[str, Estimate]:
    """What each kind of term takes off the loss of a two-layer model, in nats, under the names of claim T11.

    From the losses "order 0", "order 1", "order 2", "layer 0" and "layer 1" of the same windows. The paper counts layers from
    one. Its "given": what is added to the direct path and the other layer's single heads. So virtual heads are in `order_2`
    alone, and both ways through the layers add up to `order_1`.
    Raises ValueError if a loss is missing, or if they are of a deeper model.
    """
    if missing := {"order 0", "layer 0", "layer 1", "order 1", "order 2"} - set(losses):
        raise ValueError(f"losses lack {', '.join(sorted(missing))}: take them from `ablations` of a two-layer model")
    if "order 3" in losses:
        raise ValueError("with three layers, 'given the other layer' has more than one meaning: pass a two-layer model's losses")
    order_0, order_1, order_2 = (losses[f"order {n}"] for n in range(3))
    first, second = losses["layer 0"], losses["layer 1"]
    pairs = {
        "order_0": (math.log(d_vocab), order_0),
        "order_1": (order_0, order_1),
        "order_2": (order_1, order_2),
        "layer_1_alone": (order_0, first),
        "layer_1_given_2": (second, order_1),
        "layer_2_alone": (order_0, second),
        "layer_2_given_1": (first, order_1),
    }
    return {name: reduction(*pair, neighbours) for name, pair in pairs.items()}
