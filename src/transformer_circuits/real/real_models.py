"""What chapter 18 measures on public models, in parts: copies, text, removal, weights.

Each part puts the questions of earlier chapters to any model that `survey.check` accepts. `measure` returns numbers,
arrays, and the verdicts of the ledger's criteria; `public_records` stores them. Every head counts as working, since the
costs of single heads are not measured.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformer_lens import FactoredMatrix
from transformer_lens.model_bridge.exceptions import StopAtLayerException
from transformer_lens.utilities import get_act_name

from transformer_circuits.circuits import bigrams, heads, skip_trigrams, survey, words
from transformer_circuits.circuits.heads import Head, Hook
from transformer_circuits.claims import Record, judge
from transformer_circuits.measures import attention, estimates, prediction, repeats, weights
from transformer_circuits.models import bridge

Estimate = tuple[Tensor, Tensor]  # a value and its standard error

ROWS_REMOVED = prediction.BATCH  # rows of each draw on which heads are removed: one batch
GROUPS = 4  # random groups of other heads that are removed for comparison
TURNED = 4  # random rotations that the values of neurons are compared with
NEURON_WINDOWS = 4  # windows of text behind the values of neurons
SAMPLED = 8192  # tokens that are sent through the first layer
SELF_MATCHED = 600  # tokens among which a token must match itself best
RANDOM_SETS = 50  # draws of random sets of tokens (E6)
SHOWN_SETS = 5  # heads of which a set of tokens is kept
FIRST_PLACE = 10  # destinations from which on attention to the start token counts (T6)
Numbers = dict[str, float]


def activations(
    model: Any, tokens: Int[Tensor, "row pos"], names: Sequence[str], hooks: Sequence[Hook] = ()
) -> dict[str, Tensor]:
    """Return the activations at these hook points, of a run with these hooks in place that ends at the last of them."""
    found = {}

    def keep(activation: Tensor, hook: Any, name: str) -> None:  # a hook point may have another name than the asked one
        found[name] = activation
        if len(found) == len(names):
            raise StopAtLayerException(activation)

    model.run_with_hooks(tokens, fwd_hooks=[*hooks, *((name, partial(keep, name=name)) for name in names)])
    return found


# ---- the second copy of random tokens ------------------------------------------------------------------------------


class Copies(NamedTuple):
    """What a model does on repeated random tokens."""

    induction: Float[Tensor, "draw layer head"]  # scores
    loss: Float[Tensor, "draw copy=2"]
    right: Float[Tensor, "draw copy=2"]  # fraction of right first guesses
    uniform: float  # loss of a uniform guess over the tokens that are drawn


def second_copies(model: Any) -> Copies:
    """Return scores and losses on `heads.measured_draws`: the scores of `heads.measured_induction`, from the run that
    also gives the losses."""
    found: tuple[list[Tensor], ...] = ([], [], [])
    for draw in heads.measured_draws(model):
        induction, loss = torch.zeros(model.cfg.n_layers, model.cfg.n_heads), torch.zeros(draw.tokens[:, 1:].shape)
        right = torch.zeros_like(loss)
        for rows in draw.ends.argsort().split(prediction.BATCH):
            part = draw.select(rows)
            tokens = part.tokens[:, : part.ends.max()]
            scores, stream = _scores_and_stream(model, tokens, part)
            induction += scores.cpu() * len(part.targets)
            nats, hit = _guesses(model, stream[:, :-1], tokens[:, 1:], part)
            loss[rows, : tokens.shape[1] - 1], right[rows, : tokens.shape[1] - 1] = nats.cpu(), hit.cpu()
        draw = draw.to("cpu")
        for values, value in zip(found, (induction / len(draw.targets), draw.by_copy(loss), draw.by_copy(right))):
            values.append(value)
    uniform = float(torch.tensor(len(bridge.reading(model).drawn)).log())
    return Copies(*map(torch.stack, found), uniform)


def _scores_and_stream(
    model: Any, tokens: Int[Tensor, "row pos"], part: repeats.Repeated
) -> tuple[Float[Tensor, "layer head"], Float[Tensor, "row pos d_model"]]:
    """Return the induction scores, and what the unembedding reads."""
    scores = {}

    def score(pattern: Float[Tensor, "row head dest src"], hook: Any) -> None:
        scores[hook.name] = attention.induction_score(pattern, part)

    names = [get_act_name("pattern", layer) for layer in range(model.cfg.n_layers)]
    last = "ln_final.hook_out" if "ln_final.hook_out" in model.hook_dict else f"blocks.{len(names) - 1}.hook_resid_post"
    (stream,) = activations(model, tokens, [last], [(name, score) for name in names]).values()
    return torch.stack([scores[name] for name in names]), stream


def _guesses(
    model: Any, stream: Float[Tensor, "row pos d_model"], targets: Int[Tensor, "row pos"], part: repeats.Repeated
) -> tuple[Float[Tensor, "row pos"], Float[Tensor, "row pos"]]:
    """Return losses (nats) and right first guesses at the tokens of both copies, and zeros elsewhere."""
    place = torch.arange(1, targets.shape[1] + 1, device=targets.device)  # of the predicted token
    inside = (place >= part.start[:, None]) & (place < part.ends[:, None])
    logits, right_one = model.unembed(stream[inside][None])[0], targets[inside]
    nats, right = targets.new_zeros(2, *targets.shape, dtype=logits.dtype)
    nats[inside] = torch.nn.functional.cross_entropy(logits, right_one, reduction="none")
    right[inside] = (logits.argmax(dim=-1) == right_one).to(right)
    return nats, right


# ---- text ----------------------------------------------------------------------------------------------------------


class Text(NamedTuple):
    """What a model does on windows of text."""

    places: Float[Tensor, "window place=3 layer head"]  # attention to the start token, the current token, the previous
    start: Float[Tensor, "window layer head"]  # attention to the start token, from FIRST_PLACE on
    size: Float[Tensor, "window layer head"]  # |v| of the start token divided by the mean |v|
    loss: Float[Tensor, "window pos"]
    neurons: Float[Tensor, "window layer pos neuron"] | None  # before the nonlinearity, of NEURON_WINDOWS windows
    best: dict[str, Tensor]  # of the best induction head: pattern and |v|; z of the team; scales of normalizations
    team: list[Head]  # of which z is kept, the best induction head first
    mean_z: Float[Tensor, "layer head d_head"]


def on_text(model: Any, windows: Int[Tensor, "window pos"], team: list[Head]) -> Text:
    """Return what a model does on text in one run. `team`: heads of which z is kept; of the first also its pattern."""
    cfg, layers = model.cfg, range(model.cfg.n_layers)
    names = [get_act_name(kind, layer) for layer in layers for kind in ("pattern", "v", "z")]
    scales = [f"blocks.{layer}.ln1_post.hook_scale" for layer in sorted({layer for layer, _ in team})]
    scales = [name for name in (*scales, "ln_final.hook_scale") if name in model.hook_dict]
    neurons = [f"blocks.{layer}.mlp.hook_pre" for layer in layers if not cfg.attn_only]
    parts: list[tuple[Tensor, ...]] = []
    of_best: list[dict[str, Tensor]] = []
    mean_z, values = torch.zeros(cfg.n_layers, cfg.n_heads, cfg.d_head), []
    for at in range(0, len(windows), prediction.BATCH):
        rows = windows[at : at + prediction.BATCH]
        keep = neurons if at < NEURON_WINDOWS else []
        logits, cache = model.run_with_cache(rows[:, :-1], names_filter=[*names, *scales, *keep])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), reduction="none")
        pattern = torch.stack([cache["pattern", layer] for layer in layers], dim=1)  # [row, layer, head, dest, src]
        current = pattern.diagonal(dim1=-2, dim2=-1)[..., 2:].mean(dim=-1)
        scores = [attention.start_token_score(pattern), current, attention.previous_token_score(pattern)]
        size = torch.stack([per_head(model, cache["v", layer]).norm(dim=-1) for layer in layers], dim=1)
        start = pattern[..., FIRST_PLACE:, 0].mean(dim=-1)
        parts.append((torch.stack(scores, dim=1), start, size[:, :, 0] / size.mean(dim=2), loss.view(len(rows), -1)))
        (layer, head), *_ = team
        z = torch.stack([cache["z", at_layer][:, :, which] for at_layer, which in team], dim=2)
        of_best.append({"pattern": pattern[:, layer, head], "v": size[:, layer, :, head], "z": z})
        of_best[-1] |= {name: cache[name][..., 0] for name in scales}
        mean_z += torch.stack([cache["z", layer].mean(dim=1).sum(dim=0) for layer in layers]).cpu() / len(windows)
        if keep:
            values.append(torch.stack([cache[name] for name in keep], dim=1))
    every = [torch.cat(found).cpu() for found in zip(*parts)]
    joined = {name: torch.cat([one[name] for one in of_best]) for name in of_best[0]}
    return Text(*every, torch.cat(values) if values else None, joined, team, mean_z)


def per_head(model: Any, values: Float[Tensor, "row pos set d_head"]) -> Float[Tensor, "row pos head d_head"]:
    """Return keys or values for each head, from those of the sets that heads share."""
    return values.repeat_interleave(model.cfg.n_heads // values.shape[2], dim=2)


def attends_or_rests(
    windows: Int[Tensor, "window pos"], seen: Text, W: survey.Weights
) -> tuple[dict[str, Estimate], Estimate]:
    """Return what T7 asks of the best induction head: where it attends, and what it writes, at repeated and at new
    tokens. And the direct effect of the whole team on the logit of what followed."""
    tokens, pattern = windows[:, :-1], seen.best["pattern"]
    place = repeats.last_target(tokens)
    repeated, new = place >= 0, place < 0
    new[:, 0] = False  # the start token itself

    def per_token(values: Tensor, where: Tensor) -> Estimate:
        return estimates.ratio((values * where).sum(dim=1), where.sum(dim=1))

    def written(which: int) -> Float[Tensor, "window pos d_model"]:
        layer, head = seen.team[which]
        scale = seen.best.get(f"blocks.{layer}.ln1_post.hook_scale")
        wrote = seen.best["z"][:, :, which].float() @ W.OV.B[layer, head]
        return wrote if scale is None else wrote / scale[..., None]

    followed = tokens.gather(1, place.clamp(min=0))
    toward = W.W_U.mT[followed] - W.W_U.mean(dim=1)
    if "ln_final.hook_scale" in seen.best:
        toward = toward / seen.best["ln_final.hook_scale"][..., None]
    boosts = [(written(which) * toward).sum(dim=-1) for which in range(len(seen.team))]
    length, size = written(0).norm(dim=-1), seen.best["v"]
    lengths = [(length * where).sum(dim=1) / where.sum(dim=1) for where in (new, repeated)]
    of_best = {
        "target": per_token((pattern * repeats.after_earlier(tokens)).sum(dim=-1), repeated),
        "rest": per_token(pattern[..., 0], new),
        "value_ratio": estimates.ratio(size[:, 0], size.mean(dim=1)),
        "logit_effect": per_token(boosts[0], repeated),
        "new_output": estimates.ratio(*lengths),
    }
    return of_best, per_token(torch.stack(boosts).sum(dim=0), repeated)


# ---- heads removed -------------------------------------------------------------------------------------------------


class Removed(NamedTuple):
    """Fractions of the best head's induction score that remain, by what is removed and where, and of what."""

    head: Head
    team: list[Head]  # the previous-token heads of the layers before it
    intact: Float[Tensor, " draw"]
    left: dict[str, Float[Tensor, " draw"]]  # scores

    def kept(self, name: str) -> Estimate:
        return estimates.ratio(self.left[name], self.intact)

    def others(self, where: str) -> str:
        """Return the name of the random group without which least remains."""
        return min((f"group {group}, {where}" for group in range(GROUPS)), key=lambda name: float(self.kept(name)[0]))


