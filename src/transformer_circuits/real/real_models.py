"""What chapter 18 measures on public models, claim by claim: T8, T6, T7, W3, E1, T10, and what W7 compares.

Each takes any model that `survey.check` accepts. `measure` returns numbers, arrays, and verdicts by the ledger's
criteria; `public_records` stores them. Every head counts as working, since the costs of single heads are not measured.
"""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformer_lens import FactoredMatrix
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.utilities import get_act_name

from transformer_circuits.circuits import heads, survey
from transformer_circuits.circuits.heads import Model, head_name
from transformer_circuits.claims import Record, judge
from transformer_circuits.measures import attention, estimates, prediction, repeats, weights
from transformer_circuits.models import reading
from transformer_circuits.models.view import BATCH, Head, Hook, View, single, without_heads

Estimate = tuple[Tensor, Tensor]  # a value and its standard error

VERSION = 1  # of the measurement: raise it when numbers change that this module measures (`make public` measures again)
ROWS_REMOVED = BATCH  # rows of each draw on which heads are removed: one batch
GROUPS = 4  # random groups of other heads that are removed for comparison
SELF_MATCHED = 600  # tokens among which a token must match itself best
FIRST_PLACE = 10  # destinations from which on attention to the start token counts (T6)


class Measured(NamedTuple):
    """What was measured on one model."""

    numbers: dict[str, float]  # with standard errors as NAME_error
    arrays: dict[str, Tensor]  # [layer, head]
    records: list[Record]
    seconds: dict[str, float]  # of each part

    def note(self, **found: Any) -> None:
        """Keep numbers; a pair is an estimate and its standard error."""
        for name, value in found.items():
            pair = value if isinstance(value, tuple) else (value,)
            self.numbers.update({name + end: float(x) for end, x in zip(("", "_error"), pair)})

    def judge(self, id: str, detail: str = "", **values: Any) -> None:
        """Judge a claim about a public model."""
        self.records.append(judge(id, detail=detail, public=True, **values))


@torch.no_grad()
def measure(model: TransformerBridge) -> Measured:
    """Measure a public model: some minutes, and a few times the memory of the model.

    Raises WeightsError for models that `survey.check` does not accept.
    """
    survey.check(model)
    view, notes, cfg = View(model), Measured({}, {}, [], {}), model.cfg
    begun = time.perf_counter()

    def ended(part: str) -> None:
        notes.seconds[part] = time.perf_counter() - begun - sum(notes.seconds.values())
        print(f"{part}: {notes.seconds[part]:.0f} s", flush=True)

    scores = heads.measured_induction(view)
    induces = (scores.mean >= attention.INDUCTION_HEAD).cpu()
    head = divmod(int(scores.mean.argmax()), cfg.n_heads)
    best = scores.mean[head], scores.error[head]
    notes.note(layers=cfg.n_layers, heads=cfg.n_heads, best_layer=head[0], best_head=head[1])
    notes.note(induction=best, induction_heads=induces.sum())
    notes.arrays.update(induction=scores.mean.cpu(), induction_error=scores.error.cpu())
    second_copies(notes, view, best)
    ended("copies")

    windows = survey.text(model)
    others = [other for other in map(tuple, induces.nonzero().tolist()) if other != head]
    seen = on_text(view, windows, [head, *others])
    start_token(notes, seen, induces)
    attends_or_rests(notes, view, windows, seen)
    in_context(notes, view, windows, seen, induces)
    ended("text")

    previous = seen.places[:, 2].mean(dim=0)
    needs_the_note(notes, view, head, previous, best)
    ended("removal")

    copying(notes, view)
    corner(notes, view, previous, induces)
    ended("circuits")
    return notes


# ---- T8: the second copy of random tokens ----------------------------------------------------------------------------


def second_copies(notes: Measured, view: View, best: Estimate) -> None:
    """What the model predicts in both copies of random tokens (T8, and the fall of W7)."""
    losses, guesses = [], []
    for draw in heads.measured_draws(view):
        nats, right = view.losses_and_guesses(draw.tokens, draw.ends)
        losses.append(draw.by_copy(nats))
        guesses.append(draw.by_copy(right.float())[1])
    loss, guess = torch.stack(losses), estimates.mean(torch.stack(guesses))  # [draw, copy]
    uniform = float(torch.tensor(len(reading.of(view.model).drawn)).log())
    first, second = (estimates.mean(copy) for copy in loss.T)
    notes.judge("T8", induction=best, guess=guess, drop=(uniform - second[0], second[1]), uniform=uniform)
    notes.note(guess=guess, uniform=uniform, fall=estimates.mean(1 - loss[:, 1] / uniform))
    notes.note(first_copy=first, second_copy=second)


