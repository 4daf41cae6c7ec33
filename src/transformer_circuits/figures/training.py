"""How scores grew over a training run."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure


def training_curves(logs: Mapping[str, pd.DataFrame]) -> Figure:
    """Held-out loss and the best head's induction score against tokens seen, a line per model.

    `logs`: what `models.cards.training_log` returns, by model name.
    """
    figure, (loss, induction) = plt.subplots(1, 2, figsize=(7.2, 3.0))
    plt.close(figure)
    for style, (name, log) in zip(("-", "--", ":", "-."), logs.items()):
        log = log[log["tokens"] > 0]
        loss.plot(log["tokens"] / 1e6, log["held_out"], style, label=name)
        if "induction" in log:
            best = [max(map(max, scores)) for scores in log["induction"]]
            induction.plot(log["tokens"] / 1e6, best, style, color=loss.lines[-1].get_color())
    loss.set(xscale="log", xlabel="million tokens seen", ylabel="held-out loss (nats)")
    induction.set(xscale="log", xlabel="million tokens seen", ylabel="best induction score", ylim=(0, None))
    loss.legend()
    return figure
