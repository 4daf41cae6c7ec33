"""The page "Every head of the two-layer model": one row a head, which opens to passages where it matters."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import torch
from jaxtyping import Int
from torch import Tensor

from book_build.pages import render
from book_build.pages.dump_pages import table, tokens
from transformer_circuits.circuits.head_map import Passage, head_map, passages, rises, windows_of
from transformer_circuits.data import vocabulary
from transformer_circuits.figures.tokens import as_code
from transformer_circuits.measures.ablation import WINDOWS, recorded_effects
from transformer_circuits.models import load_model

MODEL = "attn-only-2l"
SHOWN, SOURCES = 24, 3  # tokens of a passage, and the sources listed below it
NUMBERS = "previous current same after start induction attribution positivity".split()  # shown with two digits


def passage(found: Passage, windows: Int[Tensor, "row pos"], names: Sequence[str]) -> str:
    """Return a passage as HTML: tokens shaded by the head's attention, the next token, and the sources."""
    first = max(0, found.place + 1 - SHOWN)
    strings = [names[i] for i in windows[found.row].tolist()]
    shaded = "".join(
        f'<span style="--attention: {float(found.attention[i]):.2f}">{as_code(strings[i])}</span>'
        for i in range(first, found.place + 1)
    )
    sources = found.attention.topk(min(SOURCES, len(found.attention))).indices.tolist()
    attended = ", ".join(f"{as_code(strings[i])} ({found.attention[i]:.0%}, {found.place - i} back)" for i in sources)
    rises = f"Without the head, the loss of the last token rises by {found.rise:.2f} nats."
    following = as_code(strings[found.place + 1], " copy")
    return f'<p class="passage">{shaded} → {following}<br>{rises} It attends to {attended}.</p>'


def write_page(
    out: Path,
    every: pd.DataFrame,
    shown: Mapping[str, Sequence[Passage]],
    windows: Int[Tensor, "row pos"],
    names: Sequence[str],
) -> None:
    """Write the page. `shown`: the passages of each head in these windows; `names`: the string of every token."""
    opened = [[passage(found, windows, names) for found in shown[head]] for head in every.index]
    columns = {
        "head": every.index,
        "names": [", ".join(found) or "no name" for found in every["names"]],
        "where it matters most": [
            f"<details><summary>{len(found)} passages</summary>{''.join(found)}</details>" for found in opened
        ],
        "cost": every["cost"].map("{:z.3f}".format),
        "±": every["error"].map("{:.3f}".format),
        **{name: every[name].map("{:z.2f}".format) for name in NUMBERS},
        "raises most": [tokens(ids, names) for ids in every["raises"]],
    }
    rows = pd.DataFrame(columns)
    rows.loc[~every["works"], "names"] = "no effect"
    cells = table(rows, markup=["where it matters most", "raises most"], search="1 2 13", unit="heads")
    page = render("every_head.md", table=cells, model=MODEL, windows=len(windows), of_costs=WINDOWS)
    out.write_text(page, encoding="utf8")


@torch.no_grad()
def main(out: Path) -> None:
    model = load_model(MODEL, device="cpu")
    windows = windows_of(model)
    every, rise = head_map(model, windows, recorded_effects(MODEL)), rises(model, windows)
    heads = {name: tuple(map(int, name.split("."))) for name in every.index}
    shown = {name: passages(model, windows, rise, head) for name, head in heads.items()}
    write_page(out, every, shown, windows, vocabulary())
