"""Is a one-layer model a set of skip-trigrams? Softmax denominators without competition (claim S9).

A head adds sum_j exp(s_ij) v_j / D_i to the stream. Only D_i depends on all sources at once. Replaced by a table over
the destination's token and its position, every source adds what it adds, whatever else the text contains.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from book_tools.worth import pair
from transformer_circuits import data
from transformer_circuits.measures import estimates
from transformer_circuits.models import load_model
from transformer_circuits.models.view import View

RIDGE = 5.0  # observations by which a token's own numbers are pulled to those of all tokens
BATCH, RATE = 1024, 0.01  # tokens a step of the fit to the loss, and its rate for all entries


class Places(NamedTuple):
    """What the heads of a one-layer model do at some places of text, one row for each place."""

    tokens: Int[Tensor, " place"]
    following: Int[Tensor, " place"]
    positions: Int[Tensor, " place"]
    log_D: Float[Tensor, "place head"]  # logarithm of the true denominators
    z: Float[Tensor, "place head d_head"]  # with the true denominators


@torch.no_grad()
def at_places(model: Any, windows: Int[Tensor, "row pos"], every: int) -> Places:
    """Return what the heads do at every `every`-th position of windows of text, the start token left out."""
    at = torch.arange(1, windows.shape[1] - 1, every)
    names, log_Ds, zs = ["blocks.0.attn.hook_attn_scores", "blocks.0.attn.hook_z"], [], []
    for row in windows[:, None, :-1]:
        scores, z = View(model).activations(row, names).values()
        log_Ds.append(scores[0, :, at].logsumexp(dim=-1).T)
        zs.append(z[0, at])
    place = at.repeat(len(windows))
    return Places(windows[:, at].flatten(), windows[:, at + 1].flatten(), place, torch.cat(log_Ds), torch.cat(zs))


class Table(NamedTuple):
    """Logarithms of denominators: a number for the token, one for the position, and the token's slope in its log."""

    of_token: Float[Tensor, "d_vocab head"]
    of_position: Float[Tensor, "pos head"]
    slope: Float[Tensor, "d_vocab head"]

    def __call__(self, tokens: Int[Tensor, " place"], positions: Int[Tensor, " place"]) -> Float[Tensor, "place head"]:
        far = scale(positions, len(self.of_position))[:, None]
        return self.of_position[positions] + self.of_token[tokens] + self.slope[tokens] * far


def scale(positions: Tensor, n_ctx: int) -> Tensor:
    """Return the logarithm of positions, about 0 in the middle of a window and 1 at its end."""
    return torch.log((positions + 1.0) / (n_ctx / 2)) / torch.log(torch.tensor(2.0))


def least_squares(places: Places, d_vocab: int, n_ctx: int) -> Table:
    """Return the table closest to the logarithms of the true denominators, tokens seldom seen pulled to the others."""
    n_heads = places.log_D.shape[1]
    table = Table(*(torch.zeros(n, n_heads) for n in (d_vocab, n_ctx, d_vocab)))
    far = scale(places.positions, n_ctx)
    ones = torch.stack([torch.ones_like(far), far, far * far], dim=1)
    n, x, xx = torch.zeros(d_vocab, 3).index_add(0, places.tokens, ones).T[..., None]
    n, xx = n + RIDGE, xx + RIDGE
    count = torch.bincount(places.positions, minlength=n_ctx).clamp(min=1)[:, None]
    for _ in range(8):
        left = places.log_D - table(places.tokens, places.positions) + table.of_position[places.positions]
        at_position = torch.zeros(n_ctx, n_heads).index_add(0, places.positions, left) / count
        rest = places.log_D - at_position[places.positions]
        y = torch.zeros(d_vocab, n_heads).index_add(0, places.tokens, rest)
        xy = torch.zeros(d_vocab, n_heads).index_add(0, places.tokens, rest * far[:, None])
        slope = (n * xy - x * y) / (n * xx - x * x)
        table = Table((y - slope * x) / n, at_position, slope)
    return table


