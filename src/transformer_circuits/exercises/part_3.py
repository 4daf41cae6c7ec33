"""Exercises 7 to 9: where heads attend, and what they read from each other (workbook e3)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transformer_circuits.circuits.heads import patterns
from transformer_circuits.exercises.check import exercise
from transformer_circuits.exercises.inputs import random_model, repeats, shipped, texts


@exercise(
    cases=lambda: texts(2, 1, 2),
    hints=(
        '`cache["pattern", layer]` is [row, head, dest, src]. Destinations are rows, so the previous token is one column to the left of '
        "the diagonal.",
        "Print `pattern.diagonal(offset=-1, dim1=-2, dim2=-1).shape`. Its first entry belongs to destination 1.",
    ),
)
def previous_token_scores(model, tokens: Int[Tensor, "row pos"]) -> Float[Tensor, "layer head"]:
    """Return each head's mean attention to the previous token, starting at destination 2."""
    _, cache = model.run_with_cache(tokens)
    A = torch.stack([cache["pattern", layer] for layer in range(model.cfg.n_layers)])
    one_back = A.diagonal(offset=-1, dim1=-2, dim2=-1)  # [layer, row, head, dest - 1]
    return one_back[..., 1:].mean(dim=(1, 3))


@previous_token_scores.mistakes
def _(model, tokens):
    A = patterns(model, tokens)
    message = "This diagonal lies above the main one, where every destination's future is, so it is all zeros. Destinations are rows: use offset=-1."
    yield message, torch.zeros(A.shape[0], A.shape[2])
    for skipped in (0, 2):
        message = "This is the attention of each token to itself. The previous token is one column to the left of the diagonal."
        yield message, A.diagonal(0, -2, -1)[..., skipped:].mean((1, 3))
    message = "You count destination 1, which can attend only to itself and to the start token. Leave out destinations 0 and 1."
    yield message, A.diagonal(-1, -2, -1).mean((1, 3))
    message = "You leave out destination 2 too. The first entry of this diagonal belongs to destination 1, so leave out only one entry."
    yield message, A.diagonal(-1, -2, -1)[..., 2:].mean((1, 3))


@exercise(
    cases=repeats,
    hints=(
        "A row is the start token, a copy, and the same copy again. The token at position p of the second copy first occurred at "
        "p - length, and the token after it is at p - length + 1.",
        "A hook function gets the activation and the hook point. If it returns nothing, it only looks. `hook.layer()` is its layer.",
        "`pattern.diagonal(1 - length, dim1=-2, dim2=-1)` begins with two destinations of the first copy.",
    ),
)
def induction_scores(model, tokens: Int[Tensor, "row pos"], length: int) -> Float[Tensor, "layer head"]:
    """Return each head's mean attention to the token after the first occurrence."""
    scores = torch.zeros(model.cfg.n_layers, model.cfg.n_heads)

    def note(pattern, hook):  # [row, head, dest, src]
        after_first = pattern.diagonal(1 - length, dim1=-2, dim2=-1)
        scores[hook.layer()] = after_first[..., 2:].mean(dim=(0, 2))

    model.run_with_hooks(tokens, fwd_hooks=[(lambda name: name.endswith("hook_pattern"), note)])
    return scores


@induction_scores.mistakes
def _(model, tokens, length):
    A = patterns(model, tokens)
    for skipped in (0, 1, 2):
        yield (
            "You are one token off. This is the first occurrence itself, `length` back. An induction head attends to the token after it, "
            "`length - 1` back.",
            A.diagonal(-length, -2, -1)[..., skipped:].mean((1, 3)),
        )
        message = "You are two tokens off. This is the token before the first occurrence."
        yield message, A.diagonal(-length - 1, -2, -1)[..., skipped:].mean((1, 3))
    for skipped in (0, 1):
        message = (
            "The first two entries of this diagonal have their destination in the first copy. Leave out both."
        )
        yield message, A.diagonal(1 - length, -2, -1)[..., skipped:].mean((1, 3))
    yield (
        "All scores are 0. Either the hook did not run (a name filter that matches no hook point passes silently), or the diagonal is "
        "above the main one, where there is no attention: its offset is `1 - length`.",
        torch.zeros(A.shape[0], A.shape[2]),
    )


