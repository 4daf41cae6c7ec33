"""The page of models: what the trainer wrote into each manifest and log, and what they read. Nothing in it is typed.

    python -m transformer_circuits.pages.models OUT.md
"""

from __future__ import annotations

import argparse
import functools
import json
import math
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from transformer_circuits.data import D_VOCAB, held_out_documents, load_tokenizer
from transformer_circuits.figures import use_style
from transformer_circuits.models.registry import training_log
from transformer_circuits.models.shards import read_manifest
from transformer_circuits.paths import DATA, WEIGHTS
from transformer_circuits.training.corpus import load_sources
from transformer_circuits.training.vocabulary import pieces

AT_REST = 0.95  # a head that leaves so much of its attention on the start token is at rest

PROSE = """\
# The models

The family of chapters 0 to 11 has the paper's architecture: attention only, no biases, no normalization, positions added only where
queries and keys are computed. Its vocabulary, context and width are smaller than the paper's (about 50,000 tokens, 2,048 and 768), so
that two CPU cores can train it to the state that the chapters need. All numbers on this page come from files that the trainer wrote.

The models are for looking into. They have read little, know little, and are of no use for anything else.
"""
COLUMNS = """\
Scores are those of the last row of each model's log, on held-out text and on random tokens that repeat, as `training.scores` defines
them: the in-context score is the loss around token 500 minus the loss around token 50 (in smaller contexts both move in proportion), a
head at rest leaves 95 % of its attention or more on the start token, bits per byte set losses in different vocabularies side by side.
A dash stands for what a model does not have, or its log does not hold.
"""
CURVES = """\
```{{figure}} {file}
:alt: {alt}

While the family reads: held-out loss, the best induction score of any head, and the share of heads at rest, from the same logs.
```
"""
OTHERS = """\
## The others

Claims about several seeds or other architectures are judged on small models (chapters 12 and 13): half the width and a vocabulary of
512 tokens, the first of the family's. The melody models (chapter 14) read the 88 keys of a piano.
"""
TRAINING = """\
## How they were trained

Next-token prediction on windows of text, each with the start token in front, in random order; AdamW; the learning rate rises, stays,
and falls along a cosine. The same seed, data and number of threads give the same weights again. A run goes on where it stopped if its
command is given again, and each folder in `weights/` holds its log, `training.jsonl`.

    python -m transformer_circuits.training.corpus --out corpus
    python -m transformer_circuits.training.train --config attn-only-2l \\
        --data corpus --out runs/attn-only-2l
    python -m transformer_circuits.training.train --config small-2l \\
        --name small-2l-seed-1 --set seed=1 \\
        --data corpus --out runs/small-2l-seed-1
    python -m transformer_circuits.training.melodies --out melodies
    python -m transformer_circuits.training.train --config melodies-2l \\
        --data melodies --out runs/melodies-2l
"""
DATA_TEXT = """\
## What they read

Copy oracle: the share of tokens that one rule predicts rightly, "what followed the present token last time, within 512 tokens,
follows again". It says how much an induction head could earn on a text, before anything is trained.
"""


def names(group: str = "attn-only") -> list[str]:
    """Shipped models of a group ("attn-only": the family, "small", "melodies"), the ones with fewer layers first."""
    found = [path.parent for path in WEIGHTS.glob(f"{group}-*/manifest.json")]
    return [path.name for path in sorted(found, key=lambda path: (read_manifest(path)["config"]["n_layers"], path.name))]


@functools.cache
def bytes_per_token(d_vocab: int) -> float:
    """Bytes of held-out text for each token that it takes in the first `d_vocab` tokens of the family's vocabulary."""
    tokens = np.concatenate([part.numpy() for _, part in held_out_documents()])
    tokenizer = load_tokenizer()
    length = np.array([len(token) for token in tokenizer.convert_ids_to_tokens(range(len(tokenizer)))])  # a byte is one character there
    length[tokenizer.bos_token_id] = 0
    cut = pieces(json.loads((DATA / "tokenizer.json").read_text(encoding="utf8")), d_vocab)
    return length[tokens].sum() / np.array([len(parts) for parts in cut])[tokens].sum()


def best(scores: Any) -> str:
    """The highest of scores [layer][head] with its head; a dash where there are none."""
    if not isinstance(scores, list) or not scores:
        return "–"
    found = np.array(scores)
    layer, head = np.unravel_index(found.argmax(), found.shape)
    return f"{found.max():.2f} (head {layer}.{head})"


def card(name: str) -> dict[str, str]:
    """What the page says about a model: by name, in words."""
    config, last = read_manifest(WEIGHTS / name)["config"], training_log(name).iloc[-1].to_dict()
    heads = [value for layer in last["rest"] for value in layer] if isinstance(last.get("rest"), list) else []
    extras = [what for key, what in (("normalization", "layer normalization"), ("smeared_keys", "smeared keys"),
                                     ("standard_positions", "standard positions"), ("d_mlp", "MLPs")) if config.get(key)]  # fmt: skip
    read = not name.startswith("melodies") and config["d_vocab"] <= D_VOCAB  # text in the family's tokens
    return {
        "layers": f"{config['n_layers']}" + (f", {', '.join(extras)}" if extras else ""),
        "heads a layer": f"{config['n_heads']} of {config['d_head']}",
        "width": f"{config['d_model']}",
        "vocabulary": f"{config['d_vocab']:,}",
        "context": f"{config['n_ctx']}",
        "million tokens seen": f"{last['tokens'] / 1e6:.0f}",
        "held-out loss (nats a token)": f"{last['held_out']:.3f}",
        "bits per byte": f"{last['held_out'] / math.log(2) / bytes_per_token(config['d_vocab']):.3f}" if read else "–",
        "in-context score (nats)": f"{last['in_context']:.2f}".replace("-", "−"),
        "best previous-token score": best(last.get("previous_token")),
        "best induction score": best(last.get("induction")),
        "heads at rest": f"{sum(value >= AT_REST for value in heads)} of {len(heads)}" if heads else "–",
        "hours of training": f"{last['seconds'] / 3600:.1f}",
    }


