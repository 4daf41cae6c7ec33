"""What several chapters measure on a model, by name: scores of its heads, and hooks that freeze its patterns.

What measures takes a hooked model (`load_model`) or a `View` of one. `hooks` is a list as for `run_with_hooks`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from tqdm.auto import tqdm
from transformer_lens import ActivationCache
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.utilities import get_act_name

from transformer_circuits.measures import attention, estimates, repeats
from transformer_circuits.measures.cache import cached_on
from transformer_circuits.models import reading
from transformer_circuits.models.view import BATCH, Head, Hook, View

Model = View | TransformerBridge


def head_name(head: Head) -> str:
    return f"{head[0]}.{head[1]}"


def relative_error(measured: Tensor, expected: Tensor) -> float:
    """Return the largest absolute difference over the largest expected entry. Raises ValueError for unequal shapes."""
    if measured.shape != expected.shape:
        raise ValueError(f"shapes must be equal, got {tuple(measured.shape)} and {tuple(expected.shape)}")
    if torch.equal(measured, expected):
        return 0.0
    return float((measured - expected).abs().max() / expected.abs().max())


def induction_scores(
    model: Model, repeated: repeats.Repeated, hooks: Sequence[Hook] = (), layers: Sequence[int] | None = None
) -> Float[Tensor, "layer head"]:
    """Return the induction score of every head (of these layers) on one draw of repeated random tokens.

    What comes after the second copies changes nothing, and is cut off: hooks see shorter rows.
    """
    total = torch.zeros((), device=repeated.tokens.device)
    for rows in repeated.ends.argsort().split(BATCH):
        part = repeated.select(rows)
        score = partial(attention.induction_score, repeated=part)
        of_part = View.of(model).pattern_scores(part.tokens[:, : part.ends.max()], score, hooks, layers)
        total = total + of_part * len(part.targets)
    return total / len(repeated.targets)


class Scores(NamedTuple):
    """A score of every head, averaged over independent draws of random tokens, and the standard error of that mean."""

    mean: Float[Tensor, "layer head"]
    error: Float[Tensor, "layer head"]


def measured_draws(model: Model) -> list[repeats.Repeated]:
    """Return the draws of repeated random tokens behind every reported induction score: the tokenizer's ids."""
    model = View.of(model).model
    sizes = model.cfg.d_vocab, repeats.row_length(model.cfg.n_ctx)
    how = {"frequency": torch.bincount(reading.of(model).drawn).float(), "start": reading.start_token(model)}
    draws = (repeats.repeated_random_tokens(*sizes, seed=seed, **how) for seed in range(repeats.DRAWS))
    return [draw.to(model.W_E.device) for draw in draws]


def measured_induction(model: Model) -> Scores:
    """Return the induction scores that the book reports, over `measured_draws`; they are cached."""
    model, draws = View.of(model).model, measured_draws(model)

    def measure() -> Tensor:
        bar = tqdm(draws, desc="induction scores", leave=False, delay=2)
        return torch.stack(estimates.mean(torch.stack([induction_scores(model, draw) for draw in bar])))

    return Scores(*cached_on(model, "induction", measure, torch.stack([draw.tokens for draw in draws])))


def previous_token_scores(model: Model, windows: Int[Tensor, "row pos"]) -> Float[Tensor, "layer head"]:
    """Return the mean attention of every head to the previous token, without the first two positions."""
    return mean_score(model, windows, attention.previous_token_score)


def mean_score(
    model: Model, windows: Int[Tensor, "row pos"], score: Callable[[Tensor], Tensor]
) -> Float[Tensor, "layer head"]:
    """Return the mean of a score of patterns ([row, head, dest, src] -> [row, head]) over windows."""
    found = [View.of(model).pattern_scores(rows, score) for rows in windows.split(BATCH)]
    return torch.cat(found, dim=1).mean(dim=1)


def freeze(cache: ActivationCache) -> list[Hook]:
    """Return hooks that keep the attention patterns of a cached run: the model is then linear (claim P3)."""
    names = [get_act_name("pattern", layer) for layer in range(cache.model.cfg.n_layers)]
    return [(name, lambda pattern, hook: cache[hook.name]) for name in names]
