"""The pages of the head dump: one for each head of the one-layer models, an index that explains them, all of it as Parquet.

    python -m transformer_circuits.figures.dump_pages OUT.md       (the build does; pages and files go to the folder OUT beside it)

The tables are plain HTML, readable as they are; `book/_static/head_dump.js` makes them searchable and sortable.
"""

from __future__ import annotations

import argparse
import html
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from urllib.parse import quote

import pandas as pd
import pyarrow as pa
from jaxtyping import Float
from torch import Tensor

from transformer_circuits.circuits.bigrams import SmoothedBigrams
from transformer_circuits.circuits.head_dump import head_dump
from transformer_circuits.circuits.positions import attention_to_start
from transformer_circuits.circuits.weights import Weights
from transformer_circuits.circuits.words import akin_to, word_of
from transformer_circuits.data import bigram_counts, held_out_windows, vocabulary
from transformer_circuits.figures.tokens import show_token

MODELS = ("attn-only-1l",)  # with one layer: a second one reads more than tokens
N_SOURCES, K = 300, 10  # of each page; the Parquet file has all sources
FIRST = 8  # sources shown for each head on the index page
STATIC = "../../../_static"  # from a page book/head_dump/<model>/<head>.html
DIGITS = 3  # decimals in the Parquet file

Rest = Float[Tensor, "layer head"]  # mean attention to the start token


def page_name(model: str, layer: int, head: int) -> str:
    """Where a head's page lies, in the folder of the head dump and without suffix."""
    return f"{model}/{layer}_{head}"


