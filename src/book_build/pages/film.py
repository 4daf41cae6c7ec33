"""Snapshots of training, for the slider of the stage: what two models did with two texts (`training/film.py`), and the
scores that the trainer measured. `book/_static/follow/film.js` reads them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformer_lens.model_bridge import TransformerBridge

from book_build.pages import as_script
from transformer_circuits.figures.tokens import show_token
from transformer_circuits.measures.attention import INDUCTION_HEAD, PREVIOUS_TOKEN_HEAD
from transformer_circuits.models.registry import training_film

FILES = ("film.js", "film_one.js")  # of the two-layer model, and of the one-layer model
TEXTS = ("Made-up names", "Random tokens, twice")
PLACES = (31, 28)  # the tokens that ask at first: `n` of the second Quennifer, the second ` client`
PARTS = ("top_token", "top_probability", "pattern")  # in the order in which film.js takes them, widest first


def curves(film: dict[str, np.ndarray], heads: dict[str, str]) -> list[dict[str, Any]]:
    """Return what is drawn over time, in the colors of the layers: with two layers, the attention of the first head to
    the previous token, and the best induction score, each with its threshold and the role that it gives."""
    best = film["induction"].max(axis=(1, 2))
    if film["induction"].shape[1] == 1:
        return [curve("Best induction score", best, INDUCTION_HEAD, "ink", "an induction head")]
    layer, head = map(int, heads["previous"].split("."))
    looks, label = film["previous_token"][:, layer, head], f"Head {heads['previous']}, on the token before"
    return [
        curve(label, looks, PREVIOUS_TOKEN_HEAD, "first", f"{heads['previous']} is a previous-token head"),
        curve("Best induction score", best, INDUCTION_HEAD, "second", f"{heads['induction']} is an induction head"),
    ]


def curve(label: str, values: np.ndarray, threshold: float, color: str, role: str) -> dict[str, Any]:
    values = np.round(values.astype(float), 4).tolist()
    return {"label": label, "values": values, "threshold": threshold, "color": color, "role": role}


def script(model: TransformerBridge, heads: dict[str, str]) -> str:
    """Return a film as a script: facts, and the arrays of both texts."""
    film = training_film(model.cfg.model_name)
    texts = [film[f"text_{k}"].tolist() for k in range(len(TEXTS))]
    listed = np.unique(np.concatenate([film[f"top_token_{k}"].ravel() for k in range(len(TEXTS))])).tolist()
    names = {token: show_token(model.tokenizer.decode([token])) for token in {*listed, *texts[0], *texts[1]}}
    facts = {
        "n_layers": model.cfg.n_layers,
        "n_heads": model.cfg.n_heads,
        "top": film["top_token_0"].shape[-1],
        "tokens": film["tokens"].tolist(),
        "names": names,
        "curves": curves(film, heads),
        "texts": [
            {
                "label": label,
                "ids": ids,
                "names": ["start", *(names[token] for token in ids[1:])],
                "text": model.tokenizer.decode(ids[1:]),
                "place": place,
            }
            for label, ids, place in zip(TEXTS, texts, PLACES)
        ],
    }
    content = b"".join(film[f"{part}_{k}"].tobytes() for part in PARTS for k in range(len(TEXTS)))
    return as_script(facts, content)


def write(folder: Path, models: Sequence[TransformerBridge], heads: dict[str, str]) -> None:
    """Write the films of the two-layer and the one-layer model. `heads`: the names of the stage's two."""
    for file, model in zip(FILES, models):
        (folder / file).write_text(script(model, heads), encoding="utf-8")
