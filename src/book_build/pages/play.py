"""The page "Play": the two-layer model in the reader's browser, to be taken apart there.

The page is `book/_static/play/`: engine.js computes, play.js draws, both written by hand. This module writes their
data: weights and tokenizer, what each head does, the prepared texts. No head is named by hand.
"""

import html
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.utilities import get_act_name

from book_build.pages import as_script, render
from transformer_circuits.circuits import heads
from transformer_circuits.circuits.head_map import head_map
from transformer_circuits.circuits.heads import Head, Hook, head_name
from transformer_circuits.data import held_out_windows, passage, vocabulary
from transformer_circuits.measures import ablation
from transformer_circuits.measures.attention import INDUCTION_HEAD, PREVIOUS_TOKEN_HEAD
from transformer_circuits.measures.repeats import last_target
from transformer_circuits.models import load_model
from transformer_circuits.models.architecture import BOS
from transformer_circuits.models.bridge import matrices

MODELS = {"attn-only-2l": "model.js", "attn-only-2l-planted": "planted.js"}  # the first is what the page tells about
MODEL = next(iter(MODELS))
EXAMPLE = "Peter met Mrs. Gramley, and Mr. Gramley laughed."  # the name occurs nowhere in the training text
CODE = ("tree_broadcast_center", 14)  # a held-out passage, and how many lines of it
SEGMENT, COPIES = 20, 2  # of random tokens


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
    config = {key: getattr(model.cfg, key) for key in ("d_model", "n_heads", "d_head", "d_vocab", "n_ctx")}
    ids = tokenizer["vocab"]  # by token, in the byte alphabet of the tokenizer's file
    merges = [ids[part] for pair in tokenizer["merges"] for part in pair]  # in the order of their ranks
    start = model.tokenizer.convert_ids_to_tokens(BOS)
    parts = {"vocabulary": sorted(ids, key=ids.get), "merges": merges, "start": start}
    data = {"config": config, "facts": facts, "means": means, "tokenizer": parts}
    return as_script(data, content)


# ---- the switches, as hooks ------------------------------------------------------------------------------------------


def hidden_from(
    model: TransformerBridge, side: str, off: Sequence[Head] | None = None, means: Sequence[Tensor] | None = None
) -> list[Hook]:
    """Return hooks that remove first-layer heads (None: all) for the second layer's "Q", "K", or "V" alone. These read
    zero in place of what the heads write, or the heads' means."""
    mine = [head for head in range(model.cfg.n_heads) if off is None or (0, head) in off]
    written = []

    def keep(z: Tensor, hook: Any) -> None:
        gone = z[:, :, mine] if means is None else z[:, :, mine] - means[0][mine]
        written[:] = [torch.einsum("bphd,hdm->bpm", gone, model.W_O[0][mine])]

    subtract = (f"blocks.1.attn.{side.lower()}.hook_in", lambda read, hook: read - written[0])
    return [(get_act_name("z", 0), keep), subtract]


# ---- what is shown at first ------------------------------------------------------------------------------------------


class Scene(NamedTuple):
    """Made-up names, and the place where the induction head attends most to what followed last time."""

    previous: Head  # in the first layer, with the best previous-token score
    induction: Head  # in the second layer, with the best induction score
    ids: Int[Tensor, "1 pos"]
    at: int
    target: int


def scene(model: TransformerBridge, previous: Head, induction: Head) -> Scene:
    ids = model.to_tokens(EXAMPLE)
    targets = last_target(ids[0])[:-1]
    earlier = targets.clamp(min=0)
    layer, head = induction
    attended = heads.patterns(model, ids)[layer, 0, head, range(len(earlier)), earlier]
    # What followed last time follows again.
    right = (targets >= 0) & (ids[0, earlier] == ids[0, 1:])
    at = int(attended.where(right, -1.0).argmax())
    return Scene(previous, induction, ids, at, int(targets[at]))


# ---- the page --------------------------------------------------------------------------------------------------------


def texts(model: TransformerBridge, shown: Scene) -> list[dict[str, Any]]:
    """Return the prepared texts: label, text, the head and the token that are chosen at first, what to look for."""
    induces, previous = head_name(shown.induction), head_name(shown.previous)
    words = [
        name
        for i, name in enumerate(vocabulary())
        if re.fullmatch(" [a-z]{4,}", name) and model.tokenizer.encode(name, add_special_tokens=False) == [i]
    ]
    sentence = passage("candide").split(". ")[0] + "."
    return [
        {"label": "A made-up name", "text": EXAMPLE, "head": shown.induction, "at": shown.at,
         "note": "Choose a piece of the second name. The arc leads to the token that followed it last time. "
                 f"Does head {induces} attend there?"},
        {"label": "Random tokens, twice", "random": {"length": SEGMENT, "copies": COPIES, "words": words},
         "head": shown.induction, "at": SEGMENT + SEGMENT // 2,
         "note": "Each press draws new tokens. Only the first copy shows what comes next in the second. "
                 "Compare the bars of the two copies under \u201cLoss of each token\u201d."},
        {"label": "A sentence of Candide", "text": sentence, "head": shown.induction, "at": 5,
         "note": "Text that was left out of training. Choose a token that occurred before: "
                 f"head {induces} attends to the token that followed it. "
                 "From a new token, the head attends to the start token."},
        {"label": "Python", "text": "\n".join(passage(CODE[0]).splitlines()[: CODE[1]]) + "\n",
         "head": shown.previous, "at": 20,
         "note": f"Code that was left out of training. Head {previous} attends mostly to the previous token."},
    ]  # fmt: skip


