"""What chapter 18 measures on public models, claim by claim: T8, T6, T7, W3, E1, T10, and what W7 compares.

Each takes any model that `survey.check` accepts. `measure` returns numbers, arrays, and verdicts by the ledger's
criteria. Every head counts as working, since the costs of single heads are not measured.

`make public` writes them into data/public: of a model NAME.yml with the verdicts, and NAME.safetensors with scores of
all heads and, as metadata, the other numbers, the version of the measurement, and how it was made. CONTROL is what as
many bits change in the book's own model.
"""

import json
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from safetensors import safe_open
from torch import Tensor
from transformer_lens import FactoredMatrix
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.utilities import get_act_name

from transformer_circuits.circuits import heads, survey
from transformer_circuits.circuits.heads import head_name
from transformer_circuits.circuits.removal import Estimate, groups_of_others, previous_token_heads, remove
from transformer_circuits.claims import Record, judge, ledger
from transformer_circuits.measures import attention, estimates, prediction, repeats, weights
from transformer_circuits.models import reading
from transformer_circuits.models.view import BATCH, Head, View, single, without_heads
from transformer_circuits.paths import data_file

LABELS = {"smollm2-135m": "SmolLM2-135M-Instruct", "gemma3-270m": "Gemma-3-270M"}
CONTROL = "four_bits"
VERSION = 1  # of the measurement: raise it when numbers change that this module measures (`make public` measures again)
SELF_MATCHED = 600  # tokens among which a token must match itself best
FIRST_PLACE = 10  # destinations from which on attention to the start token counts (T6)


@dataclass(frozen=True)
class Measured:
    """What was measured on one model, now or before (`load`)."""

    numbers: dict[str, float] = field(default_factory=dict)  # with standard errors as NAME_error
    arrays: dict[str, Tensor] = field(default_factory=dict)  # [layer, head]
    records: list[Record] = field(default_factory=list)
    made: dict[str, Any] = field(default_factory=dict)  # before: model, packages, sha256, date, machine, seconds

    def note(self, found: dict[str, Any]) -> None:
        """Keep numbers by name; a pair is an estimate and its standard error."""
        for name, value in found.items():
            if isinstance(value, tuple):
                self.numbers[name], self.numbers[f"{name}_error"] = map(float, value)
            else:
                self.numbers[name] = float(value)

    def judge(self, id: str, detail: str = "", **values: Any) -> None:
        """Judge a claim about a public model."""
        self.records.append(judge(id, detail=detail, public=True, **values))


def load(name: str) -> Measured:
    """Return the record of a public model, or of CONTROL. Raises ValueError if there is none of this version of the
    measurement."""
    folder = data_file(ledger.PUBLIC)
    if not (folder / f"{name}.safetensors").is_file():
        raise ValueError(f"there is no record of {name!r}; there are: {', '.join([*LABELS, CONTROL])} (`make public`)")
    with safe_open(folder / f"{name}.safetensors", "pt") as file:
        arrays = {key: file.get_tensor(key).float() for key in file.keys()}
        numbers, made, version = (json.loads(file.metadata()[key]) for key in ("numbers", "made", "version"))
    if version != VERSION:
        raise ValueError(f"{name!r} was measured by version {version}, not {VERSION}: run `make public`")
    verdicts = folder / f"{name}.yml"
    records = ledger.load_elsewhere(verdicts).records if verdicts.is_file() else []
    return Measured(numbers, arrays, records, made)


@torch.no_grad()
def measure(model: TransformerBridge) -> Measured:
    """Measure a public model: some minutes, and a few times the memory of the model.

    Raises WeightsError for models that `survey.check` does not accept.
    """
    survey.check(model)
    view, notes, cfg = View(model), Measured(), model.cfg
    scores = heads.measured_induction(view)
    induces = (scores.mean >= attention.INDUCTION_HEAD).cpu()
    head = divmod(int(scores.mean.argmax()), cfg.n_heads)
    best = scores.mean[head], scores.error[head]
    notes.note({"layers": cfg.n_layers, "heads": cfg.n_heads, "best_layer": head[0], "best_head": head[1]})
    notes.note({"induction": best, "induction_heads": induces.sum()})
    notes.arrays["induction"] = scores.mean.cpu()
    second_copies(notes, view, best)

    windows = survey.text(model)
    tokens = windows[:, :-1]
    previous = heads.previous_token_scores(view, tokens).cpu()
    notes.note({"previous_heads": (previous >= attention.PREVIOUS_TOKEN_HEAD).sum()})
    notes.arrays["previous"] = previous
    start_token(notes, view, tokens, induces)
    others = [other for other in map(tuple, induces.nonzero().tolist()) if other != head]
    attention_and_output(notes, view, tokens, [head, *others])
    in_context(notes, view, windows, induces)
    without_previous_token_heads(notes, view, head, previous, best)
    copying(notes, view)
    copying_and_matching(notes, view, previous, induces)
    return notes


