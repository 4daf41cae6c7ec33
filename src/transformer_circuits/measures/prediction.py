"""How well a model predicts, from its losses (`View.losses`): the in-context score."""

import torch
from jaxtyping import Float, Int
from safetensors.torch import load_file
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from transformer_circuits.models.shards import sha256
from transformer_circuits.models.view import View
from transformer_circuits.paths import data_file

RECORDED_SCORES = "in_context_scores.safetensors"
HELPS = 0.2  # nats by which the in-context scores of one and two layers differ (claim W1)
IN_CONTEXT_WINDOWS = 1768  # all there are: 0.03 nats for an in-context score (W1), 0.02 for that of two models


def in_context_places(n: int) -> tuple[Int[Tensor, " early"], Int[Tensor, " late"]]:
    """Return which of n losses of a window the in-context score compares: those within 10 of position 50, and of 500.
    For contexts shorter than 512, all move in proportion."""
    early, late, around = 50, 500, 10
    if n < 511:
        early, late, around = max(1, 50 * n // 512), 500 * n // 512, max(1, 10 * n // 512)
    places = torch.arange(n)
    return places[max(0, early - around) : early + around], places[max(0, late - around) : late + around]


def in_context_score(losses: Float[Tensor, "row pos"]) -> Float[Tensor, " row"]:
    """Return the loss at token 500 minus that at token 50 of each row, in nats (Olsson et al. 2022)."""
    early, late = in_context_places(losses.shape[1])
    return losses[:, late].mean(dim=1) - losses[:, early].mean(dim=1)


def in_context_scores(model: TransformerBridge, windows: Int[Tensor, "window pos"]) -> Float[Tensor, " window"]:
    """Return the in-context score of each window, in nats (claim W1).
    Those of the chapters take some minutes, so the repository has them (`make in-context`)."""
    shipped = load_file(data_file(RECORDED_SCORES)).get(digest_of(model, windows))
    return in_context_score(View(model).losses(windows)) if shipped is None else shipped.to(windows.device)


def digest_of(model: TransformerBridge, windows: Int[Tensor, "window pos"]) -> str:
    """Return a digest of the weights and the windows."""
    tensors = (windows, *model.original_model.parameters())
    return sha256(b"".join(tensor.numpy(force=True).tobytes() for tensor in tensors))
