"""In-context learning: which tokens the text before them can tell, and from when on in training something holds.

Paper: "Where Does This Leave Us?", and its sequel, "In-context Learning and Induction Heads" (Olsson et al. 2022).
Claims W1 and W2. A Series has a value for each snapshot of a training log, by the tokens seen.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from safetensors.torch import load_file
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from transformer_circuits.measures import ablation, attention, prediction, weights
from transformer_circuits.models.release import data_file
from transformer_circuits.models.shards import sha256
from transformer_circuits.models.view import View

SHIPPED = "in_context_scores.safetensors"
GROUPS = ("new", "seen", "pair seen")


def kind_of_next(windows: Int[Tensor, "window pos"]) -> Int[Tensor, "window pos-1"]:
    """What a window up to each token says about the next: whether the window has it, or the pair, already (GROUPS)."""
    kinds = []
    for row in windows:  # one at a time: a table of positions by positions
        inputs, following = row[:-1], row[1:]
        seen = (inputs == following[:, None]).tril()
        pair = ((inputs == inputs[:, None]) & (following == following[:, None])).tril(-1)
        kinds.append(seen.any(dim=1).long() + pair.any(dim=1))
    return torch.stack(kinds)


def in_context_scores(model: TransformerBridge, windows: Int[Tensor, "window pos"]) -> Float[Tensor, " window"]:
    """Return the in-context score of each window, in nats (claim W1): `prediction.in_context_score`.
    Those of the chapters take some minutes, so the repository has them (`make in-context`)."""
    shipped = load_file(data_file(SHIPPED)).get(key(model, windows))
    return measured_scores(model, windows) if shipped is None else shipped.to(windows.device)


def measured_scores(model: TransformerBridge, windows: Int[Tensor, "window pos"]) -> Float[Tensor, " window"]:
    """Return `in_context_scores`, measured."""
    return prediction.in_context_score(View(model).losses(windows))


def key(model: TransformerBridge, windows: Int[Tensor, "window pos"]) -> str:
    """Return a digest of the weights and the windows."""
    tensors = (windows, *model.original_model.parameters())
    return sha256(b"".join(tensor.numpy(force=True).tobytes() for tensor in tensors))


class Milestone(NamedTuple):
    """Tokens seen at the snapshot where something first held, and at the one before: it happened in between."""

    tokens: float
    before: float


def met_from(met: pd.Series) -> Milestone:
    """From when on something holds at every snapshot to the end; NaN, NaN if it does not hold at the end."""
    failed = np.flatnonzero(~met.to_numpy(dtype=bool))
    first = failed[-1] + 1 if len(failed) else 0
    if first == len(met):
        return Milestone(np.nan, np.nan)
    return Milestone(met.index[first], met.index[max(first - 1, 0)])


def steepest_fall(score: pd.Series) -> Milestone:
    """Return where a score, interpolated over log tokens, falls most while these double: the end and start of that
    stretch; NaN, NaN if it never falls."""
    score = score[score.index > 0]
    at = np.log(score.index.to_numpy(float))
    starts = at[at <= at[-1] - np.log(2)]
    falls = np.interp(starts, at, score) - np.interp(starts + np.log(2), at, score)
    if not len(falls) or falls.max() <= 0:
        return Milestone(np.nan, np.nan)
    start = np.exp(starts[falls.argmax()])
    return Milestone(2 * start, start)


def working(log: pd.DataFrame) -> Bool[np.ndarray, "snapshot layer head"]:
    """Return which heads work at each snapshot."""
    cost, error = (torch.tensor(log[name].tolist()) for name in ("cost", "cost_error"))
    return ablation.AblationEffects(cost, error).working.numpy()


def when_true(
    log: pd.DataFrame, one_layer: pd.DataFrame | None = None, *, d_vocab: int, copying: float
) -> pd.DataFrame:
    """Return from which snapshot on each headline finding holds until the end of training, as far as logs can judge it.

    A row for each finding, in the order of the paper: `claim` (its id, or ""), `about` (what is read: "weights",
    "attention", "loss"), `finding`, and `tokens` and `before` of `met_from`. "The best head" is the one with the best
    induction score at that snapshot. `log` may be that of a one-layer model.

    `copying`: positivity above which a head of the one-layer model copies (`weights.copying_threshold` of the matrices
    as they are, because the log's positivity is that of circuits which are not centered).
    """
    logs = [x.set_index("tokens") for x in (one_layer, log) if x is not None]
    needed = {"induction", "positivity"}  # which logs of models without heads, or with more than attention, do not have
    by_depth = {len(x["induction"].iloc[-1]): x for x in logs if needed <= set(x)}
    one, two = by_depth.get(1), by_depth.get(2)
    rows = []

    def judge(log: pd.DataFrame, claim: str, about: str, finding: str, holds: np.ndarray | pd.Series) -> None:
        rows.append((claim, about, finding, *met_from(pd.Series(np.asarray(holds), log.index))))

    if one is not None:
        works = working(one)
        copies = (np.array(one["positivity"].tolist()) > copying) & works
        most = copies.sum(axis=(1, 2)) >= np.maximum(weights.MOST * works.sum(axis=(1, 2)), 1)
        judge(one, "E1", "weights", "Two thirds of the heads of the one-layer model copy", most)
    if two is not None:
        previous = two["previous_token"].str[0].map(max) >= attention.PREVIOUS_TOKEN_HEAD
        judge(two, "", "attention", "The first layer has a previous-token head", previous)
        pair = pd.DataFrame(two["pair"].tolist())
        reader = np.array(two["positivity"].tolist())[range(len(pair)), 1, pair["induction"]]
        (first, second), row = working(two).transpose(1, 0, 2), range(len(pair))
        both_work = first[row, pair["previous"]] & second[row, pair["induction"]]
        composes = (pair["k_composition"] >= weights.COMPOSES) & both_work
        judge(two, "T3", "weights", "The best head K-composes with an earlier head", composes)
        matches = pair["k_positivity"] >= weights.CORNER
        judge(two, "T10", "weights", "The best head's keys match what an earlier head copies", matches)
        judge(two, "T10", "weights", "The best head copies what it attends to", reader >= weights.CORNER)
        best = two["induction"].map(np.max)
        judge(two, "T8", "attention", "The best head is an induction head", best >= attention.INDUCTION_HEAD)
        half = best >= prediction.HALF
        judge(two, "T8", "attention", "The best head puts half of its attention on the right token", half)
        low = two["copies"].str[1] <= (1 - prediction.HALF) * np.log(d_vocab)
        judge(two, "T8", "loss", "The loss in the second copy is at most half the loss of a uniform guess", low)
        guesses = two["first_guess"] >= prediction.HALF
        judge(two, "T8", "loss", "In the second copy, half of the first guesses are right", guesses)
        direct, heads, virtual = -np.diff(two["orders"].tolist(), prepend=np.log(d_vocab), axis=1).T
        most = (heads > direct) & (direct > virtual) & (virtual <= prediction.VIRTUAL * heads)
        judge(two, "T11", "loss", "Single heads reduce the loss most, virtual heads least", most)
    if one is not None and two is not None:
        alone = np.interp(two.index, one.index, one["in_context"])  # after as many tokens, or at its end
        apart = alone - two["in_context"] >= prediction.HELPS
        judge(two, "W1", "loss", "A longer context helps two layers more than one", apart)
    return pd.DataFrame(rows, columns=["claim", "about", "finding", "tokens", "before"])
