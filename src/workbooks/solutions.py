"""The solutions, in the order of the workbooks e1 to e5, each with the arguments it is tried with."""

import itertools

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transformer_circuits.measures.repeats import repeated_random_tokens
from transformer_circuits.models.bridge import from_matrices
from workbooks import inputs
from workbooks.check import Wrong
from workbooks.exercises import exercise

RUNS = frozenset({"run_with_cache", "run_with_hooks", "hooks", "add_hook"})  # how one gets a pattern from a run


@exercise(inputs.texts(2, 1, 2))
def residual_parts(model, tokens: Int[Tensor, "row pos"]) -> Float[Tensor, "part row pos d_model"]:
    """Return what the embedding, and then each head in order, adds to the stream."""
    _, cache = model.run_with_cache(tokens)
    parts = [cache["embed"]]
    for layer in range(model.cfg.n_layers):
        for head in range(model.cfg.n_heads):
            parts.append(cache["z", layer][:, :, head] @ model.W_O[layer, head])
    return torch.stack(parts)


@exercise(inputs.texts(2, 3, 1))
def logits_by_order(model, tokens: Int[Tensor, "row pos"]) -> Float[Tensor, "order row pos d_vocab"]:
    """Return the logits from all paths through 0, 1, 2, ... heads, with frozen patterns."""
    _, cache = model.run_with_cache(tokens)
    terms = [cache["embed"]]  # terms[n]: what all paths through n heads have written so far
    for layer in range(model.cfg.n_layers):
        A, OV = cache["pattern", layer], model.OV[layer].AB
        through = [torch.einsum("rhqk,rkd,hde->rqe", A, x, OV) for x in terms]
        terms = [stay + add for stay, add in zip([*terms, 0], [0, *through])]
    return torch.stack(terms) @ model.W_U


@exercise(inputs.texts(2, 1, 2))
def logit_lens(model, tokens: Int[Tensor, "row pos"]) -> Float[Tensor, "stage row pos-1"]:
    """Return the log-probability of the next token, read at each stage of the stream."""
    _, cache = model.run_with_cache(tokens[:, :-1])
    stages = [cache["embed"]]
    stages += [cache["resid_post", layer] for layer in range(model.cfg.n_layers)]
    log_probs = (torch.stack(stages) @ model.W_U).log_softmax(dim=-1)
    targets = tokens[:, 1:].expand(len(stages), -1, -1)
    return log_probs.gather(-1, targets[..., None])[..., 0]


@exercise(inputs.with_more(inputs.models(2, 3), (0, 2, 5), (2, 4, 11), (1, 3, 300)))
def ov_row(model, layer: int, head: int, token: int) -> Float[Tensor, "d_vocab"]:
    """Return what attending to this token adds to the logit of every token."""
    return model.W_E[token] @ model.W_V[layer, head] @ model.W_O[layer, head] @ model.W_U


@exercise(inputs.with_more(inputs.models(2, 3), (0, 2, 5), (2, 4, 11), (1, 3, 300)))
def qk_column(model, layer: int, head: int, token: int) -> Float[Tensor, "d_vocab"]:
    """Return every destination's attention score with this source, without positions."""
    key = model.W_E[token] @ model.W_K[layer, head]
    return model.W_E @ model.W_Q[layer, head] @ key / model.cfg.d_head**0.5


@exercise(inputs.with_more(inputs.texts(2, 1), (1,), (2,), (3,)), avoid=RUNS)
def first_layer_pattern(model, tokens: Int[Tensor, "row pos"], head: int) -> Float[Tensor, "row dest src"]:
    """Return a first-layer head's attention pattern, computed from its weights."""
    x = model.W_E[tokens] + model.W_pos[: tokens.shape[1]]
    queries, keys = x @ model.W_Q[0, head], x @ model.W_K[0, head]
    scores = queries @ keys.mT / model.cfg.d_head**0.5
    ahead = torch.ones_like(scores, dtype=torch.bool).triu(1)
    return scores.masked_fill(ahead, -torch.inf).softmax(dim=-1)


@exercise(inputs.models(2, 1))
def copying_positivity(model) -> Float[Tensor, "layer head"]:
    """Return the positivity of each head's OV circuit, not centered, from eigenvalues."""
    small = model.W_O @ (model.W_U @ model.W_E) @ model.W_V  # [layer, head, d_head, d_head]
    values = torch.linalg.eigvals(small)
    return values.real.sum(-1) / values.abs().sum(-1)