def previous_token_heads(previous: Float[Tensor, "layer head"], before: int) -> list[Head]:
    """Return the previous-token heads of the layers before one."""
    layers, found = (previous[:before] >= attention.PREVIOUS_TOKEN_HEAD).nonzero(as_tuple=True)
    return list(zip(layers.tolist(), found.tolist()))


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


def removal(model: Any, head: Head, team: list[Head], alone: dict[str, Head]) -> Removed:
    """Remove previous-token heads everywhere, and from the keys or the queries of the best induction head alone.

    A head is removed by putting its mean over these rows in the place of its z. Keys alone: the head's keys come from
    the run without them, and everything else stays. In "keys, past MLPs" the MLPs on the way keep their outputs, and
    in "keys, directly" all other heads do too. Keys and queries are replaced as the projections give them, before
    rotations and normalizations of queries and keys, which then act on what was put there. `alone`: heads that are
    removed one at a time, everywhere.
    """
    layer, which = head
    # In the order in which `heads.induction_scores` runs them, so that rows of patches fit
    draws = [draw.select(draw.ends[:ROWS_REMOVED].argsort()) for draw in heads.measured_draws(model)]
    z = [get_act_name("z", earlier) for earlier in range(layer)]
    mlps = [] if model.cfg.attn_only else [f"blocks.{earlier}.hook_mlp_out" for earlier in range(layer)]
    k, q = (f"blocks.{layer}.attn.hook_{side}" for side in "kq")
    runs = [activations(model, draw.tokens, [*z, *mlps]) for draw in draws]
    means = [torch.cat([run[name] for run in runs]).mean(dim=(0, 1)) for name in z]

    def score(hooks_of: Callable[[int], Sequence[Hook]]) -> Float[Tensor, " draw"]:
        found = [heads.induction_scores(model, x, hooks_of(i), layer + 1)[layer, which] for i, x in enumerate(draws)]
        return torch.stack(found).cpu()

    def patched(name: str, hooks_of: Callable[[int], Sequence[Hook]]) -> Float[Tensor, " draw"]:
        """Return the scores with keys or queries from a run with these hooks."""
        broken = [activations(model, draw.tokens, [name], hooks_of(i))[name] for i, draw in enumerate(draws)]
        return score(lambda i: [(name, lambda activation, hook: broken[i][:, : activation.shape[1]])])

    def restored(names: Sequence[str], i: int) -> list[Hook]:
        return [(name, lambda activation, hook, name=name: runs[i][name]) for name in names]

    without = heads.without_heads(team, means)
    left = {
        "everywhere": score(lambda i: without),
        "keys": patched(k, lambda i: without),
        "queries": patched(q, lambda i: without),
        "keys, past MLPs": patched(k, lambda i: [*restored(mlps, i), *without]),
        "keys, directly": patched(k, lambda i: [*restored([*mlps, *z], i), *without]),
    }
    for name, single in alone.items():
        hooks = heads.without_heads([single], means)
        left[name] = score(lambda i, hooks=hooks: hooks)
    for number, group in enumerate(groups_of_others(team, model.cfg.n_heads)):
        hooks = heads.without_heads(group, means)
        left[f"group {number}, everywhere"] = score(lambda i, hooks=hooks: hooks)
        left[f"group {number}, keys"] = patched(k, lambda i, hooks=hooks: hooks)
    return Removed(head, team, score(lambda i: ()), left)


