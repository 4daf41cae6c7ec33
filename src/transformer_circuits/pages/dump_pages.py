"""The pages of the head dump: one for each head of the one-layer models, an index that explains them, everything as Parquet files.

    python -m transformer_circuits.pages.dump_pages OUT.md       (the build does; pages and files go to the folder OUT next to it)

The tables are plain HTML that needs no script; `book/_static/head_dump.js` adds search and sorting.
"""

from __future__ import annotations

import html
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from jaxtyping import Float
from torch import Tensor

from transformer_circuits.circuits.bigrams import SmoothedBigrams
from transformer_circuits.circuits.head_dump import head_dump
from transformer_circuits.circuits.heads import start_token_scores
from transformer_circuits.circuits.skip_trigrams import Hits, count_hits, nearest, paper_list
from transformer_circuits.circuits.words import akin_to, word_of
from transformer_circuits.data import bigram_counts, held_out_windows, vocabulary
from transformer_circuits.figures.tokens import show_token
from transformer_circuits.measures.attention import RESTING
from transformer_circuits.models import load_model
from transformer_circuits.pages import raw

MODELS = ("attn-only-1l", "attn-only-1l-32h")  # with one layer: a second one reads more than tokens
N_SOURCES, K = 300, 10  # per page, and tokens per list; the Parquet file has all sources
FIRST = 8  # sources shown for each head on the index page
FOLDER = "head_dump"  # of the pages of single heads, beside the index page
STATIC = "../../../_static"  # from a page book/head_dump/<model>/<head>.html
DIGITS = 3  # decimals in the Parquet file

Akin = Sequence[Collection[int]]


def write_parquet(dump: pd.DataFrame, names: Sequence[str], path: Path) -> None:
    """Write the dump as a Parquet file, with the tokens' strings next to their ids and numbers rounded to DIGITS decimals."""
    columns = {
        "source_token": [names[i] for i in dump["source"]],
        "score": dump["score"].round(DIGITS).astype("float32"),
    }
    for column in ("destination", "out"):
        columns[f"{column}_tokens"] = [[names[i] for i in ids] for ids in dump[f"{column}s"]]
    for column in ("destination_scores", "out_boosts"):
        columns[column] = [[round(x, DIGITS) for x in row] for row in dump[column]]
    dump.assign(**columns).to_parquet(path, engine="pyarrow", compression="zstd", index=False)


def token(name: str, kind: str = "") -> str:
    """Return a token as HTML: literal, whitespace visible."""
    return f'<code class="token{kind}">{html.escape(show_token(name))}</code>'


def tokens(ids: Sequence[int], names: Sequence[str], marked: Collection[int] = ()) -> str:
    return " ".join(token(names[i], " copy" * (i in marked)) for i in ids)


def table(columns: Mapping[str, Sequence[object]]) -> str:
    """Return an HTML table of cells that are HTML already, in a box that MathJax leaves alone."""
    with pd.option_context("display.max_colwidth", None):
        rows = pd.DataFrame(columns).to_html(index=False, escape=False, border=0)
    return f'<div class="token-table head-dump tex2jax_ignore mathjax_ignore">\n{rows}\n</div>'


HEAD_PAGE = """\
---
nosearch: true
---
# Head 0.{head} of {model}

In held-out text this head puts {rest:.0%} of its attention on the start token.{resting}

The table has the first {shown} of {d_vocab:,} source tokens. [The page of all heads](../../head_dump.md) explains the order and how
to read a row. *QK* is the QK score of the first destination. *OV* is what attending to the source adds to the logit of the first out
token. Out tokens that repeat the source, ignoring case, a leading space, or a plural ending, are underlined.

The search is literal, ignores case, and looks in every token of a row: `two` and `·two` both find the token `·two`. Type `·` for a
space in a token, `↵` for a line break, and the code of a character that cannot be seen, such as `<U+200B>`. Each field below a title
searches its column. Click on a title to sort by that column.

"""


def head_page(model: str, rows: pd.DataFrame, rest: float, names: Sequence[str], akin: Akin) -> str:
    """Return the page of one head in MyST Markdown."""
    resting = " It is a resting head: its lists have almost no effect." if rest >= RESTING else ""
    columns = {
        "rank": rows["rank"],
        "source": [token(names[i]) for i in rows["source"]],
        "destinations": [tokens(ids, names) for ids in rows["destinations"]],
        "out tokens": [tokens(ids, names, {i, *akin[i]}) for i, ids in zip(rows["source"], rows["outs"])],
        "score": rows["score"].map("{:.2f}".format),
        "QK": rows["destination_scores"].str[0].map("{:.2f}".format),
        "OV": rows["out_boosts"].str[0].map("{:.2f}".format),
    }
    # `nosearch`: the book's own search would find a list of each head for every word.
    text = HEAD_PAGE.format(
        head=rows["head"].iloc[0],
        model=model,
        rest=rest,
        resting=resting,
        shown=len(rows),
        d_vocab=len(names),
    )
    files = ("datatables/datatables", "head_dump")
    styles = [f'<link rel="stylesheet" href="{STATIC}/{name}.css">' for name in files]
    scripts = [f'<script defer src="{STATIC}/{name}.js"></script>' for name in files]
    return text + raw("\n".join([*styles, table(columns), *scripts]))