@exercise(inputs.tables())
def forced_bugs(right: Bool[Tensor, "dest out"], wrong: Bool[Tensor, "dest out"]) -> Bool[Tensor, "dest out"]:
    """Return which wrong pairs are part of at least one bug."""
    # right (d, o'), wrong (d', o'), right (d', o)
    ways = right.double() @ wrong.double().T @ right.double()
    return wrong & (ways > 0)


@exercise(inputs.texts(2, 1, 2))
def previous_token_scores(model, tokens: Int[Tensor, "row pos"]) -> Float[Tensor, "layer head"]:
    """Return each head's mean attention to the previous token, starting at position 2."""
    _, cache = model.run_with_cache(tokens)
    A = torch.stack([cache["pattern", layer] for layer in range(model.cfg.n_layers)])
    one_back = A.diagonal(offset=-1, dim1=-2, dim2=-1)  # [layer, row, head, dest - 1]
    return one_back[..., 1:].mean(dim=(1, 3))


@exercise(inputs.repeats(2, 3))
def induction_scores(model, tokens: Int[Tensor, "row pos"], length: int) -> Float[Tensor, "layer head"]:
    """Return each head's mean attention to the token after the first occurrence."""
    scores = torch.zeros(model.cfg.n_layers, model.cfg.n_heads)

    def note(pattern, hook):  # [row, head, dest, src]
        after_first = pattern.diagonal(1 - length, dim1=-2, dim2=-1)
        scores[hook.layer()] = after_first[..., 2:].mean(dim=(0, 2))

    model.run_with_hooks(tokens, fwd_hooks=[(lambda name: name.endswith("hook_pattern"), note)])
    return scores


@exercise(inputs.with_more(inputs.texts(2, 3), (0,), (1,), (1,)))
def value_weighted(model, tokens: Int[Tensor, "row pos"], layer: int) -> Float[Tensor, "row head dest src"]:
    """Return each head's attention times the length of the source's value vector."""
    _, cache = model.run_with_cache(tokens)
    size = cache["v", layer].norm(dim=-1)  # [row, src, head]
    return cache["pattern", layer] * size.mT[:, :, None, :]


@exercise(inputs.with_more(inputs.models(2, 2, 2, 3), *"QKVKK"))
def composition(model, side: str) -> Float[Tensor, "reader writer"]:
    """Return how strongly one side ("Q", "K", or "V") of each reader reads each writer."""
    OV, QK, norm = model.OV[0].AB, model.QK[1].AB, torch.linalg.matrix_norm
    reads = {"Q": QK, "K": QK.mT, "V": model.OV[1].AB}[side]
    product = norm(OV[None] @ reads[:, None])  # [reader, writer]
    return product / norm(OV) / norm(reads)[:, None] * model.cfg.d_model**0.5


@exercise(inputs.with_more(inputs.repeats(2, 2, 2), (3, "k"), (1, "q"), (4, "v"), (2, "k")))
def induction_without(
    model, tokens: Int[Tensor, "row pos"], length: int, writer: int, side: str
) -> Float[Tensor, "head"]:
    """Return induction scores with one head removed from what "q", "k", or "v" reads."""
    _, cache = model.run_with_cache(tokens)
    wrote = cache["z", 0][:, :, writer] @ model.W_O[0, writer]
    remove = (f"blocks.1.attn.{side}.hook_in", lambda x, hook: x - wrote)
    with model.hooks(fwd_hooks=[remove]):
        return induction_scores(model, tokens, length)[1]


@exercise(inputs.texts(2, 3), avoid=frozenset({"logits_by_order"}))
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