def in_context(
    model: Any, windows: Int[Tensor, "window pos"], seen: Text, induces: Bool[Tensor, "layer head"]
) -> dict[str, Float[Tensor, "window pos"]]:
    """Return the losses on text: intact, without all induction heads, and without as many other heads of their
    layers."""
    team = [(layer, head) for layer, head in induces.nonzero().tolist()]
    means = list(seen.mean_z.to(windows.device))
    found = {"intact": seen.loss}
    removed = {"without induction heads": team, "without others": next(groups_of_others(team, model.cfg.n_heads))}
    for name, group in removed.items():
        found[name] = heads.losses(model, windows, heads.without_heads(group, means)).cpu()
    return found


# ---- weights -------------------------------------------------------------------------------------------------------


class Grams(NamedTuple):
    """Products of the embeddings that circuits through the whole vocabulary need, with tokens summed over."""

    E: Float[Tensor, "d_model d_model"]  # W_E^T W_E
    U: Float[Tensor, "d_model d_model"]  # W_U W_U^T
    UE: Float[Tensor, "d_model d_model"]  # W_U W_E
    mean_E: Float[Tensor, " d_model"]
    tokens: int


def grams(E: Float[Tensor, "d_vocab d_model"], U: Float[Tensor, "d_model d_vocab"]) -> Grams:
    return Grams(E.mT @ E, U @ U.mT, U @ E, E.mean(dim=0), len(E))


