"""The logit lens: the residual stream read through the unembedding, after the embedding and after each layer.

Paper: "Virtual Weights and the Residual Stream as a Communication Channel" and "Path Expansion Trick" (claim W9). `W_U x_i`
is the sum of the paths that end at or before layer i: `paths.expand(weights, tokens, patterns, n_layers=i).total() @
weights.W_U`. So the lens needs nothing but a forward pass. Stages are counted as in `paths.Run.residual`: 0 after the
embedding, i after i layers. Losses in nats.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from tqdm.auto import tqdm

from transformer_circuits.circuits.paths import attention_scores, causal_softmax
from transformer_circuits.circuits.weights import Weights

NOVELTY = ("first time in the window", "seen, in other company", "seen after this same token")  # what `novelty` tells apart


def streams(weights: Weights, tokens: Int[Tensor, "*batch position"]) -> Float[Tensor, "stage *batch position d_model"]:
    """The residual stream after the embedding and after each layer, as in `paths.run`, which also makes all logits.

    Raises ValueError as `run` does.
    """
    weights.check_tokens(tokens)
    stages = [weights.W_E[tokens]]
    positions = weights.W_pos[: tokens.shape[-1]]
    for layer in range(weights.n_layers):
        x = stages[-1]
        # all heads in one product
        W_Q, W_K, W_V = (W[layer].movedim(0, 1).flatten(1) for W in (weights.W_Q, weights.W_K, weights.W_V))
        projected = ((x + positions) @ W_Q, (x + positions) @ W_K, x @ W_V)
        heads = (part.unflatten(-1, (weights.n_heads, -1)).movedim(-2, -3) for part in projected)
        mixed = scaled_dot_product_attention(*heads, is_causal=True)  # a third of the time of patterns written out
        stages.append(x + mixed.movedim(-3, -2).flatten(-2) @ weights.W_O[layer].flatten(0, 1))
    return torch.stack(stages)


def log_probs(weights: Weights, residual: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_vocab"]:
    """What the lens predicts: log softmax of `residual W_U`. No normalization comes before W_U, as these models have none."""
    return (residual @ weights.W_U).log_softmax(dim=-1)


class Reading(NamedTuple):
    """What the lens says of every position, at every stage."""

    loss: Float[Tensor, "stage window position"]  # nats for the token that comes next
    rank: Int[Tensor, "stage window position"]  # how many tokens are held more likely than that one
    entropy: Float[Tensor, "stage window position"]  # of the prediction itself
    kl: Float[Tensor, "step window position"]  # KL(after the layer || before it): the gain that the later prediction believes in


def read(
    weights: Weights,
    stages: Float[Tensor, "stage window position d_model"],
    targets: Int[Tensor, "window position"],
    progress: str = "windows",
) -> Reading:
    """The lens at every stage of `streams(weights, inputs)`, one window at a time (claim W9). All on the CPU.

    Softmax does not see a number added to all logits, nor does anything here. Raises ValueError if there are not as many targets
    as positions.
    """
    if stages.ndim != 4 or stages.shape[1:3] != targets.shape:
        shapes = tuple(targets.shape), tuple(stages.shape)
        raise ValueError(f"{shapes[0]} targets do not fit streams of shape {shapes[1]}: take those of `streams`")
    parts: list[Reading] = []
    for x, target in zip(tqdm(stages.transpose(0, 1), desc=progress, leave=False), targets):
        loss, rank, entropy, kl, before = [], [], [], [], None
        for stage in x:
            after = log_probs(weights, stage)
            own, p = after.gather(-1, target[:, None]), after.exp()
            loss.append(-own[:, 0]), rank.append((after > own).sum(dim=-1))
            entropy.append(-torch.linalg.vecdot(p, after))
            if before is not None:
                kl.append(-entropy[-1] - torch.linalg.vecdot(p, before))
            before = after
        parts.append(Reading(*(torch.stack(v) if v else loss[0].new_zeros(0, len(target)) for v in (loss, rank, entropy, kl))))
    return Reading(*(torch.stack(values, dim=1).cpu() for values in zip(*parts)))


def novelty(windows: Int[Tensor, "window position+1"]) -> Int[Tensor, "window position"]:
    """How new each next token is to its window: an index into `NOVELTY`.

    0: it has not come in the window before. 1: it has, but never right after a token like the present one. 2: it has come
    right after the present token before, a repeated bigram, which is what an induction head predicts.
    Raises ValueError for windows of fewer than two tokens.
    """
    if windows.ndim != 2 or windows.shape[1] < 2:
        raise ValueError(f"windows must be [window, position + 1], with at least one target, not {tuple(windows.shape)}")
    kinds = []
    for row in windows:
        inputs, targets = row[:-1], row[1:]
        so_far = torch.ones(len(inputs), len(inputs), dtype=torch.bool, device=row.device).tril()
        seen = ((targets[:, None] == inputs) & so_far).any(dim=1)
        pair = (targets[:, None] == targets) & (inputs[:, None] == inputs) & so_far.tril(-1)
        kinds.append(seen.long() + pair.any(dim=1).long())
    return torch.stack(kinds)


class Interval(NamedTuple):
    """A mean and the 95 % interval of its resampled values."""

    mean: float
    low: float
    high: float


def resampled(
    values: Float[Tensor, "window position"],
    chosen: Tensor | None = None,
    draws: int = 2000,
    seed: int = 0,
) -> Interval:
    """Mean over all positions, or over the `chosen` ones (a mask of the same shape), with its interval from resampled windows.

    Windows, not tokens, are drawn with replacement, since tokens of one window are alike: the bootstrap of a ratio of sums.
    Windows cut from one book next to one another would be alike too: space them out.
    Raises ValueError for fewer than two windows, a mask of another shape, or one that chooses nothing.
    """
    if values.ndim != 2 or len(values) < 2:
        raise ValueError(f"resampling needs [window, position] with at least two windows, not {tuple(values.shape)}")
    mask = torch.ones_like(values, dtype=torch.bool) if chosen is None else chosen
    if mask.shape != values.shape or not mask.any():
        raise ValueError(f"choose at least one of the positions {tuple(values.shape)}, with a mask of that shape")
    total, count = (values.double() * mask).sum(dim=1), mask.double().sum(dim=1)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(len(values), (draws, len(values)), generator=generator).to(values.device)
    means = total[drawn].sum(dim=1) / count[drawn].sum(dim=1)  # NaN where no chosen position was drawn
    low, high = means.nanquantile(means.new_tensor([0.025, 0.975])).tolist()
    return Interval((total.sum() / count.sum()).item(), low, high)


# What the lens does not read


def output_covariance(
    weights: Weights, windows: Int[Tensor, "window position"], layer: int
) -> Float[Tensor, "head d_head d_head"]:
    """Covariance over text of each head's mixed values r = A x W_V, before W_O; the first position is left out.

    The mean is taken off: added to every key it shifts all scores of a row alike, which softmax does not see, and to the
    logits it tells nothing about the context. A head at rest writes little else.
    Raises ValueError for a layer that does not exist and as `run` does, and for windows of one token.
    """
    weights.check_head(layer, 0)
    if windows.shape[-1] < 2:
        raise ValueError("a window needs at least two tokens: the first position is left out")
    total = square = 0.0
    for window in windows:
        x = streams(weights, window)[layer]
        mixed = (causal_softmax(attention_scores(weights, x, layer)) @ (x @ weights.W_V[layer]))[:, 1:].double()
        total, square = total + mixed.sum(dim=1), square + mixed.mT @ mixed
    n = windows.shape[0] * (windows.shape[1] - 1)
    mean = total / n
    return (square / n - mean[:, :, None] * mean[:, None, :]).to(weights.W_E.dtype)


def read_by(
    written: Float[Tensor, "*head d_model d_model"], reader: Float[Tensor, "d_model any"]
) -> Float[Tensor, "*head"]:
    """How strongly a matrix reads vectors of these covariances, as a multiple of what it reads of a random direction.

    sqrt(E|x W|^2 / E|x|^2) over |W| / sqrt(d_model). 1: no more and no less than at random; 0: x lies where W does not read.
    """
    gram = reader @ reader.mT
    size = written.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
    return ((written * gram).sum(dim=(-2, -1)) / size / (gram.trace() / len(gram))).clamp(min=0).sqrt()


def weakly_read(
    written: Float[Tensor, "*head d_model d_model"], reader: Float[Tensor, "d_model any"], part: float = 0.5
) -> Float[Tensor, "*head"]:
    """Share of the vectors' variance in that part of the directions which the matrix reads least; at random it is `part`.

    Directions are the left singular vectors of `reader`. Raises ValueError unless 0 < part < 1.
    """
    if not 0 < part < 1:
        raise ValueError(f"the weakly read part of the directions lies between 0 and 1, not at {part}")
    _, directions = torch.linalg.eigh((reader @ reader.mT).double())  # least read first
    weak = directions[:, : round(part * len(directions))].to(written.dtype)
    size = written.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
    return ((written @ weak) * weak).sum(dim=(-2, -1)) / size


def key_lens(
    weights: Weights, residual: Float[Tensor, "*position d_model"], layer: int, head: int
) -> Float[Tensor, "*position d_vocab"]:
    """The stream read through a head's keys: for each position the score that every token would give it as a query.

    x W_K W_Q^T W_E^T / sqrt(d_head), positions left out: `paths.attention_scores` with the query's token alone.
    Raises ValueError for a head that does not exist.
    """
    weights.check_head(layer, head)
    keys = residual @ weights.W_K[layer, head] / weights.d_head**0.5
    return keys @ (weights.W_E @ weights.W_Q[layer, head]).T


def linear_map(
    x: Float[Tensor, "row d_model"], y: Float[Tensor, "row d_model"]
) -> tuple[Float[Tensor, "d_model d_model"], Float[Tensor, " d_model"]]:
    """(M, b) so that x M + b is nearest to y in the mean square: the least a "tuned" lens can be.

    Each column of M is a regression of its own, so the answer is the same whether errors are counted in the stream, in the
    logits, or by any other linear map of y. Raises ValueError unless there are more rows than dimensions and the two have the
    same shape.
    """
    if x.shape != y.shape or len(x) <= x.shape[1]:
        shapes = f"{tuple(x.shape)} and {tuple(y.shape)}"
        raise ValueError(f"a map needs more rows than dimensions, as many in x as in y, not {shapes}")
    dx, dy = (v.double() - v.double().mean(dim=0) for v in (x, y))
    M = torch.linalg.lstsq(dx.T @ dx, dx.T @ dy).solution
    return M.to(x.dtype), (y.double().mean(dim=0) - x.double().mean(dim=0) @ M).to(x.dtype)
