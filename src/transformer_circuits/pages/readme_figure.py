"""The README's picture, from the shipped weights: `python -m transformer_circuits.pages.readme_figure book/_static/readme.png`."""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from transformer_circuits.circuits import heads, induction
from transformer_circuits.figures import plots, use_style
from transformer_circuits.models import load_model
from transformer_circuits.training.scores import repeated_random_tokens

TEXT = "Old Zorblax met Quennifer at the gate. Zorblax bowed, and Quennifer laughed."


def draw(one: str = "attn-only-1l", two: str = "attn-only-2l", rows: int = 30) -> Figure:
    """Induction scores of a two-layer model's heads beside one layer's, and the best head at work on two invented names."""
    models = {"one layer": load_model(one, device="cpu"), "two layers": load_model(two, device="cpu")}
    cfg = models["two layers"].cfg
    repeated = repeated_random_tokens(cfg.d_vocab, cfg.n_ctx, rows=rows)
    scores = {name: heads.induction_scores(model, repeated) for name, model in models.items()}
    layer, head = divmod(int(scores["two layers"].argmax()), cfg.n_heads)

    fig, (dots, attention) = plt.subplots(1, 2, figsize=(9.6, 4.4), width_ratios=(1, 1.15))
    plots.head_dots(scores, label="induction score", name_from=0.3, ax=dots).set_ylim(-0.02, 1)
    tokens = models["two layers"].to_tokens(TEXT)
    words = models["two layers"].to_str_tokens(tokens[0])
    pattern = heads.patterns(models["two layers"], tokens)[layer, 0, head]
    plots.heatmap(pattern, x=words, y=words, label=f"attention of head {layer}.{head}", limits=(0, 1), rings=induction.after_earlier(tokens[0]), ax=attention)
    attention.tick_params(labelsize=7)
    return fig


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    out = parser.parse_args(argv).out
    use_style()
    with torch.no_grad():
        draw().savefig(out, dpi=110)


if __name__ == "__main__":
    main()
