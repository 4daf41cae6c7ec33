"""Exercises 4 to 6: what one head does, read from its weights (workbook e2)."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transformer_circuits.exercises.check import exercise
from transformer_circuits.exercises.inputs import random_model, shipped, texts


def _heads():
    """Yield models with a layer, a head, and a token."""
    yield random_model(2), 0, 2, 5
    yield random_model(2, 1), 1, 4, 11
    yield shipped(), 1, 3, 300


@exercise(
    cases=_heads,
    hints=(
        "The token's embedding is the row `model.W_E[token]`. Rows are multiplied from the right.",
        "The head moves it with `W_V[layer, head]`, then `W_O[layer, head]`. `W_U` turns the result into logits.",
    ),
)
def ov_row(model, layer: int, head: int, token: int) -> Float[Tensor, "d_vocab"]:
    """Return what attending to this token adds to the logit of every token."""
    return model.W_E[token] @ model.W_V[layer, head] @ model.W_O[layer, head] @ model.W_U


@ov_row.mistakes
def _(model, layer, head, token):
    OV = model.OV[layer, head].AB
    message = "This is a column of the circuit: the sources that raise this token. Return the row: what this token raises as a source."
    yield message, model.W_E @ (OV @ model.W_U[:, token])
    message = "W_OV is transposed. For row vectors it is W_V @ W_O. The paper uses column vectors, so it writes every product in reverse order."
    yield message, model.W_E[token] @ OV.T @ model.W_U
    message = "Your row includes the direct path W_E W_U. The OV circuit is only what goes through the head."
    yield message, ov_row(model, layer, head, token) + model.W_E[token] @ model.W_U


@exercise(
    cases=_heads,
    hints=(
        "A score is the product of a query and a key, divided by the square root of `d_head`.",
        "The token is the source, so its key is `model.W_E[token] @ model.W_K[layer, head]`. Every token can be the destination, "
        "so all rows of `W_E` go through `W_Q`.",
    ),
)
def qk_column(model, layer: int, head: int, token: int) -> Float[Tensor, "d_vocab"]:
    """Return every destination's attention score with this source, without positions."""
    key = model.W_E[token] @ model.W_K[layer, head]
    return model.W_E @ model.W_Q[layer, head] @ key / model.cfg.d_head**0.5


@qk_column.mistakes
def _(model, layer, head, token):
    QK, embedding, root = model.QK[layer, head].AB, model.W_E[token], model.cfg.d_head**0.5
    message = "Here the token is the destination. In a column it is the source, so it goes through W_K, and all destinations go through W_Q."
    yield message, model.W_E @ QK.T @ embedding / root
    message = "Every entry is sqrt(d_head) times too large. Attention scores are divided by it."
    yield message, model.W_E @ QK @ embedding
    message = "You read the destinations with W_U. They are current tokens, so they come from W_E."
    yield message, model.W_U.T @ QK @ embedding / root


def _patterns():
    for head, (model, tokens) in enumerate(texts(2, 1), start=1):
        yield model, tokens, head


@exercise(
    cases=_patterns,
    hints=(
        "Queries and keys read `model.W_E[tokens] + model.W_pos[:n]`, with n the number of positions.",
        "The scores are [row, dest, src]. Set those with the source after the destination to `-torch.inf`.",
        "`softmax(dim=-1)` then shares each destination's attention among its sources.",
    ),
)
def first_layer_pattern(model, tokens: Int[Tensor, "row pos"], head: int) -> Float[Tensor, "row dest src"]:
    """Return a first-layer head's attention pattern, computed from its weights."""
    x = model.W_E[tokens] + model.W_pos[: tokens.shape[1]]
    queries, keys = x @ model.W_Q[0, head], x @ model.W_K[0, head]
    scores = queries @ keys.mT / model.cfg.d_head**0.5
    ahead = torch.ones_like(scores, dtype=torch.bool).triu(1)
    return scores.masked_fill(ahead, -torch.inf).softmax(dim=-1)


