"""What several chapters measure on a hooked model: scores of its heads, losses, and hooks that freeze or remove.

Every function takes a TransformerBridge (`load_model`). `hooks` is a list as for `run_with_hooks`.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from tqdm.auto import tqdm
from transformer_lens.model_bridge.exceptions import StopAtLayerException
from transformer_lens.utilities import get_act_name

from transformer_circuits.measures import attention, estimates, prediction, repeats
from transformer_circuits.measures.cache import cached
from transformer_circuits.models import architecture, bridge

Head = tuple[int, int]
Hook = tuple[str, Callable[..., Any]]  # a hook point's name, and what is done to the activation there


def head_name(head: Head) -> str:
    return f"{head[0]}.{head[1]}"


def relative_error(measured: Tensor, expected: Tensor) -> float:
    """Return the largest absolute difference over the largest expected entry. Raises ValueError for unequal shapes."""
    if measured.shape != expected.shape:
        raise ValueError(f"shapes must be equal, got {tuple(measured.shape)} and {tuple(expected.shape)}")
    if torch.equal(measured, expected):
        return 0.0
    return float((measured - expected).abs().max() / expected.abs().max())


def patterns(
    model: Any, tokens: Int[Tensor, "row pos"], hooks: Iterable[Hook] = ()
) -> Float[Tensor, "layer row head dest src"]:
    """Return the attention patterns of all heads, with these hooks. For a few rows: each takes 12 MB a layer."""
    return pattern_scores(model, tokens, lambda pattern: pattern, hooks)


def losses(model: Any, windows: Int[Tensor, "row pos"], hooks: Iterable[Hook] = ()) -> Float[Tensor, "row pos-1"]:
    """Return the loss (nats) at each token of a window after its first, with these hooks in place."""
    with model.hooks(fwd_hooks=list(hooks)):
        return prediction.losses(model, windows)


def pattern_scores(
    model: Any,
    tokens: Int[Tensor, "row pos"],
    score: Callable[[Tensor], Tensor],
    hooks: Iterable[Hook] = (),
    n_layers: int | None = None,
) -> Float[Tensor, "layer ..."]:
    """Return `score(pattern)` for every layer (the first `n_layers`), at least in single precision."""
    names = [get_act_name("pattern", layer) for layer in range(model.cfg.n_layers if n_layers is None else n_layers)]
    if not names:
        raise ValueError(f"the model must have at least one layer with attention heads, got {model.cfg.n_layers}")
    found = {}

    def read(pattern: Float[Tensor, "row head dest src"], hook: Any) -> None:
        found[hook.name] = score(pattern.float() if pattern.dtype.itemsize == 2 else pattern)
        if hook.name == names[-1]:
            # Ends the run. With `stop_at_layer` the last layer would be run to its logits.
            raise StopAtLayerException(pattern)

    model.run_with_hooks(tokens, fwd_hooks=[*hooks, *((name, read) for name in names)])
    return torch.stack([found[name] for name in names])


def induction_scores(
    model: Any, repeated: repeats.Repeated, hooks: Iterable[Hook] = (), n_layers: int | None = None
) -> Float[Tensor, "layer head"]:
    """Return the induction score of every head (of the first `n_layers`) on one draw of repeated random tokens.

    What comes after the second copies changes nothing, and is cut off: hooks see shorter rows.
    """
    total = 0.0
    for rows in repeated.ends.argsort().split(prediction.BATCH):
        part = repeated.select(rows)
        score = partial(attention.induction_score, repeated=part)
        each = pattern_scores(model, part.tokens[:, : part.ends.max()], score, hooks, n_layers)
        total = total + each * len(part.targets)
    return total / len(repeated.targets)


class Scores(NamedTuple):
    """A score of every head, averaged over independent draws of random tokens, and the standard error of that mean."""

    mean: Float[Tensor, "layer head"]
    error: Float[Tensor, "layer head"]


def measured_draws(model: Any) -> list[repeats.Repeated]:
    """Return the draws of repeated random tokens behind every reported induction score: the tokenizer's ids."""
    sizes = model.cfg.d_vocab, repeats.row_length(model.cfg.n_ctx)
    how = {"frequency": bridge.reading(model).frequency, "start": bridge.start_token(model)}
    draws = (repeats.repeated_random_tokens(*sizes, seed=seed, **how) for seed in range(repeats.DRAWS))
    return [draw.to(model.W_E.device) for draw in draws]


