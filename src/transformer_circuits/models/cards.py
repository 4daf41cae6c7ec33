"""Model cards, from what the trainer wrote into each manifest and log: nothing in them is typed.

    python -m transformer_circuits.models.cards OUT.md
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from transformer_circuits.models.architecture import ModelConfig, Transformer
from transformer_circuits.models.shards import read_manifest
from transformer_circuits.paths import DATA, WEIGHTS
from transformer_circuits.training.corpus import load_sources
from transformer_circuits.training.train import flops_per_token

PROSE = """\
# The models

The family has the paper's shape: residual stream of 768 dimensions, 12 heads of 64 a layer, no biases, no normalization, positions
added only where queries and keys are computed. Vocabulary (8,192) and context (512) are smaller than the paper's (about 50,000
and 2,048), so that the weights fit a repository. All numbers on this page come from the files that the trainer wrote.

The models are for looking into. They have read little, know little, and are of no use for anything else.
"""
TRAINING = """\
## How they were trained

Next-token prediction on windows of 512 tokens, each with the start-of-text token in front, in random order, bf16 arithmetic, AdamW;
the learning rate rises, stays, and falls along a cosine. The same seed, data and number of threads give the same weights again. Each
folder in `weights/` holds its log, `training.jsonl`: losses and scores at some forty moments of the run. The rate in TFLOP/s counts
the matrix products of the model, over the time of the whole run, evaluations included.

    python -m transformer_circuits.training.corpus --out corpus
    python -m transformer_circuits.training.train --config attn-only-2l \\
        --data corpus --out runs/attn-only-2l

On one GPU: first the speed at several batch sizes, then the same command with more tokens in larger batches. The run goes on where it
stopped if the command is given again.

    python benchmarks/training_throughput.py --config attn-only-2l
    python -m transformer_circuits.training.train --config attn-only-2l \\
        --data corpus --out runs/attn-only-2l \\
        --set tokens=1_000_000_000 batch=64 snapshots=120 evaluate_windows=512
"""
OTHERS_TEXT = """\
## The others

Claims that need several models of a kind, or other architectures, are judged on small ones (chapters 12 and 13): a fraction of the
family's width, the first 512 tokens of its vocabulary, and of its corpus all but the novels. Width, vocabulary and learning rate were
chosen in trials, so that induction begins in the plain two-layer model within a quarter of an hour on one CPU core. The melody
models (chapter 14) read 88 keys of a keyboard. Losses per token in different vocabularies cannot be compared.

    python -m transformer_circuits.training.corpus --out corpus-code \\
        --kinds python docs html latex --tokenizer data/tokenizer.json
    python -m transformer_circuits.training.train --config small-2l \\
        --data corpus-code --out runs/small-2l
    python -m transformer_circuits.training.train --config small-2l \\
        --name small-2l-seed-1 --set seed=1 \\
        --data corpus-code --out runs/small-2l-seed-1
    python -m transformer_circuits.training.melodies --out melodies
    python -m transformer_circuits.training.train --config melodies-2l \\
        --data melodies --out runs/melodies-2l

The melodies of `melodies-2l-no-direction` were drawn with `--keeps-direction 0.5`.
"""
OTHERS = {  # columns of their table, and what they are called there
    "model": "model",
    "million weights": "million weights",
    "million tokens seen": "million tokens",
    "held-out loss (nats)": "held-out loss (nats)",
    "in-context score (nats)": "in-context score (nats)",
    "best induction score": "best induction score",
    "best previous-token score": "best previous-token score",
    "hours": "hours",
}
DATA_TEXT = """\
## What they read

