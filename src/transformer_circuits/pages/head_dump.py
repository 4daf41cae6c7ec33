"""The pages of the head dump: one for each head of the one-layer models, an index that explains them, all of it as Parquet.

    python -m transformer_circuits.pages.head_dump OUT.md       (the build does; pages and files go to the folder OUT beside it)

The tables are plain HTML, readable as they are; `book/_static/head_dump.js` makes them searchable and sortable.
"""

from __future__ import annotations

import argparse
import html
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import pandas as pd
import pyarrow as pa
from jaxtyping import Float
from torch import Tensor

from transformer_circuits.circuits.bigrams import SmoothedBigrams
from transformer_circuits.circuits.head_dump import head_dump
from transformer_circuits.circuits.heads import start_token_scores
from transformer_circuits.circuits.words import akin_to, word_of
from transformer_circuits.data import bigram_counts, held_out_windows, vocabulary
from transformer_circuits.figures.tokens import show_token
from transformer_circuits.models import list_models, load_model
from transformer_circuits.pages import raw

MODELS = ("attn-only-1l", "attn-only-1l-32h")  # with one layer: a second one reads more than tokens
N_SOURCES, K = 300, 10  # of each page; the Parquet file has all sources
FIRST = 8  # sources shown for each head on the index page
STATIC = "../../../_static"  # from a page book/head_dump/<model>/<head>.html
DIGITS = 3  # decimals in the Parquet file
RESTING = 0.95  # of a head's attention on the start token: it rests

Rest = Float[Tensor, " head"]  # mean attention to the start token
Akin = Sequence[Collection[int]]


def models_listed() -> list[str]:
    """Those of MODELS that are on this machine: the pages are about them."""
    return [name for name in MODELS if name in list_models()]


ID, IDS, STRINGS, NUMBERS = pa.int32(), pa.list_(pa.int32()), pa.list_(pa.string()), pa.list_(pa.float32())
SCHEMA = pa.schema({"layer": ID, "head": ID, "rank": ID, "source": ID, "source_token": pa.string(), "score": pa.float32(), "destinations": IDS,
                    "destination_tokens": STRINGS, "destination_scores": NUMBERS, "outs": IDS, "out_tokens": STRINGS, "out_boosts": NUMBERS})  # fmt: skip


def write_parquet(dump: pd.DataFrame, names: Sequence[str], path: Path) -> None:
    """The dump as a Parquet file, with the tokens' strings beside their ids and numbers rounded to DIGITS decimals."""
    strings = {f"{column}_tokens": [[names[i] for i in ids] for ids in dump[f"{column}s"]] for column in ("destination", "out")}
    short = {c: [[round(x, DIGITS) for x in row] for row in dump[c]] for c in ("destination_scores", "out_boosts")}
    sources = {"source_token": [names[i] for i in dump["source"]], "score": dump["score"].round(DIGITS)}
    table = dump.assign(**strings, **short, **sources)[SCHEMA.names]
    table.to_parquet(path, engine="pyarrow", compression="zstd", index=False, schema=SCHEMA)


def token(name: str, kind: str = "") -> str:
    """A token as HTML: literal, whitespace visible."""
    return f'<code class="token{kind}">{html.escape(show_token(name))}</code>'


def tokens(ids: Sequence[int], names: Sequence[str], marked: Collection[int] = ()) -> str:
    return " ".join(token(names[i], " copy" * (i in marked)) for i in ids)


def table(rows: pd.DataFrame, names: Sequence[str], akin: Akin) -> str:
    """One head's rows as an HTML table; outs that repeat the source are marked."""
    columns = {"rank": "number", "source": "tokens", "destinations": "tokens list", "outs": "tokens list",
               "score": "number", "QK": "number", "OV": "number"}  # fmt: skip
    head = "".join(f'<th scope="col" class="{kind}">{name}</th>' for name, kind in columns.items())
    body = "\n".join(
        f'<tr><td class="number">{row.rank}</td><td>{token(names[row.source])}</td><td>{tokens(row.destinations, names)}</td>'
        f"<td>{tokens(row.outs, names, {row.source, *akin[row.source]})}</td>"
        + "".join(f'<td class="number">{x:.2f}</td>' for x in (row.score, row.destination_scores[0], row.out_boosts[0]))
        + "</tr>"
        for row in rows.itertuples()
    )
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"


HEAD_PAGE = """\
---
nosearch: true
---
# Head 0.{head} of {model}

In held-out text this head gives {rest:.0%} of its attention to the start-of-text token.{resting}

The first {shown} of {d_vocab:,} source tokens; [the page of all heads](../../{index}.md) explains the order and how to read a
row. *QK* is the score of the first destination, *OV* the boost of the first out. Outs that repeat the source, up to case, a
leading space or a plural ending, are underlined.

The search takes what is typed literally, whether upper or lower case, and looks for it in every token of a row: `two` and
`·two` both find the token `·two`. A space in a token is typed as `·`, a line break as `↵`, a character that cannot be seen as its
code, such as `<U+200B>`. The fields below the titles search one column, for instance only the sources. A click on a title sorts
by that column.

"""