def first_layers_embedding(model: Any, tokens: Int[Tensor, " token"]) -> Float[Tensor, "token d_model"]:
    """Return what the first layer makes of each token behind the start token: the stream after it, of length
    sqrt(d_model) as a normalization gives it."""
    rows = torch.stack([torch.full_like(tokens, bridge.start_token(model)), tokens], dim=1)
    name = get_act_name("resid_post", 0)
    found = torch.cat([activations(model, part, [name])[name][:, 1] for part in rows.split(1024)]).float()
    return torch.nn.functional.normalize(found, dim=-1) * found.shape[-1] ** 0.5


def corner(
    model: Any, W: survey.Weights, of: Grams, previous: Float[Tensor, "layer head"]
) -> tuple[Float[Tensor, "layer head"], Float[Tensor, "layer head"], int]:
    """Return, for each head after the first previous-token head, the positivity of its circuit with the previous-token
    head of an earlier layer that its keys read most, the match of the two (T10), and the first layer with such heads.

    NaN for the heads before.
    """
    positivity, match = torch.full((2, *previous.shape), torch.nan)
    team = previous_token_heads(previous, model.cfg.n_layers)
    first = min((layer for layer, _ in team), default=model.cfg.n_layers) + 1
    for layer in range(first, model.cfg.n_layers):
        earlier = [member for member in team if member[0] < layer]
        at = tuple(torch.tensor(earlier).T)
        written = FactoredMatrix(W.OV.A[at], W.OV.B[at])
        ratios = weights.composition_ratios(written, W.QK[layer], W.OV[layer])[1]  # [reader, writer]
        best = ratios.argmax(dim=1).tolist()
        A, B = W.QK.A[layer], W.QK.B[layer] @ written.B[best].mT @ written.A[best].mT
        positivity[layer] = weights.factored_positivity(of.E @ A, B)
        own = ((of.E @ A) * B.mT).sum(dim=(1, 2)) / of.tokens
        mean = ((of.mean_E @ A) * (of.mean_E @ B.mT)).sum(dim=-1)
        match[layer] = (own - mean) / model.cfg.d_head**0.5
    return positivity, match, first


def self_matches(model: Any, W: survey.Weights, reader: Head, writer: Head) -> dict[str, float]:
    """Return the fraction of tokens that match themselves best through a reader's keys and a writer's note: with their
    embeddings, and with the streams that the two heads read, behind the start token. Of SELF_MATCHED tokens; rotations
    by position are left out."""
    tokens = bridge.reading(model).drawn
    tokens = tokens[torch.randperm(len(tokens), generator=torch.Generator().manual_seed(0))[:SELF_MATCHED]]
    tokens = tokens.to(W.W_E.device)
    rows = torch.stack([torch.full_like(tokens, bridge.start_token(model)), tokens], dim=1)
    names = [get_act_name("resid_pre", layer) for layer in (writer[0], reader[0])]
    streams = [x[:, 1].float() for x in activations(model, rows, names).values()]
    found = {}
    for name, (written, asking) in {"embedding": [W.W_E[tokens]] * 2, "stream": streams}.items():
        v, q = (x - x.mean(dim=0) for x in (torch.nn.functional.normalize(x, dim=-1) for x in (written, asking)))
        keys = v @ W.OV.A[writer] @ W.OV.B[writer] @ W.QK.B[reader].mT
        best = (q @ W.QK.A[reader] @ keys.mT).argmax(dim=1)
        found[name] = float((best == torch.arange(len(best), device=best.device)).float().mean())
    return found