def measured_induction(model: Any) -> Scores:
    """Return the induction scores that the book reports, over `measured_draws`; they are `cached`."""
    draws = measured_draws(model)

    def measure() -> tuple[Tensor, Tensor]:
        each = tqdm(draws, desc="induction scores", leave=False, delay=2)
        return estimates.mean(torch.stack([induction_scores(model, draw) for draw in each]))

    code = (sys.modules[__name__], architecture, attention, bridge, estimates, prediction, repeats)
    return Scores(*cached(model, measure, code, torch.stack([draw.tokens for draw in draws])))


class Read(NamedTuple):
    """What is added up in queries and keys of one second-layer head: a part for each thing that wrote it.

    One part for each first-layer head: what it writes, less its mean over these rows and positions. Then the
    EMBEDDING's part, and the CONSTANT's: the position, and the means of all heads.
    """

    queries: Float[Tensor, "part row pos d_head"]
    keys: Float[Tensor, "part row pos d_head"]


EMBEDDING, CONSTANT = -2, -1  # the last two parts of `Read`


def read_by(model: Any, tokens: Int[Tensor, "row pos"], head: int) -> Read:
    """Return the parts of queries and keys of head 1.`head` of an attention-only model; it compares their sums."""
    z = torch.cat([activation(model, rows, "z", 0) for rows in tokens.split(prediction.BATCH)])
    mean = z.mean(dim=(0, 1))
    embedding = model.W_E[tokens]
    constant = model.W_pos[: tokens.shape[1]] + torch.einsum("hd,hdm->m", mean, model.W_O[0])
    sides = []
    for W in (model.W_Q[1, head], model.W_K[1, head]):
        of_heads = torch.einsum("rphd,hde->hrpe", z - mean, model.W_O[0] @ W)
        rest = torch.stack([embedding @ W, (constant @ W).expand(len(tokens), -1, -1)])
        sides.append(torch.cat([of_heads, rest]))
    return Read(*sides)


def keep(parts: Read, in_keys: Sequence[int], in_queries: Sequence[int], gain: float = 1) -> tuple[Tensor, Tensor]:
    """Return queries and keys that read these first-layer heads only, and the means of the others. `gain`: how many
    times the embedding is added to the queries."""
    queries = gain * parts.queries[EMBEDDING] + parts.queries[CONSTANT] + parts.queries[list(in_queries)].sum(dim=0)
    return queries, parts.keys[EMBEDDING:].sum(dim=0) + parts.keys[list(in_keys)].sum(dim=0)


def induction_by_draw(
    queries: Float[Tensor, "row pos d_head"], keys: Float[Tensor, "row pos d_head"], draws: Sequence[repeats.Repeated]
) -> Float[Tensor, " draw"]:
    """Return one head's induction score on each draw, from its queries and keys at all rows in order."""
    found, rows = [], iter(zip(queries, keys))
    for draw in draws:
        on_targets = queries.new_zeros(())
        for start, length in zip(draw.start.tolist(), draw.length.tolist()):
            q, k = next(rows)
            first, end = start + length, start + 2 * length
            scores = q[first:end] @ k[:end].T / q.shape[-1] ** 0.5
            place = torch.arange(end, device=scores.device)
            A = scores.masked_fill(place > place[first:, None], -torch.inf).softmax(dim=-1)
            on_targets += A.diagonal(start + 1).sum()
        found.append(on_targets / draw.length.sum())
    return torch.stack(found)