def percent(share: float) -> str:
    """Return a percentage as play.js shows it."""
    digits = 0 if 0.0995 <= share <= 0.99 or share >= 0.9995 else 1
    return f"{share:.{digits}%}" if share >= 0.001 else "&lt;0.1%"


def adds(model: TransformerBridge, shown: Scene) -> tuple[float, float]:
    """Return what the induction head adds to its target's logit (above the mean): from the embedding alone; in all."""
    (layer, head), at = shown.induction, shown.at
    cache = model.run_with_cache(shown.ids)[1]
    up = model.W_U[:, shown.ids[0, shown.target]] - model.W_U.mean(dim=1)
    pattern = cache["pattern", layer][0, head, at]
    streams = (cache["embed"][0], cache["resid_pre", layer][0])
    V, O = model.W_V[layer, head], model.W_O[layer, head]
    return tuple(float(pattern @ stream @ V @ O @ up) for stream in streams)


def page(model: TransformerBridge, shown: Scene, megabytes: float) -> str:
    """Return the page: what to do, what to look for, and what this changes at the shown token."""
    off, at, (layer, head) = [shown.previous], shown.at, shown.induction
    gone = heads.without_heads(off)
    runs = {
        "intact": [],
        "off": gone,
        "frozen": [*heads.freeze(model.run_with_cache(shown.ids)[1]), *gone],
        "cut": hidden_from(model, "K"),
        **{side: hidden_from(model, side, off) for side in "QKV"},
    }
    attended, chance = {}, {}
    for name, hooks in runs.items():
        pattern = heads.patterns(model, shown.ids, hooks)[layer, 0, head]
        predicted = model.run_with_hooks(shown.ids, fwd_hooks=hooks)[0, at].softmax(-1)
        attended[name] = percent(float(pattern[at, shown.target]))
        chance[name] = percent(float(predicted[shown.ids[0, at + 1]]))
    names = [html.escape(name) for name in model.to_str_tokens(shown.ids[0])]
    alone, whole = adds(model, shown)
    return render(
        "play.md",
        attribute=lambda edits: html.escape(json.dumps(edits)),
        n_heads=model.cfg.n_heads,
        n_ctx=model.cfg.n_ctx,
        megabytes=f"{megabytes:.0f}",
        induces=head_name(shown.induction),
        previous=head_name(shown.previous),
        off=off,
        source=names[at],
        at=at,
        target=names[shown.target],
        attention=attended,
        chance=chance,
        whole=f"{whole:+.1f}",
        alone=f"{alone:.1f}",
        through=f"{whole - alone:z.1f}",
        induction_head=INDUCTION_HEAD,
        previous_token_head=f"{PREVIOUS_TOKEN_HEAD:.0%}",
        works=ablation.WORKS,
    )


@torch.no_grad()
def described(name: str) -> tuple[TransformerBridge, Scene, str]:
    """Return a model, the scene that is shown first, and the content of its script."""
    model = load_model(name, device="cpu")
    windows = held_out_windows(16, model.cfg.n_ctx, model.cfg.d_vocab)[:, :-1]
    every = head_map(model, None, ablation.recorded_effects(name))
    layers = [every[every.index.str.startswith(f"{layer}.")] for layer in range(model.cfg.n_layers)]
    scores = [
        [f"{', '.join(row['names']) or 'no name'}; {row['previous']:.0%} of its attention on the previous token, "
         f"{row['start']:.0%} on the start token; "
         f"induction score {row['induction']:.2f}; removing it costs {row['cost']:z.3f} nats per token"
         for _, row in layer.iterrows()]
        for layer in layers
    ]  # fmt: skip
    shown = scene(model, (0, int(layers[0]["previous"].argmax())), (1, int(layers[1]["induction"].argmax())))
    roles = {head: "without effect" for head in every.index[~every["works"]]}
    for role, kind in (("previous-token head", "previous"), ("induction head", "induction")):
        roles |= {head: role for head in every.index[every["names"].map(lambda names: kind in names)]}
    facts = {"roles": roles, "scores": scores, "texts": texts(model, shown)}
    means = [heads.mean_z(model, windows, layer).tolist() for layer in range(model.cfg.n_layers)]
    return model, shown, script(model, means, facts)


@torch.no_grad()
def main(out: Path) -> None:
    folder = out.parent / "_static" / "play"
    folder.mkdir(parents=True, exist_ok=True)
    for name, file in MODELS.items():
        model, shown, data = described(name)
        (folder / file).write_text(data, encoding="utf-8")
        if name == MODEL:
            out.write_text(page(model, shown, len(data) / 1e6), encoding="utf-8")
