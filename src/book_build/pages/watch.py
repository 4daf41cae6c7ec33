"""The page "Watch it learn": the films that the trainer recorded, from the first step to the last.

The page is `book/_static/watch/`: watch.js draws. This module writes its data: what each head does at each snapshot, by
the thresholds of `measures`, the marks on the time axis. Films go to _static/watch/films beside the page.
"""

import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int

from book_build.pages import as_script, render
from transformer_circuits.circuits import in_context
from transformer_circuits.figures.tokens import show_token
from transformer_circuits.measures import ablation, attention, repeats, weights
from transformer_circuits.models.registry import load_model, training_film, training_log

TEXTS = ("Made-up names", "Random tokens, twice")
# What a head does. Of several roles, the last one is shown.
ROLES = ("", "copying head", "previous-token head", "induction head", "without effect")
FLOATS = ("previous_token", "rest", "induction", "positivity")
KEYS = 1  # of the three sides: queries, keys, values
LABELS = {  # of the films, as people call the models
    "attn-only-2l": "two layers",
    "attn-only-2l-planted": "two layers, repeats planted in the text",
    "attn-only-1l": "one layer",
    "attn-only-1l-smeared-keys": "one layer, keys that see their neighbor",
}
Film = Mapping[str, np.ndarray]


# ---- what a film shows -----------------------------------------------------------------------------------------------


def roles(
    film: Film, log: pd.DataFrame, effects: ablation.AblationEffects, copying: float
) -> Int[np.ndarray, "snapshot layer head"]:
    """Return what each head does at each snapshot, as an index into ROLES; it copies above a positivity of `copying`.

    `effects`: of the finished model, which decide the last snapshot, as they do in the chapters.
    """
    working = in_context.working(log)
    working[-1] = effects.working.numpy()
    holds = [
        ~working,
        film["induction"] >= attention.INDUCTION_HEAD,
        film["previous_token"] >= attention.PREVIOUS_TOKEN_HEAD,
        film["positivity"] > copying,
    ]
    return np.select(holds, [4, 3, 2, 1]).astype(np.uint8)


def marks(film: Film, log: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the moments that are marked on the time axis: snapshot, tokens, kind, and what happens."""
    tokens, found = film["tokens"], []
    for kind, threshold in (("previous-token", attention.PREVIOUS_TOKEN_HEAD), ("induction", attention.INDUCTION_HEAD)):
        holds = film[kind.replace("-", "_")] >= threshold
        if holds[-1].any():
            until_the_end = np.logical_and.accumulate(holds[::-1])[::-1]
            since = np.where(holds[-1], until_the_end.argmax(axis=0), len(holds))  # [layer, head]
            names = " and ".join(f"{layer}.{head}" for layer, head in np.argwhere(since == since.min()))
            found.append((int(since.min()), kind, f"first {kind} head: {names}"))
    until, since = in_context.steepest_fall(log.set_index("tokens")["in_context"])
    if not np.isnan(until):
        middle = (since * until) ** 0.5
        at = int(np.abs(np.log(np.maximum(tokens, 1) / middle)).argmin())
        found.append((at, "fall", "steepest drop of the in-context score"))
    found.sort(key=lambda mark: mark[0])
    return [{"at": at, "kind": kind, "text": text, "tokens": int(tokens[at])} for at, kind, text in found]


def start(film: Film, log: pd.DataFrame) -> dict[str, Any]:
    """Return what is chosen at first: the head that ends as the best induction head, at the last token that repeats."""
    scores = film["induction"][-1]
    if len(scores) == 1:  # no induction in one layer: the head that copies most, of those that work
        scores = np.where(in_context.working(log)[-1], film["positivity"][-1], -1)
    texts = [torch.from_numpy(film[f"text_{k}"].astype(np.int64)) for k in range(len(TEXTS))]
    repeat = [repeats.last_target(text) >= 0 for text in texts]
    return {"head": int(scores.argmax()), "place": [int(places.nonzero().max()) for places in repeat]}


# ---- a film as a script ----------------------------------------------------------------------------------------------


def packed(film: Film, held: Int[np.ndarray, "snapshot layer head"]) -> tuple[dict[str, Any], bytes]:
    """Return where the arrays are that watch.js reads, and their bytes; `held`: the roles."""
    arrays = {name: film[name].astype(np.float32) for name in FLOATS}
    if "composition" in film:
        arrays["composition"] = film["composition"][:, KEYS].astype(np.float32)
    for k in range(len(TEXTS)):
        arrays |= {f"{name}_{k}": film[f"{name}_{k}"] for name in ("top_token", "pattern", "top_probability")}
    arrays["roles"] = held
    places, content = {}, b""
    # Widest first: each begins at a multiple of its size.
    for name, array in sorted(arrays.items(), key=lambda item: -item[1].itemsize):
        places[name] = {"type": str(array.dtype), "shape": array.shape, "offset": len(content)}
        content += array.tobytes()
    return places, content


def script(name: str, film: Film) -> str:
    """Return the content of films/NAME.js."""
    n_layers, n_heads = film["rest"].shape[1:]
    log, model = training_log(name), load_model(name, device="cpu")
    copying = weights.copying_threshold(model.W_E, model.W_U, model.cfg.d_head)
    texts = [film[f"text_{k}"].tolist() for k in range(len(TEXTS))]
    shown = [film[f"{part}_{k}"].ravel() for part in ("text", "top_token") for k in range(len(TEXTS))]
    ids = np.unique(np.concatenate(shown)).tolist()
    names = {token: show_token(model.tokenizer.decode([token])) for token in ids}
    arrays, content = packed(film, roles(film, log, ablation.recorded_effects(name), copying))
    facts = {
        "name": name,
        "n_layers": n_layers,
        "n_heads": n_heads,
        "top": film["top_token_0"].shape[2],
        "tokens": film["tokens"].tolist(),
        "names": names,
        "role_names": ROLES,
        "idle": ROLES.index("without effect"),
        "curve": {
            "title": "Best induction score",
            "values": film["induction"].max(axis=(1, 2)).tolist(),
            "threshold": attention.INDUCTION_HEAD,
        },
        "marks": marks(film, log),
        "start": start(film, log),
        "texts": [{"label": label, "ids": ids, "names": [names[i] for i in ids]} for label, ids in zip(TEXTS, texts)],
        "composes": weights.COMPOSES,
        "widest": float(film["composition"][:, KEYS].max()) if n_layers > 1 else None,
        "arrays": arrays,
    }
    return as_script(facts, content)


# ---- the page --------------------------------------------------------------------------------------------------------


def main(out: Path) -> None:
    """Write the page and the films of the shipped models. Raises WeightsError for one that is missing or damaged."""
    folder = out.parent / "_static" / "watch" / "films"
    folder.mkdir(parents=True, exist_ok=True)
    films = {name: training_film(name) for name in LABELS}
    for name, film in films.items():
        (folder / f"{name}.js").write_text(script(name, film), encoding="utf-8")
    page = render(
        "watch.md",
        snapshots=" or ".join(map(str, sorted({len(film["tokens"]) for film in films.values()}))),
        films=html.escape(json.dumps({"films": [{"name": name, "label": LABELS[name]} for name in films]})),
        previous=f"{attention.PREVIOUS_TOKEN_HEAD:.0%}",
        induction=f"{attention.INDUCTION_HEAD:.0%}",
        works=ablation.WORKS,
    )
    out.write_text(page, encoding="utf-8")
