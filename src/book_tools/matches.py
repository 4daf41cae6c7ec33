"""Measure what induction heads compute, on the book's two-layer models (claims T16, T18 to T21).

    python -m book_tools.matches attn-only-2l attn-only-2l-seed-1
    python -m book_tools.matches competition clamped public

Each model's numbers, with their standard errors, go to data/matches.json; a model takes three minutes on a quiet core.
`competition` measures claim S9, `clamped` W11, and `public` how heads of public models count matching tokens.
"""

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from tqdm import tqdm

from book_tools import clamped, competition
from book_tools.worth import Worth, pair
from transformer_circuits import data
from transformer_circuits.circuits import heads, matches
from transformer_circuits.measures import ablation, attention, estimates, repeats
from transformer_circuits.models import load_model, reading
from transformer_circuits.models.view import BATCH, View, without_heads
from transformer_circuits.paths import DATA
from transformer_circuits.real import real_models

RECORD = DATA / "matches.json"
SEARCH_WINDOWS, FIT_WINDOWS, TEST_WINDOWS = 4, 8, 24
SEARCH_PLACES = 24  # destinations of each row and window in which sets of paths are searched
LENGTH_ROWS = 100  # of random tokens, for public models
SETS = (5, 20)  # sizes of the sets of paths (claim T16)


def search(
    parts: matches.Parts,
    places: Sequence[tuple[int, Int[Tensor, " dest"]]],
    value: Callable[[Float[Tensor, "dest src"]], float],
) -> list[int]:
    """Return max(SETS) paths in the order in which a greedy search adds them to the constants: each time, the one after
    which `value(scores)` is highest, at these places (row, destinations). What a destination does not see is -inf."""
    width, constants = 1 + max(int(at.max()) for _, at in places), matches.mask_of([], len(parts.queries))
    base, terms = [], []
    for row, at in places:
        of_constants = matches.scores_with(parts, constants, row, at)[:, :width]
        base.append(of_constants.masked_fill(torch.arange(width) > at[:, None], -torch.inf))
        q, k = parts.queries[:-1, row, at], parts.keys[:-1, row, :width]
        terms.append(torch.einsum("aid,bjd->abij", q, k).flatten(0, 1) / q.shape[-1] ** 0.5)
    scores, terms, chosen = torch.cat(base), torch.cat(terms, dim=1), []
    while len(chosen) < max(SETS):
        left = [path for path in range(len(terms)) if path not in chosen]
        best = max(left, key=lambda path: value(scores + terms[path]))
        scores = scores + terms[best]
        chosen.append(best)
    return chosen


def search_on_draws(parts: matches.Parts, draws: Sequence[repeats.Repeated]) -> list[int]:
    """Return the paths in the order in which they raise the attention to the target most, at places drawn at random."""
    generator, places, targets = torch.Generator().manual_seed(0), [], []
    for _, row, start, first, end in matches.second_copies(draws):
        at = torch.randint(first, end, (SEARCH_PLACES,), generator=generator)
        places.append((row, at))
        targets.append(at - (first - start) + 1)
    target = torch.cat(targets)

    def value(scores: Tensor) -> float:
        return float(scores.softmax(dim=-1)[torch.arange(len(target)), target].mean())

    return search(parts, places, value)


def search_on_text(parts: matches.Parts, text: Worth) -> list[int]:
    """Return the paths in the order in which they lower the loss most, at places drawn at random."""
    generator, n = torch.Generator().manual_seed(0), text.tokens.shape[1]
    at = [torch.randperm(n - 1, generator=generator)[: 4 * SEARCH_PLACES] + 1 for _ in text.tokens]
    logits = torch.cat([text.logits[row, places] for row, places in enumerate(at)])
    following = torch.cat([text.following[row, places] for row, places in enumerate(at)])

    def value(scores: Tensor) -> float:
        patterns = scores.softmax(dim=-1).split(4 * SEARCH_PLACES)
        z = torch.cat([A @ v[: A.shape[1]] for A, v in zip(patterns, text.values)])
        return -float(torch.nn.functional.cross_entropy(logits + z @ text.writes, following))

    return search(parts, list(enumerate(at)), value)


