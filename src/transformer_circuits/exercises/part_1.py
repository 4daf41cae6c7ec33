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


@residual_parts.mistake(
    "The first part includes the positions. In these models positions enter queries and keys only, "
    "so the stream begins as the embedding alone."
)
def _(model, tokens):
    parts = residual_parts(model, tokens)
    parts[0] += model.W_pos[: tokens.shape[1]]
    return parts


@residual_parts.mistake(
    "Your heads write the value vectors of their own position. A head adds what it gathered: z, the average of the values "
    "weighted by its attention."
)
def _(model, tokens):
    _, cache = model.run_with_cache(tokens)
    layers = range(model.cfg.n_layers)
    written = [torch.einsum("rphd,hdm->hrpm", cache["v", layer], model.W_O[layer]) for layer in layers]
    return torch.cat([cache["embed"][None], *written])


@residual_parts.mistake("These are running sums: the stream after each head. Return what each head adds.")
def _(model, tokens):
    return residual_parts(model, tokens).cumsum(0)


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


@logits_by_order.mistake(
    "Order 1 includes the virtual heads. Your second-layer heads read the stream after the first layer has written to it. "
    "A single head reads the embedding."
)
def _(model, tokens):
    _, cache = model.run_with_cache(tokens)
    orders = logits_by_order(model, tokens)
    wrote = sum(cache["attn_out", layer] for layer in range(model.cfg.n_layers))
    return torch.cat([orders[:1], (wrote @ model.W_U)[None], orders[2:]])


@logits_by_order.mistake(
    "These are running sums: the logits of all orders up to each one. Return the logits of each order."
)
def _(model, tokens):
    return logits_by_order(model, tokens).cumsum(0)


def _with_virtual_heads(model, tokens, patterns: str, layers: tuple[int, int]):
    """Return the orders of a two-layer model, its virtual heads with patterns multiplied by this einsum and OV matrices in this order."""
    if model.cfg.n_layers != 2:
        return logits_by_order(model, tokens)
    _, cache = model.run_with_cache(tokens)
    moved = torch.einsum(f"{patterns},rkd->rabqd", cache["pattern", 0], cache["pattern", 1], cache["embed"])
    for layer in layers:
        moved = torch.einsum(f"rabqd,{'ab'[layer]}de->rabqe", moved, model.OV[layer].AB)
    return torch.cat([logits_by_order(model, tokens)[:2], (moved.sum((1, 2)) @ model.W_U)[None]])


@logits_by_order.mistake(
    "The OV matrices of virtual heads are in the wrong order. Rows are multiplied from the right, so the first layer's matrix "
    "comes first."
)
def _(model, tokens):
    return _with_virtual_heads(model, tokens, "rajk,rbqj", layers=(1, 0))


@logits_by_order.mistake(
    "The patterns of virtual heads are in the wrong order. Patterns multiply from the left, so the second layer's pattern comes first."
)
def _(model, tokens):
    return _with_virtual_heads(model, tokens, "raqj,rbjk", layers=(0, 1))


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


@logit_lens.mistake("These are logits. Log-probabilities come from `log_softmax` over the vocabulary.")
def _(model, tokens):
    _, cache = model.run_with_cache(tokens[:, :-1])
    stages = [cache["embed"], *(cache["resid_post", layer] for layer in range(model.cfg.n_layers))]
    targets = tokens[:, 1:].expand(len(stages), -1, -1)
    return (torch.stack(stages) @ model.W_U).gather(-1, targets[..., None])[..., 0]


@logit_lens.mistake("These are probabilities. Return their logarithms: use `log_softmax`.")
def _(model, tokens):
    return logit_lens(model, tokens).exp()


def _read(model, stages, targets):
    log_probs = (torch.stack(stages) @ model.W_U).log_softmax(dim=-1)
    return log_probs.gather(-1, targets.expand(len(stages), -1, -1)[..., None])[..., 0]


@logit_lens.mistake(
    "You read what each layer wrote. The lens reads the whole residual stream after each layer."
)
def _(model, tokens):
    _, cache = model.run_with_cache(tokens[:, :-1])
    stages = [cache["embed"], *(cache["attn_out", layer] for layer in range(model.cfg.n_layers))]
    return _read(model, stages, tokens[:, 1:])


@logit_lens.mistake(
    "You are one stage behind. `resid_pre` is the stream before a layer, and `resid_post` the stream after it."
)
def _(model, tokens):
    _, cache = model.run_with_cache(tokens[:, :-1])
    stages = [cache["embed"], *(cache["resid_pre", layer] for layer in range(model.cfg.n_layers))]
    return _read(model, stages, tokens[:, 1:])


@logit_lens.mistake("You score the current token. At each position, score the token that comes next.")
def _(model, tokens):
    _, cache = model.run_with_cache(tokens[:, :-1])
    stages = [cache["embed"], *(cache["resid_post", layer] for layer in range(model.cfg.n_layers))]
    return _read(model, stages, tokens[:, :-1])