def spectrum(covariance: Float[Tensor, "d_model d_model"]) -> float:
    """Return the fraction of the variance in the top fifth of the principal components."""
    values = torch.linalg.svdvals(covariance.double())
    return float(values[: len(values) // 5].sum() / values.sum())


def random_spectrum(rows: int, columns: int) -> float:
    """Return the same for a Gaussian matrix, from the law of its spectrum (Marchenko and Pastur)."""
    ratio = columns / rows
    low, high = (1 - ratio**0.5) ** 2, (1 + ratio**0.5) ** 2
    x = torch.linspace(low, high, 200_001, dtype=torch.float64)
    density = ((x - low) * (high - x)).clamp(min=0).sqrt() / x
    above = density.flip(0).cumsum(0) / density.sum() <= 0.2
    return float((density * x).flip(0)[above].sum() / (density * x).sum())


def joint_components(E: Float[Tensor, "d_model d_model"], U: Float[Tensor, "d_model d_model"]) -> tuple[float, float]:
    """Return which fraction of the joint components serves one matrix only, and both (O7), from the covariances of the
    two."""
    E, U = E.double() / E.double().trace(), U.double() / U.double().trace()
    variances, components = torch.linalg.eigh(E + U)
    apart = ((components * (E @ components)).sum(dim=0) / variances - 0.5).abs()
    return float((apart > weights.ONE_SIDED).double().mean()), float((apart < weights.MIXED).double().mean())


def rare_neurons(values: Float[Tensor, "window layer pos neuron"]) -> dict[str, Float[Tensor, " window"]]:
    """Return how often neurons, and random directions, are more than four standard deviations from their mean (O9)."""
    generator = torch.Generator().manual_seed(0)
    n = values.shape[-1]
    turns = [torch.linalg.qr(torch.randn(n, n, generator=generator)).Q.to(values) for _ in range(TURNED)]

    def outliers(x: Float[Tensor, "window pos neuron"]) -> Float[Tensor, " window"]:
        x = x[:, 1:]  # without the start token
        far = (x - x.mean(dim=(0, 1))).abs() > 4 * x.std(dim=(0, 1))
        return far.float().mean(dim=(1, 2))

    layers = values.unbind(dim=1)
    own = torch.stack([outliers(x) for x in layers]).mean(dim=0)
    turned = torch.stack([outliers(x @ Q) for x in layers for Q in turns]).mean(dim=0)
    return {"outliers_neurons": own.cpu(), "outliers_random": turned.cpu()}


def neuron_cosines(model: Any) -> tuple[Float[Tensor, "layer neuron"], float]:
    """Return the cosine between what each neuron reads and what it writes, and its standard deviation between different
    neurons of a layer (O9)."""
    own, others, unit = [], [], torch.nn.functional.normalize
    for block in model.blocks:
        read = survey._folded(model, block.ln2, getattr(block.mlp, "in").weight.mT).mT  # [neuron, d_model]
        write = block.mlp.out.weight.mT.float() * survey._gain(model, getattr(block, "ln2_post", None), read.shape[1])
        cosines = unit(read, dim=-1) @ unit(write, dim=-1).mT
        same = torch.eye(len(read), dtype=torch.bool, device=read.device)
        own.append(cosines[same].cpu())
        others.append(cosines[~same].square().mean().cpu())
    return torch.stack(own), float(torch.stack(others).mean().sqrt())


def overlaps(model: Any, W: survey.Weights, copies: Bool[Tensor, "layer head"]) -> tuple[float, float, int]:
    """Return the mean overlap of what pairs of copying heads of a layer read, and of what they write, and the number of
    pairs (W10). Pairs that share values are left out."""
    sharing = model.cfg.n_heads // (getattr(model.cfg, "n_key_value_heads", None) or model.cfg.n_heads)
    read, write = (torch.linalg.qr(span).Q for span in (W.OV.A, W.OV.B.mT))
    pairs = []
    for layer in range(model.cfg.n_layers):
        for a, b in itertools.combinations(copies[layer].nonzero().flatten().tolist(), 2):
            if a // sharing != b // sharing:
                pairs.append([(Q[layer, a].mT @ Q[layer, b]).square().sum() / Q.shape[-1] for Q in (read, write)])
    means = torch.tensor(pairs).mean(dim=0).tolist() if pairs else (0.0, 0.0)
    return (*means, len(pairs))


class Sets(NamedTuple):
    """The tokens with the largest entries in the leading eigenvectors of one head."""

    tokens: Int[Tensor, "set 10"]
    boost: Float[Tensor, " set"]  # mean entry from one token to another, in standard deviations of all entries


def leading_sets(E: Tensor, U: Tensor, of: Grams, A: Tensor, B: Tensor, n: int = 10) -> Sets:
    """Return the sets of `copying.leading_eigenvectors` and their `copying.boost_within` of the circuit E A B U.

    Nothing of the size of the vocabulary is formed but n vectors. `of`: the products of E and U, both centered.
    """
    A, B = A.double(), B.double()
    values, vectors = torch.linalg.eig((B @ of.UE.double() @ A).cpu().mT)
    real = ((values.imag == 0) & (values.real > 0)).nonzero().flatten()
    real = real[values.real[real].argsort(descending=True)][:n]
    lifted = (vectors.real.mT[real].to(B) @ B).float() @ U
    tokens = torch.cat([lifted.topk(10).indices, (-lifted).topk(10).indices])
    entries = (E[tokens].double() @ A) @ (B @ U.mT[tokens].double().mT)
    within = entries.sum(dim=(1, 2)) - entries.diagonal(dim1=1, dim2=2).sum(dim=1)
    # E and U are centered, so the mean of all entries is zero.
    variance = ((A.mT @ of.E.double() @ A) * (B @ of.U.double() @ B.mT)).sum() / (len(E) * U.shape[1])
    return Sets(tokens.cpu(), (within / 90 / variance.sqrt()).cpu())


def akin(model: Any, sets: Int[Tensor, "set 10"]) -> tuple[float, Estimate]:
    """Return the fraction of the pairs within sets that are variants of one word, and within random sets of similar
    ids (E6)."""
    tokenizer = model.tokenizer
    variants = words.variants_of(tokenizer.batch_decode([[i] for i in range(len(tokenizer))]))
    first, second = torch.triu_indices(10, 10, offset=1)

    def fraction(tokens: Int[Tensor, "set 10"]) -> float:
        pairs = torch.stack([tokens[:, first], tokens[:, second]], dim=-1).flatten(0, 1)
        return float(np.mean([b in variants[a] for a, b in pairs.tolist()]))

    by_id = -torch.arange(len(tokenizer), dtype=torch.float64)
    sets = sets[(sets < len(tokenizer)).all(dim=1)]
    drawn = [bigrams.similarly_frequent(by_id, sets, seed=seed) for seed in range(RANDOM_SETS)]
    return fraction(sets), estimates.mean(torch.tensor([fraction(tokens) for tokens in drawn]))


def kinds_of_words(model: Any, W: survey.Weights) -> Numbers:
    """Return how well clusters of source tokens, by who attends to them in the first layer, agree with kinds (S8)."""
    from sklearn import cluster, metrics  # slow

    listed = [(kind, word) for kind, line in skip_trigrams.paper_examples()["kinds"].items() for word in line.split()]
    ids = [model.tokenizer.encode(f" {word}", add_special_tokens=False) for _, word in listed]
    single = [(kind, i[0]) for (kind, _), i in zip(listed, ids) if len(i) == 1]
    kinds = sorted({kind for kind, _ in single})
    labels = np.array([kinds.index(kind) for kind, _ in single])
    tokens = W.W_E[[i for _, i in single]] - W.W_E.mean(dim=0)
    # Distances between columns are those between these, with tokens as destinations summed over.
    root = torch.linalg.cholesky((W.W_E.double().mT @ W.W_E.double()).cpu()).float().to(W.W_E)

    def clusters(x: Tensor) -> np.ndarray:
        x = torch.nn.functional.normalize(x, dim=-1).cpu()
        return cluster.k_means(x, len(kinds), n_init=10, random_state=0)[1]

    groups = [clusters(tokens @ (A @ B).mT @ root) for A, B in zip(W.QK.A[0], W.QK.B[0])]

    def best_index(labels: np.ndarray) -> float:
        return max(metrics.adjusted_rand_score(labels, group) for group in groups)

    rng = np.random.default_rng(0)
    mixed = np.array([best_index(rng.permutation(labels)) for _ in range(skip_trigrams.PERMUTATIONS)])
    again = np.quantile(rng.choice(mixed, (1000, len(mixed))), 0.99, axis=1)
    named = all(sum(kind == each for each, _ in single) >= 5 for kind in ("given names", "places"))
    return {
        "ari": best_index(labels),
        "ari_random": float(np.quantile(mixed, 0.99)),
        "ari_random_error": float(again.std()),
        "names_and_places": float(named),
        "embeddings_ari": float(metrics.adjusted_rand_score(labels, clusters(tokens))),
        "words": float(len(labels)),
    }


# ---- positions and shared keys: what holds exactly ---------------------------------------------------------------


def rotations(model: Any, tokens: Int[Tensor, "1 pos"], layer: int) -> Float[Tensor, "pos d_head d_head"]:
    """Return the matrix with which a layer turns queries and keys (as rows) at each position."""
    names = [f"blocks.{layer}.attn.hook_{part}" for part in ("cos", "sin")]
    cos, sin = (x[0].double() for x in activations(model, tokens, names).values())  # [pos, d_head]
    half = cos.shape[-1] // 2
    one = torch.eye(2 * half, dtype=cos.dtype, device=cos.device)
    turned = torch.cat([-one[:, half:], one[:, :half]], dim=1)  # x -> (-x2, x1)
    return one * cos[:, None] + turned * sin[:, None]


def QK_at(W: survey.Weights, turn: Float[Tensor, "d_head d_head"], head: Head) -> Float[Tensor, "d_model d_model"]:
    """Return W_QK of a head for one distance: W_Q R W_K^T, with R the rotation from the key's place to the query's."""
    return W.QK.A[head].double() @ turn @ W.QK.B[head].double()


# ---- all of it -----------------------------------------------------------------------------------------------------


class Measured(NamedTuple):
    """What was measured on one model."""

    numbers: Numbers  # with standard errors as NAME_error
    arrays: dict[str, Tensor]  # [layer, head], or as `measure` says
    records: list[Record]
    texts: dict[str, list[str]]  # of the heads that copy most, the tokens of the leading eigenvector
    seconds: dict[str, float]  # of each part


class _Notes:
    """Numbers, arrays, and verdicts, as they are found."""

    def __init__(self) -> None:
        self.numbers: Numbers = {}
        self.arrays: dict[str, Tensor] = {}
        self.records: list[Record] = []
        self.texts: dict[str, list[str]] = {}
        self.seconds: dict[str, float] = {}
        self.begun = time.perf_counter()

    def note(self, **found: Any) -> None:
        """Keep numbers; a pair is an estimate and its standard error."""
        for name, value in found.items():
            pair = value if isinstance(value, tuple) else (value,)
            self.numbers.update({name + end: float(x) for end, x in zip(("", "_error"), pair)})

    def judge(self, id: str, detail: str = "", **values: Any) -> None:
        """Judge a claim about the public model, and keep its numbers."""
        self.records.append(judge(id, detail=detail, public=True, **values))

    def ended(self, part: str) -> None:
        now = time.perf_counter()
        self.seconds[part], self.begun = now - self.begun, now
        print(f"{part}: {self.seconds[part]:.0f} s", flush=True)


@torch.no_grad()
def measure(model: Any) -> Measured:
    """Measure a public model: some minutes, and a few times the memory of the model.

    Raises WeightsError for models that `survey.check` does not accept.
    """
    survey.check(model)
    notes, cfg = _Notes(), model.cfg
    copies = second_copies(model)
    mean, error = estimates.mean(copies.induction)
    head = divmod(int(mean.argmax()), cfg.n_heads)
    induces = mean >= attention.INDUCTION_HEAD
    best = mean[head], error[head]
    _note_copies(notes, copies, best)
    notes.note(layers=cfg.n_layers, heads=cfg.n_heads, induction_heads=induces.sum())
    notes.note(best_layer=head[0], best_head=head[1])
    notes.arrays |= {"induction": mean, "induction_error": error}
    notes.ended("copies")

    W, windows = survey.read_weights(model), survey.text(model)
    others = [tuple(each) for each in induces.nonzero().tolist() if tuple(each) != head]
    seen = on_text(model, windows, [head, *others])
    start, current, previous = seen.places.mean(dim=0)
    t7, team_effect = attends_or_rests(windows, seen, W)
    _note_text(notes, seen, induces, t7, head)
    notes.note(team_effect=team_effect)
    notes.arrays |= {"start": start, "current": current, "previous": previous, "value_at_start": seen.size.mean(dim=0)}
    notes.ended("text")

    team = previous_token_heads(previous, head[0])
    ratios, chance = (survey.composition(W, head, chance=turned)[1].cpu() for turned in (False, True))
    read_most = divmod(int(ratios.argmax()), cfg.n_heads)
    strongest = divmod(int(previous[: head[0]].argmax()), cfg.n_heads)
    alone = {"read most": read_most, "strongest": strongest}
    _note_removal(notes, removal(model, head, team, alone), best)
    notes.note(strongest_layer=strongest[0], strongest_head=strongest[1], strongest_previous=previous[strongest])
    notes.note(read_most_layer=read_most[0], read_most_head=read_most[1], read_most_previous=previous[read_most])
    notes.note(read_most_ratio=ratios.max(), read_most_chance=chance.max())
    notes.arrays["keys_read"] = ratios
    if team:
        writer = max(team, key=lambda member: float(ratios[member]))
        notes.note(writer_layer=writer[0], writer_head=writer[1])
        notes.note(**{f"self-match by {name}": x for name, x in self_matches(model, W, head, writer).items()})
    notes.ended("removal")

    _note_context(notes, in_context(model, windows, seen, induces))
    notes.ended("in context")

    _judge_circuits(notes, model, W, mean, current, previous)
    notes.ended("circuits")
    _judge_matrices(notes, model, W, seen)
    notes.ended("matrices and neurons")
    return Measured(notes.numbers, notes.arrays, notes.records, notes.texts, notes.seconds)


def _note_copies(notes: _Notes, copies: Copies, best: Estimate) -> None:
    """The second copy of random tokens (T8)."""
    (nats, nats_error), (right, right_error) = estimates.mean(copies.loss), estimates.mean(copies.right)
    guess, uniform = (right[1], right_error[1]), copies.uniform
    notes.judge("T8", induction=best, guess=guess, drop=(uniform - nats[1], nats_error[1]), uniform=uniform)
    notes.note(induction=best, guess=guess, uniform=uniform, fall=estimates.mean(1 - copies.loss[:, 1] / uniform))
    notes.note(first_copy=(nats[0], nats_error[0]), second_copy=(nats[1], nats_error[1]))


def _note_text(
    notes: _Notes, seen: Text, induces: Bool[Tensor, "layer head"], t7: dict[str, Estimate], head: Head
) -> None:
    """Attention to the start token, and what follows from it (T6, T7)."""
    held, moved = seen.start[:, induces].mean(dim=1), (seen.start * seen.size)[:, induces].mean(dim=1)
    t6 = {"start_plain": estimates.mean(held), "start_weighted": estimates.mean(moved)}
    t6["remaining"] = estimates.ratio(moved, held)
    if induces.any():
        notes.judge("T6", induction_heads=induces.sum(), **t6)
        notes.note(**t6)
    notes.judge("T7", f"head {heads.head_name(head)}", **t7)
    start, _, previous = seen.places.mean(dim=0)
    notes.note(**t7, start=start.mean(), start_half=(start >= 0.5).sum())
    notes.note(value_at_start=seen.size.mean(dim=0).median())
    notes.note(previous_heads=(previous >= attention.PREVIOUS_TOKEN_HEAD).sum())


def _note_removal(notes: _Notes, found: Removed, best: Estimate) -> None:
    """What the best induction head needs (W3, W7)."""
    kept = {name: found.kept(name) for name in found.left}
    others, others_keys = kept[found.others("everywhere")], kept[found.others("keys")]
    apart = estimates.ratio(found.left["queries"] - found.left["keys"], found.intact)
    detail = f"head {heads.head_name(found.head)}, {len(found.team)} previous-token heads before it"
    w3 = {"kept_keys": kept["keys"], "kept_queries": kept["queries"], "apart": apart, "kept_others": others_keys}
    notes.judge("W3", detail, induction=best, **w3)
    notes.note(team=len(found.team), kept_others=others, kept_others_keys=others_keys)
    notes.note(**{f"kept, {name}": kept[name] for name in found.left if not name.startswith("group")})


def _note_context(notes: _Notes, losses: dict[str, Float[Tensor, "window pos"]]) -> None:
    """In-context scores with and without heads, and how they differ window by window."""
    early, late = prediction.in_context_places(losses["intact"].shape[1])
    for name, loss in losses.items():
        score, rise = loss[:, late].mean(dim=1) - loss[:, early].mean(dim=1), (loss - losses["intact"]).mean(dim=1)
        intact = losses["intact"][:, late].mean(dim=1) - losses["intact"][:, early].mean(dim=1)
        notes.note(**{f"context, {name}": estimates.mean(score), f"loss, {name}": estimates.mean(loss.mean(dim=1))})
        if name != "intact":
            notes.note(**{f"context lost, {name}": estimates.mean(score - intact)})
            notes.note(**{f"rise, {name}": estimates.mean(rise)})


def _judge_circuits(
    notes: _Notes,
    model: Any,
    W: survey.Weights,
    induction: Float[Tensor, "layer head"],
    current: Float[Tensor, "layer head"],
    previous: Float[Tensor, "layer head"],
) -> None:
    """What heads copy, match, and delete (E1, T10, O8, E6, W10, S8)."""
    E, U = weights.centered(W.W_E, W.W_U)
    of, d_head = grams(E, U), model.cfg.d_head
    positivity = weights.factored_positivity(of.UE @ W.OV.A, W.OV.B).cpu()
    threshold = weights.copying_threshold(E, U, d_head)
    copies = positivity > threshold
    most = copies.float().mean() >= weights.MOST
    notes.judge("E1", copying_heads=copies.sum(), heads=copies.numel(), models=1, models_most=most, threshold=threshold)
    notes.note(copying=copies.sum(), copying_threshold=threshold)
    notes.arrays["positivity"] = positivity

    # The same tokens, as embedded and as the first layer leaves them
    tokens = bridge.reading(model).drawn
    tokens = tokens[torch.randperm(len(tokens), generator=torch.Generator().manual_seed(0))[:SAMPLED]].to(E.device)
    some = {"embedding": W.W_E[tokens], "first layer": first_layers_embedding(model, tokens)}
    induces = (induction >= attention.INDUCTION_HEAD)[1:]
    notes.note(later_induction_heads=induces.sum())
    for name, vectors in some.items():
        F, V = weights.centered(vectors, W.W_U[:, tokens])
        found = weights.factored_positivity(V @ F @ W.OV.A, W.OV.B).cpu()
        limit = weights.copying_threshold(F, V, d_head)
        later = found[1:]
        notes.note(**{f"copying by {name}": (later > limit).sum(), f"threshold by {name}": limit})
        notes.note(**{f"induction heads copying by {name}": (later > limit)[induces].sum()})
        notes.arrays[f"positivity by {name}"] = found

    plain = grams(W.W_E, W.W_U)
    match_positivity, match, first = corner(model, W, plain, previous)
    straight = weights.factored_positivity(plain.UE @ W.OV.A, W.OV.B).cpu()
    limits = [
        weights.COPYING_DEVIATIONS * float(x.std())
        for x in (weights.random_positivities(W.W_E, W.W_U, d_head), weights.random_match_positivities(W.W_E, d_head))
    ]
    inside = (straight >= limits[0]) & (match_positivity >= limits[1]) & (match >= weights.MATCH)
    candidates = torch.arange(model.cfg.n_layers)[:, None].expand_as(inside) >= first
    induces = candidates & (induction >= attention.INDUCTION_HEAD)
    others = candidates & ~induces
    notes.judge("T10", induction_heads=induces.sum(), induction_in_corner=(induces & inside).sum(), others=others.sum(),
                others_in_corner=(others & inside).sum(), match_others=match[others].max())  # fmt: skip
    notes.arrays |= {"match positivity": match_positivity, "match": match}
    notes.note(corner_OV=limits[0], corner_match=limits[1])
    centered_match = weights.COPYING_DEVIATIONS * float(weights.random_match_positivities(E, d_head).std())
    above = match_positivity > centered_match
    notes.note(centered_match=centered_match, corner_heads=induces.sum(), corner_others=others.sum())
    notes.note(matching=(above & induces).sum(), matching_others=(above & others).sum())

    reverses = weights.factored_positivity(W.OV.A, W.OV.B).cpu()
    deletes, may = [((current > attends) & (reverses < negative)).sum()
                    for attends, negative in (weights.DELETES, weights.MAY_DELETE)]  # fmt: skip
    notes.judge("O8", memory_heads=deletes, weak_memory_heads=may, heads=reverses.numel())
    notes.arrays["positivity of W_OV"] = reverses

    read, write, pairs = overlaps(model, W, copies)
    notes.note(pairs=pairs)
    if pairs:
        notes.judge("W10", f"{pairs} pairs", overlap_read=read, overlap_write=write, random=d_head / E.shape[1])
    sets = [leading_sets(E, U, of, W.OV.A[head], W.OV.B[head]) for head in map(tuple, copies.nonzero().tolist())]
    if sets:
        fraction, by_chance = akin(model, torch.cat([one.tokens for one in sets]))
        raises = torch.cat([one.boost for one in sets]).mean()
        notes.judge("E6", akin=fraction, akin_random=by_chance, raises=raises)
        of_sets = dict(zip(map(tuple, copies.nonzero().tolist()), sets))
        for place in positivity.flatten().argsort(descending=True)[: min(SHOWN_SETS, len(sets))].tolist():
            head = divmod(place, model.cfg.n_heads)
            notes.texts[heads.head_name(head)] = [model.tokenizer.decode([i]) for i in of_sets[head].tokens[0].tolist()]
    kinds = kinds_of_words(model, W)
    notes.note(embeddings_ari=kinds.pop("embeddings_ari"), words=kinds["words"])
    detail = f"{kinds.pop('words'):.0f} words"
    kinds["ari_random"] = kinds["ari_random"], kinds.pop("ari_random_error")
    notes.judge("S8", detail, **kinds)


def _judge_matrices(notes: _Notes, model: Any, W: survey.Weights, seen: Text) -> None:
    """Spectra of the embeddings, and neurons (O7, O9)."""
    rows = [x - x.mean(dim=0) for x in (W.W_E, model.W_U.mT.float())]  # as stored: tied matrices are one
    covariances = [x.mT @ x for x in rows]
    one_sided, mixed = joint_components(*covariances)
    shares = {name: spectrum(x) for name, x in zip(("share_embed", "share_unembed"), covariances)}
    shares["share_random"] = random_spectrum(*W.W_E.shape)
    notes.judge("O7", one_sided=one_sided, mixed=mixed, **shares)
    cosines, chance = neuron_cosines(model)
    rare = rare_neurons(seen.neurons)
    estimate = {name: estimates.mean(x) for name, x in rare.items()}
    ratio = estimates.ratio(rare["outliers_neurons"], rare["outliers_random"])
    notes.judge("O9", outliers_ratio=ratio, lowest_cosine=cosines.min(), chance_cosine=chance, **estimate)
    notes.note(neurons=cosines.numel(), neurons_below=(cosines < -5 * chance).sum())
    notes.arrays["lowest cosine of a neuron"] = cosines.min(dim=1).values
