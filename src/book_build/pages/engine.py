"""The models of the page "Follow a name" in the reader's browser: weights, tokenizer, what each head does.
`book/_static/play/engine.js` computes with them. And snapshots of their training, for the slider: what two models did
with two texts (`training/film.py`), and the scores that the trainer measured, for `book/_static/follow/film.js`."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from transformer_lens.model_bridge import TransformerBridge

from book_build.pages import as_script
from transformer_circuits.circuits.head_map import head_map
from transformer_circuits.data import held_out_windows, vocabulary
from transformer_circuits.figures.tokens import show_token
from transformer_circuits.measures import ablation
from transformer_circuits.measures.attention import INDUCTION_HEAD, PATTERN_WINDOWS, PREVIOUS_TOKEN_HEAD
from transformer_circuits.models.architecture import BOS
from transformer_circuits.models.bridge import matrices
from transformer_circuits.models.registry import training_film, training_log
from transformer_circuits.models.view import View
from transformer_circuits.paths import data_file

# Of each model its file, and that of its film. The second one is loaded when a reader asks for it.
MODELS = {"attn-only-2l": ("model.js", "film.js"), "attn-only-1l": ("one.js", "film_one.js")}
PASSAGES = ("candide.txt", "tree_broadcast_center.txt")  # held out
LINES = 14  # of the second one
SEGMENT = 7  # random tokens; they come again, but for the last two
FILMED = ("Made-up names", "Random tokens, twice")  # the texts of a film
ASKING = (31, 28)  # the tokens that ask at first: `n` of the second Quennifer, the second ` client`
PARTS = ("top_token", "top_probability", "pattern")  # in the order in which film.js takes them, widest first


def weights(model: TransformerBridge) -> bytes:
    """Return W_E, then W_Q, W_K, W_V, and W_O of each layer, then W_U, all [in, out], in half precision."""
    W = matrices(model)
    found = [W["W_E"]]
    for layer in range(model.cfg.n_layers):
        found += [W[f"W_{side}"][layer].transpose(0, 1).flatten(1) for side in "QKV"]
        found.append(W["W_O"][layer].flatten(0, 1))
    found.append(W["W_U"])
    return b"".join(matrix.half().contiguous().numpy(force=True).tobytes() for matrix in found)


def vocabulary_and_merges(model: TransformerBridge) -> dict[str, Any]:
    """Return the tokens in the byte alphabet of the tokenizer's file, and their merges in the order of their ranks."""
    parts = json.loads(model.tokenizer.backend_tokenizer.to_str())["model"]
    ids = parts["vocab"]
    merges = [ids[part] for pair in parts["merges"] for part in pair]
    return {
        "vocabulary": sorted(ids, key=ids.get),
        "merges": merges,
        "start": model.tokenizer.convert_ids_to_tokens(BOS),
    }


def texts(model: TransformerBridge) -> list[dict[str, Any]]:
    """Return prepared texts, each with its label; one is drawn anew from `words` each time."""
    words = [
        name
        for i, name in enumerate(vocabulary())
        if re.fullmatch(" [a-z]{4,}", name) and model.tokenizer.encode(name, add_special_tokens=False) == [i]
    ]
    candide, code = (data_file(f"passages/{name}").read_text(encoding="utf8") for name in PASSAGES)
    sentence = candide.split(". ")[0]  # it ends within a name that it has named before
    return [
        {"label": "Random tokens, twice", "words": words, "length": SEGMENT},
        {"label": "A sentence of Candide", "text": sentence[: sentence.rindex("Candide") + len("Cand")]},
        {"label": "Python", "text": "\n".join(code.splitlines()[:LINES]).rstrip()},
    ]