def head_page(model: str, rows: pd.DataFrame, rest: float, names: Sequence[str], akin: Akin, index: str) -> str:
    """The page of one head in MyST Markdown; `index` is the file name of the index page, without suffix."""
    resting = " It rests there: what its lists say is hardly ever carried out." if rest >= RESTING else ""
    # `nosearch`: the book's own search would find a list of each head for every word.
    return HEAD_PAGE.format(
        head=rows["head"].iloc[0], model=model, shown=len(rows), d_vocab=len(names), index=index, rest=rest, resting=resting
    ) + raw(
        f'<link rel="stylesheet" href="{STATIC}/datatables/datatables.css">\n<link rel="stylesheet" href="{STATIC}/head_dump.css">\n'
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
    source = token(names[row["source"]])
    return (
        f'<p class="tex2jax_ignore mathjax_ignore">For example, head 0.{row["head"]} has, at rank {row["rank"]}, the source {source} with the '
        f"destinations {tokens(row['destinations'][:3], names)} and the outs {tokens(row['outs'][:3], names)} in the lead: where one of these "
        f"destinations follows some time after {source}, the head tells the model to go on with one of these outs.</p>"
    )


def overview(model: str, dump: pd.DataFrame, rest: Rest, names: Sequence[str], akin: Akin, folder: str) -> str:
    """A row for each head of a model, as an HTML table with links to the pages in `folder`."""
    lines = []
    for head, rows in dump.groupby("head"):
        found = sum(not {row.source, *akin[row.source]}.isdisjoint(row.outs) for row in rows.itertuples())
        lines.append(
            f'<tr><td><a href="{quote(folder)}/{quote(model)}/0_{head}.html">0.{head}</a></td>'
            f'<td class="number">{found}&nbsp;of&nbsp;{len(rows)}</td><td class="number">{rest[head]:.0%}</td>'
            f"<td>{tokens(rows['source'][:FIRST], names)}</td></tr>"
        )
    head = "".join(f'<th scope="col">{title}</th>' for title in ("head", "copies", "at rest", "its first sources"))
    body = "\n".join(lines)
    return (
        '<div class="token-table tex2jax_ignore mathjax_ignore"><table>\n'
        f"<caption>{html.escape(model)}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def write_pages(out: Path, dumps: Mapping[str, pd.DataFrame], rest: Mapping[str, Rest], names: Sequence[str]) -> None:
    """Write the index page to `out`, and into the folder of the same name the heads' pages and the Parquet files.

    `dumps`: by model, with all source tokens; `rest`: by model, each head's attention to the start token. The index page is written
    last: where it is, all of them are.
    """
    folder, akin = out.with_suffix(""), akin_to(names)
    shown = {model: dump[dump["rank"] <= N_SOURCES] for model, dump in dumps.items()}
    for model, dump in dumps.items():
        (folder / model).mkdir(parents=True, exist_ok=True)
        for head, rows in shown[model].groupby("head"):
            page = head_page(model, rows, float(rest[model][head]), names, akin, out.stem)
            (folder / model / f"0_{head}.md").write_text(page, encoding="utf8")
        write_parquet(dump, names, folder / f"{model}.parquet")
    parts = {
        "EXAMPLE": raw(example(next(iter(shown.values())), names)),
        "HEADS": "\n".join(raw(overview(model, dump, rest[model], names, akin, out.stem)) for model, dump in shown.items()),
        "DOWNLOADS": "\n".join(f"- {{download}}`{model}.parquet <{out.stem}/{model}.parquet>`" for model in dumps),
        "MODEL": next(iter(dumps)),
        "N_SOURCES": str(N_SOURCES),
        "DIGITS": str(DIGITS),
    }
    # In one go, since a token may look like one of these names.
    out.write_text(re.sub("|".join(parts), lambda found: parts[found[0]], INDEX_PAGE), encoding="utf8")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m transformer_circuits.pages.head_dump", description="Write the pages of the head dump.")
    parser.add_argument("out", type=Path, help="Markdown file of the index page; the others go into the folder of that name")
    out = parser.parse_args(argv).out
    frequency, dumps, rest = SmoothedBigrams.of(bigram_counts()).frequency, {}, {}
    for name in models_listed():
        model = load_model(name)
        dumps[name] = head_dump(model, frequency, n_sources=None, k=K)
        windows = held_out_windows(12, model.cfg.n_ctx)[:, :-1].to(model.W_E.device)
        rest[name] = start_token_scores(model, windows)[0]
    write_pages(out, dumps, rest, vocabulary())


if __name__ == "__main__":
    main()
