"""The page of models: how each was trained, from its manifest and log, and what its heads do, measured here."""

import json
import re
from pathlib import Path

import pandas as pd
import torch

from book_build.pages import render
from transformer_circuits.circuits import heads
from transformer_circuits.data import D_VOCAB, held_out_windows
from transformer_circuits.measures import ablation
from transformer_circuits.measures.attention import PATTERN_WINDOWS
from transformer_circuits.models import load_model
from transformer_circuits.models.architecture import ModelConfig
from transformer_circuits.models.registry import list_models, manifest, training_log
from transformer_circuits.paths import DATA

FAMILY = r"attn-only-[012]l"
OTHERS = (r"attn-only-2l-.*", "attn-only-1l-32h", r"small-.*", r"melodies-.*")
SCORES = ["held-out loss", "in-context score", "induction score", "previous-token score", "working heads"]


def best(scores: torch.Tensor) -> str:
    """Return the highest of scores [layer, head], with its head."""
    head = divmod(int(scores.argmax()), scores.shape[1])
    return f"{scores.max():.3f} ({heads.head_name(head)})"


@torch.no_grad()
def card(name: str) -> dict[str, str]:
    """Return what the page says about a model, by the name of the value; its heads are measured as in the chapters."""
    config, last = ModelConfig(**manifest(name)["config"]), training_log(name).iloc[-1]
    found = {
        "layers": ", ".join([str(config.n_layers), *config.beyond]),
        "heads per layer": f"{config.n_heads}, each {config.d_head} wide" if config.n_layers else "–",
        "width": f"{config.d_model}",
        "vocabulary": f"{config.d_vocab:,}",
        "context": f"{config.n_ctx}",
        "million tokens": f"{last['tokens'] / 1e6:.0f}",
        **dict.fromkeys(SCORES, "–"),
        "held-out loss": f"{last['held_out']:.3f}",
        "in-context score": f"{last['in_context']:z.2f}".replace("-", "−"),
        "hours of training": f"{last['seconds'] / 3600:.1f}",
    }
    if config.n_layers:
        model = load_model(name, device="cpu")
        found["induction score"] = best(heads.measured_induction(model).mean)
        if not name.startswith("melodies") and config.d_vocab <= D_VOCAB:  # it reads the book's held-out text
            windows = held_out_windows(PATTERN_WINDOWS, config.n_ctx, config.d_vocab)[:, :-1]
            found["previous-token score"] = best(heads.previous_token_scores(model, windows))
            works = ablation.recorded_effects(name).working
            found["working heads"] = f"{int(works.sum())} of {works.numel()}"
    return found


def cards(*kinds: str) -> pd.DataFrame:
    """Return the cards of the shipped models whose names match, those with fewer layers first."""
    names = sorted(list_models(), key=lambda name: manifest(name)["config"]["n_layers"])
    return pd.DataFrame({name: card(name) for kind in kinds for name in names if re.fullmatch(kind, name)})


def table(frame: pd.DataFrame) -> str:
    """Write a data frame of words as a pipe table, with scores to the right."""
    sides = ["left", *("right" if column in SCORES else "left" for column in frame)]
    return frame.to_markdown(disable_numparse=True, colalign=sides)


def main(folder: Path) -> str:
    report = json.loads((DATA / "corpus.json").read_text(encoding="utf8"))
    return render(
        "models.md",
        family=table(cards(FAMILY).rename_axis("model")),
        others=table(cards(*OTHERS).T.rename_axis("model")[["layers", *SCORES]]),
        works=ablation.WORKS,
        cost_windows=ablation.WINDOWS,
        windows=PATTERN_WINDOWS,
        sources=len(report["sources"]),
        **report["splits"],
    )
