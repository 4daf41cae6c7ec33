"""The models of the stage ("Follow a name"), in the reader's browser: weights, tokenizer, what each head does.

`book/_static/play/engine.js` computes with them. This module also writes `book/play`, the address that the stage had
before: a page that leads to it.
"""

import json
import re
from pathlib import Path
from typing import Any

import torch
from transformer_lens.model_bridge import TransformerBridge

from book_build.pages import as_script, render
from transformer_circuits.circuits import heads
from transformer_circuits.circuits.head_map import head_map
from transformer_circuits.data import held_out_windows, passage, vocabulary
from transformer_circuits.measures import ablation
from transformer_circuits.models import load_model
from transformer_circuits.models.architecture import BOS
from transformer_circuits.models.bridge import matrices

MODELS = {"attn-only-2l": "model.js", "attn-only-1l": "one.js"}  # the second is loaded when a reader asks for it
MODEL = next(iter(MODELS))
CODE = ("tree_broadcast_center", 14)  # a held-out passage, and how many lines of it
SEGMENT = 7  # random tokens; they come again, but for the last two


# ---- the model as a script -------------------------------------------------------------------------------------------


def weights(model: TransformerBridge) -> bytes:
    """Return W_E, then W_Q, W_K, W_V, and W_O of each layer, then W_U, all [in, out], in half precision."""
    W = matrices(model)
    found = [W["W_E"]]
    for layer in range(model.cfg.n_layers):
        found += [W[f"W_{side}"][layer].transpose(0, 1).flatten(1) for side in "QKV"]
        found.append(W["W_O"][layer].flatten(0, 1))
    found.append(W["W_U"])
    return b"".join(matrix.half().contiguous().numpy(force=True).tobytes() for matrix in found)


def script(model: TransformerBridge, means: list[Any], facts: dict[str, Any]) -> str:
    """Return the content of model.js, for a model that reads text that starts with token 0."""
    content, tokenizer = weights(model), json.loads(model.tokenizer.backend_tokenizer.to_str())["model"]
    config = {key: getattr(model.cfg, key) for key in ("n_layers", "d_model", "n_heads", "d_head", "d_vocab", "n_ctx")}
    ids = tokenizer["vocab"]  # by token, in the byte alphabet of the tokenizer's file
    merges = [ids[part] for pair in tokenizer["merges"] for part in pair]  # in the order of their ranks
    start = model.tokenizer.convert_ids_to_tokens(BOS)
    parts = {"vocabulary": sorted(ids, key=ids.get), "merges": merges, "start": start}
    shared = model.cfg.n_layers == 2  # the family has one tokenizer, which comes with the model that is loaded first
    data = {"config": config, "facts": facts, "means": means, "tokenizer": parts if shared else None}
    return as_script(data, content)


# ---- what the stage says of the model --------------------------------------------------------------------------------


def texts(model: TransformerBridge) -> list[dict[str, Any]]:
    """Return prepared texts, each with its label; one is drawn anew from `words` each time."""
    words = [
        name
        for i, name in enumerate(vocabulary())
        if re.fullmatch(" [a-z]{4,}", name) and model.tokenizer.encode(name, add_special_tokens=False) == [i]
    ]
    sentence = passage("candide").split(". ")[0]  # it ends within a name that it has named before
    return [
        {"label": "Random tokens, twice", "words": words, "length": SEGMENT},
        {"label": "A sentence of Candide", "text": sentence[: sentence.rindex("Candide") + len("Cand")]},
        {"label": "Python", "text": "\n".join(passage(CODE[0]).splitlines()[: CODE[1]]).rstrip()},
    ]


def described(name: str) -> dict[str, Any]:
    """Return what each head does, in a word and in a sentence."""
    model = load_model(name, device="cpu")
    every = head_map(model, None, ablation.recorded_effects(name))
    layers = [every[every.index.str.startswith(f"{layer}.")] for layer in range(model.cfg.n_layers)]
    scores = [
        [f"{', '.join(row['names']) or 'no name'}; {row['previous']:.0%} of its attention on the previous token, "
         f"{row['start']:.0%} on the start token; "
         f"induction score {row['induction']:.2f}; removing it costs {row['cost']:z.3f} nats per token"
         for _, row in layer.iterrows()]
        for layer in layers
    ]  # fmt: skip
    roles = {head: "no effect" for head in every.index[~every["works"]]}
    for role in ("previous", "induction"):
        roles |= {head: role for head in every.index[every["names"].map(lambda names: role in names)]}
    return {"roles": roles, "scores": scores, "texts": texts(model)}


@torch.no_grad()
def main(out: Path) -> None:
    folder = out.parent / "_static" / "play"
    folder.mkdir(parents=True, exist_ok=True)
    for name, file in MODELS.items():
        model = load_model(name, device="cpu")
        windows = held_out_windows(16, model.cfg.n_ctx, model.cfg.d_vocab)[:, :-1]
        means = [heads.mean_z(model, windows, layer).tolist() for layer in range(model.cfg.n_layers)]
        facts = described(name) if name == MODEL else {}
        (folder / file).write_text(script(model, means, facts), encoding="utf-8")
    out.write_text(render("play.md"), encoding="utf-8")