# ---- T6, T7: text ----------------------------------------------------------------------------------------------------


class Text(NamedTuple):
    """What a model does on windows of text."""

    places: Float[Tensor, "window place=3 layer head"]  # attention to the start token, the current token, the previous
    start: Float[Tensor, "window layer head"]  # attention to the start token, from FIRST_PLACE on
    size: Float[Tensor, "window layer head"]  # |v| of the start token divided by the mean |v|
    loss: Float[Tensor, "window pos"]
    best: dict[str, Tensor]  # of the best induction head: pattern and |v|; z of the team; scales of normalizations
    team: list[Head]  # of which z is kept, the best induction head first
    mean_z: Float[Tensor, "layer head d_head"]


def on_text(view: View, windows: Int[Tensor, "window pos"], team: list[Head]) -> Text:
    """Return what a model does on text in one run. `team`: heads of which z is kept; of the first also its pattern."""
    layers = range(view.cfg.n_layers)
    names = [get_act_name(kind, layer) for layer in layers for kind in ("pattern", "v", "z")]
    scales = [f"blocks.{layer}.ln1_post.hook_scale" for layer in sorted({layer for layer, _ in team})]
    scales = [name for name in (*scales, "ln_final.hook_scale") if name in view.model.hook_dict]
    parts, of_best, mean_z = [], [], 0.0
    for rows in windows.split(BATCH):
        logits, cache = view.model.run_with_cache(rows[:, :-1], names_filter=[*names, *scales])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), reduction="none")
        pattern = torch.stack([cache["pattern", layer] for layer in layers], dim=1)  # [row, layer, head, dest, src]
        current = pattern.diagonal(dim1=-2, dim2=-1)[..., 2:].mean(dim=-1)
        scores = [attention.start_token_score(pattern), current, attention.previous_token_score(pattern)]
        size = torch.stack([per_head(view, cache["v", layer]).norm(dim=-1) for layer in layers], dim=1)
        start = pattern[..., FIRST_PLACE:, 0].mean(dim=-1)
        parts.append((torch.stack(scores, dim=1), start, size[:, :, 0] / size.mean(dim=2), loss.view(len(rows), -1)))
        (layer, head), *_ = team
        z = torch.stack([cache["z", at_layer][:, :, which] for at_layer, which in team], dim=2)
        of_best.append({"pattern": pattern[:, layer, head], "v": size[:, layer, :, head], "z": z})
        of_best[-1] |= {name: cache[name][..., 0] for name in scales}
        mean_z += torch.stack([cache["z", layer].mean(dim=1).sum(dim=0) for layer in layers]).cpu() / len(windows)
    joined = {name: torch.cat([one[name] for one in of_best]) for name in of_best[0]}
    return Text(*(torch.cat(found).cpu() for found in zip(*parts)), joined, team, mean_z)


