"""Exercises 10 to 12: remove a connection, cut a model by order, and write a circuit (workbook e4)."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from transformer_circuits.exercises.check import Wrong, exercise
from transformer_circuits.exercises.inputs import repeats, texts
from transformer_circuits.exercises.part_1 import logit_lens, logits_by_order
from transformer_circuits.exercises.part_3 import induction_scores
from transformer_circuits.models.bridge import from_matrices


def _connections():
    """Yield models, repeated tokens and their length, with a first-layer head and a side that reads it."""
    for (model, tokens, length), writer, side in zip(repeats(), (3, 1, 2), "kqk"):
        yield model, tokens, length, writer, side
        yield model, tokens, length, writer, "v"


@exercise(
    cases=_connections,
    hints=(
        "Exercise 1 says what one head adds to the stream: its z times its W_O.",
        "The hook point `blocks.1.attn.k.hook_in` holds what the second layer's keys read. There are `q.hook_in` and `v.hook_in` too.",
        "Hooks nest: inside `with model.hooks(fwd_hooks=[...])` you can call `induction_scores`. A hook must return the changed activation.",
    ),
)
def induction_without(
    model, tokens: Int[Tensor, "row pos"], length: int, writer: int, side: str
) -> Float[Tensor, "head"]:
    """Return induction scores with one head removed from what one side ("q", "k", "v") reads."""
    _, cache = model.run_with_cache(tokens)
    wrote = cache["z", 0][:, :, writer] @ model.W_O[0, writer]
    remove = (f"blocks.1.attn.{side}.hook_in", lambda x, hook: x - wrote)
    with model.hooks(fwd_hooks=[remove]):
        return induction_scores(model, tokens, length)[1]


@induction_without.mistakes
def _(model, tokens, length, writer, side):
    def silence(z, hook):
        z[:, :, writer] = 0
        return z

    def scores(*hooks):
        with model.hooks(fwd_hooks=list(hooks)):
            return induction_scores(model, tokens, length)[1]

    yield (
        "Queries, keys, and values have all lost the head. Remove its output only at the one `hook_in`, and not in place: the three sides "
        "read the same tensor.",
        scores(("blocks.0.attn.hook_z", silence)),
    )
    _, cache = model.run_with_cache(tokens)
    message = "You remove the whole first layer from that side. Remove only what this one head wrote."
    yield message, scores((f"blocks.1.attn.{side}.hook_in", lambda x, hook: x - cache["attn_out", 0]))
    yield "Nothing has changed. A hook that returns nothing leaves the activation unchanged.", scores()


@exercise(
    cases=lambda: texts(2, 3),
    hints=(
        "Order 0 replaces every layer's output by zeros. Note each layer's output before you replace it.",
        "In the next run, put in what you noted in this one. Each run raises the order by one.",
        "`hook_pattern` is where patterns are frozen, and `attn.hook_out` is where a layer's output is replaced.",
    ),
)
def losses_by_order(model, tokens: Int[Tensor, "row pos"]) -> Float[Tensor, "order"]:
    """Return the mean loss of all paths through at most 0, 1, 2, ... heads."""
    _, cache = model.run_with_cache(tokens[:, :-1])
    freeze = (lambda name: name.endswith("hook_pattern"), lambda A, hook: cache[hook.name])
    noted, losses = {}, []

    def swap(out, hook):
        from_last_run = noted.get(hook.name, torch.zeros_like(out))
        noted[hook.name] = out
        return from_last_run

    hooks = [freeze, (lambda name: name.endswith("attn.hook_out"), swap)]
    for _ in range(model.cfg.n_layers + 1):
        logits = model.run_with_hooks(tokens[:, :-1], fwd_hooks=hooks)
        losses.append(F.cross_entropy(logits.mT, tokens[:, 1:]))
    return torch.stack(losses)


@losses_by_order.mistakes
def _(model, tokens):
    noted, losses = {}, []

    def swap(out, hook):
        from_last_run = noted.get(hook.name, torch.zeros_like(out))
        noted[hook.name] = out
        return from_last_run

    hooks = [(lambda name: name.endswith("attn.hook_out"), swap)]
    for _ in range(model.cfg.n_layers + 1):
        logits = model.run_with_hooks(tokens[:, :-1], fwd_hooks=hooks)
        losses.append(F.cross_entropy(logits.mT, tokens[:, 1:]))
    message = (
        "The patterns are computed again in each run. Freeze them: put in the patterns of the intact model."
    )
    yield message, torch.stack(losses)
    message = "You cut the model by depth, which is the logit lens. Order 1 includes the single heads of every layer."
    yield message, -logit_lens(model, tokens).mean((1, 2))
    orders = logits_by_order(model, tokens[:, :-1])
    message = "These are the losses of each order alone. Return the loss of all orders up to each one."
    yield message, torch.stack([F.cross_entropy(logits.mT, tokens[:, 1:]) for logits in orders])


BEHAVIORS = (
    "the fraction of tokens at which head 0.0 attends most to the previous token",
    "the attention of head 0.0 to the previous token",
    "the attention of head 1.0 to the token after the first occurrence",
    "the attention of head 1.0 to the first occurrence",
    "the fraction of right predictions",
    "the fraction of predictions that repeat the current token",
)


AXES = {
    "W_E": ("d_vocab", "d_model"),
    "W_pos": ("n_ctx", "d_model"),
    "W_Q": ("layer", "head", "d_model", "d_head"),
    "W_K": ("layer", "head", "d_model", "d_head"),
    "W_V": ("layer", "head", "d_model", "d_head"),
    "W_O": ("layer", "head", "d_head", "d_model"),
    "W_U": ("d_model", "d_vocab"),
}


def check_matrices(matrices: dict[str, Tensor], d_vocab: int, n_ctx: int) -> None:
    """Raise Wrong unless these are the arguments of `from_matrices`, with sizes that fit together."""
    if not isinstance(matrices, dict) or matrices.keys() != AXES.keys():
        got = ", ".join(matrices) if isinstance(matrices, dict) else type(matrices).__name__
        raise Wrong(f"It must return a dict with the keys {', '.join(AXES)}, got {got}.")
    sizes = {"d_vocab": d_vocab, "n_ctx": n_ctx, "layer": 2, "head": 1}  # you choose the other sizes
    for name, axes in AXES.items():
        shape = list(matrices[name].shape)
        fits = len(shape) == len(axes)
        for axis, size in zip(axes, shape):
            fits = fits and sizes.setdefault(axis, size) == size
        if not fits:
            wanted = [f"{axis}={sizes[axis]}" if axis in sizes else axis for axis in axes]
            raise Wrong(f"{name} must be [{', '.join(wanted)}], got {shape}.")
        if not matrices[name].isfinite().all():
            raise Wrong(f"{name} contains NaN or infinity.")


def behavior(matrices: dict[str, Tensor]) -> Float[Tensor, "6"]:
    """Run a model with these matrices on token 0 and random tokens that occur twice, and return BEHAVIORS over the second copy."""
    model = from_matrices(**matrices)
    length = (model.cfg.n_ctx - 1) // 2
    drawn = torch.rand(5, model.cfg.d_vocab - 1, generator=torch.Generator().manual_seed(0)).argsort(dim=1)
    copy = drawn[:, :length] + 1
    tokens = torch.cat([torch.zeros_like(copy[:, :1]), copy, copy], dim=1)
    logits, cache = model.run_with_cache(tokens)
    first, second = cache["pattern", 0][:, 0], cache["pattern", 1][:, 0]
    best = logits[:, length + 1 :].argmax(dim=-1)
    found = [
        first[:, 1:].argmax(dim=-1) == torch.arange(2 * length),
        first.diagonal(-1, -2, -1),
        second.diagonal(1 - length, -2, -1)[:, 2:],
        second.diagonal(-length, -2, -1)[:, 1:],
        best == tokens[:, 2 : length + 2],
        best == copy,
    ]
    return torch.stack([part.double().mean() for part in found])


def levels(matrices: dict[str, Tensor], d_vocab: int, n_ctx: int) -> Float[Tensor, "6"]:
    """Return 0 for each behavior near 0, 1 for one near 1, and 0.5 for one in between: many different matrices are right."""
    check_matrices(matrices, d_vocab, n_ctx)
    fractions = behavior(matrices)
    return (fractions > 0.05) / 2 + (fractions > 0.95) / 2


@exercise(
    cases=lambda: iter([(20, 24), (30, 16)]),
    hints=(
        "Give each kind of content its own dimensions: `torch.eye(3 * d_vocab + n_ctx).split([d_vocab, n_ctx, d_vocab, d_vocab], dim=1)` "
        "gives blocks for the token, the position, the previous token, and the output. `x @ block` reads a block, and "
        "`y @ block.T` writes to it.",
        "Head 0.0: the query at position i is the one-hot vector of position i - 1, the key is the position, and the value is the token. "
        "It writes to the block of the previous token.",
        "Head 1.0: the query is the current token, the key is the previous token, and the value is the token. It writes to the output, "
        "which is all that W_U reads.",
        "Scores of 0 and 1 give soft attention. Multiply the queries by 20, and by `d_head**0.5` to undo the division.",
    ),
    measure=levels,
    labels=BEHAVIORS,
)
def induction_by_hand(d_vocab: int, n_ctx: int) -> dict[str, Tensor]:
    """Return the weights of an induction circuit, as arguments of `from_matrices`."""
    d_head = max(d_vocab, n_ctx)
    widths = [d_vocab, n_ctx, d_vocab, d_vocab]
    token, place, before, out = torch.eye(sum(widths)).split(widths, dim=1)

    def wide(block):  # as many columns as a head has
        return F.pad(block, (0, d_head - block.shape[1]))

    one_back = torch.eye(n_ctx).roll(-1, dims=1)  # row i has its 1 in column i - 1
    W_Q = torch.stack([wide(place @ one_back), wide(token)])[:, None] * 20 * d_head**0.5
    W_K = torch.stack([wide(place), wide(before)])[:, None]
    W_V = torch.stack([wide(token), wide(token)])[:, None]
    W_O = torch.stack([wide(before), wide(out)])[:, None].mT
    return dict(W_E=token.T, W_pos=place.T, W_Q=W_Q, W_K=W_K, W_V=W_V, W_O=W_O, W_U=out)


@induction_by_hand.mistakes
def _(d_vocab, n_ctx):
    matrices = induction_by_hand(d_vocab, n_ctx)
    (place, before), (token, _), turned = matrices["W_K"], matrices["W_V"], matrices["W_Q"].clone()
    turned[0, 0, :, :n_ctx] = turned[0, 0, :, :n_ctx].roll(2, dims=1)
    yield (
        "Head 0.0 does not attend to the previous token. The query at position i must match the key of position i - 1. Check that both "
        "contain the position, and the direction of the shift.",
        matrices | {"W_Q": turned},
    )
    yield (
        "Head 1.0 attends to the first occurrence itself, one place too early. Its query must be the current token, and its key must be "
        "what head 0.0 wrote: the previous token.",
        matrices | {"W_K": torch.stack([place, token])},
    )
    yield (
        "Head 1.0 finds the right place, but the model predicts the current token. The values must hold the token that head 1.0 finds, not "
        "the token before it, and W_U must read only the output.",
        matrices | {"W_V": torch.stack([token, before])},
    )
