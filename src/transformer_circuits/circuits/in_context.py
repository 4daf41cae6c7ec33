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


def kind_of_next(windows: Int[Tensor, "window pos"]) -> Int[Tensor, "window pos-1"]:
    """Return what a window up to each token says about the next: 0 for a new token, 1 for one that the window has
    already, 2 if it has the pair already."""
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
    return prediction.in_context_score(View(model).losses(windows)) if shipped is None else shipped.to(windows.device)


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


def when_true(log: pd.DataFrame, one_layer: pd.DataFrame, *, d_vocab: int, copying: float) -> pd.DataFrame:
    """Return from which snapshot on each headline finding holds until the end of training, as far as logs can judge it.

    A row for each, in the order of the paper (E1, T3, T10, T8, T11, W1): `finding`, and `tokens` and `before` of
    `met_from`. "The best head" is the one with the best induction score at that snapshot. `copying`: positivity above
    which a head of the one-layer model copies (`weights.copying_threshold` of the matrices as they are, because the
    log's positivity is that of circuits which are not centered).
    """
    one, two = one_layer.set_index("tokens"), log.set_index("tokens")
    works = working(one)
    copies = (np.array(one["positivity"].tolist()) > copying) & works
    most = copies.sum(axis=(1, 2)) >= np.maximum(weights.MOST * works.sum(axis=(1, 2)), 1)

    best, previous = two["induction"].map(np.max), two["previous_token"].str[0].map(max)
    pair = pd.DataFrame(two["pair"].tolist(), two.index)  # of the best head and the best previous-token head
    snapshot, (first, second) = range(len(pair)), working(two).transpose(1, 0, 2)
    both_work = first[snapshot, pair["previous"]] & second[snapshot, pair["induction"]]
    best_copies = np.array(two["positivity"].tolist())[snapshot, 1, pair["induction"]]
    low = (1 - prediction.HALF) * np.log(d_vocab)
    direct, single, virtual = -np.diff(two["orders"].tolist(), prepend=np.log(d_vocab), axis=1).T
    in_order = (single > direct) & (direct > virtual) & (virtual <= prediction.VIRTUAL * single)
    alone = np.interp(two.index, one.index, one["in_context"])  # after as many tokens, or at its end

    held = {
        "The first layer has a previous-token head": previous >= attention.PREVIOUS_TOKEN_HEAD,
        "The best head K-composes with an earlier head": (pair["k_composition"] >= weights.COMPOSES) & both_work,
        "The best head's keys match what an earlier head copies": pair["k_positivity"] >= weights.CORNER,
        "The best head copies what it attends to": best_copies >= weights.CORNER,
        "The best head is an induction head": best >= attention.INDUCTION_HEAD,
        "The best head puts half of its attention on the right token": best >= prediction.HALF,
        "The loss in the second copy is at most half the loss of a uniform guess": two["copies"].str[1] <= low,
        "In the second copy, half of the first guesses are right": two["first_guess"] >= prediction.HALF,
        "Single heads reduce the loss most, virtual heads least": in_order,
        "A longer context helps two layers more than one": alone - two["in_context"] >= prediction.HELPS,
    }
    rows = [("Two thirds of the heads of the one-layer model copy", *met_from(pd.Series(most, one.index)))]
    for finding, holds in held.items():
        rows.append((finding, *met_from(pd.Series(np.asarray(holds), two.index))))
    return pd.DataFrame(rows, columns=["finding", "tokens", "before"])
