"""In-context learning: losses by position, with and without single heads; which tokens gain; when it arrives in training.

Paper: "Where Does This Leave Us?", and the sequel, "In-context Learning and Induction Heads" (Olsson et al. 2022). Claims W1
and W2.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from tqdm.auto import tqdm

from transformer_circuits.circuits.factored import entries
from transformer_circuits.circuits.induction import after_earlier, mean_outputs
from transformer_circuits.circuits.paths import Head
from transformer_circuits.circuits.qk_ov import direct
from transformer_circuits.circuits.term_importance import Estimate, log_sum_exp, reduction, token_losses
from transformer_circuits.circuits.weights import Weights
from transformer_circuits.data import BigramCounts
from transformer_circuits.models.architecture import BOS

# ---- losses by position ------------------------------------------------------------------------------------------------

GROUPS = ("new token", "token seen, pair new", "pair seen")


def losses_by_position(
    weights: Weights,
    windows: Int[Tensor, "window position+1"],
    positions: Int[Tensor, " chosen"] | None = None,
    removed: Mapping[str, Collection[Head]] | None = None,
    means: Float[Tensor, "layer head d_model"] | None = None,
    batch: int = 8,
    progress: str = "windows",
) -> dict[str, Float[Tensor, "window position"]]:
    """Nats at predicting the next token, "intact" and for each set of heads in `removed`, at some positions (default: all).

    Entry [w, i] is the loss at token i + 1 of the row; the start token is token 0. Positions that were not asked for are NaN:
    half of the time goes into the unembedding, so that a chapter asks for some only.
    Raises ValueError as `streams_without` does, for windows without a target, and for positions that the windows do not have.
    """
    if windows.ndim != 2 or not len(windows) or windows.shape[1] < 2:
        raise ValueError(f"windows must be [window, position + 1], with at least one target, not {tuple(windows.shape)}")
    n = windows.shape[1] - 1
    positions = torch.arange(n) if positions is None else positions
    if not len(positions) or int(positions.min()) < 0 or int(positions.max()) >= n:
        raise ValueError(f"positions must be some of 0 to {n - 1} for these windows")
    if not weights.n_layers and not removed:
        return {"intact": _without_layers(weights, windows, positions)}
    found: dict[str, list[Tensor]] = {}
    with torch.no_grad(), tqdm(total=len(windows), desc=progress) as bar:
        for rows in windows.split(batch):
            for name, stream in streams_without(weights, rows[:, :-1], removed or {}, means).items():
                part = stream.new_full((len(rows), n), torch.nan)
                part[:, positions] = token_losses(weights, stream[:, positions], rows[:, positions + 1])
                found.setdefault(name, []).append(part)
            bar.update(len(rows))
    return {name: torch.cat(parts) for name, parts in found.items()}


def _without_layers(
    weights: Weights, windows: Int[Tensor, "window position+1"], positions: Int[Tensor, " chosen"]
) -> Float[Tensor, "window position"]:
    """The same with no layers: the present token is all there is, so that each is unembedded once, however often it occurs."""
    inputs, following = windows[:, positions], windows[:, positions + 1]
    weights.check_tokens(windows[:, :-1])
    words, places = inputs.unique(return_inverse=True)
    logits = torch.stack([entries(direct(weights), *pair) for pair in zip(inputs, following)])
    losses = weights.W_E.new_full((len(windows), windows.shape[1] - 1), torch.nan)
    losses[:, positions] = log_sum_exp(weights.W_E[words], weights.W_U)[places] - logits
    return losses


def streams_without(
    weights: Weights,
    tokens: Int[Tensor, "*batch position"],
    removed: Mapping[str, Collection[Head]],
    means: Float[Tensor, "layer head d_model"] | None = None,
) -> dict[str, Float[Tensor, "*batch position d_model"]]:
    """Final residual streams, "intact" and with the heads of each set writing their mean everywhere; later layers follow.

    Any depth; patterns of later layers are computed anew. `means` is what removed heads write instead (`head_means`); without it,
    nothing. Raises ValueError for heads that do not exist, an empty set of heads, and bad tokens.
    """
    weights.check_tokens(tokens)
    for name, heads in removed.items():
        if not heads or name == "intact":
            given = f"{name!r} has {list(heads)}"
            raise ValueError(f"each set of removed heads needs a name of its own and at least one head: {given}")
        for head in heads:
            weights.check_head(*head)
    stages, mixed = [weights.W_E[tokens]], []
    for layer in range(weights.n_layers):
        mixed.append(_mixed(weights, stages[-1], layer, tokens))
        stages.append(stages[-1] + _written(weights, mixed[-1], layer))
    result = {"intact": stages[-1]}
    for name, heads in removed.items():
        first = min(layer for layer, _ in heads)
        stream = stages[first]
        for layer in range(first, weights.n_layers):
            z = mixed[layer] if layer == first else _mixed(weights, stream, layer)
            stream = stream + _written(weights, z, layer)
            for _, head in (at for at in heads if at[0] == layer):
                stream = stream - z[..., head, :, :] @ weights.W_O[layer, head]
                stream = stream if means is None else stream + means[layer, head]
        result[name] = stream
    return result


def _mixed(
    weights: Weights,
    stream: Float[Tensor, "*batch position d_model"],
    layer: int,
    tokens: Int[Tensor, "*batch position"] | None = None,
) -> Float[Tensor, "*batch head position d_head"]:
    """The values of each head as its pattern mixes them, before W_O. The first layer sees `tokens`: a product per word."""
    words, places = tokens.unique(return_inverse=True) if tokens is not None and layer == 0 else (None, None)
    sides = []
    for letter in "QKV":
        W = getattr(weights, f"W_{letter}")[layer].movedim(0, 1).flatten(1)  # all heads side by side
        projected = stream @ W if words is None else (weights.W_E[words] @ W)[places]
        if letter != "V":
            projected = projected + weights.W_pos[: stream.shape[-2]] @ W
        sides.append(projected.unflatten(-1, (weights.n_heads, -1)).movedim(-2, -3))
    return scaled_dot_product_attention(*sides, is_causal=True)


def _written(weights: Weights, mixed: Tensor, layer: int) -> Float[Tensor, "*batch position d_model"]:
    return mixed.movedim(-3, -2).flatten(-2) @ weights.W_O[layer].flatten(0, 1)


def head_means(weights: Weights, prompts: Sequence[Int[Tensor, " position"]]) -> Float[Tensor, "layer head d_model"]:
    """What a removed head writes: its mean output over all positions of all prompts. Raises ValueError as `mean_outputs`."""
    return torch.stack([mean_outputs(weights, prompts, layer) for layer in range(weights.n_layers)])


# ---- the score, and what it compares --------------------------------------------------------------------------------


def scores_by_window(
    losses: Float[Tensor, "window position"], early: int = 50, late: int = 500, around: int = 5
) -> Float[Tensor, " window"]:
    """Loss around token `late` less loss around token `early`, of each window; the mean is `training.scores.in_context_score`.

    `around` 5: the ten tokens around each. Raises ValueError if they do not lie within the context, or have no loss.
    """
    n = losses.shape[-1]
    if not 0 <= early - around < early + around <= late - around < late + around <= n:
        raise ValueError(f"{2 * around} tokens around {early} and around {late} do not fit side by side into a context of {n}")
    score = torch.zeros(len(losses), dtype=torch.double, device=losses.device)
    for sign, place in ((1, late), (-1, early)):
        score += sign * losses[:, place - around : place + around].double().mean(dim=1)
    if not bool(score.isfinite().all()):
        raise ValueError(f"some of the tokens around {early} or {late} have no loss: ask for their positions")
    return score


def difference(first: Float[Tensor, " window"], second: Float[Tensor, " window"] | float, neighbours: int = 1) -> Estimate:
    """Mean of first - second over windows, with its standard error; paired, since the windows are the same.

    `neighbours` as in `term_importance.reduction`, which raises ValueError for fewer than two groups of windows.
    """
    return reduction(first, second if isinstance(second, Tensor) else torch.full_like(first, second), neighbours)


def with_less_context(
    windows: Int[Tensor, "window position+1"], early: int = 50, late: int = 500, around: int = 5
) -> Int[Tensor, "window short"]:
    """The windows' tokens around `late`, placed around `early`: start token, then what stands just before them.

    The same tokens are to be predicted, at positions early - around to early + around - 1, from `late` - `early` tokens less.
    Raises ValueError if the windows are too short for that.
    """
    if not 0 < early - around or early >= late or late + around >= windows.shape[1]:
        raise ValueError(f"windows of {windows.shape[1] - 1} tokens do not hold {around} tokens after {late}, or {early} before")
    cut = windows[:, late - early + 1 : late + around + 1]
    return torch.cat([torch.full_like(cut[:, :1], BOS), cut], dim=1)


class Interval(NamedTuple):
    """A mean, with the ends of an interval."""

    mean: Tensor
    low: Tensor
    high: Tensor


def resampled(
    values: Float[Tensor, "window *rest"], counts: Tensor | None = None, draws: int = 1000, level: float = 0.95, seed: int = 0
) -> Interval:
    """Mean over windows with the interval that it has when windows are drawn anew, with replacement (bootstrap).

    With `counts`, `values` are sums over so many tokens, and the mean is over tokens: both are drawn together. A mean over no
    token at all is NaN. Raises ValueError for fewer than two windows, or counts of another shape.
    """
    n = len(values)
    if n < 2:
        raise ValueError(f"{n} windows cannot be drawn anew: take more")
    if counts is not None and counts.shape != values.shape:
        raise ValueError(f"sums {tuple(values.shape)} and counts {tuple(counts.shape)} must have one shape")
    sums = values.double().reshape(n, -1).cpu()
    of = torch.ones_like(sums) if counts is None else counts.double().reshape(n, -1).cpu()
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(n, (draws, n), generator=generator)
    times = torch.zeros(draws, n, dtype=torch.double).scatter_add_(1, drawn, torch.ones(draws, n, dtype=torch.double))
    means = (times @ sums) / (times @ of)
    low, high = means.nanquantile(torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.double), dim=0)
    return Interval(*(x.reshape(values.shape[1:]) for x in (sums.sum(0) / of.sum(0), low, high)))


def sum_in_bins(
    values: Float[Tensor, "window position"], edges: Sequence[int], where: Tensor | None = None
) -> tuple[Float[Tensor, "window bin"], Float[Tensor, "window bin"]]:
    """(sums, counts) of the values in each bin of positions, edges[b] <= position < edges[b + 1], for `resampled`.

    NaN is left out; so is what `where` calls False. Raises ValueError for edges that do not rise or leave the context.
    """
    if len(edges) < 2 or any(a >= b for a, b in zip(edges, edges[1:])) or edges[0] < 0 or edges[-1] > values.shape[1]:
        raise ValueError(f"edges must rise from 0 at least to {values.shape[1]} at most, not {list(edges)}")
    used = values.isfinite() if where is None else values.isfinite() & where
    filled = torch.where(used, values, 0.0).double()
    return tuple(
        torch.stack([x[:, a:b].sum(dim=1) for a, b in zip(edges, edges[1:])], dim=1) for x in (filled, used.double())
    )


def kind_of_next(windows: Int[Tensor, "window position+1"]) -> Int[Tensor, "window position"]:
    """What the window up to each token says about the next one, as an index into GROUPS.

    2: the pair (this token, next token) stood there before. 1: the next token did, but not after this one. 0: it is new.
    """
    kinds = []
    for row in windows:
        inputs, following = row[:-1], row[1:]
        same = (inputs == following[:, None]).tril()  # [position, earlier position]: the next token was there
        kinds.append(same.any(dim=1).long() + (same & after_earlier(inputs)).any(dim=1))
    return torch.stack(kinds)


def share_in_training(
    windows: Int[Tensor, "window position+1"], counts: BigramCounts
) -> Float[Tensor, "window position"]:
    """How often each token was followed by the next one in the training text, as a share of all that followed it; 0 if never.

    Raises ValueError for tokens that the table does not have.
    """
    d_vocab, rows = len(counts.row_start) - 1, windows.cpu()
    if not rows.numel() or int(rows.min()) < 0 or int(rows.max()) >= d_vocab:
        raise ValueError(f"the table of pairs has tokens 0 to {d_vocab - 1}, these windows others, or none")
    pairs = counts.preceding * d_vocab + counts.following  # ascending
    wanted = rows[:, :-1] * d_vocab + rows[:, 1:]
    at = torch.searchsorted(pairs, wanted).clamp(max=len(pairs) - 1)
    found = torch.where(pairs[at] == wanted, counts.count[at], 0)
    total = torch.zeros(d_vocab, dtype=torch.double).index_add_(0, counts.preceding, counts.count.double())
    return (found / total[rows[:, :-1]].clamp(min=1)).to(windows.device)


# ---- when it arrives -------------------------------------------------------------------------------------------------------


class Milestone(NamedTuple):
    """Tokens seen when a score first reached a level, and at the entry of the log before: it happened in between."""

    tokens: float
    before: float


def milestone(tokens: Sequence[float], score: Sequence[float], share: float) -> Milestone:
    """The first entry of a log at which `score` is at least `share` of its FINAL value (claim W2).

    Raises ValueError for a log without entries, tokens that do not rise, a share outside 0 to 1, or a final score not above zero.
    """
    tokens, score = _log(tokens, score)
    if not 0 < share <= 1:
        raise ValueError(f"a milestone is a share of the final score, above 0 and up to 1, not {share}")
    if not score[-1] > 0:
        raise ValueError(f"the final score is {score[-1]:g}: shares of it mean nothing")
    at = int(np.argmax(score >= share * score[-1]))
    return Milestone(float(tokens[at]), float(tokens[max(at - 1, 0)]))


def share_of_fall(tokens: Sequence[float], score: Sequence[float], start: float, end: float) -> float:
    """Part of a score's fall, from its highest to its final value, that lies between two entries of its log (claim W2).

    Raises ValueError if the score never falls, or `start` and `end` are not tokens of entries.
    """
    tokens, score = _log(tokens, score)
    if not score.max() > score[-1]:
        raise ValueError("the score ends at its highest value: it has no fall to take a share of")
    at = []
    for wanted in (start, end):
        if wanted not in tokens:
            raise ValueError(f"the log has no entry at {wanted:g} tokens")
        at.append(int(np.argmax(tokens == wanted)))
    return float((score[at[0]] - score[at[1]]) / (score.max() - score[-1]))


def steepest_doubling(tokens: Sequence[float], score: Sequence[float]) -> tuple[float, float]:
    """(largest change of a score while the tokens seen double, tokens at which that doubling starts).

    Between entries the score is taken to be straight in the logarithm of tokens. Entries at zero tokens are left out.
    Raises ValueError for a log that covers less than one doubling.
    """
    tokens, score = _log(tokens, score)
    tokens, score = tokens[tokens > 0], score[tokens > 0]
    if not len(tokens) or tokens[-1] < 2 * tokens[0]:
        raise ValueError("the log covers less than one doubling of the tokens")
    ends = np.concatenate([tokens, tokens / 2])  # the steepest stretch begins or ends at an entry
    starts = np.unique(ends[(ends >= tokens[0]) & (2 * ends <= tokens[-1])])
    at = lambda x: np.interp(np.log(x), np.log(tokens), score)  # noqa: E731
    change = at(2 * starts) - at(starts)
    steepest = int(np.abs(change).argmax())
    return float(change[steepest]), float(starts[steepest])


def best_of_heads(scores: Sequence[Sequence[Sequence[float]]]) -> np.ndarray:
    """The highest score of any head at each entry of a log, whichever head that is there.

    Raises ValueError for entries without heads.
    """
    if not all(entry and all(entry) for entry in scores):
        raise ValueError("there is no best head: the model has none")
    return np.array([max(map(max, entry)) for entry in scores])


def _log(tokens: Sequence[float], score: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    tokens, score = np.asarray(tokens, dtype=float), np.asarray(score, dtype=float)
    if not len(tokens) or tokens.shape != score.shape or (np.diff(tokens) <= 0).any():
        raise ValueError("a log needs entries, with one score each, in the order of the tokens seen")
    return tokens, score