@first_layer_pattern.mistakes
def _(model, tokens, head):
    embedded, root = model.W_E[tokens], model.cfg.d_head**0.5

    def scored(x):
        return (x @ model.W_Q[0, head]) @ (x @ model.W_K[0, head]).mT / root

    scores = scored(embedded + model.W_pos[: tokens.shape[1]])
    ahead = torch.ones_like(scores, dtype=torch.bool).triu(1)
    yield "Nothing is masked. Your tokens attend to tokens that come after them.", scores.softmax(-1)
    message = "The mask comes after the softmax, so your rows do not add up to 1. Set the scores to -inf before the softmax."
    yield message, scores.softmax(-1).tril()
    message = "The positions are missing. Queries and keys read the embedding plus W_pos."
    yield message, scored(embedded).masked_fill(ahead, -torch.inf).softmax(-1)
    message = "Your softmax runs over destinations. Each destination shares its attention among its sources: use dim=-1."
    yield message, scores.masked_fill(ahead, -torch.inf).softmax(-2)
    message = "The scores are not divided by sqrt(d_head). Divide them before the softmax."
    yield message, (root * scores).masked_fill(ahead, -torch.inf).softmax(-1)
    message = "The mask hides earlier tokens. Hide the tokens after the destination: `triu(1)`."
    yield message, scores.masked_fill(ahead.mT, -torch.inf).softmax(-1)
    message = (
        "The masked scores are 0, and exp(0) is 1, so later tokens still get attention. Set them to -inf."
    )
    yield message, scores.tril().softmax(-1)


@exercise(
    cases=lambda: ((model,) for model in (random_model(2), random_model(1, 1), shipped())),
    hints=(
        "The products A @ B and B @ A have the same eigenvalues except for zeros, and zeros change neither sum.",
        "The circuit is `(W_E @ W_V) @ (W_O @ W_U)`. Exchange the two brackets, and the product is only `d_head` by `d_head`.",
        "`torch.linalg.eigvals` returns complex numbers. The absolute value of one is `.abs()`.",
    ),
)
def copying_positivity(model) -> Float[Tensor, "layer head"]:
    """Return the positivity of each head's OV circuit, from its eigenvalues."""
    small = model.W_O @ (model.W_U @ model.W_E) @ model.W_V  # [layer, head, d_head, d_head]
    values = torch.linalg.eigvals(small)
    return values.real.sum(-1) / values.abs().sum(-1)


@copying_positivity.mistakes
def _(model):
    values = torch.linalg.eigvals(model.W_O @ model.W_V)
    message = "These are the eigenvalues of W_OV alone, from stream to stream. The circuit goes from tokens to tokens: W_E and W_U belong to it."
    yield message, values.real.sum(-1) / values.abs().sum(-1)
    message = "All entries are 1. Singular values and absolute values are never negative, so they cannot separate copying from its opposite."
    yield message, torch.ones_like(model.W_O[..., 0, 0])
    values = torch.linalg.eigvals(model.W_O @ (model.W_U @ model.W_E) @ model.W_V)
    message = "You divide by the sum of the absolute real parts. Use the absolute values of the complex eigenvalues, which include the imaginary parts."
    yield message, values.real.sum(-1) / values.real.abs().sum(-1)


def _tables():
    """Yield tables in which some pairs are neither right nor wrong."""
    for seed in range(3):
        drawn = torch.rand(7, 9, generator=torch.Generator().manual_seed(seed))
        yield drawn < 0.3, drawn > 0.6


@exercise(
    cases=_tables,
    hints=(
        "Fix a wrong (d, o). A bug needs a d' and an o' with (d, o') right, (d', o') wrong, and (d', o) right: a walk from d "
        "to o' to d' to o.",
        "Each step of the walk is a table. A product of three matrices counts the walks. Convert the tables with `.double()`.",
    ),
)
def forced_bugs(right: Bool[Tensor, "dest out"], wrong: Bool[Tensor, "dest out"]) -> Bool[Tensor, "dest out"]:
    """Return which wrong pairs are part of at least one bug."""
    # right (d, o'), wrong (d', o'), right (d', o)
    ways = right.double() @ wrong.double().T @ right.double()
    return wrong & (ways > 0)


@forced_bugs.mistakes
def _(right, wrong):
    yield (
        "You require a right pair in the row and one in the column. A bug has a fourth corner, where the other row and the other column "
        "cross, and it must be wrong too.",
        wrong & right.any(1, keepdim=True) & right.any(0, keepdim=True),
    )
    message = "Some of the pairs that you mark are not wrong. Mark only wrong pairs."
    yield message, right.double() @ wrong.double().T @ right.double() > 0
    message = "You treat every pair that is not right as wrong. Many pairs are neither, because the text contains too few occasions for them."
    yield message, forced_bugs(right, ~right)