def with_tokens(dump: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """The dump with the tokens' strings beside their ids: `source_token`, `destination_tokens`, `out_tokens`."""
    return dump.assign(
        source_token=[names[i] for i in dump["source"]],
        destination_tokens=[[names[i] for i in ids] for ids in dump["destinations"]],
        out_tokens=[[names[i] for i in ids] for ids in dump["outs"]],
    )


SCHEMA = pa.schema(
    [
        *((name, pa.int32()) for name in ("layer", "head", "rank", "source")),
        ("source_token", pa.string()),
        ("score", pa.float32()),
        ("destinations", pa.list_(pa.int32())),
        ("destination_tokens", pa.list_(pa.string())),
        ("destination_scores", pa.list_(pa.float32())),
        ("outs", pa.list_(pa.int32())),
        ("out_tokens", pa.list_(pa.string())),
        ("out_boosts", pa.list_(pa.float32())),
    ]
)


def write_parquet(dump: pd.DataFrame, names: Sequence[str], path: Path) -> None:
    """The dump as a Parquet file, strings and ids, numbers rounded to DIGITS decimals."""
    short = with_tokens(dump, names)
    short["score"] = short["score"].round(DIGITS)
    for column in ("destination_scores", "out_boosts"):
        short[column] = [[round(x, DIGITS) for x in row] for row in short[column]]
    short[SCHEMA.names].to_parquet(path, engine="pyarrow", compression="zstd", index=False, schema=SCHEMA)


def token(name: str, kind: str = "") -> str:
    """A token as HTML: literal, whitespace visible."""
    return f'<code class="token{kind}">{html.escape(show_token(name))}</code>'


def copies(source: int, outs: Sequence[int], akin: Sequence[Collection[int]]) -> list[bool]:
    """Which outs are the source token itself or akin to it."""
    return [out == source or out in akin[source] for out in outs]


def table(rows: pd.DataFrame, names: Sequence[str], akin: Sequence[Collection[int]]) -> str:
    """One head's rows as an HTML table."""
    columns = {"rank": "number", "source": "tokens", "destinations": "tokens list", "outs": "tokens list",
               "score": "number", "QK": "number", "OV": "number"}  # fmt: skip
    head = "".join(f'<th scope="col" class="{kind}">{name}</th>' for name, kind in columns.items())
    body = []
    for row in rows.itertuples():
        marks = copies(row.source, row.outs, akin)
        cells = [
            f'<td class="number">{row.rank}</td>',
            f"<td>{token(names[row.source])}</td>",
            f"<td>{' '.join(token(names[i]) for i in row.destinations)}</td>",
            f"<td>{' '.join(token(names[i], ' copy' * mark) for i, mark in zip(row.outs, marks, strict=True))}</td>",
            *(f'<td class="number">{x:.2f}</td>' for x in (row.score, row.destination_scores[0], row.out_boosts[0])),
        ]
        body.append(f"<tr>{''.join(cells)}</tr>")
    lines = "\n".join(body)
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{lines}\n</tbody>\n</table>"


def raw(markup: str) -> str:
    """HTML inside of MyST, handed through as it is."""
    return f"```{{raw}} html\n{markup}\n```\n"


HEAD_PAGE = """\
---
nosearch: true
---
# Head {layer}.{head} of {model}

In held-out text this head gives {rest} of its attention to the start-of-text token.{resting}

The first {shown} of {d_vocab:,} source tokens; [the page of all heads](../../{index}.md) explains the order and how to read a
row. *QK* is the score of the first destination, *OV* the boost of the first out. Outs that repeat the source, up to case, a
leading space or a plural ending, are underlined.

The search takes what is typed literally, whether upper or lower case, and looks for it in every token of a row: `two` and
`·two` both find the token `·two`. A space in a token is typed as `·`, a line break as `↵`, a character that cannot be seen as its
code, such as `<U+200B>`. The fields below the titles search one column, for instance only the sources. A click on a title sorts
by that column.

"""


RESTING = 0.99  # of a head's attention on the start token: it rests
NEVER_CARRIED_OUT = " It rests there: what its lists say is never carried out."


def head_page(
    model: str, rows: pd.DataFrame, rest: Rest, names: Sequence[str], akin: Sequence[Collection[int]], index: str
) -> str:
    """The page of one head in MyST Markdown; `index` is the file name of the index page, without suffix."""
    layer, head = rows["layer"].iloc[0], rows["head"].iloc[0]
    at_rest = float(rest[layer, head])
    # `nosearch`: the book's own search would find twelve lists for every word.
    prose = HEAD_PAGE.format(
        layer=layer, head=head, model=model, shown=len(rows), d_vocab=len(names), index=index,
        rest=f"{100 * at_rest:.0f} %", resting=NEVER_CARRIED_OUT if at_rest > RESTING else "",
    )  # fmt: skip
    return prose + raw(
        f'<link rel="stylesheet" href="{STATIC}/datatables/datatables.css">\n'
        f'<link rel="stylesheet" href="{STATIC}/head_dump.css">\n'
        f'<div class="token-table head-dump tex2jax_ignore mathjax_ignore">\n{table(rows, names, akin)}\n</div>\n'
        f'<script defer src="{STATIC}/datatables/datatables.js"></script>\n<script defer src="{STATIC}/head_dump.js"></script>'
    )


INDEX_PAGE = """\
# The head dump: what each head does with each token

A head of a one-layer model can be read as a list of skip-trigrams: *source* ... *destination* → *out*. The paper does so for
every head and links the lists in full {cite:p}`elhage2021`. Here they are for our models: complete, in an order fixed by a
formula, none chosen for looking good.

## How to read a row

A row is about one **source** token, standing somewhere earlier in the text. Its **destinations** are the tokens that want most
to attend to it: the largest entries of its column in the QK circuit, $W_E W_Q W_K^\\top W_E^\\top / \\sqrt{d_\\text{head}}$.
Its **outs** are the tokens that gain most when it is attended to: the largest entries of its row in the OV circuit,
$W_E W_V W_O W_U$, less the row's mean, because softmax does not see what is added to every logit alike. So a row says: if the
source came earlier, and one of the destinations is the present token, then this head makes the outs likelier to come next.

EXAMPLE
Each page has the first N_SOURCES source tokens of a head, in the order of

$$\\text{score} = \\max \\text{QK} \\cdot \\max \\text{OV} \\cdot p(\\text{source})^{0.1} ,$$

the highest entry of the column, times the highest of the row, times the token's frequency in the training text to a small
power, so that tokens the model hardly ever saw do not fill the first places.

## What a row does not say

- **How much attention there is.** Softmax weighs the sources of one destination against one another. Entries of one *column*
  belong to different destinations, and what a destination gives to all sources alike does not count. A destination that heads
  most of a head's lists may be one with large scores for everything.
- **Where the source is.** Positions are left out. For heads that attend by position, such as to the token before, they matter
  more than anything that the lists show.
- **What is predicted in the end.** The direct path and the other heads add to the same logits.
- **Which character.** Tokens that hold a part of a character all look like `�`. The file below has their ids. Characters that
  cannot be seen are written as their code, such as `<U+200B>`.

## The heads

*Copies* counts, among the sources on a head's page, those with an out that repeats them, up to case, a leading space, or a
plural ending. *At rest* is the head's mean attention to the start-of-text token in held-out text. A head with all of its
attention there never attends to a source, and its list is never carried out.

HEADS
## All sources, as a file

The pages stop after N_SOURCES sources. The lists of all sources of all heads, strings, ids and numbers:

DOWNLOADS

To read one:

```python
import pandas as pd

dump = pd.read_parquet("MODEL.parquet")
dump[dump.source_token == " the"]  # one source, in every head
dump[dump.out_tokens.map(lambda outs: "self" in outs)]  # who raises "self"?
```

`score`, `destination_scores` and `out_boosts` are rounded to DIGITS decimals; `rank` counts from 1 within a head.
"""


def example(dump: pd.DataFrame, names: Sequence[str]) -> str:
    """One row as a sentence: the highest score of the words whose first out is the word itself (of all rows if none is)."""
    own = dump[[row.outs[0] == row.source and word_of(names[row.source]) is not None for row in dump.itertuples()]]
    row = (dump if own.empty else own).nlargest(1, "score").iloc[0]
    to, out = (" ".join(token(names[i]) for i in ids[:3]) for ids in (row["destinations"], row["outs"]))
    return (
        '<p class="tex2jax_ignore mathjax_ignore">'
        f"For example, head {row['layer']}.{row['head']} has, at rank {row['rank']}, the source "
        f"{token(names[row['source']])} with the destinations {to} and the outs {out} in the lead: where one of these destinations "
        f"follows some time after {token(names[row['source']])}, the head tells the model to go on with one of these outs.</p>"
    )


def overview(
    model: str, dump: pd.DataFrame, rest: Rest, names: Sequence[str], akin: Sequence[Collection[int]], folder: str
) -> str:
    """A row for each head of a model, as an HTML table with links to the pages in `folder`."""
    lines = []
    for (layer, head), rows in dump.groupby(["layer", "head"]):
        found = sum(any(copies(row.source, row.outs, akin)) for row in rows.itertuples())
        first = " ".join(token(names[i]) for i in rows["source"][:FIRST])
        link = f"{quote(folder)}/{quote(page_name(model, layer, head))}.html"
        lines.append(
            f'<tr><td><a href="{link}">{layer}.{head}</a></td>'
            f'<td class="number">{found}&nbsp;of&nbsp;{len(rows)}</td><td class="number">{rest[layer, head]:.0%}</td>'
            f"<td>{first}</td></tr>"
        )
    head = "".join(f'<th scope="col">{title}</th>' for title in ("head", "copies", "at rest", "its first sources"))
    body = "\n".join(lines)
    return (
        '<div class="token-table tex2jax_ignore mathjax_ignore"><table>\n'
        f"<caption>{html.escape(model)}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def index_page(
    dumps: dict[str, pd.DataFrame], rest: dict[str, Rest], names: Sequence[str], akin: Sequence[Collection[int]], folder: str
) -> str:
    """The page that explains and links the others, in MyST Markdown; `dumps` holds what the pages show, by model."""
    parts = {
        "EXAMPLE": raw(example(next(iter(dumps.values())), names)),
        "HEADS": "\n".join(raw(overview(model, dump, rest[model], names, akin, folder)) for model, dump in dumps.items()),
        "DOWNLOADS": "\n".join(f"- {{download}}`{model}.parquet <{folder}/{model}.parquet>`" for model in dumps),
        "MODEL": next(iter(dumps)),
        "N_SOURCES": str(N_SOURCES),
        "DIGITS": str(DIGITS),
    }
    # In one go, since a token may look like one of these names.
    return re.sub("|".join(parts), lambda found: parts[found[0]], INDEX_PAGE)


def write_pages(out: Path, dumps: dict[str, pd.DataFrame], rest: dict[str, Rest], names: Sequence[str]) -> None:
    """Write the index page to `out`, and into the folder of the same name the heads' pages and the Parquet files.

    `dumps`: by model, with all source tokens; `rest`: by model, each head's attention to the start token. The index page is written
    last: where it is, all of them are.
    """
    folder, akin, shown = out.with_suffix(""), akin_to(names), {}
    for model, dump in dumps.items():
        shown[model] = dump[dump["rank"] <= N_SOURCES]
        (folder / model).mkdir(parents=True, exist_ok=True)
        for (layer, head), rows in shown[model].groupby(["layer", "head"]):
            page = folder / f"{page_name(model, layer, head)}.md"
            page.write_text(head_page(model, rows, rest[model], names, akin, out.stem), encoding="utf8")
        write_parquet(dump, names, folder / f"{model}.parquet")
    out.write_text(index_page(shown, rest, names, akin, out.stem), encoding="utf8")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m transformer_circuits.figures.dump_pages", description="Write the pages of the head dump."
    )
    parser.add_argument("out", type=Path, help="Markdown file of the index page; the others go into the folder of that name")
    out = parser.parse_args(argv).out

    from transformer_circuits.models import load_model

    frequency = SmoothedBigrams.of(bigram_counts()).frequency
    models = {name: Weights.of(load_model(name)) for name in MODELS}
    dumps = {name: head_dump(weights, frequency.to(weights.W_E.device), n_sources=None, k=K) for name, weights in models.items()}
    windows = {name: held_out_windows(12, w.n_ctx)[:, : w.n_ctx].to(w.W_E.device) for name, w in models.items()}
    rest = {name: attention_to_start(w, windows[name]) for name, w in models.items()}
    write_pages(out, dumps, rest, vocabulary())


if __name__ == "__main__":
    main()
