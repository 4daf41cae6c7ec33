"""The pages of the head dump: one for each head of the one-layer models, and an index."""

import functools
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from book_build.pages import render
from transformer_circuits.circuits.head_dump import head_dump
from transformer_circuits.circuits.words import variants_of, word_of
from transformer_circuits.data import frequencies, vocabulary
from transformer_circuits.figures.style import themed
from transformer_circuits.figures.tiles import SIDE, TALL, Tile, tile
from transformer_circuits.figures.tokens import TokenTable, as_code
from transformer_circuits.measures.ablation import AblationEffects, recorded_effects
from transformer_circuits.models import load_model
from transformer_circuits.models.view import View

MODELS = ("attn-only-1l", "attn-only-1l-32h")  # with one layer: a second one reads more than tokens
N_SOURCES, K = 300, 10  # per page, and tokens per list
TEXT = "Peter met Mrs. Gramley, and Mr. Gramley laughed."  # on which tiles show where heads attend

Akin = Sequence[Collection[int]]


def tokens(ids: Sequence[int], names: Sequence[str], marked: Collection[int] = (), kind: str = "copy") -> str:
    return " ".join(as_code(names[i], f" {kind}" * (i in marked)) for i in ids)


def tile_links(groups: Mapping[str, Sequence[Tile]], links: Mapping[str, str]) -> str:
    """Return tiles of heads as HTML, each a link, in groups with names; all bars on one scale."""
    most, parts = max(head.worth for heads in groups.values() for head in heads), []
    for title, heads in groups.items():
        parts.append(f"<p><strong>{title}</strong></p>")
        for head in heads:
            svg = f'<svg viewBox="-1 0 {SIDE + 2} {TALL}">{tile(head, most)}</svg>'
            words = ", ".join(filter(None, (f"head {head.name}", head.role, f"worth {head.worth:.3f}")))
            parts.append(f'<a class="tc-tile" href="{links[head.name]}">{themed(svg, words, head.name)}</a>')
    return f'<div class="tc-tiles">{"".join(parts)}</div>'


def head_table(rows: pd.DataFrame, names: Sequence[str], akin: Akin) -> str:
    """Return a head's list as an HTML table, which head_dump.js searches and sorts; MathJax leaves it alone."""
    columns = {
        "rank": rows["rank"],
        "source": [names[i] for i in rows["source"]],
        "destinations": [
            tokens(ids, names, {i for i, both in zip(ids, in_row) if both}, kind="both")
            for ids, in_row in zip(rows["destinations"], rows["in_row"])
        ],
        "out tokens": [tokens(ids, names, {i, *akin[i]}) for i, ids in zip(rows["source"], rows["outs"])],
        "score": rows["score"],
        "QK": rows["destination_scores"].str[0],
        "OV": rows["out_boosts"].str[0],
    }
    box = {"class": "token-table head-dump tex2jax_ignore mathjax_ignore"}
    return TokenTable(columns, ["source"], markup=["destinations", "out tokens"], **box)._repr_html_()


def example(dump: pd.DataFrame, names: Sequence[str]) -> pd.Series:
    """Return the row with the highest score among words whose first out token is itself (or else among all rows)."""
    is_word = pd.Series([word_of(name) is not None for name in names])
    own = dump[(dump["outs"].str[0] == dump["source"]) & dump["source"].map(is_word)]
    return (dump if own.empty else own).nlargest(1, "score").iloc[0]


def overview(model: Any, name: str, dump: pd.DataFrame, effects: AblationEffects, akin: Akin) -> str:
    """Return tiles of the heads of a model that lead to their pages, each with how many of its sources it copies."""
    attention, drawn = View(model).patterns(model.to_tokens(TEXT))[0, 0], []
    for head, rows in dump.groupby("head"):
        copies = sum(not {i, *akin[i]}.isdisjoint(outs) for i, outs in zip(rows["source"], rows["outs"]))
        role = f"{copies / len(rows):.0%} copy" if effects.working[0, head] else "no effect"
        drawn.append(Tile(f"0.{head}", attention[head], float(effects.cost[0, head]), role))
    return tile_links({name: drawn}, {f"0.{head}": f"head_dump/{name}/0_{head}.html" for head in dump["head"].unique()})


def main(folder: Path) -> str:
    """Return the index page, and write the heads' pages to a folder beside it."""
    names, frequency = vocabulary(), frequencies()
    akin, overviews, dumps = variants_of(names), [], {}
    for name in MODELS:
        model, effects = load_model(name), recorded_effects(name)
        dumps[name] = head_dump(model, frequency, n_sources=N_SOURCES, k=K)
        overviews.append(overview(model, name, dumps[name], effects, akin))
        of_model = folder / "head_dump" / name
        of_model.mkdir(parents=True)
        for head, rows in dumps[name].groupby("head"):
            about = {"head": head, "model": name, "worth": effects, "shown": len(rows), "d_vocab": len(names)}
            (of_model / f"0_{head}.md").write_text(render("head.md", **about), encoding="utf8")
            # Beside the page: Sphinx takes seconds to parse eleven million characters in all.
            (of_model / f"0_{head}.html").write_text(head_table(rows, names, akin), encoding="utf8")
    return render(
        "head_dump.md",
        models=MODELS,
        example=example(dumps[MODELS[0]], names),
        tokens=functools.partial(tokens, names=names),
        overviews=overviews,
        text=TEXT,
        n_sources=N_SOURCES,
    )
