"""Exercises 1 to 3: the residual stream and the paths through it (workbook e1)."""

# No `from __future__ import annotations`: the check reads the names of the axes from the return annotation.

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transformer_circuits.exercises.check import exercise
from transformer_circuits.exercises.inputs import texts


@exercise(
    cases=lambda: texts(2, 1, 2),
    hints=(
        '`cache["embed"]` is the first part. `cache["z", layer]` has the shape [row, pos, head, d_head]: what each head gathered, '
        "the average of the value vectors weighted by its attention.",
        "`model.W_O[layer, head]` turns what a head gathered into what it adds to the stream.",
    ),
)
def residual_parts(model, tokens: Int[Tensor, "row pos"]) -> Float[Tensor, "part row pos d_model"]:
    """Return what the embedding, and then each head in order, adds to the residual stream."""
    _, cache = model.run_with_cache(tokens)
    parts = [cache["embed"]]
    for layer in range(model.cfg.n_layers):
        for head in range(model.cfg.n_heads):
            parts.append(cache["z", layer][:, :, head] @ model.W_O[layer, head])
    return torch.stack(parts)


@residual_parts.mistakes
def _(model, tokens):
    _, cache = model.run_with_cache(tokens)
    parts = residual_parts(model, tokens)
    yield (
        "The first part includes the positions. In these models positions enter queries and keys only, "
        "so the stream begins as the embedding alone.",
        torch.cat([parts[:1] + model.W_pos[: tokens.shape[1]], parts[1:]]),
    )
    layers = range(model.cfg.n_layers)
    written = [torch.einsum("rphd,hdm->hrpm", cache["v", layer], model.W_O[layer]) for layer in layers]
    yield (
        "Your heads write the value vectors of their own position. A head adds what it gathered: z, the average of the values "
        "weighted by its attention.",
        torch.cat([parts[:1], *written]),
    )
    yield "These are running sums: the stream after each head. Return what each head adds.", parts.cumsum(0)


@exercise(
    cases=lambda: texts(2, 3, 1),
    hints=(
        "Keep one tensor for each number of heads: `terms[n]` is what all paths through n heads have written so far. It begins as "
        "the embedding alone.",
        "A layer leaves `terms[n]` in the stream. It also reads `terms[n]` and adds the result to `terms[n + 1]`.",
        "With its patterns frozen, a layer turns a stream `x` into the sum over heads of `A @ x @ OV`, where `OV` is `model.OV[layer, head].AB`.",
    ),
)
def logits_by_order(model, tokens: Int[Tensor, "row pos"]) -> Float[Tensor, "order row pos d_vocab"]:
    """Return the logits from all paths through 0, 1, 2, ... heads, with frozen patterns."""
    _, cache = model.run_with_cache(tokens)
    terms = [cache["embed"]]  # terms[n]: what all paths through n heads have written so far
    for layer in range(model.cfg.n_layers):
        A, OV = cache["pattern", layer], model.OV[layer].AB
        through = [torch.einsum("rhqk,rkd,hde->rqe", A, x, OV) for x in terms]
        terms = [stay + add for stay, add in zip([*terms, 0], [0, *through])]
    return torch.stack(terms) @ model.W_U


@logits_by_order.mistakes
def _(model, tokens):
    _, cache = model.run_with_cache(tokens)
    orders = logits_by_order(model, tokens)
    wrote = sum(cache["attn_out", layer] for layer in range(model.cfg.n_layers))
    yield (
        "Order 1 includes the virtual heads. Your second-layer heads read the stream after the first layer has written to it. "
        "A single head reads the embedding.",
        torch.cat([orders[:1], (wrote @ model.W_U)[None], orders[2:]]),
    )
    message = (
        "These are running sums: the logits of all orders up to each one. Return the logits of each order."
    )
    yield message, orders.cumsum(0)
    if model.cfg.n_layers != 2:
        return

    def with_virtual_heads(patterns, layers):  # patterns multiplied by this einsum, OV matrices in this order
        factors = cache["pattern", 0], cache["pattern", 1], cache["embed"]
        moved = torch.einsum(f"{patterns},rkd->rabqd", *factors)
        for layer in layers:
            moved = torch.einsum(f"rabqd,{'ab'[layer]}de->rabqe", moved, model.OV[layer].AB)
        return torch.cat([orders[:2], (moved.sum((1, 2)) @ model.W_U)[None]])

    yield (
        "The OV matrices of virtual heads are in the wrong order. Rows are multiplied from the right, so the first layer's matrix "
        "comes first.",
        with_virtual_heads("rajk,rbqj", layers=(1, 0)),
    )
    message = "The patterns of virtual heads are in the wrong order. Patterns multiply from the left, so the second layer's pattern comes first."
    yield message, with_virtual_heads("raqj,rbjk", layers=(0, 1))


@exercise(
    cases=lambda: texts(2, 1, 2),
    hints=(
        'The stages are `cache["embed"]` and `cache["resid_post", layer]`. Run the model on all tokens except the last one.',
        "`log_softmax(dim=-1)` turns logits into log-probabilities.",
        "`gather` picks the entry of one token at each position. The tokens to pick are `tokens[:, 1:]`.",
    ),
)
def logit_lens(model, tokens: Int[Tensor, "row pos"]) -> Float[Tensor, "stage row pos-1"]:
    """Return the log-probability of the next token, read at each stage of the stream."""
    _, cache = model.run_with_cache(tokens[:, :-1])
    stages = [cache["embed"]]
    stages += [cache["resid_post", layer] for layer in range(model.cfg.n_layers)]
    log_probs = (torch.stack(stages) @ model.W_U).log_softmax(dim=-1)
    targets = tokens[:, 1:].expand(len(stages), -1, -1)
    return log_probs.gather(-1, targets[..., None])[..., 0]


@logit_lens.mistakes
def _(model, tokens):
    _, cache = model.run_with_cache(tokens[:, :-1])
    layers = range(model.cfg.n_layers)

    def logits(point):
        return torch.stack([cache["embed"], *(cache[point, layer] for layer in layers)]) @ model.W_U

    def of(targets, values):
        return values.gather(-1, targets.expand(len(values), -1, -1)[..., None])[..., 0]

    following, lens = tokens[:, 1:], logits("resid_post")
    message = "These are logits. Log-probabilities come from `log_softmax` over the vocabulary."
    yield message, of(following, lens)
    message = "These are probabilities. Return their logarithms: use `log_softmax`."
    yield message, of(following, lens.softmax(-1))
    message = "You read what each layer wrote. The lens reads the whole residual stream after each layer."
    yield message, of(following, logits("attn_out").log_softmax(-1))
    message = "You are one stage behind. `resid_pre` is the stream before a layer, and `resid_post` the stream after it."
    yield message, of(following, logits("resid_pre").log_softmax(-1))
    message = "You score the current token. At each position, score the token that comes next."
    yield message, of(tokens[:, :-1], lens.log_softmax(-1))
