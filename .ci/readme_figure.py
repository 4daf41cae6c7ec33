"""The picture of README and front page, from the weights: `python .ci/readme_figure.py book/_static/readme.png`."""

import sys
from pathlib import Path

import torch
from matplotlib import pyplot as plt
from PIL import Image

from book_build.pages.play import EXAMPLE
from transformer_circuits.circuits import heads
from transformer_circuits.figures import plots
from transformer_circuits.figures.style import use_style
from transformer_circuits.measures.attention import INDUCTION_HEAD
from transformer_circuits.measures.repeats import after_earlier
from transformer_circuits.models import load_model

SMALLEST = 12.5  # points: at least 9 pixels in a picture of 340 pixels, on a page of 400


@torch.no_grad()
def main(out: Path) -> None:
    """Draw the induction scores of both models, and below them the best head's attention on a made-up name."""
    use_style()
    one, two = (load_model(f"attn-only-{n}l", device="cpu") for n in (1, 2))
    scores = {"one layer": heads.measured_induction(one).mean, "two layers": heads.measured_induction(two).mean}
    layer, head = divmod(int(scores["two layers"].argmax()), two.cfg.n_heads)
    tokens = two.to_tokens(EXAMPLE)
    words, pattern = two.to_str_tokens(tokens[0]), heads.patterns(two, tokens)[layer, 0, head]

    fig, (dots, attention) = plt.subplots(2, 1, figsize=(6.4, 8.0), height_ratios=(1, 2.3))
    plots.head_dots(scores, label="induction score", mark=INDUCTION_HEAD, ax=dots).set_ylim(-0.03, 1)
    dots.set_xticklabels(["one layer", "two layers:\nfirst layer", "two layers:\nsecond layer"])
    label, rings = f"attention of head {layer}.{head}", after_earlier(tokens[0])
    plots.heatmap(pattern, x=words, y=words, label=label, limits=(0, 1), rings=rings, ax=attention)
    attention.set(xlabel="source: token attended to", ylabel="destination: current token")
    for axes in fig.axes:
        axes.tick_params(labelsize=SMALLEST)
    for text in dots.texts:
        text.set_fontsize(SMALLEST)
    fig.savefig(out, dpi=160)
    small = Image.open(out).convert("RGB").quantize(96, dither=Image.Dither.NONE)  # a quarter of the size
    small.save(out, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