def _layers():
    """Yield models and tokens with a layer."""
    for layer, (model, tokens) in zip((0, 1, 1), texts(2, 3)):
        yield model, tokens, layer


@exercise(
    cases=_layers,
    hints=(
        '`cache["v", layer]` is [row, pos, head, d_head]. Its positions are the sources of the pattern.',
        "The norms are [row, src, head] and the pattern is [row, head, dest, src]. Transpose the norms, and add an axis for the "
        "destinations.",
    ),
)
def value_weighted(model, tokens: Int[Tensor, "row pos"], layer: int) -> Float[Tensor, "row head dest src"]:
    """Return each head's attention times the length of the source's value vector."""
    _, cache = model.run_with_cache(tokens)
    size = cache["v", layer].norm(dim=-1)  # [row, src, head]
    return cache["pattern", layer] * size.mT[:, :, None, :]


@value_weighted.mistakes
def _(model, tokens, layer):
    _, cache = model.run_with_cache(tokens)
    A, v = cache["pattern", layer], cache["v", layer]
    message = "Your weights belong to destinations. Values come from the source, so each column is multiplied by its own |v|."
    yield message, A * v.norm(dim=-1).mT[..., None]
    weighted = value_weighted(model, tokens, layer)
    message = (
        "Your rows add up to 1 again. The weights show how much a head moves, so do not divide by the sums."
    )
    yield message, weighted / weighted.sum(-1, keepdim=True)
    message = "You weight by |v W_O|, the length of what the head would write. That is a fair choice, but the paper uses |v|."
    yield message, A * torch.einsum("rphd,hdm->rphm", v, model.W_O[layer]).norm(dim=-1).mT[:, :, None, :]


def _sides():
    for side in "QKV":
        yield random_model(2), side
    yield shipped(), "K"


@exercise(
    cases=_sides,
    hints=(
        "`model.OV[0].AB` has the shape [head, d_model, d_model]. For rows, the writer's matrix comes first: `OV @ reads`.",
        "A query is on the left of W_QK, and a key is on its right. So keys read its transpose, `model.QK[1].AB.mT`.",
        "Divide the Frobenius norm of the product by both norms. Random matrices give about `1 / sqrt(d_model)`.",
    ),
)
def composition(model, side: str) -> Float[Tensor, "reader writer"]:
    """Return how strongly one side ("Q", "K", or "V") of each reader reads each writer."""
    OV, QK, norm = model.OV[0].AB, model.QK[1].AB, torch.linalg.matrix_norm
    reads = {"Q": QK, "K": QK.mT, "V": model.OV[1].AB}[side]
    product = norm(OV[None] @ reads[:, None])  # [reader, writer]
    return product / norm(OV) / norm(reads)[:, None] * model.cfg.d_model**0.5


@composition.mistakes
def _(model, side):
    message = "Queries and keys are exchanged. A query is on the left of W_QK, so queries read W_QK and keys read its transpose."
    yield message, composition(model, {"Q": "K", "K": "Q", "V": "V"}[side])
    OV, QK, norm = model.OV[0].AB, model.QK[1].AB, torch.linalg.matrix_norm
    reads = {"Q": QK, "K": QK.mT, "V": model.OV[1].AB}[side]
    message = "The product is in the wrong order. What the first head writes comes first, and then what reads it: OV @ reads."
    yield message, norm(reads[:, None] @ OV) / norm(OV) / norm(reads)[:, None] * model.cfg.d_model**0.5
    message = "Every entry is 1 / sqrt(d_model) times what it should be. Multiply by sqrt(d_model), so that random heads have about 1."
    yield message, composition(model, side) / model.cfg.d_model**0.5