Copy oracle: the share of tokens that one rule predicts rightly, "what followed the present token last time, within 512 tokens,
follows again". It says how much an induction head could earn on a text, before anything is trained.
"""


def names(group: str = "attn-only") -> list[str]:
    """Shipped models of a group ("attn-only": the family, "small", "melodies"), the ones with fewer layers first."""
    found = [path.parent for path in WEIGHTS.glob(f"{group}-*/manifest.json")]
    return [p.name for p in sorted(found, key=lambda p: (read_manifest(p)["config"]["n_layers"], p.name))]


def training_log(name: str) -> pd.DataFrame:
    """The log of a shipped model, a row per evaluation: step, tokens, train, held_out, in_context (nats), lr, seconds,
    and the scores of all heads, nested lists [layer][head]."""
    lines = (WEIGHTS / name / "training.jsonl").read_text(encoding="utf8").splitlines()
    return pd.DataFrame([json.loads(line) for line in lines[1:]])


def best_head(scores: list[list[float]] | None) -> tuple[float, str]:
    """(score, layer.head) of the highest score; (nan, "none") for a model without heads."""
    found = [(score, f"{layer}.{head}") for layer, row in enumerate(scores or []) for head, score in enumerate(row)]
    return max(found, default=(float("nan"), "none"))


def parameters(config: dict[str, Any]) -> int:
    """Number of trained weights."""
    with torch.device("meta"):
        model = Transformer(ModelConfig(**config))
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def summary(group: str = "attn-only") -> pd.DataFrame:
    """One row per shipped model of a group."""
    rows = []
    for name in names(group):
        manifest = read_manifest(WEIGHTS / name)
        run, result = manifest["training"]["run"], manifest["training"]["result"]
        induction, previous = best_head(result.get("induction")), best_head(result.get("previous_token"))
        rows.append(
            {
                "model": name,
                "layers": manifest["config"]["n_layers"],
                "million weights": parameters(manifest["config"]) / 1e6,
                "million tokens seen": result["tokens"] / 1e6,
                "held-out loss (nats)": result["held_out"],
                "in-context score (nats)": result["in_context"],
                "best induction score": induction[0],
                "by head": induction[1],
                "best previous-token score": previous[0],
                "by head ": previous[1],
                "learning rate": run["training"]["lr"],
                "seed": run["training"]["seed"],
                "device": run["hardware"]["device"],
                "threads": run["hardware"]["threads"],
                "hours": result["seconds"] / 3600,
                "tokens a second": result["tokens"] / result["seconds"],
                "TFLOP/s": result["tokens"] / result["seconds"] * flops_per_token(ModelConfig(**manifest["config"])) / 1e12,
            }
        )
    return pd.DataFrame(rows)


def corpus() -> pd.DataFrame:
    """One row per kind of text: tokens (training and held out together) and the copy oracle."""
    report = json.loads((DATA / "corpus.json").read_text())
    rows = [{"kind": kind, **row} for kind, row in report["kinds"].items()]
    return pd.DataFrame(rows).sort_values("tokens", ascending=False, ignore_index=True)


def sources() -> pd.DataFrame:
    """One row per source and kind of text, with version, licence and copy oracle."""
    report = pd.DataFrame(json.loads((DATA / "corpus.json").read_text())["sources"])
    listed = {s["name"]: s for s in load_sources()}
    report["version"] = [listed[s].get("version") or listed[s]["commit"][:10] for s in report["source"]]
    report["licence"] = [listed[s]["licence"] for s in report["source"]]
    return report


def markdown_table(frame: pd.DataFrame, digits: int = 2) -> str:
    """A pipe table; numbers that are not whole are rounded, missing ones are a dash."""

    def cell(value: object) -> str:
        if isinstance(value, float):
            if pd.isna(value):
                return "–"
            return f"{value:,.0f}" if value == int(value) else f"{value:.{digits}f}" if abs(value) >= 0.01 else f"{value:g}"
        return f"{value:,}" if isinstance(value, int) else str(value).replace("|", "\\|")

    rows = [[cell(v) for v in row] for row in frame.astype(object).itertuples(index=False, name=None)]
    lines = [frame.columns, ["---"] * len(frame.columns), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"


def page() -> str:
    """The page in Markdown."""
    across = summary().set_index("model").T.reset_index(names="")
    others = pd.concat([summary("small"), summary("melodies")])[list(OTHERS)].rename(columns=OTHERS)
    report = json.loads((DATA / "corpus.json").read_text())
    splits = ", ".join(f"{s['tokens']:,} tokens in {s['documents']:,} documents {n}" for n, s in
                       (("for training", report["splits"]["train"]), ("held out", report["splits"]["held_out"])))  # fmt: skip
    columns = ["source", "kind", "version", "licence", "documents", "tokens", "copy_oracle"]
    return "\n".join(
        [
            PROSE,
            markdown_table(across, digits=3),
            "Held-out loss and in-context score (loss around token 500 minus loss around token 50) are on held-out text; induction and",
            "previous-token scores are mean attention on random tokens that repeat. On held-out text, and with intervals, the chapters",
            "measure them anew.\n",
            TRAINING,
            OTHERS_TEXT,
            markdown_table(others, digits=3),
            DATA_TEXT,
            f"In all: {splits}.\n",
            markdown_table(corpus().rename(columns={"copy_oracle": "copy oracle"})),
            "<details><summary>Every source</summary>\n",
            markdown_table(sources()[columns].rename(columns={"copy_oracle": "copy oracle"})),
            "</details>\n",
        ]
    )


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m transformer_circuits.models.cards", description="Write the page of model cards.")
    parser.add_argument("out", type=Path, help="Markdown file to write")
    parser.parse_args(argv).out.write_text(page(), encoding="utf8")


if __name__ == "__main__":
    main()