def fewest_edges(parts: Read, draws: Sequence[repeats.Repeated], share: float) -> list[tuple[str, int, float]]:
    """Return which heads keep this share of the induction score: side, head, share so far, best first (claim T16)."""

    def score(edges: Sequence[tuple[str, int]]) -> float:
        sides = [[head for side, head in edges if side == name] for name in ("keys", "queries")]
        return float(induction_by_draw(*keep(parts, *sides), draws).mean())

    others = [(side, head) for side in ("keys", "queries") for head in range(len(parts.keys) - 2)]
    whole, chosen, found = score(others), [], []
    while others and (not found or found[-1][2] < share):
        each = tqdm(others, desc=f"edge {len(found) + 1}", leave=False, delay=2)
        scores = {edge: score([*chosen, edge]) for edge in each}
        chosen.append(max(scores, key=scores.__getitem__))
        others.remove(chosen[-1])
        found.append((*chosen[-1], scores[chosen[-1]] / whole))
    return found


def previous_token_scores(model: Any, windows: Int[Tensor, "row pos"]) -> Float[Tensor, "layer head"]:
    """Return the mean attention of every head to the previous token, without the first two positions."""
    found = [pattern_scores(model, rows, attention.previous_token_score) for rows in windows.split(prediction.BATCH)]
    return torch.cat(found, dim=1).mean(dim=1)


def start_token_scores(model: Any, windows: Int[Tensor, "row pos"]) -> Float[Tensor, "layer head"]:
    """Return the mean attention of every head to the start token; from ATTENTION_SINK on it rests."""
    found = [pattern_scores(model, rows, attention.start_token_score) for rows in windows.split(prediction.BATCH)]
    return torch.cat(found, dim=1).mean(dim=1)


def run_from(model: Any, stream: Float[Tensor, "row pos d_model"], layer: int, hooks: Iterable[Hook] = ()) -> Tensor:
    """Return the logits of an attention-only model if `layer` reads this residual stream; earlier layers do not run.

    (TransformerLens's `start_at_layer` does not work with these models.) A hook may end the run, as in `activation`.
    Raises ValueError for other models, in which more than attention is between the stream and the logits.
    """
    config = getattr(model.original_model, "config", None)
    if not isinstance(config, architecture.ModelConfig) or config.beyond:
        raise ValueError("a run can start from the residual stream only in an attention-only model of this book's kind")
    with model.hooks(fwd_hooks=list(hooks)):
        try:
            for block in model.blocks[layer:]:
                (stream,) = block(stream, positions=model.W_pos[: stream.shape[1]])
            return model.unembed(stream)
        except StopAtLayerException as ended:
            return ended.layer_output


def activation(model: Any, tokens: Tensor, name: str, layer: int) -> Tensor:
    """Return one activation, by its short name, of a run that ends there. `tokens`: ids [row, pos], or the residual
    stream [row, pos, d_model] that `layer` reads (`run_from`)."""

    def end(found: Tensor, hook: Any) -> None:
        raise StopAtLayerException(found)  # the run returns what it contains

    hooks = [(get_act_name(name, layer), end)]
    if tokens.is_floating_point():
        return run_from(model, tokens, layer, hooks)
    return model.run_with_hooks(tokens, fwd_hooks=hooks)


def freeze(cache: Any) -> list[Hook]:
    """Return hooks that keep the attention patterns of a cached run: the model is then linear (claim P3)."""
    names = [get_act_name("pattern", layer) for layer in range(cache.model.cfg.n_layers)]
    return [(name, lambda pattern, hook: cache[hook.name]) for name in names]


def mean_z(model: Any, tokens: Int[Tensor, "row pos"], layer: int) -> Float[Tensor, "head d_head"]:
    """Return the mean `z` of each head of a layer over all positions of these rows."""
    sums = [activation(model, rows, "z", layer).sum((0, 1)) for rows in tokens.split(prediction.BATCH)]
    return torch.stack(sums).sum(0) / tokens.numel()


def without_heads(heads: Sequence[Head], means: Sequence[Float[Tensor, "head d_head"]] | None = None) -> list[Hook]:
    """Return hooks that remove heads: each head's `z` is replaced by its mean (`means[layer]`), or by zero."""

    def replace(z: Float[Tensor, "row pos head d_head"], hook: Any) -> Tensor:
        z, mine = z.clone(), [head for layer, head in heads if layer == hook.layer()]
        z[:, :, mine] = 0.0 if means is None else means[hook.layer()][mine]
        return z

    return [(get_act_name("z", layer), replace) for layer in sorted({layer for layer, _ in heads})]