def losses(model: Any, places: Places, log_D: Float[Tensor, "place head"] | None) -> Float[Tensor, " place"]:
    """Return the loss at each place with these denominators; None: with each head's z at its mean over the places."""
    found = []
    for part in torch.arange(len(places.tokens)).split(BATCH):
        z = places.z.mean(dim=0).expand(len(part), -1, -1)
        if log_D is not None:
            z = places.z[part] * (places.log_D[part] - log_D[part]).exp()[..., None]
        stream = model.W_E[places.tokens[part]] + torch.einsum("phd,hdm->pm", z, model.W_O[0])
        found.append(cross_entropy(stream @ model.W_U, places.following[part], reduction="none"))
    return torch.cat(found)


@torch.enable_grad()
def fit_to_loss(model: Any, places: Places, table: Table) -> Table:
    """Return a table like this one with a lower loss at these places.

    A source that would have lost the competition is exponentially too large in a table that is a little too low. So two
    numbers for each head, an offset and a factor, are fitted first, and then all entries. Of both, the one that is
    better on the last fifth of the places, which no step has seen, is returned.
    """
    last = len(places.tokens) // 5
    seen, unseen = (Places(*(part[half] for part in places)) for half in (slice(None, -last), slice(-last, None)))
    offset, factor = (torch.full((places.log_D.shape[1],), x) for x in (1.0, 1.0))

    def scaled(offset: Tensor, factor: Tensor) -> Table:
        return Table(table.of_token * factor, table.of_position * factor + offset, table.slope * factor)

    coarse = scaled(*_descend(model, seen, [offset, factor], scaled, rate=0.1))
    fine = Table(*_descend(model, seen, list(coarse), Table, rate=RATE))

    def loss(found: Table) -> float:
        with torch.no_grad():
            return float(losses(model, unseen, found(unseen.tokens, unseen.positions)).mean())

    return min(coarse, fine, key=loss)


def _descend(model: Any, places: Places, start: list[Tensor], table_of: Any, rate: float) -> list[Tensor]:
    """Return numbers with a lower loss of the table that they make: one pass over these places."""
    free = [part.clone().requires_grad_() for part in start]
    optimizer = torch.optim.Adam(free, lr=rate)
    order = torch.randperm(len(places.tokens), generator=torch.Generator().manual_seed(0)).split(BATCH)
    for step, part in enumerate(order):
        some = Places(*(values[part] for values in places))
        optimizer.param_groups[0]["lr"] = rate * (1 - step / len(order))
        optimizer.zero_grad()
        losses(model, some, table_of(*free)(some.tokens, some.positions)).mean().backward()
        torch.nn.utils.clip_grad_norm_(free, 1.0)  # a few places can have a huge loss
        optimizer.step()
    return [part.detach() for part in free]


@torch.no_grad()
def measure() -> dict[str, Any]:
    """Return the numbers of claim S9: tables are fitted on every second held-out document, and tested on the others."""
    model = load_model("attn-only-1l")
    n_ctx, d_vocab = model.cfg.n_ctx, model.cfg.d_vocab
    halves = []
    for first in (0, 1):
        tokens = torch.cat([tokens for _, tokens in data.held_out_documents()[first::2]])
        rows = tokens[: len(tokens) // n_ctx * n_ctx].view(-1, n_ctx)
        halves.append(torch.nn.functional.pad(rows, (1, 0), value=0))
    halves[1] = halves[1][::4]
    # The same positions, because a table says nothing about others.
    fit, test = (at_places(model, half, every=4) for half in halves)
    table = least_squares(fit, d_vocab, n_ctx)
    by_position = Table(torch.zeros_like(table.of_token), table.of_position, torch.zeros_like(table.of_token))
    tables = {"share": fit_to_loss(model, fit, table), "least_squares": table, "by_position": by_position}

    def by_window(log_D: Tensor | None) -> Tensor:
        return losses(model, test, log_D).view(len(halves[1]), -1).mean(dim=1)

    without, worth = by_window(None), by_window(None) - by_window(test.log_D)
    found: dict[str, Any] = {"heads_worth": pair(estimates.mean(worth))}
    for label, fitted in tables.items():
        kept = without - by_window(fitted(test.tokens, test.positions))
        found[label] = pair(estimates.ratio(kept, worth))
    unexplained = test.log_D - table(test.tokens, test.positions)
    found["explained"] = round(float(1 - unexplained.var(dim=0).sum() / test.log_D.var(dim=0).sum()), 4)
    return found