def induction_behavior(matrices: dict[str, Tensor], d_vocab: int, n_ctx: int) -> Float[Tensor, "5"]:
    """Return what the model does on random tokens that occur twice: 0 for near 0, 1 for near 1, else 0.5, as many
    different matrices are right.

    The attention of head 0.0 to the previous token; over the second copies, the attention of head 1.0 to the token
    after the first occurrence and to the first occurrence, and how often the model's first guess is the token that
    followed it, and the current token.
    """
    model = from_matrices(**matrices)
    if [model.cfg.n_layers, model.cfg.n_heads, model.cfg.d_vocab, model.cfg.n_ctx] != [2, 1, d_vocab, n_ctx]:
        raise Wrong("It must have two layers of one head each, d_vocab tokens, and n_ctx positions.")
    repeated = repeated_random_tokens(d_vocab, n_ctx, shortest=min(d_vocab - 1, n_ctx // 2) // 3).to(model.W_E.device)
    rows, dest, after = repeated.rows, repeated.destinations, repeated.targets
    logits, cache = model.run_with_cache(repeated.tokens)
    second, best = cache["pattern", 1][:, 0], logits.argmax(dim=-1)[rows, dest]
    found = [
        cache["pattern", 0].diagonal(-1, -2, -1),
        second[rows, dest, after],
        second[rows, dest, after - 1],
        best == repeated.tokens[rows, after],
        best == repeated.tokens[rows, dest],
    ]
    fractions = torch.stack([part.double().mean() for part in found])
    return (fractions > 0.05) / 2 + (fractions > 0.95) / 2


@exercise([(20, 24), (30, 16)], measure=induction_behavior)
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


@exercise(inputs.texts(2, 1))
def logit_attribution(model, tokens: Int[Tensor, "row pos"]) -> Float[Tensor, "part row pos-1"]:
    """Return what each part adds to the next token's logit, relative to the mean logit."""
    parts = residual_parts(model, tokens[:, :-1])
    directions = model.W_U - model.W_U.mean(dim=-1, keepdim=True)  # [d_model, d_vocab]
    return torch.einsum("prtm,mrt->prt", parts, directions[:, tokens[:, 1:]])


@exercise(inputs.models(2, 1))
def copying_accuracy(model) -> Float[Tensor, "layer head"]:
    """Return the fraction of tokens whose own logit each head's OV circuit raises most."""
    accuracy = torch.zeros(model.cfg.n_layers, model.cfg.n_heads)
    for layer, head in itertools.product(range(model.cfg.n_layers), range(model.cfg.n_heads)):
        circuit = model.W_E @ model.OV[layer, head] @ model.W_U  # FactoredMatrix [d_vocab, d_vocab]
        best = circuit.AB.argmax(dim=-1).cpu()
        accuracy[layer, head] = (best == torch.arange(len(best))).float().mean()
    return accuracy


@exercise(inputs.texts(2, 3))
def ablation_costs(model, tokens: Int[Tensor, "row pos"]) -> Float[Tensor, "layer head"]:
    """Return how much the mean loss rises if each head's z is replaced by its mean."""

    def loss(hooks):
        logits = model.run_with_hooks(tokens[:, :-1], fwd_hooks=hooks)
        return F.cross_entropy(logits.mT, tokens[:, 1:])

    intact, costs = loss([]), torch.zeros(model.cfg.n_layers, model.cfg.n_heads)
    for layer, head in itertools.product(range(model.cfg.n_layers), range(model.cfg.n_heads)):

        def remove(z, hook):  # [row, pos, head, d_head]
            z = z.clone()
            z[:, :, head] = z[:, :, head].mean(dim=(0, 1))
            return z

        costs[layer, head] = loss([(f"blocks.{layer}.attn.hook_z", remove)]) - intact
    return costs


@exercise(inputs.with_more(inputs.twins(2, 2, 2), (3, 1, "k"), (0, 4, "q"), (2, 2, "k")))
def path_patch(
    model, tokens: Int[Tensor, "row pos"], other: Int[Tensor, "row pos"], writer: int, reader: int, side: str
) -> Float[Tensor, "row dest src"]:
    """Return 1.reader's attention if "q" or "k" sees what 0.writer writes on `other`."""
    _, cache = model.run_with_cache(tokens, stop_at_layer=1)
    _, swapped = model.run_with_cache(other, stop_at_layer=1)
    change = (swapped["z", 0] - cache["z", 0])[:, :, writer] @ model.W_O[0, writer]
    W = {"q": model.W_Q, "k": model.W_K}[side][1, reader]

    def patch(x, hook):  # [row, pos, head, d_head]
        x = x.clone()
        x[:, :, reader] += change @ W
        return x

    with model.hooks(fwd_hooks=[(f"blocks.1.attn.hook_{side}", patch)]):
        _, cache = model.run_with_cache(tokens)
    return cache["pattern", 1][:, reader]
