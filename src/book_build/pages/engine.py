"""The models of the page "Follow a name" in the reader's browser: weights, tokenizer, what each head does.
`book/_static/play/engine.js` computes with them."""

import json
import re
from pathlib import Path
from typing import Any

import torch
from transformer_lens.model_bridge import TransformerBridge

from book_build.pages import as_script
from transformer_circuits.circuits.head_map import head_map
from transformer_circuits.data import held_out_windows, vocabulary
from transformer_circuits.measures import ablation
from transformer_circuits.models import load_model
from transformer_circuits.models.architecture import BOS
from transformer_circuits.models.bridge import matrices
from transformer_circuits.models.view import View
from transformer_circuits.paths import data_file

MODELS = {"attn-only-2l": "model.js", "attn-only-1l": "one.js"}  # the second is loaded when a reader asks for it
PASSAGES = ("candide.txt", "tree_broadcast_center.txt")  # held out
LINES = 14  # of the second one
SEGMENT = 7  # random tokens; they come again, but for the last two


def weights(model: TransformerBridge) -> bytes:
    """Return W_E, then W_Q, W_K, W_V, and W_O of each layer, then W_U, all [in, out], in half precision."""
    W = matrices(model)
    found = [W["W_E"]]
    for layer in range(model.cfg.n_layers):
        found += [W[f"W_{side}"][layer].transpose(0, 1).flatten(1) for side in "QKV"]
        found.append(W["W_O"][layer].flatten(0, 1))
    found.append(W["W_U"])
    return b"".join(matrix.half().contiguous().numpy(force=True).tobytes() for matrix in found)


def tokenizer_of(model: TransformerBridge) -> dict[str, Any]:
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


@torch.no_grad()
def write(folder: Path) -> None:
    """Write the models of MODELS, each as a script. The family has one tokenizer, which comes with the first."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, (name, file) in enumerate(MODELS.items()):
        model = load_model(name, device="cpu")
        windows = held_out_windows(16, model.cfg.n_ctx, model.cfg.d_vocab)[:, :-1]
        sizes = ("n_layers", "d_model", "n_heads", "d_head", "d_vocab", "n_ctx")
        data = {
            "config": {key: getattr(model.cfg, key) for key in sizes},
            "facts": {} if i else described(model),
            "means": [View(model).mean_z(windows, layer).tolist() for layer in range(model.cfg.n_layers)],
            "tokenizer": None if i else tokenizer_of(model),
        }
        (folder / file).write_text(as_script(data, weights(model)), encoding="utf-8")