def second_copies(notes: Measured, view: View, best: Estimate) -> None:
    """Measure what the model predicts in both copies of random tokens (T8, and the fall of W7)."""
    losses, guesses = [], []
    for draw in heads.measured_draws(view):
        nats, right = view.losses_and_guesses(draw.tokens, draw.ends)
        losses.append(draw.by_copy(nats))
        guesses.append(draw.by_copy(right.float())[1])
    loss, guess = torch.stack(losses), estimates.mean(torch.stack(guesses))  # [draw, copy]
    uniform = float(torch.tensor(len(reading.of(view.model).drawn)).log())
    first, second = (estimates.mean(copy) for copy in loss.T)
    notes.judge("T8", induction=best, guess=guess, drop=(uniform - second[0], second[1]), uniform=uniform)
    notes.note({"guess": guess, "uniform": uniform, "fall": estimates.mean(1 - loss[:, 1] / uniform)})
    notes.note({"first_copy": first, "second_copy": second})


def per_head(view: View, values: Float[Tensor, "row pos set d_head"]) -> Float[Tensor, "row pos head d_head"]:
    """Return keys or values for each head, from those of the sets that heads share."""
    return values.repeat_interleave(view.cfg.n_heads // values.shape[2], dim=2)


def start_token(
    notes: Measured, view: View, tokens: Int[Tensor, "window pos"], induces: Bool[Tensor, "layer head"]
) -> None:
    """Measure how much attention goes to the start token, by itself and weighted by the length of values (T6)."""
    start = heads.mean_score(view, tokens, attention.start_token_score).cpu()
    notes.note({"start": start.mean()})
    notes.arrays["start"] = start
    if not induces.any():
        return
    names = [get_act_name("v", layer) for layer in range(view.cfg.n_layers)]
    shares, sizes = [], []  # of induction heads, [head, window]
    for rows in tokens.split(BATCH):
        shares.append(view.pattern_scores(rows, lambda pattern: pattern[..., FIRST_PLACE:, 0].mean(dim=-1)))
        values = view.activations(rows, names, read=lambda v: per_head(view, v).norm(dim=-1)).values()
        lengths = torch.stack(list(values))  # [layer, row, pos, head]
        sizes.append(lengths[:, :, 0] / lengths.mean(dim=2))
    plain, size = (torch.cat(parts, dim=1).mT[induces] for parts in (shares, sizes))
    held, moved = plain.mean(dim=0), (plain * size).mean(dim=0)
    t6 = {"start_plain": estimates.mean(held), "start_weighted": estimates.mean(moved)}
    notes.judge("T6", induction_heads=induces.sum(), **t6, remaining=estimates.ratio(moved, held))
    notes.note(t6)


def attention_and_output(notes: Measured, view: View, tokens: Int[Tensor, "window pos"], team: list[Head]) -> None:
    """Measure where the best induction head attends, and what it writes, at repeated and at new tokens (T7); and the
    direct effect of all induction heads on the logit of what followed. `team`: these heads, the best one first."""
    layer, head = team[0]
    final = "ln_final.hook_scale"
    scale_of = {at: f"blocks.{at}.ln1_post.hook_scale" for at, _ in team}
    names = [get_act_name("pattern", layer), get_act_name("v", layer), *(get_act_name("z", at) for at in scale_of)]
    names += [name for name in (*scale_of.values(), final) if name in view.model.hook_dict]
    runs = [view.activations(rows, names, read=single) for rows in tokens.split(BATCH)]
    run = {name: torch.cat([part[name] for part in runs]) for name in names}

    place = repeats.last_target(tokens)
    repeated, new = place >= 0, place < 0
    new[:, 0] = False  # the start token itself
    followed = tokens.gather(1, place.clamp(min=0))
    toward = (view.W_U.mT[followed] - view.W_U.mean(dim=1)) / run.get(final, 1.0)

    def per_token(values: Tensor, where: Tensor) -> Estimate:
        return estimates.ratio((values * where).sum(dim=1), where.sum(dim=1))

    def written(at: int, which: int) -> Float[Tensor, "window pos d_model"]:
        return run[get_act_name("z", at)][:, :, which] @ view.OV.B[at, which] / run.get(scale_of[at], 1.0)

    boosts = [(written(*member) * toward).sum(dim=-1) for member in team]
    pattern = run[get_act_name("pattern", layer)][:, head]
    length = written(layer, head).norm(dim=-1)
    size = per_head(view, run[get_act_name("v", layer)])[:, :, head].norm(dim=-1)
    t7 = {
        "rest": per_token(pattern[..., 0], new),  # attention to the start token at new tokens
        "logit_effect": per_token(boosts[0], repeated),
        "new_output": estimates.ratio(*((length * where).sum(dim=1) / where.sum(dim=1) for where in (new, repeated))),
    }
    target = per_token((pattern * repeats.after_earlier(tokens)).sum(dim=-1), repeated)
    value_ratio = estimates.ratio(size[:, 0], size.mean(dim=1))
    notes.judge("T7", f"head {head_name(team[0])}", target=target, value_ratio=value_ratio, **t7)
    notes.note(t7 | {"team_effect": per_token(torch.stack(boosts).sum(dim=0), repeated)})


def in_context(
    notes: Measured, view: View, windows: Int[Tensor, "window pos"], induces: Bool[Tensor, "layer head"]
) -> None:
    """Measure loss and in-context score on text: intact, without all induction heads, and without as many others."""
    team = [tuple(head) for head in induces.nonzero().tolist()]
    means = {layer: view.mean_z(windows[:, :-1], layer) for layer in {layer for layer, _ in team}}
    intact = view.losses(windows)
    score = prediction.in_context_score(intact)
    notes.note({"context, intact": estimates.mean(score), "loss, intact": estimates.mean(intact.mean(dim=1))})
    removed = {"without induction heads": team, "without others": next(groups_of_others(team, view.cfg.n_heads))}
    for name, group in removed.items():
        loss = view.losses(windows, without_heads(group, means))
        notes.note({f"context lost, {name}": estimates.mean(prediction.in_context_score(loss) - score)})
        notes.note({f"rise, {name}": estimates.mean((loss - intact).mean(dim=1))})


def without_previous_token_heads(
    notes: Measured, view: View, head: Head, previous: Float[Tensor, "layer head"], best: Estimate
) -> None:
    """Measure what the best induction head needs: all previous-token heads before it, and single ones (W3, W7)."""
    team = previous_token_heads(previous, head[0])
    ratios = weights.ratios_of_reader(view, head)[1].cpu()
    read_most = divmod(int(ratios.argmax()), view.cfg.n_heads)
    strongest = divmod(int(previous[: head[0]].argmax()), view.cfg.n_heads)
    found = remove(view, head, team, {"read most": read_most, "strongest": strongest})
    kept = {name: found.kept(name) for name in found.left}
    others, others_keys = kept[found.others("everywhere")], kept[found.others("keys")]
    w3 = {"kept_keys": kept["keys"], "kept_queries": kept["queries"], "kept_others": others_keys}
    w3["apart"] = estimates.ratio(found.left["queries"] - found.left["keys"], found.intact)
    notes.judge("W3", f"head {head_name(head)}, {len(team)} previous-token heads before it", induction=best, **w3)
    notes.note({"team": len(team), "kept_others": others, "kept_others_keys": others_keys})
    notes.note({f"kept, {name}": kept[name] for name in found.left if not name.startswith("group")})
    for name, (layer, which) in (("strongest", strongest), ("read_most", read_most)):
        notes.note({f"{name}_layer": layer, f"{name}_head": which, f"{name}_previous": previous[layer, which]})
    if team:
        writer = max(team, key=lambda member: float(ratios[member]))
        notes.note({f"self-match by {name}": x for name, x in self_matches(view, head, writer).items()})


def copying(notes: Measured, view: View) -> None:
    """Count the heads that copy, between centered embeddings (E1)."""
    positivity, threshold = weights.copying(view)
    n, size = (positivity > threshold).sum(), positivity.numel()
    notes.judge("E1", copying_heads=n, heads=size, models=1, models_most=n >= weights.MOST * size, threshold=threshold)
    notes.note({"copying": n})


def copying_and_matching(
    notes: Measured, view: View, previous: Float[Tensor, "layer head"], induction: Bool[Tensor, "layer head"]
) -> None:
    """Count which heads after the first previous-token head copy and match, between embeddings as they are (T10)."""
    d_head = view.cfg.d_head
    match_positivity, match, first = matches(view, previous)
    straight = weights.positivity(weights.copying_eigenvalues(view.OV, view.W_E, view.W_U)).float().cpu()
    from_OV = weights.copying_threshold(view.W_E, view.W_U, d_head)
    from_match = weights.COPYING_DEVIATIONS * float(weights.random_match_positivities(view.W_E, d_head).std())
    inside = (straight >= from_OV) & (match_positivity >= from_match) & (match >= weights.MATCH)
    candidates = torch.arange(view.cfg.n_layers)[:, None].expand_as(inside) >= first
    induces = candidates & induction
    others = candidates & ~induces
    t10 = {"induction_heads": induces.sum(), "induction_in_corner": (induces & inside).sum()}
    t10 |= {"others": others.sum(), "others_in_corner": (others & inside).sum()}
    notes.judge("T10", **t10, match_others=match[others].max())
    notes.note({"corner_OV": from_OV, "corner_match": from_match})


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