def described(model: TransformerBridge) -> dict[str, Any]:
    """Return what each head does, in a word and in a sentence."""
    every = head_map(model, None, ablation.recorded_effects(model.cfg.model_name))
    scores: list[list[str]] = [[] for _ in range(model.cfg.n_layers)]
    roles = {}
    for name, row in every.iterrows():
        scores[int(name[0])].append(
            f"{', '.join(row['names']) or 'no name'}; {row['previous']:.0%} of its attention on the previous token; "
            f"induction score {row['induction']:.2f}; removing it costs {row['cost']:z.3f} nats per token"
        )
        said = [role for role in ("induction", "previous") if role in row["names"]]
        if said or not row["works"]:
            roles[name] = said[0] if said else "no effect"
    return {"roles": roles, "scores": scores, "texts": texts(model)}


def curves(log: pd.DataFrame, heads: dict[str, str]) -> list[dict[str, Any]]:
    """Return what is drawn over time, in the colors of the layers: with two layers, the attention of the first head to
    the previous token, and the best induction score, each with its threshold and the role that it gives."""
    best = log["induction"].map(np.max)
    if len(log["induction"][0]) == 1:
        return [curve("Best induction score", best, INDUCTION_HEAD, "ink", "an induction head")]
    layer, head = map(int, heads["previous"].split("."))
    looks, label = log["previous_token"].str[layer].str[head], f"Head {heads['previous']}, on the token before"
    return [
        curve(label, looks, PREVIOUS_TOKEN_HEAD, "first", f"{heads['previous']} is a previous-token head"),
        curve("Best induction score", best, INDUCTION_HEAD, "second", f"{heads['induction']} is an induction head"),
    ]


def curve(label: str, values: pd.Series, threshold: float, color: str, role: str) -> dict[str, Any]:
    return {"label": label, "values": values.tolist(), "threshold": threshold, "color": color, "role": role}


def script(model: TransformerBridge, heads: dict[str, str]) -> str:
    """Return a film as a script: facts, and the arrays of both texts."""
    film, log = training_film(model.cfg.model_name), training_log(model.cfg.model_name)
    texts = [film[f"text_{k}"].tolist() for k in range(len(FILMED))]
    listed = np.unique(np.concatenate([film[f"top_token_{k}"].ravel() for k in range(len(FILMED))])).tolist()
    names = {token: show_token(model.tokenizer.decode([token])) for token in {*listed, *texts[0], *texts[1]}}
    facts = {
        "n_layers": model.cfg.n_layers,
        "n_heads": model.cfg.n_heads,
        "top": film["top_token_0"].shape[-1],
        "tokens": log["tokens"].tolist(),
        "names": names,
        "curves": curves(log, heads),
        "texts": [
            {
                "label": label,
                "ids": ids,
                "names": ["start", *(names[token] for token in ids[1:])],
                "text": model.tokenizer.decode(ids[1:]),
                "place": place,
            }
            for label, ids, place in zip(FILMED, texts, ASKING)
        ],
    }
    content = b"".join(film[f"{part}_{k}"].tobytes() for part in PARTS for k in range(len(FILMED)))
    return as_script(facts, content)


@torch.no_grad()
def write(folder: Path, models: Sequence[TransformerBridge], heads: dict[str, str]) -> None:
    """Write the models of MODELS and their films, each as a script. The family has one tokenizer, which comes with the
    first. `heads`: the names of the stage's two."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, (model, (file, film)) in enumerate(zip(models, MODELS.values())):
        windows = held_out_windows(PATTERN_WINDOWS, model.cfg.n_ctx, model.cfg.d_vocab)[:, :-1]
        sizes = ("n_layers", "d_model", "n_heads", "d_head", "d_vocab", "n_ctx")
        data = {
            "config": {key: getattr(model.cfg, key) for key in sizes},
            "facts": {} if i else described(model),
            "means": [View(model).mean_z(windows, layer).tolist() for layer in range(model.cfg.n_layers)],
            "tokenizer": None if i else vocabulary_and_merges(model),
        }
        (folder / file).write_text(as_script(data, weights(model)), encoding="utf-8")
        (folder / film).write_text(script(model, heads), encoding="utf-8")
