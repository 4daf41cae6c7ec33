"""The page "Every head of the two-layer model": a tile for each head, and behind it where it attends, what that is
worth, and what its weights do."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from book_build.pages import render
from book_build.pages.dump_pages import TEXT, tile_links, tokens
from transformer_circuits.circuits.copying import self_boost
from transformer_circuits.circuits.head_map import head_map, rises, windows_of
from transformer_circuits.data import vocabulary
from transformer_circuits.figures.plots import LAYERS
from transformer_circuits.figures.tiles import Tile
from transformer_circuits.figures.widgets import attended
from transformer_circuits.measures import repeats, weights
from transformer_circuits.measures.ablation import recorded_effects
from transformer_circuits.models import load_model
from transformer_circuits.models.view import View

MODEL = "attn-only-2l"
SHOWN = 24  # tokens of a passage
KINDS = {"copying": "copies", "negative": "lowers"}
FEW = 0.02  # a behavior at fewer of the places is not shown
# Where a head attends most, the first that holds; the last one is all that is left.
PLACES = (
    "start token",
    "current token",
    "previous token",
    "after an earlier copy",
    "an earlier copy",
    "2 to 5 back",
    "elsewhere",
)


def place_of(windows: Int[Tensor, "row pos"]) -> Int[Tensor, "row dest src"]:
    """Return for each source which of PLACES it is, seen from each destination."""
    n = windows.shape[1]
    behind = torch.arange(n)[:, None] - torch.arange(n)
    same = windows[:, :, None] == windows[:, None, :]
    after = repeats.after_earlier(windows)
    places = [torch.arange(n) == 0, behind == 0, behind == 1, after, same, (2 <= behind) & (behind <= 5)]
    places = [where.expand_as(same).numpy() for where in places]
    return torch.from_numpy(np.select(places, range(len(places)), default=len(PLACES) - 1))  # the first that holds


def behaviors(
    name: str,
    attention: Float[Tensor, "row dest src"],
    rise: Float[Tensor, "row dest"],
    place: Int[Tensor, "row dest src"],
    strings: Sequence[Sequence[str]],
) -> list[dict[str, Any]]:
    """Return what a head does, the most frequent first: at which places, and what fraction they are; what that is
    worth, in nats per token there and as a fraction of all that the head is worth; and tokens to point at where it is
    worth most. `rise`: of the next token's loss without the head."""
    most = place.gather(-1, attention.argmax(dim=-1, keepdim=True))[..., 0]  # [row, dest]
    found = []
    for i, words in enumerate(PLACES):
        here = most == i
        here[:, 0] = False  # the start token can attend to itself alone
        share = float(here.sum() / here[:, 1:].numel())
        if share < FEW:
            continue
        row, at = divmod(int(torch.where(here, rise, -torch.inf).argmax()), rise.shape[1])
        first = max(0, at + 1 - SHOWN)
        text, seen = strings[row][first : at + 1], attention[[row], first : at + 1, first : at + 1]
        following = tokens([0], strings[row][at + 1 :])
        cheaper = f"<p>Then comes {following}: {rise[row, at]:.1f} nats cheaper with the head.</p>"
        passage = attended(text, seen, [name], words) + cheaper
        of_all = float(rise[here].sum() / rise[:, 1:].sum())
        about = {"place": words, "share": share, "worth": float(rise[here].mean())}
        found.append(about | {"of_all": of_all, "passage": passage})
    return sorted(found, key=lambda behavior: -behavior["share"])


def weights_of(model: Any, every: pd.DataFrame, names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return for each head a line about its QK circuit, and one about its OV circuit."""
    read, lines = weights.white_ratios(model), {}
    for name, row in every.iterrows():
        layer, head = map(int, name.split("."))
        if layer:
            most = {side: read[i, head].max(dim=-1) for i, side in enumerate(("queries", "keys"))}
            sides = (f"{side} read 0.{int(at)} most ({float(x):.1f} times chance)" for side, (x, at) in most.items())
            QK = " and ".join(sides)
        else:
            own = self_boost(model.W_E @ model.QK[layer, head] @ model.W_E.T).top_1
            QK = f"between tokens alone, {own:.0%} of them would look for themselves first"
        kind = next((KINDS[kind] for kind in row["names"] if kind in KINDS), "neither copies nor lowers")
        positivity = f"{row.positivity:+z.2f}".replace("-", "\N{MINUS SIGN}")
        raises = tokens(row.raises, names)
        lines[name] = QK, f"{kind} what it attends to (positivity {positivity}); raises {raises} most often"
    return lines


@torch.no_grad()
def main(folder: Path) -> str:
    model, names = load_model(MODEL, device="cpu"), vocabulary()
    windows = windows_of(model)
    text, effects = windows[:, :-1], recorded_effects(MODEL)
    every, rise, place = head_map(model, windows, effects), rises(model, windows), place_of(text)
    attention, strings = View(model).patterns(text), [[names[i] for i in row] for row in windows.tolist()]
    sample = View(model).patterns(model.to_tokens(TEXT))[:, 0]
    groups, found = {"second layer": [], "first layer": []}, {}
    for name, row in every.iterrows():
        layer, head = map(int, name.split("."))
        role = (row.names or ["–"])[0] if row.works else "no effect"
        groups[LAYERS[layer]].append(Tile(name, sample[layer, head], row.cost, role))
        found[name] = behaviors(name, attention[layer, :, head], rise[layer, head], place, strings)
    tiles = tile_links(groups, {name: f"#head-{name}" for name in every.index})
    facts = {"found": found, "lines": weights_of(model, every, names), "places": text[:, 1:].numel()}
    return render("every_head.md", tiles=tiles, every=every, model=MODEL, text=TEXT, **facts)
