"""What is left of an induction head without the heads that bring it the previous token (claim W3).

They are removed everywhere, or only from what the keys or the queries of the induction head's layer read.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens.utilities import get_act_name

from transformer_circuits.circuits import heads
from transformer_circuits.circuits.heads import Model
from transformer_circuits.measures import attention, estimates
from transformer_circuits.models.view import BATCH, Head, View, without_heads

Estimate = tuple[Tensor, Tensor]  # a value and its standard error

GROUPS = 4  # random groups of other heads that are removed for comparison


class Removed(NamedTuple):
    """The head's induction score on each draw, by what is removed and where."""

    intact: Float[Tensor, " draw"]
    left: dict[str, Float[Tensor, " draw"]]

    def kept(self, name: str) -> Estimate:
        """Return what is left as a fraction of the intact score."""
        return estimates.ratio(self.left[name], self.intact)

    def others(self, where: str) -> str:
        """Return the name of the random group without which least remains."""
        return min((f"group {group}, {where}" for group in range(GROUPS)), key=lambda name: float(self.kept(name)[0]))


def previous_token_heads(previous: Float[Tensor, "layer head"], before: int) -> list[Head]:
    """Return the previous-token heads of the layers before one, from the heads' previous-token scores."""
    return [tuple(head) for head in (previous[:before] >= attention.PREVIOUS_TOKEN_HEAD).nonzero().tolist()]


def groups_of_others(team: Sequence[Head], n_heads: int) -> Iterator[list[Head]]:
    """Yield GROUPS random groups of other heads: in each layer as many as there are in the team, if it has them."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(GROUPS):
        group = []
        for layer, members in itertools.groupby(team, key=lambda head: head[0]):
            taken = [head for _, head in members]
            others = [head for head in range(n_heads) if head not in taken]
            order = torch.randperm(len(others), generator=generator).tolist()
            group += [(layer, others[i]) for i in order[: len(taken)]]
        yield group


def remove(model: Model, head: Head, team: list[Head], alone: dict[str, Head]) -> Removed:
    """Remove a team of heads of earlier layers, by putting their means over these rows in the place of their z.

    Names of what is left: "everywhere"; "keys" and "queries", those of the head's layer alone (`View.only_in`); "keys,
    past MLPs", where the MLPs on the way keep their outputs, and "keys, directly", where all other heads do too; "group
    N, everywhere" and "group N, keys" without others; and those of `alone`: heads removed one at a time, everywhere.
    """
    view, (layer, which) = View.of(model), head
    # One batch of rows of each draw, in the order in which `heads.induction_scores` runs them, so that patches fit
    draws = [draw.select(draw.ends[:BATCH].argsort()) for draw in heads.measured_draws(view)]
    z = [get_act_name("z", earlier) for earlier in range(layer)]
    mlps = [] if view.cfg.attn_only else [f"blocks.{earlier}.hook_mlp_out" for earlier in range(layer)]
    runs = [view.activations(draw.tokens, [*z, *mlps]) for draw in draws]
    means = [torch.cat([run[name] for run in runs]).mean(dim=(0, 1)) for name in z]

    def without(group: Sequence[Head], side: str = "", held: Sequence[str] = ()) -> Float[Tensor, " draw"]:
        """Return the scores without a group, in one side alone if it is given, while activations named `held` stay as
        they were."""
        scores = []
        for draw, run in zip(draws, runs):
            hooks = without_heads(group, means)
            if side:
                stay = [(name, lambda activation, hook, before=run[name]: before) for name in held]
                hooks = [view.only_in(side, layer, draw.tokens, [*stay, *hooks])]
            scores.append(heads.induction_scores(view, draw, hooks, [layer])[0, which])
        return torch.stack(scores).cpu()

    left = {
        "everywhere": without(team),
        "keys": without(team, "k"),
        "queries": without(team, "q"),
        "keys, past MLPs": without(team, "k", mlps),
        "keys, directly": without(team, "k", [*mlps, *z]),
    }
    left |= {name: without([one]) for name, one in alone.items()}
    for number, group in enumerate(groups_of_others(team, view.cfg.n_heads)):
        left |= {f"group {number}, everywhere": without(group), f"group {number}, keys": without(group, "k")}
    return Removed(without([]), left)
