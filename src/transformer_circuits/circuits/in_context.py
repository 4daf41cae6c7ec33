"""In-context learning: the scores of the book's models (claim W1).

Paper: "Where Does This Leave Us?", and its sequel, "In-context Learning and Induction Heads" (Olsson et al. 2022).
"""

from jaxtyping import Float, Int
from safetensors.torch import load_file
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from transformer_circuits.measures import prediction
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