INDEX_PAGE = """\
# The head dump: what each head does with each token

A head of a one-layer model can be read as a list of skip-trigrams: *source* ... *destination* → *out token*. The paper does this for
every head and links the full lists {cite:p}`elhage2021`. Here are the lists of our two one-layer models, in an order that a formula
determines.

## How to read a row

A row is about one **source** token, which occurs somewhere earlier in the text. Its **destinations** are the tokens that attend to it
most: the largest entries of its column in the QK circuit, $W_E W_Q W_K^\\top W_E^\\top / \\sqrt{d_\\text{head}}$. Its **out tokens** are
the tokens whose logits rise most when a token attends to it: the largest entries of its row in the OV circuit, $W_E W_V W_O W_U$. We
subtract the row's mean, because softmax ignores what is added to every logit equally. (In these products, as in code, tokens are rows.)

EXAMPLE
Each page has the first N_SOURCES source tokens of a head, ordered by

$$\\text{score} = \\max \\text{QK} \\cdot \\max \\text{OV} \\cdot p(\\text{source})^{0.1} .$$

This is the highest entry of the column, times the highest entry of the row, times a small power of the token's frequency in the
training text. The power keeps tokens that the model rarely saw out of the first places.

## What a row does not show

- **How much attention there is.** A row lists the destinations with the highest scores for one source. But softmax compares the scores
  that one destination gives to different sources. A destination that is listed first for most sources of a head may give a high score
  to every source, which changes nothing.
- **Where the source is.** Positions are left out. They matter more than these lists for heads that attend by position, such as a
  previous-token head.
- **What is predicted in the end.** The direct path and the other heads add to the same logits.
- **Which character.** Tokens that contain a part of a character all look like `�`. The file below has their ids. Characters that
  cannot be seen appear as their code, such as `<U+200B>`.

## The heads

*Copies* counts the sources on a head's page that have an out token that repeats them, ignoring case, a leading space, or a plural
ending. *On start* is the head's mean attention to the start token in held-out text. A head with all of its attention there never
attends to a source, so its list has no effect.

HEADS
## All sources, as a file

The pages stop after N_SOURCES sources. These files have all sources of all heads, with strings, ids, and numbers:

DOWNLOADS

To read one:

```python
import pandas as pd

dump = pd.read_parquet("MODEL.parquet")
dump[dump.source_token == " the"]  # one source, in every head
dump[dump.out_tokens.map(lambda outs: "self" in outs)]  # what raises "self"?
```

`score`, `destination_scores`, and `out_boosts` are rounded to DIGITS decimals. `rank` counts from 1 within a head.
LISTED
"""

PAPER_LIST = """
## The skip-trigrams that the paper lists, in MODEL

The paper lists skip-trigrams that do not copy. [Chapter 4](../notebooks/04_skip_trigrams.ipynb) looks them up in every head. A *hit* has its
destination in the top 1% of the source's column and its out token in the top 1% of the source's row. We try each token with and without a
leading space, and show the choice and the head that come nearest to a hit. The last two columns give the percentage of tokens that rank
above the destination and above the out token. *Split*: our vocabulary splits the tokens shown, and `|` separates their pieces. *Any
destination*: the paper leaves the destination open.

"""


def example(dump: pd.DataFrame, names: Sequence[str]) -> str:
    """Return one row as a sentence: the highest score among words whose first out token is the word itself (among all rows if there is none)."""
    own = dump[
        [row.outs[0] == row.source and word_of(names[row.source]) is not None for row in dump.itertuples()]
    ]
    row = (dump if own.empty else own).nlargest(1, "score").iloc[0]
    source = token(names[row["source"]])
    return (
        f'<p class="tex2jax_ignore mathjax_ignore">For example, at rank {row["rank"]} of head 0.{row["head"]} is the source {source}. Its first '
        f"destinations are {tokens(row['destinations'][:3], names)} and its first out tokens {tokens(row['outs'][:3], names)}. When one of these "
        f"destinations occurs some time after {source}, the head makes these out tokens more likely to come next.</p>"
    )


