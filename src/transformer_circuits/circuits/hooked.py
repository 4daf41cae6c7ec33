"""Measurements through TransformerLens's hooks, for models that `Weights` declines: with MLPs, layer normalization, smeared keys or
positions in the residual stream, and public ones.

The circuits of the other modules are products of weight matrices, and exact for the paper's attention-only models. What is here
asks the running model instead, and works for any TransformerBridge whose hooks have TransformerLens's names. Claims W3 to W8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from tqdm.auto import tqdm

from transformer_circuits.circuits.induction import Repeated, attention_to_last, copy_losses, next_token_losses
from transformer_circuits.training.scores import previous_token_scores

Hook = tuple[str, Callable[[Tensor, Any], Tensor | None]]  # a hook's name, and what is done to the activation there


def check_head(model: Any, layer: int, head: int) -> None:
    """Raises ValueError if a bridge has no such layer or head."""
    cfg = model.cfg
    if not (0 <= layer < cfg.n_layers and 0 <= head < cfg.n_heads):
        raise ValueError(f"there is no head {layer}.{head}: this model has {cfg.n_layers} layers of {cfg.n_heads} heads")


@torch.no_grad()
def activations(model: Any, tokens: Int[Tensor, " position"], names: Iterable[str], hooks: Iterable[Hook] = ()) -> dict[str, Tensor]:
    """What passes the hooks of these names on one prompt, without its batch dimension; the logits as "logits".

    `hooks` are applied in the same run: what is returned of a name is what was there after them. Raises ValueError for names
    that the model does not have.
    """
    names = list(names)
    if unknown := [name for name in [*names, *(name for name, _ in hooks)] if name not in model.hook_dict]:
        raise ValueError(f"this model has no hooks {', '.join(unknown)}: see its hook_dict")
    found: dict[str, Tensor] = {}

    def keep(name: str) -> Hook:
        return name, lambda activation, hook: found.__setitem__(name, activation[0])

    logits = model.run_with_hooks(tokens[None], fwd_hooks=[*hooks, *map(keep, names)])
    return found | {"logits": logits[0]}


def patterns(
    model: Any, tokens: Int[Tensor, " position"], hooks: Iterable[Hook] = ()
) -> tuple[Float[Tensor, "layer head destination source"], Float[Tensor, "position d_vocab"]]:
    """Attention patterns of every head, and the logits, on one prompt."""
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(model.cfg.n_layers)]
    found = activations(model, tokens, names, hooks)
    return torch.stack([found[name] for name in names]), found["logits"]


def scores(
    model: Any, sequences: Sequence[Repeated], hooks: Iterable[Hook] = (), progress: str | None = None
) -> tuple[Float[Tensor, "layer head"], Float[Tensor, " copy"]]:
    """Induction score of every head on repeated random tokens, and the loss in each copy (nats), as claim T8 measures them.

    Means over the tokens of each sequence, then over sequences. Raises ValueError if there are no sequences.
    """
    if not sequences:
        raise ValueError("there are no sequences to measure on")
    hooks, found, losses = list(hooks), [], []
    for s in tqdm(sequences, desc=progress, disable=progress is None):
        A, logits = patterns(model, s.tokens, hooks)
        found.append(attention_to_last(A, s).mean(dim=-1))
        losses.append(copy_losses(next_token_losses(logits, s.tokens), s))
    return torch.stack(found).mean(dim=0), torch.stack(losses).mean(dim=0)


def previous_token(model: Any, windows: Int[Tensor, "window position"]) -> Float[Tensor, "layer head"]:
    """Mean attention to the token before, on windows of text. The first two positions are left out: they see little else."""
    each = (previous_token_scores(patterns(model, window)[0][:, None]) for window in windows)  # one at a time: memory
    return torch.stack(list(each)).mean(dim=0)


def mean_z(model: Any, prompts: Sequence[Int[Tensor, " position"]], layer: int) -> Float[Tensor, "head d_head"]:
    """Mean over all positions of all prompts of what each head of a layer mixes from its values, before W_O (claims T14, W3)."""
    check_head(model, layer, 0)
    name = f"blocks.{layer}.attn.hook_z"
    mixed = torch.cat([activations(model, tokens, [name])[name] for tokens in prompts])
    return mixed.mean(dim=0)


def without(model: Any, layer: int, head: int, mean: Float[Tensor, "head d_head"]) -> Hook:
    """A hook that lets a head write its mean output everywhere. Raises ValueError for a head that does not exist."""
    check_head(model, layer, head)

    def replace(z: Float[Tensor, "batch position head d_head"], hook: Any) -> Tensor:
        z = z.clone()
        z[..., head, :] = mean[head]
        return z

    return f"blocks.{layer}.attn.hook_z", replace


def put(name: str, activation: Tensor) -> Hook:
    """A hook that puts a stored activation in place of the one that is there: a patch from another run."""
    return name, lambda here, hook: activation.expand_as(here)