def content(model: Any, head: int, draws: Sequence[repeats.Repeated], worth: Worth) -> dict[str, Any]:
    """Claim T18, for one head."""
    parts = matches.by_content(model, torch.cat([draw.tokens for draw in draws]), head)
    of_text = matches.by_content(model, worth.tokens, head)
    n = len(parts.queries)
    two, everything = matches.mask_of(matches.TWO_MATCHES, n), torch.ones(n, n)
    bare = matches.mask_of(matches.TWO_MATCHES, n, constants=False)
    masks = {
        "kept": two,
        "rest": everything - bare,
        "first": matches.mask_of(matches.TWO_MATCHES[:1], n),
        "bare": bare,
        "three": matches.mask_of([*matches.TWO_MATCHES, (2, 3)], n),
        "same_place": matches.mask_of([(0, 0), (1, 1)], n),
        "constants": matches.mask_of([], n),
    }
    intact = matches.induction_with(parts, everything, draws)
    found: dict[str, Any] = {}
    for name, mask in masks.items():
        found[name] = pair(estimates.ratio(matches.induction_with(parts, mask, draws), intact))
        found[f"{name}_worth"] = worth.with_parts(of_text, mask)
    found["scrubbed"] = worth.scrubbed(of_text, bare)
    found["scrubbed_first"] = worth.scrubbed(of_text, matches.mask_of(matches.TWO_MATCHES[:1], n, constants=False))
    return found


def paths(
    model: Any, head: int, draws: Sequence[repeats.Repeated], worth: Worth, few: Worth, writer: int
) -> dict[str, Any]:
    """Claims T16 and T19. `few`: the windows of the search; `writer`: the previous-token head."""
    tokens = torch.cat([draw.tokens for draw in draws])
    parts = matches.by_path(model, tokens, head)
    n = len(parts.queries)
    half = len(draws) // 2
    by_score = search_on_draws(parts, draws[:half])
    by_worth = search_on_text(matches.by_path(model, few.tokens, head), few)
    of_text = matches.by_path(model, worth.tokens, head)

    def mask(paths: Sequence[int], constants: bool = True) -> Tensor:
        return matches.mask_of([divmod(path, n - 1) for path in paths], n, constants)

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
        found[f"scrubbed_{size}"] = worth.scrubbed(of_text, mask(by_worth[:size], constants=False))
        found[f"random_{size}"] = score_kept(mask(random))
    minimal = [1 + writer]  # the direct path in the query, the previous-token head in the key
    found["minimal"], found["minimal_worth"] = score_kept(mask(minimal), 0), worth.with_parts(of_text, mask(minimal))
    found["minimal_scrubbed"] = worth.scrubbed(of_text, mask(minimal, constants=False))
    found["none"] = score_kept(mask([]), 0)

    lost = intact - induction_without_each(parts, draws)  # [query, key, draw]
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


def induction_without_each(parts: matches.Parts, draws: Sequence[repeats.Repeated]) -> Float[Tensor, "query key draw"]:
    """Return the induction score on each draw if one pair of parts is left out, for all pairs without a constant."""
    n = len(parts.queries) - 1

    def score_of(row: int, at: slice, end: int) -> Tensor:
        q, k = parts.queries[:, row, at], parts.keys[:, row, :end] / parts.keys.shape[-1] ** 0.5
        pairs = torch.einsum("aid,bjd->abij", q[:-1], k[:-1]).flatten(0, 1)
        return (q.sum(dim=0) @ k.sum(dim=0).mT) - pairs

    return matches.induction_from(draws, score_of).unflatten(0, (n, n))


def correlate(first: Tensor, second: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))[0, 1])


def pattern_of(kinds: Int[Tensor, "row dest src"], numbers: Float[Tensor, " n"]) -> Float[Tensor, "row dest src"]:
    """Return the softmax of one number for each kind of source; kind 0 has the score 0."""
    return matches.causal_softmax(torch.cat([numbers.new_zeros(1), numbers])[kinds])