def per_head(view: View, values: Float[Tensor, "row pos set d_head"]) -> Float[Tensor, "row pos head d_head"]:
    """Return keys or values for each head, from those of the sets that heads share."""
    return values.repeat_interleave(view.cfg.n_heads // values.shape[2], dim=2)


def start_token(notes: Measured, seen: Text, induces: Bool[Tensor, "layer head"]) -> None:
    """How much of the attention goes to the start token, by itself and weighted by values (T6)."""
    start, _, previous = seen.places.mean(dim=0)
    size = seen.size.mean(dim=0)
    notes.note(start=start.mean(), start_half=(start >= 0.5).sum(), value_at_start=size.median())
    notes.note(previous_heads=(previous >= attention.PREVIOUS_TOKEN_HEAD).sum())
    notes.arrays.update(start=start, previous=previous, value_at_start=size)
    if induces.any():
        held, moved = seen.start[:, induces].mean(dim=1), (seen.start * seen.size)[:, induces].mean(dim=1)
        t6 = {"start_plain": estimates.mean(held), "start_weighted": estimates.mean(moved)}
        t6["remaining"] = estimates.ratio(moved, held)
        notes.judge("T6", induction_heads=induces.sum(), **t6)
        notes.note(**t6)


def attends_or_rests(notes: Measured, view: View, windows: Int[Tensor, "window pos"], seen: Text) -> None:
    """Where the best induction head attends, and what it writes, at repeated and at new tokens (T7); and the direct
    effect of all induction heads on the logit of what followed."""
    tokens, pattern = windows[:, :-1], seen.best["pattern"]
    place = repeats.last_target(tokens)
    repeated, new = place >= 0, place < 0
    new[:, 0] = False  # the start token itself

    def per_token(values: Tensor, where: Tensor) -> Estimate:
        return estimates.ratio((values * where).sum(dim=1), where.sum(dim=1))

    def written(which: int) -> Float[Tensor, "window pos d_model"]:
        layer, head = seen.team[which]
        scale = seen.best.get(f"blocks.{layer}.ln1_post.hook_scale")
        wrote = seen.best["z"][:, :, which].float() @ view.OV.B[layer, head]
        return wrote if scale is None else wrote / scale[..., None]

    followed = tokens.gather(1, place.clamp(min=0))
    toward = view.W_U.mT[followed] - view.W_U.mean(dim=1)
    if "ln_final.hook_scale" in seen.best:
        toward = toward / seen.best["ln_final.hook_scale"][..., None]
    boosts = [(written(which) * toward).sum(dim=-1) for which in range(len(seen.team))]
    length, size = written(0).norm(dim=-1), seen.best["v"]
    t7 = {
        "target": per_token((pattern * repeats.after_earlier(tokens)).sum(dim=-1), repeated),
        "rest": per_token(pattern[..., 0], new),  # attention to the start token at new tokens
        "value_ratio": estimates.ratio(size[:, 0], size.mean(dim=1)),
        "logit_effect": per_token(boosts[0], repeated),
        "new_output": estimates.ratio(*((length * where).sum(dim=1) / where.sum(dim=1) for where in (new, repeated))),
    }
    notes.judge("T7", f"head {head_name(seen.team[0])}", **t7)
    notes.note(**t7, team_effect=per_token(torch.stack(boosts).sum(dim=0), repeated))


def in_context(
    notes: Measured, view: View, windows: Int[Tensor, "window pos"], seen: Text, induces: Bool[Tensor, "layer head"]
) -> None:
    """The loss on text and the in-context score: intact, without all induction heads, and without as many other heads
    of their layers."""
    team = [tuple(head) for head in induces.nonzero().tolist()]
    means = list(seen.mean_z.to(windows.device))
    removed = {"without induction heads": team, "without others": next(groups_of_others(team, view.cfg.n_heads))}
    losses = {name: view.losses(windows, without_heads(group, means)).cpu() for name, group in removed.items()}
    intact = prediction.in_context_score(seen.loss)
    notes.note(**{"context, intact": estimates.mean(intact), "loss, intact": estimates.mean(seen.loss.mean(dim=1))})
    for name, loss in losses.items():
        lost, rise = prediction.in_context_score(loss) - intact, (loss - seen.loss).mean(dim=1)
        notes.note(**{f"context lost, {name}": estimates.mean(lost), f"rise, {name}": estimates.mean(rise)})


# ---- W3: heads removed -----------------------------------------------------------------------------------------------


class Removed(NamedTuple):
    """What remains of the best head's induction score, by what is removed and where."""

    intact: Float[Tensor, " draw"]
    left: dict[str, Float[Tensor, " draw"]]  # scores

    def kept(self, name: str) -> Estimate:
        return estimates.ratio(self.left[name], self.intact)

    def others(self, where: str) -> str:
        """Return the name of the random group without which least remains."""
        return min((f"group {group}, {where}" for group in range(GROUPS)), key=lambda name: float(self.kept(name)[0]))


def previous_token_heads(previous: Float[Tensor, "layer head"], before: int) -> list[Head]:
    """Return the previous-token heads of the layers before one."""
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


def removal(model: Model, head: Head, team: list[Head], alone: dict[str, Head]) -> Removed:
    """Remove previous-token heads everywhere, and from the keys or the queries of the best induction head's layer alone
    (`View.only_in`).

    A head is removed by putting its mean over these rows in the place of its z. In "keys, past MLPs" the MLPs on the
    way keep their outputs, and in "keys, directly" all other heads do too. `alone`: heads that are removed one at a
    time, everywhere.
    """
    view, (layer, which) = View.of(model), head
    # In the order in which `heads.induction_scores` runs them, so that rows of patches fit
    draws = [draw.select(draw.ends[:ROWS_REMOVED].argsort()) for draw in heads.measured_draws(view)]
    z = [get_act_name("z", earlier) for earlier in range(layer)]
    mlps = [] if view.cfg.attn_only else [f"blocks.{earlier}.hook_mlp_out" for earlier in range(layer)]
    runs = [view.activations(draw.tokens, [*z, *mlps]) for draw in draws]
    means = [torch.cat([run[name] for run in runs]).mean(dim=(0, 1)) for name in z]

    def score(hooks_of: Callable[[int], Iterable[Hook]]) -> Float[Tensor, " draw"]:
        found = [heads.induction_scores(view, x, hooks_of(i), layer + 1)[layer, which] for i, x in enumerate(draws)]
        return torch.stack(found).cpu()

    def only_in(side: str, group: Sequence[Head], held: Sequence[str] = ()) -> Float[Tensor, " draw"]:
        """Return the scores without a group in one side alone, while activations named `held` stay as they were."""

        def hooks_of(i: int) -> list[Hook]:
            stay = [(name, lambda activation, hook, name=name: runs[i][name]) for name in held]
            return [view.only_in(side, layer, draws[i].tokens, [*stay, *without_heads(group, means)])]

        return score(hooks_of)

    def everywhere(group: Sequence[Head]) -> Float[Tensor, " draw"]:
        return score(lambda i: without_heads(group, means))

    left = {
        "everywhere": everywhere(team),
        "keys": only_in("k", team),
        "queries": only_in("q", team),
        "keys, past MLPs": only_in("k", team, mlps),
        "keys, directly": only_in("k", team, [*mlps, *z]),
    }
    left |= {name: everywhere([one]) for name, one in alone.items()}
    for number, group in enumerate(groups_of_others(team, view.cfg.n_heads)):
        left |= {f"group {number}, everywhere": everywhere(group), f"group {number}, keys": only_in("k", group)}
    return Removed(score(lambda i: ()), left)


def needs_the_note(
    notes: Measured, view: View, head: Head, previous: Float[Tensor, "layer head"], best: Estimate
) -> None:
    """What the best induction head needs (W3, and what W7 keeps): all previous-token heads before it, and single
    heads."""
    team = previous_token_heads(previous, head[0])
    ratios = weights.ratios_of_reader(view, head)[1].cpu()
    chance = weights.ratios_of_reader(view, head, weights.turned)[1]
    read_most = divmod(int(ratios.argmax()), view.cfg.n_heads)
    strongest = divmod(int(previous[: head[0]].argmax()), view.cfg.n_heads)
    found = removal(view, head, team, {"read most": read_most, "strongest": strongest})
    kept = {name: found.kept(name) for name in found.left}
    others, others_keys = kept[found.others("everywhere")], kept[found.others("keys")]
    w3 = {"kept_keys": kept["keys"], "kept_queries": kept["queries"], "kept_others": others_keys}
    w3["apart"] = estimates.ratio(found.left["queries"] - found.left["keys"], found.intact)
    notes.judge("W3", f"head {head_name(head)}, {len(team)} previous-token heads before it", induction=best, **w3)
    notes.note(team=len(team), kept_others=others, kept_others_keys=others_keys)
    notes.note(**{f"kept, {name}": kept[name] for name in found.left if not name.startswith("group")})
    for name, (layer, which) in (("strongest", strongest), ("read_most", read_most)):
        notes.note(**{f"{name}_layer": layer, f"{name}_head": which, f"{name}_previous": previous[layer, which]})
    notes.note(read_most_ratio=ratios.max(), read_most_chance=chance.max())
    notes.arrays["keys_read"] = ratios
    if team:
        writer = max(team, key=lambda member: float(ratios[member]))
        notes.note(**{f"self-match by {name}": x for name, x in self_matches(view, head, writer).items()})


# ---- E1, T10: weights ------------------------------------------------------------------------------------------------


def copying(notes: Measured, view: View) -> None:
    """How many heads copy (E1)."""
    positivity, threshold = weights.copying(view)
    n, size = (positivity > threshold).sum(), positivity.numel()
    notes.judge("E1", copying_heads=n, heads=size, models=1, models_most=n >= weights.MOST * size, threshold=threshold)
    notes.note(copying=n, copying_threshold=threshold)
    notes.arrays["positivity"] = positivity


def corner(
    notes: Measured, view: View, previous: Float[Tensor, "layer head"], induction: Bool[Tensor, "layer head"]
) -> None:
    """Which heads of the layers after the first previous-token head copy and match, between embeddings as they are
    (T10)."""
    d_head = view.cfg.d_head
    match_positivity, match, first = matches(view, previous)
    straight = weights.positivity(weights.copying_eigenvalues(view.OV, view.W_E, view.W_U)).float().cpu()
    by_chance = (
        weights.random_positivities(view.W_E, view.W_U, d_head),
        weights.random_match_positivities(view.W_E, d_head),
    )
    limits = [weights.COPYING_DEVIATIONS * float(x.std()) for x in by_chance]
    inside = (straight >= limits[0]) & (match_positivity >= limits[1]) & (match >= weights.MATCH)
    candidates = torch.arange(view.cfg.n_layers)[:, None].expand_as(inside) >= first
    induces = candidates & induction
    others = candidates & ~induces
    notes.judge("T10", induction_heads=induces.sum(), induction_in_corner=(induces & inside).sum(), others=others.sum(),
                others_in_corner=(others & inside).sum(), match_others=match[others].max())  # fmt: skip
    notes.note(corner_OV=limits[0], corner_match=limits[1], corner_heads=induces.sum(), corner_others=others.sum())
    notes.arrays.update({"match positivity": match_positivity, "match": match})


def matches(
    view: View, previous: Float[Tensor, "layer head"]
) -> tuple[Float[Tensor, "layer head"], Float[Tensor, "layer head"], int]:
    """Return, for each head after the first previous-token head, the positivity of its circuit with the previous-token
    head of an earlier layer that its keys read most, the match of the two (T10), and the first layer with such heads.

    NaN for the heads before.
    """
    positivity, match = torch.full((2, *previous.shape), torch.nan)
    team = previous_token_heads(previous, view.cfg.n_layers)
    first = min((layer for layer, _ in team), default=view.cfg.n_layers) + 1
    gram, mean_E = view.W_E.mT @ view.W_E, view.W_E.mean(dim=0)
    for layer in range(first, view.cfg.n_layers):
        at = tuple(torch.tensor([member for member in team if member[0] < layer]).T)
        written = FactoredMatrix(view.OV.A[at], view.OV.B[at])
        ratios = weights.composition_ratios(written, view.QK[layer], view.OV[layer])[1]  # [reader, writer]
        best = ratios.argmax(dim=1).tolist()
        A, B = view.QK.A[layer], view.QK.B[layer] @ written.B[best].mT @ written.A[best].mT
        positivity[layer] = weights.factored_positivity(gram @ A, B)
        own = ((gram @ A) * B.mT).sum(dim=(1, 2)) / len(view.W_E)
        mean = ((mean_E @ A) * (mean_E @ B.mT)).sum(dim=-1)
        match[layer] = (own - mean) / view.cfg.d_head**0.5
    return positivity, match, first


def self_matches(view: View, reader: Head, writer: Head) -> dict[str, float]:
    """Return the fraction of tokens that match themselves best through a reader's keys and a writer's note: with their
    embeddings, and with the streams that the two heads read, behind the start token. Of SELF_MATCHED tokens; rotations
    by position are left out."""
    tokens = reading.of(view.model).drawn
    tokens = tokens[torch.randperm(len(tokens), generator=torch.Generator().manual_seed(0))[:SELF_MATCHED]]
    tokens = tokens.to(view.W_E.device)
    rows = torch.stack([torch.full_like(tokens, reading.start_token(view.model)), tokens], dim=1)
    names = [get_act_name("resid_pre", layer) for layer in (writer[0], reader[0])]
    streams = [single(x[:, 1]) for x in view.activations(rows, names).values()]
    found = {}
    for name, (written, asking) in {"embedding": [view.W_E[tokens]] * 2, "stream": streams}.items():
        v, q = (x - x.mean(dim=0) for x in (torch.nn.functional.normalize(x, dim=-1) for x in (written, asking)))
        keys = v @ view.OV.A[writer] @ view.OV.B[writer] @ view.QK.B[reader].mT
        best = (q @ view.QK.A[reader] @ keys.mT).argmax(dim=1)
        found[name] = float((best == torch.arange(len(best), device=best.device)).float().mean())
    return found