def cards(group: str = "attn-only") -> pd.DataFrame:
    """One row a model of the group."""
    return pd.DataFrame({name: card(name) for name in names(group)}).T.rename_axis("model").reset_index()


def curves(group: str = "attn-only") -> Figure:
    """What the logs of a group hold, over the tokens read: held-out loss, best induction score, share of heads at rest."""
    fig, panels = plt.subplots(1, 3, figsize=(9.6, 2.9), layout="constrained")
    for i, name in enumerate(names(group)):
        log = training_log(name)
        lines = {"held-out loss (nats a token)": log["held_out"]}
        if "rest" in log:
            lines["best induction score"] = [np.max(scores) for scores in log["induction"]]
            lines["share of heads at rest"] = [np.mean(np.array(scores) >= AT_REST) for scores in log["rest"]]
        for (label, values), axes in zip(lines.items(), panels):
            axes.plot(log["tokens"] / 1e6, values, color=f"C{i}", linestyle=("-", "--", ":")[i % 3], label=name)
            axes.set(xlabel="million tokens", ylabel=label)
    for axes in panels[1:]:
        axes.set_ylim(-0.02, 1)
    panels[0].legend()
    return fig


def corpus() -> pd.DataFrame:
    """One row per kind of text: tokens (training and held out together) and the copy oracle."""
    report = json.loads((DATA / "corpus.json").read_text(encoding="utf8"))
    rows = [{"kind": kind, **row} for kind, row in report["kinds"].items()]
    return pd.DataFrame(rows).sort_values("tokens", ascending=False, ignore_index=True)


def sources() -> pd.DataFrame:
    """One row per source and kind of text, with version, licence and copy oracle."""
    report = pd.DataFrame(json.loads((DATA / "corpus.json").read_text(encoding="utf8"))["sources"])
    listed = {source["name"]: source for source in load_sources()}
    report["version"] = [listed[s].get("version") or listed[s]["commit"][:10] for s in report["source"]]
    report["licence"] = [listed[s]["licence"] for s in report["source"]]
    return report


def table(frame: pd.DataFrame) -> str:
    """A pipe table; whole numbers in groups of three digits, others with three decimals."""

    def cell(value: object) -> str:
        if isinstance(value, float) and value != int(value):
            return f"{value:.3f}"
        return f"{value:,.0f}" if isinstance(value, (int, float)) else str(value).replace("|", "\\|")

    rows = [[cell(value) for value in row] for row in frame.astype(object).itertuples(index=False, name=None)]
    lines = [frame.columns, ["---"] * len(frame.columns), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("_", " ") for cell in line) + " |" for line in lines) + "\n"


SHORT = {"model": "model", "layers": "layers", "million tokens seen": "million tokens", "held-out loss (nats a token)": "held-out loss",
         "bits per byte": "bits per byte", "best previous-token score": "previous token", "best induction score": "induction",
         "heads at rest": "at rest"}  # fmt: skip


def page(curves_file: str) -> str:
    """The page in Markdown; `curves_file`: where the curves are, seen from it."""
    across = cards().set_index("model").T.reset_index(names="model")
    others = pd.concat([cards("small"), cards("melodies")])[list(SHORT)].rename(columns=SHORT)
    splits = json.loads((DATA / "corpus.json").read_text(encoding="utf8"))["splits"]
    said = [f"{splits[key]['tokens']:,} tokens in {splits[key]['documents']:,} documents {what}" for key, what in
            (("train", "for training"), ("held_out", "held out"))]  # fmt: skip
    columns = ["source", "kind", "version", "licence", "documents", "tokens", "copy_oracle"]
    alt = f"Three panels over the tokens read, for {', '.join(names())}: held-out loss, best induction score, share of heads at rest."
    parts = [PROSE, table(across), COLUMNS, CURVES.format(file=curves_file, alt=alt), OTHERS, table(others), TRAINING, DATA_TEXT, f"In all: {', '.join(said)}.\n", table(corpus())]
    parts += ["<details><summary>Every source</summary>\n", table(sources()[columns]), "</details>\n"]
    return "\n".join(parts)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m transformer_circuits.pages.models", description="Write the page of models.")
    parser.add_argument("out", type=Path, help="Markdown file to write; the picture goes into the folder of that name")
    out = parser.parse_args(arguments).out
    out.with_suffix("").mkdir(exist_ok=True)
    use_style()
    curves().savefig(out.with_suffix("") / "curves.svg")
    out.write_text(page(f"{out.stem}/curves.svg"), encoding="utf8")


if __name__ == "__main__":
    main()
