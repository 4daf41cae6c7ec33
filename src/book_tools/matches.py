"""Measure what induction heads compute, on the book's two-layer models (claims T16, T18 to T21).

    python -m book_tools.matches attn-only-2l attn-only-2l-seed-1
    python -m book_tools.matches competition clamped

Each model's numbers, with their standard errors, go to data/matches.json; a model takes three minutes on a quiet core.
`competition` measures claim S9, and `clamped` W11.
"""

import argparse
import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from transformer_circuits import data
from transformer_circuits.circuits import competition, heads, matches
from transformer_circuits.measures import ablation, attention, estimates, repeats
from transformer_circuits.models import load_model
from transformer_circuits.models.view import BATCH, View
from transformer_circuits.paths import DATA
from transformer_circuits.training import clamped

RECORD = DATA / "matches.json"
SEARCH_WINDOWS, FIT_WINDOWS, TEST_WINDOWS = 4, 8, 24
SEARCH_PLACES = 24  # destinations of each row and window in which sets of paths are searched
SETS = (5, 20)  # sizes of the sets of paths (claim T16)


def pair(estimate: tuple[Tensor, Tensor]) -> list[float]:
    return [round(float(x), 5) for x in estimate]


def heads_by_score(model: Any) -> list[tuple[int, list[float]]]:
    """Return the second layer's heads with their induction scores, highest first."""
    score, error = heads.measured_induction(model)
    return [(head, pair((score[1, head], error[1, head]))) for head in score[1].argsort(descending=True).tolist()]


def sampled(parts: matches.Parts, draws: Sequence[repeats.Repeated]) -> tuple[Tensor, Tensor, Tensor]:
    """Return base scores and those of all paths, [dest, src] and [path, dest, src], at sampled destinations of second
    copies, and where each should attend."""
    n, generator = len(parts.queries), torch.Generator().manual_seed(0)
    width = max(end for *_, end in matches.second_copies(draws))
    base, terms, targets = [], [], []
    constants = matches.keep([], n)
    for _, row, start, first, end in matches.second_copies(draws):
        at = torch.randint(first, end, (SEARCH_PLACES,), generator=generator)
        later = torch.arange(width) > at[:, None]
        base.append(matches.scores(parts, constants, row, at)[:, :width].masked_fill(later, -torch.inf))
        q, k = parts.queries[:-1, row, at], parts.keys[:-1, row, :width]
        terms.append(torch.einsum("aid,bjd->abij", q, k).flatten(0, 1) / q.shape[-1] ** 0.5)
        targets.append(at - (first - start) + 1)
    return torch.cat(base), torch.cat(terms, dim=1), torch.cat(targets)


def search_on_text(parts: matches.Parts, text: matches.Text, size: int) -> list[int]:
    """Return the paths in the order in which they lower the loss on these windows most."""
    n, generator = len(parts.queries), torch.Generator().manual_seed(0)
    base, terms, values, logits, following = [], [], [], [], []
    for row in range(len(text.tokens)):
        at = torch.randperm(text.tokens.shape[1] - 1, generator=generator)[: 4 * SEARCH_PLACES] + 1
        later = torch.arange(text.tokens.shape[1]) > at[:, None]
        base.append(matches.scores(parts, matches.keep([], n), row, at).masked_fill(later, -torch.inf))
        q, k = parts.queries[:-1, row, at], parts.keys[:-1, row]
        terms.append(torch.einsum("aid,bjd->abij", q, k).flatten(0, 1) / q.shape[-1] ** 0.5)
        values.append(text.values[row])
        logits.append(text.logits[row, at])
        following.append(text.following[row, at])
    all_logits, goal = torch.cat(logits), torch.cat(following)

    def value(scores: Tensor) -> float:
        z = torch.cat([A @ v for A, v in zip(scores.softmax(dim=-1).split(4 * SEARCH_PLACES), values)])
        return -float(torch.nn.functional.cross_entropy(all_logits + z @ text.writes, goal))

    return matches.grow(torch.cat(base), torch.cat(terms, dim=1), value, size)


class Worth:
    """What a head's attention is worth on windows of text, and what is left of it with another pattern."""

    def __init__(self, text: matches.Text) -> None:
        self.text, self.without, self.intact = text, text.losses_without(), text.losses(text.pattern)

    def kept(self, pattern: Tensor) -> list[float]:
        return pair(estimates.ratio(self.without - self.text.losses(pattern), self.without - self.intact))

    def with_parts(self, parts: matches.Parts, mask: Tensor) -> list[float]:
        rows = range(parts.queries.shape[1])
        return self.kept(matches.attend(torch.stack([matches.scores(parts, mask, row) for row in rows])))


