"""The picture of the README and the front page, from the shipped weights.

python -m transformer_circuits.pages.readme_figure book/_static/readme.png
"""

import sys

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from transformer_circuits.circuits import heads
from transformer_circuits.figures import plots, use_style
from transformer_circuits.measures.attention import INDUCTION_HEAD
from transformer_circuits.measures.repeats import after_earlier
from transformer_circuits.models import load_model
from transformer_circuits.pages.play import EXAMPLE

SMALLEST = 12.5  # points: at least 9 pixels in a picture of 340 pixels, on a page of 400


def draw() -> Figure:
    """Draw the induction scores of the one- and the two-layer model, and below them the best head's attention on a made-up name."""
    names = {"one layer": "attn-only-1l", "two layers": "attn-only-2l"}
    models = {layers: load_model(name, device="cpu") for layers, name in names.items()}
    scores = {name: heads.measured_induction(model).mean for name, model in models.items()}
    model, n_heads = models["two layers"], models["two layers"].cfg.n_heads
    layer, head = divmod(int(scores["two layers"].argmax()), n_heads)
    tokens = model.to_tokens(EXAMPLE)
    words = model.to_str_tokens(tokens[0])

    fig, (dots, attention) = plt.subplots(2, 1, figsize=(6.4, 8.0), height_ratios=(1, 2.3))
    plots.head_dots(scores, label="induction score", mark=INDUCTION_HEAD, ax=dots).set_ylim(-0.03, 1)
    plots.heatmap(
        heads.patterns(model, tokens)[layer, 0, head],
        x=words,
        y=words,
        label=f"attention of head {layer}.{head}",
        limits=(0, 1),
        rings=after_earlier(tokens[0]),
        ax=attention,
    )
    dots.set_xticklabels(["one layer", "two layers:\nfirst layer", "two layers:\nsecond layer"])
    attention.set(xlabel="source: token attended to", ylabel="destination: current token")
    for axes in fig.axes:
        axes.tick_params(labelsize=SMALLEST)
    for text in dots.texts:
        text.set_fontsize(SMALLEST)
    return fig


if __name__ == "__main__":
    use_style()
    with torch.no_grad():
        draw().savefig(sys.argv[1], dpi=160)