def overview(
    model: str, dump: pd.DataFrame, rest: Float[Tensor, " head"], names: Sequence[str], akin: Akin
) -> str:
    """Return a table with a row for each head of a model, and links to their pages."""
    lines = []
    for head, rows in dump.groupby("head"):
        copies = sum(not {i, *akin[i]}.isdisjoint(outs) for i, outs in zip(rows["source"], rows["outs"]))
        lines.append({
            "head": f'<a href="{FOLDER}/{model}/0_{head}.html">0.{head}</a>',
            "copies": f"{copies}&nbsp;of&nbsp;{len(rows)}",
            "on start": f"{rest[head]:.0%}",
            "its first sources": tokens(rows["source"][:FIRST], names),
        })  # fmt: skip
    return f"<p><strong>{model}</strong></p>\n{table(pd.DataFrame(lines))}"


def looked_up(model: Any, names: Sequence[str]) -> pd.DataFrame:
    """Return the paper's skip-trigrams, which are hits, and where each comes nearest to one (claim S4)."""
    listed = pd.DataFrame(
        paper_list(names, lambda text: model.tokenizer.encode(text, add_special_tokens=False))
    )
    hits = Hits.of(model)
    listed["hit"] = count_hits(hits, listed.forms).any(0)
    return listed.join(nearest(hits, listed.forms, names))


def paper_table(listed: pd.DataFrame) -> str:
    """Return the skip-trigrams of `looked_up` as an HTML table."""
    rows = []
    for row in listed.to_dict("records"):
        found = isinstance(row["tokens"], list)  # NaN if a token is split
        rows.append({
            "the paper": html.escape(row["paper"]),
            "in our tokens": " ".join(map(token, row["tokens"] if found else row["pieces"])),
            "result": "hit" if row["hit"] else "no" if found else "split" if row["pieces"] else "any destination",
            "head": row["head"] if found else "",
            "above destination (%)": f"{row['above d (%)']:.2f}" if found else "",
            "above out token (%)": f"{row['above o (%)']:.2f}" if found else "",
        })  # fmt: skip
    return table(pd.DataFrame(rows))


def write_pages(
    out: Path,
    dumps: Mapping[str, pd.DataFrame],
    rest: Mapping[str, Float[Tensor, " head"]],
    names: Sequence[str],
    listed: str = "",
) -> None:
    """Write the index page to `out`, and into FOLDER beside it the heads' pages and the Parquet files.

    `dumps`: by model, with all source tokens; `rest`: by model, each head's attention to the start token; `listed`: the table of
    `paper_table`, if there is one.
    """
    folder, akin = out.parent / FOLDER, akin_to(names)
    shown = {model: dump[dump["rank"] <= N_SOURCES] for model, dump in dumps.items()}
    for model, dump in dumps.items():
        (folder / model).mkdir(parents=True, exist_ok=True)
        for head, rows in shown[model].groupby("head"):
            page = head_page(model, rows, float(rest[model][head]), names, akin)
            (folder / model / f"0_{head}.md").write_text(page, encoding="utf8")
        write_parquet(dump, names, folder / f"{model}.parquet")
    overviews = [raw(overview(model, dump, rest[model], names, akin)) for model, dump in shown.items()]
    downloads = [f"- {{download}}`{model}.parquet <{FOLDER}/{model}.parquet>`" for model in dumps]
    first = next(iter(dumps))
    parts = {
        "EXAMPLE": raw(example(shown[first], names)),
        "HEADS": "\n".join(overviews),
        "LISTED": PAPER_LIST.replace("MODEL", first) + raw(listed) if listed else "",
        "DOWNLOADS": "\n".join(downloads),
        "MODEL": first,
        "N_SOURCES": str(N_SOURCES),
        "DIGITS": str(DIGITS),
    }
    # Replaced together, since a token may look like one of these names.
    out.write_text(re.sub("|".join(parts), lambda found: parts[found[0]], INDEX_PAGE), encoding="utf8")


def main(out: Path) -> None:
    frequency, dumps, rest = SmoothedBigrams.of(bigram_counts()).frequency, {}, {}
    for name in MODELS:
        model = load_model(name)
        dumps[name] = head_dump(model, frequency, n_sources=None, k=K)
        windows = held_out_windows(12, model.cfg.n_ctx)[:, :-1].to(model.W_E.device)
        rest[name] = start_token_scores(model, windows)[0]
    listed = paper_table(looked_up(load_model(next(iter(dumps))), vocabulary()))
    write_pages(out, dumps, rest, vocabulary(), listed)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