def content(model: Any, head: int, draws: Sequence[repeats.Repeated], worth: Worth) -> dict[str, Any]:
    """Claim T18, for one head."""
    parts = matches.by_content(model, torch.cat([draw.tokens for draw in draws]), head)
    of_text = matches.by_content(model, worth.text.tokens, head)
    n = len(parts.queries)
    two, everything = matches.keep(matches.TWO_MATCHES, n), torch.ones(n, n)
    bare = matches.keep(matches.TWO_MATCHES, n, constants=False)
    masks = {
        "kept": two,
        "rest": everything - bare,
        "first": matches.keep(matches.TWO_MATCHES[:1], n),
        "bare": bare,
        "three": matches.keep([*matches.TWO_MATCHES, (2, 3)], n),
        "same_place": matches.keep([(0, 0), (1, 1)], n),
        "constants": matches.keep([], n),
    }
    intact = matches.induction_with(parts, everything, draws)
    found: dict[str, Any] = {}
    for name, mask in masks.items():
        found[name] = pair(estimates.ratio(matches.induction_with(parts, mask, draws), intact))
        found[f"{name}_worth"] = worth.with_parts(of_text, mask)
    found["scrubbed"] = scrubbed(of_text, bare, worth)
    found["scrubbed_first"] = scrubbed(of_text, matches.keep(matches.TWO_MATCHES[:1], n, constants=False), worth)
    return found


def scrubbed(parts: matches.Parts, mask: Tensor, worth: Worth) -> list[float]:
    """Return the loss recovered by causal scrubbing: all pairs but those of `mask` are computed on another window. The
    zero is a head all of whose scores come from another window."""
    n_rows = parts.queries.shape[1]
    everything = torch.ones_like(mask)
    own, other = [], []
    for row in range(n_rows):
        elsewhere = (row + 1) % n_rows
        other.append(matches.scores(parts, everything, elsewhere))
        rest = matches.scores(parts, everything - mask, elsewhere)
        own.append(matches.scores(parts, mask, row) + rest)
    random = worth.text.losses(matches.attend(torch.stack(other)))
    mine = worth.text.losses(matches.attend(torch.stack(own)))
    return pair(estimates.ratio(random - mine, random - worth.intact))


def paths(
    model: Any, head: int, draws: Sequence[repeats.Repeated], worth: Worth, search: matches.Text, writer: int
) -> dict[str, Any]:
    """Claims T16 and T19. `writer`: the previous-token head."""
    tokens = torch.cat([draw.tokens for draw in draws])
    parts = matches.by_path(model, tokens, head)
    n = len(parts.queries)
    half = len(draws) // 2
    base, terms, targets = sampled(parts, draws[:half])
    rows = torch.arange(len(targets))

    def on_target(scores: Tensor) -> float:
        return float(scores.softmax(dim=-1)[rows, targets].mean())

    by_score = matches.grow(base, terms, on_target, max(SETS))
    by_worth = search_on_text(matches.by_path(model, search.tokens, head), search, max(SETS))
    of_text = matches.by_path(model, worth.text.tokens, head)

    def mask(paths: Sequence[int], constants: bool = True) -> Tensor:
        return matches.keep([divmod(path, n - 1) for path in paths], n, constants)

    intact = matches.induction_with(parts, torch.ones(n, n), draws)

    def score_kept(chosen: Tensor, first: int = half) -> list[float]:
        kept = matches.induction_with(parts, chosen, draws)
        return pair(estimates.ratio(kept[first:], intact[first:]))

    generator = torch.Generator().manual_seed(0)
    found: dict[str, Any] = {"by_score": by_score, "by_worth": by_worth}
    found["searched"] = 2 * sum((n - 1) ** 2 - size for size in range(max(SETS)))
    for size in SETS:
        random = torch.randperm((n - 1) ** 2, generator=generator)[:size].tolist()
        found[f"score_{size}"] = score_kept(mask(by_score[:size]))
        found[f"worth_{size}"] = worth.with_parts(of_text, mask(by_worth[:size]))
        found[f"scrubbed_{size}"] = scrubbed(of_text, mask(by_worth[:size], constants=False), worth)
        found[f"random_{size}"] = score_kept(mask(random))
    minimal = [1 + writer]  # the direct path in the query, the previous-token head in the key
    found["minimal"], found["minimal_worth"] = score_kept(mask(minimal), 0), worth.with_parts(of_text, mask(minimal))
    found["minimal_scrubbed"] = scrubbed(of_text, mask(minimal, constants=False), worth)
    found["none"] = score_kept(mask([]), 0)

    lost = intact - matches.induction_without_each(parts, draws)  # [query, key, draw]
    match, ratio = matches.path_circuits(model, head)
    predicted = match.cpu() * matches.overlaps(model, tokens)

    def correlation(prediction: Tensor) -> list[float]:
        each = [correlate(prediction, lost[..., draw]) for draw in range(len(draws))]
        error = torch.tensor(each).std() / len(each) ** 0.5
        return pair((torch.tensor(correlate(prediction, lost.mean(dim=-1))), error))

    shuffles = []
    for _ in range(1000):
        order = torch.cat([torch.zeros(1).long(), 1 + torch.randperm(n - 2, generator=generator)])
        shuffles.append(correlate(predicted[order][:, order], lost.mean(dim=-1)))
    found |= {"correlation": correlation(predicted), "norms": correlation(ratio.cpu())}
    found["shuffled"] = round(float(torch.tensor(shuffles).quantile(0.99)), 5)
    flat = {"predicted": predicted, "lost": lost.mean(dim=-1), "ratio": ratio}
    return found | {name: [round(x, 5) for x in values.flatten().tolist()] for name, values in flat.items()}


