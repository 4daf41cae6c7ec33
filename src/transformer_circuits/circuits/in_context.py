"""In-context learning: the scores of the book's models, and from when on in training it shows (claims W1 and W2).

Paper: "Where Does This Leave Us?", and its sequel, "In-context Learning and Induction Heads" (Olsson et al. 2022).
"""

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from safetensors.torch import load_file
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from transformer_circuits.measures import ablation, prediction
from transformer_circuits.models.shards import sha256
from transformer_circuits.models.view import View
from transformer_circuits.paths import data_file

SHIPPED = "in_context_scores.safetensors"


def in_context_scores(model: TransformerBridge, windows: Int[Tensor, "window pos"]) -> Float[Tensor, " window"]:
    """Return the in-context score of each window, in nats (claim W1): `prediction.in_context_score`.
    Those of the chapters take some minutes, so the repository has them (`make in-context`)."""
    shipped = load_file(data_file(SHIPPED)).get(key(model, windows))
    return prediction.in_context_score(View(model).losses(windows)) if shipped is None else shipped.to(windows.device)


def key(model: TransformerBridge, windows: Int[Tensor, "window pos"]) -> str:
    """Return a digest of the weights and the windows."""
    tensors = (windows, *model.original_model.parameters())
    return sha256(b"".join(tensor.numpy(force=True).tobytes() for tensor in tensors))


def steepest_fall(score: pd.Series) -> tuple[float, float]:
    """Return where a score (by the tokens seen), interpolated over log tokens, falls most while these double: the end
    and the start of that stretch; NaN, NaN if it never falls."""
    score = score[score.index > 0]
    at = np.log(score.index.to_numpy(float))
    starts = at[at <= at[-1] - np.log(2)]
    falls = np.interp(starts, at, score) - np.interp(starts + np.log(2), at, score)
    if not len(falls) or falls.max() <= 0:
        return np.nan, np.nan
    start = np.exp(starts[falls.argmax()])
    return 2 * start, start


def working(log: pd.DataFrame) -> Bool[np.ndarray, "snapshot layer head"]:
    """Return which heads work at each snapshot."""
    cost, error = (torch.tensor(log[name].tolist()) for name in ("cost", "cost_error"))
    return ablation.AblationEffects(cost, error).working.numpy()