@torch.enable_grad()
def fit_numbers(text: Worth, kinds: Int[Tensor, "row dest src"]) -> Float[Tensor, " n"]:
    """Return the numbers with which `pattern_of` gives the lowest loss on these windows (claim T20)."""
    numbers = torch.full((int(kinds.max()),), 3.0, device=kinds.device, requires_grad=True)
    optimizer = torch.optim.LBFGS([numbers], max_iter=20, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = text.losses(pattern_of(kinds, numbers)).mean()
        value.backward()
        return value

    optimizer.step(loss)
    return numbers.detach()


def numbers(text: Worth, worth: Worth) -> dict[str, Any]:
    """Claim T20, for one head; `text` is what the numbers are fitted on."""

    def fitted(change: Any) -> tuple[Tensor, list[float]]:
        found = fit_numbers(text, change(matches.match_lengths(text.tokens)))
        return found, worth.kept(pattern_of(change(matches.match_lengths(worth.tokens)), found))

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
    view, n_heads = View(model), model.cfg.n_heads
    sets = {"direct": [], "with_current": current, "with_others": [h for h in range(n_heads) if h not in current]}
    losses: dict[str, list[Tensor]] = {name: [] for name in ("intact", "without", *sets)}
    for draw in draws:
        means = {layer: view.mean_z(draw.tokens, layer) for layer in range(2)}
        nats: dict[str, list[Tensor]] = {name: [] for name in losses}
        for rows in draw.tokens.split(BATCH):
            nats["intact"].append(view.losses(rows))
            nats["without"].append(view.losses(rows, without_heads([(1, head) for head in induce], means)))
            for name, read in sets.items():
                cut = without_heads([(0, head) for head in range(n_heads) if head not in read], means)
                hook_name, change = view.only_in("v", 1, rows, cut)

                def of_induction_heads(v: Tensor, hook: Any) -> Tensor:
                    changed = v.clone()
                    changed[:, :, induce] = change(v, hook)[:, :, induce]
                    return changed

                nats[name].append(view.losses(rows, [(hook_name, of_induction_heads)]))
        for name, parts in nats.items():
            losses[name].append(draw.by_copy(torch.cat(parts))[1])
    found = {name: torch.stack(of_draws) for name, of_draws in losses.items()}
    saved = found["without"] - found["intact"]
    kept = {name: pair(estimates.ratio(found["without"] - found[name], saved)) for name in sets}
    return {"saved": pair(estimates.mean(saved)), "heads": list(induce), "current": list(current)} | kept


@torch.no_grad()
def measure(name: str) -> dict[str, Any]:
    """Return all that the claims need of one model."""
    model = load_model(name)
    draws = heads.measured_draws(model)
    windows = data.held_out_windows(TEST_WINDOWS + FIT_WINDOWS, model.cfg.n_ctx, model.cfg.d_vocab)
    # The text is ordered by kind: what is fitted on Python, HTML, and docs is tested on prose, LaTeX, docs, and Python.
    kept, fit = windows[:TEST_WINDOWS], windows[TEST_WINDOWS:]
    works = ablation.recorded_effects(name).working
    one_back = heads.previous_token_scores(model, fit[:, :-1])[0]
    on_current = heads.mean_score(model, fit[:, :-1], attention.current_token_score)[0]
    previous = int(one_back.where(works[0], torch.tensor(0.0)).argmax())
    score, error = (of_heads[1] for of_heads in heads.measured_induction(model))
    ranked = [head for head in score.argsort(descending=True).tolist() if works[1, head]]
    result: dict[str, Any] = {}
    for place, head in zip(("first", "second"), tqdm(ranked[:2], desc=name)):
        worth, search = Worth.of(model, kept, head), Worth.of(model, fit, head)
        found = {"head": head, "score": pair((score[head], error[head]))}
        found["worth"] = pair(estimates.mean(worth.without - worth.intact))
        found |= {"content": content(model, head, draws, worth), "numbers": numbers(search, worth)}
        if place == "first":
            few = Worth.of(model, fit[:SEARCH_WINDOWS], head)
            found["paths"] = paths(model, head, draws, worth, few, previous)
        result[place] = found
    induce = [head for head in ranked if score[head] >= attention.INDUCTION_HEAD]
    current = (on_current >= attention.CURRENT_TOKEN_HEAD).nonzero().flatten().tolist()
    return result | {"values": values(model, induce, draws, current), "previous": previous}


@torch.no_grad()
def measure_lengths() -> dict[str, Any]:
    """Claim T17 beside W7: of each model's strongest induction head, the attention to what followed at the one earlier
    place where the last one, two, or three of 64 random tokens occur too."""
    found = {}
    for name in ("attn-only-2l", *real_models.LABELS):
        model = load_model(name)
        score = heads.measured_induction(model).mean
        layer, head = divmod(int(score.argmax()), model.cfg.n_heads)
        drawn, generator = reading.of(model).drawn, torch.Generator().manual_seed(0)
        rows = torch.stack([drawn[torch.randperm(len(drawn), generator=generator)[:64]] for _ in range(LENGTH_ROWS)])
        rows[:, 0] = reading.start_token(model)
        found[name] = {"head": f"{layer}.{head}"}
        for n in (1, 2, 3):
            same = rows.clone()
            same[:, 21 - n : 21] = same[:, -n:]
            attended = View(model).pattern_scores(same.to(model.W_E.device), lambda A: A[:, :, -1, 21])
            found[name][str(n)] = pair(estimates.mean(attended[layer, :, head]))
    return found


OTHER = {"competition": competition.measure, "clamped": clamped.measure, "public": measure_lengths}


def main(names: Sequence[str]) -> None:
    if not names:
        sys.exit(__doc__)
    for name in names:
        found = OTHER[name]() if name in OTHER else measure(name)
        record = json.loads(RECORD.read_text()) if RECORD.is_file() else {}
        RECORD.write_text(json.dumps(record | {name: found}, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