def correlate(first: Tensor, second: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))[0, 1])


def numbers(text: matches.Text, worth: Worth) -> dict[str, Any]:
    """Claim T20, for one head; `text` is what the numbers are fitted on."""

    def fitted(change: Any) -> tuple[Tensor, list[float]]:
        found = matches.fit_numbers(text, change(matches.match_lengths(text.tokens)))
        return found, worth.kept(matches.pattern_of(change(matches.match_lengths(worth.text.tokens)), found))

    def one(kinds: Tensor) -> Tensor:
        return ((kinds > 0) & (kinds < matches.START)).long()

    def same_place(kinds: Tensor) -> Tensor:
        moved = torch.cat([kinds[:, :, 1:], torch.zeros_like(kinds[:, :, :1])], dim=-1)
        moved[:, :, 0] = matches.START
        return moved

    four, kept = fitted(lambda kinds: kinds)
    names = ("one_token", "two_tokens", "three_tokens", "start_token")
    found = dict(zip(names, (round(x, 3) for x in four.tolist())))
    return found | {"kept": kept, "one": fitted(one)[1], "wrong_place": fitted(same_place)[1]}


def values(
    model: Any, induce: Sequence[int], draws: Sequence[repeats.Repeated], current: Sequence[int]
) -> dict[str, Any]:
    """Claim T21: what the values of these induction heads carry. `current`: first-layer heads on the current token."""
    others = [head for head in range(model.cfg.n_heads) if head not in current]
    sets = {"direct": [], "with_current": list(current), "with_others": others}
    losses: dict[str, list[Tensor]] = {name: [] for name in ("intact", "without", *sets)}
    for draw in draws:
        names = [
            "blocks.0.attn.hook_z",
            "blocks.1.attn.hook_pattern",
            "blocks.1.attn.hook_z",
            "blocks.1.hook_resid_post",
        ]
        caches = [model.run_with_cache(rows, names_filter=names)[1] for rows in draw.tokens.split(BATCH)]
        z, A, mine, stream = (torch.cat([cache[name] for cache in caches]) for name in names)
        mean, W_O = z.mean(dim=(0, 1)), model.W_O[1, list(induce)]
        A, mine = A[:, list(induce)], mine[:, :, list(induce)]
        written = {"intact": mine, "without": mine.mean(dim=(0, 1), keepdim=True).expand_as(mine)}
        for name, read in sets.items():
            kept = mean.expand_as(z).clone()
            kept[:, :, read] = z[:, :, read]
            into = model.W_E[draw.tokens] + torch.einsum("rphd,hdm->rpm", kept, model.W_O[0])
            v = torch.einsum("rpm,hmd->rhpd", into, model.W_V[1, list(induce)])
            written[name] = (A @ v).transpose(1, 2)
        base = stream - torch.einsum("rphd,hdm->rpm", mine, W_O)
        for name, part in written.items():
            found = []
            for x, p, tokens in zip(base, part, draw.tokens):
                logits = (x + torch.einsum("phd,hdm->pm", p, W_O)) @ model.W_U
                found.append(torch.nn.functional.cross_entropy(logits[:-1], tokens[1:], reduction="none"))
            losses[name].append(draw.by_copy(torch.stack(found))[1])
    nats = {name: torch.stack(each) for name, each in losses.items()}
    saved = nats["without"] - nats["intact"]
    kept = {name: pair(estimates.ratio(nats["without"] - nats[name], saved)) for name in sets}
    return {"saved": pair(estimates.mean(saved)), "heads": list(induce), "current": list(current)} | kept


