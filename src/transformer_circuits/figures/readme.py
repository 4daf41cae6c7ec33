"""The README's picture, from the shipped models: `python -m transformer_circuits.figures.readme book/_static/readme.png`."""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from transformer_circuits.data import held_out_documents, vocabulary
from transformer_circuits.figures import use_style
from transformer_circuits.figures.tokens import show_token
from transformer_circuits.models import cards, load_model
from transformer_circuits.training.scores import Repeats


def draw(name: str = "attn-only-2l", length: int = 12) -> Figure:
    """Training of the family beside the best induction head's pattern on random tokens that come twice."""
    fig, (curves, attention) = plt.subplots(1, 2, figsize=(9.6, 4.2), width_ratios=(1, 1.15))
    plt.close(fig)
    for style, model in zip(("-", "--", ":"), cards.names()):
        log = cards.training_log(model)
        if "induction" in log:
            log = log[log["tokens"] > 0]
            curves.plot(log["tokens"] / 1e6, [max(map(max, scores)) for scores in log["induction"]], style, label=model)
    curves.set(xscale="log", xlabel="million tokens seen", ylabel="best induction score", ylim=(0, None))
    curves.legend()

    log = cards.training_log(name)
    _, head = cards.best_head(log["induction"].iloc[-1])
    text = torch.cat([tokens for _, tokens in held_out_documents()])
    segment = Repeats.draw(text, rows=1, n_ctx=64, seed=3).tokens[0, 1 : length + 1]
    tokens = torch.cat([torch.zeros(1, dtype=torch.long), segment, segment])[None]
    _, cache = load_model(name, device="cpu").run_with_cache(tokens)
    layer, number = map(int, head.split("."))
    attention.imshow(cache["pattern", layer][0, number], cmap="Blues", vmin=0, vmax=1)
    labels = [show_token(vocabulary()[t]) for t in tokens[0].tolist()]
    attention.set_xticks(range(len(labels)), labels, rotation=90, fontsize=7)
    attention.set_yticks(range(len(labels)), labels, fontsize=7)
    attention.set(xlabel=f"where head {head} looks", ylabel="from")
    return fig


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    out = parser.parse_args(argv).out
    use_style()
    draw().savefig(out, dpi=110)


if __name__ == "__main__":
    main()