@torch.no_grad()
def measure(name: str) -> dict[str, Any]:
    """Return all that the claims need of one model."""
    model = load_model(name)
    draws = heads.measured_draws(model)
    windows = data.held_out_windows(TEST_WINDOWS + FIT_WINDOWS, model.cfg.n_ctx, model.cfg.d_vocab)
    kept, fit = windows[:TEST_WINDOWS], windows[TEST_WINDOWS:]
    works = ablation.recorded_effects(name).working
    mean = torch.cat(
        [View.of(model).pattern_scores(rows, mean_back, n_layers=1) for rows in fit[:, :-1].split(2)], dim=1
    )
    back = mean[0].mean(dim=0)  # [head, back]
    previous = int(back[:, 1].where(works[0], torch.tensor(0.0)).argmax())
    ranked = [(head, score) for head, score in heads_by_score(model) if works[1, head]]
    result: dict[str, Any] = {}
    for place, (head, score) in zip(("first", "second"), tqdm(ranked[:2], desc=name)):
        worth, search = Worth(matches.on_text(model, kept, head)), matches.on_text(model, fit, head)
        found = {"head": head, "score": score, "worth": pair(estimates.mean(worth.without - worth.intact))}
        found |= {"content": content(model, head, draws, worth), "numbers": numbers(search, worth)}
        if place == "first":
            found["paths"] = paths(model, head, draws, worth, search.select(slice(SEARCH_WINDOWS)), previous)
        result[place] = found
    induce = [head for head, (score, _) in ranked if score >= attention.INDUCTION_HEAD]
    current = [head for head in range(model.cfg.n_heads) if back[head, 0] >= attention.CURRENT_TOKEN_HEAD]
    return result | {"values": values(model, induce, draws, current), "previous": previous}


def mean_back(pattern: Tensor) -> Tensor:
    """Return the mean attention to the current and to the previous token, [row, head, back]."""
    return torch.stack([pattern.diagonal(-back, -2, -1)[..., 1:].mean(dim=-1) for back in range(2)], dim=-1)


@torch.no_grad()
def measure_competition(name: str = "attn-only-1l", n_windows: int | None = None) -> dict[str, Any]:
    """Claim S9: tables are fitted on every second held-out document, and tested on the others."""
    model = load_model(name)
    n_ctx, d_vocab = model.cfg.n_ctx, model.cfg.d_vocab
    halves = []
    for first in (0, 1):
        tokens = torch.cat([tokens for _, tokens in data.held_out_documents()[first::2]])
        rows = tokens[: len(tokens) // n_ctx * n_ctx].view(-1, n_ctx)
        halves.append(torch.nn.functional.pad(rows, (1, 0), value=0)[:n_windows])
    halves[1] = halves[1][::4]
    # The same positions, because a table says nothing about others.
    fit, test = (competition.at_places(model, half, every=4) for half in halves)
    table = competition.least_squares(fit, d_vocab, n_ctx)
    by_position = competition.Table(
        torch.zeros_like(table.of_token), table.of_position, torch.zeros_like(table.of_token)
    )
    tables = {"share": competition.fit_to_loss(model, fit, table), "least_squares": table, "by_position": by_position}

    def by_window(log_D: Tensor | None) -> Tensor:
        return competition.losses(model, test, log_D).view(len(halves[1]), -1).mean(dim=1)

    without, worth = by_window(None), by_window(None) - by_window(test.log_D)
    found: dict[str, Any] = {"heads_worth": pair(estimates.mean(worth))}
    for label, fitted in tables.items():
        kept = without - by_window(fitted(test.tokens, test.positions))
        found[label] = pair(estimates.ratio(kept, worth))
    unexplained = test.log_D - table(test.tokens, test.positions)
    found["explained"] = round(float(1 - unexplained.var(dim=0).sum() / test.log_D.var(dim=0).sum()), 4)
    return found


OTHER = {"competition": measure_competition, "clamped": clamped.measure}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Measure what induction heads compute.")
    parser.add_argument("models", nargs="+", help=f"names of two-layer attention-only models, or {' and '.join(OTHER)}")
    options = parser.parse_args(arguments)
    for name in options.models:
        found = OTHER[name]() if name in OTHER else measure(name)
        record = json.loads(RECORD.read_text()) if RECORD.is_file() else {}
        RECORD.write_text(json.dumps(record | {name: found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
