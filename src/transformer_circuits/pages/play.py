"""The page "Play": the two-layer model in the reader's browser, to be taken apart there.

    python -m transformer_circuits.pages.play OUT.md       (the build does; model.js and a still picture go to _static/play beside it)

The page is `book/_static/play/`: engine.js computes, play.js draws, both written by hand. This module writes their data: weights and
tokenizer, what each head does, the prepared texts. All of it is computed from the shipped model; no head is named by hand.
"""

from __future__ import annotations

import base64
import html
import json
import re
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import torch
from jaxtyping import Int
from matplotlib.figure import Figure
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.utilities import get_act_name

from transformer_circuits.circuits import heads
from transformer_circuits.circuits.heads import Head, Hook, head_name
from transformer_circuits.data import held_out_windows, passage, vocabulary
from transformer_circuits.figures import plots, use_style
from transformer_circuits.measures.attention import INDUCTION_HEAD, PREVIOUS_TOKEN_HEAD, RESTING
from transformer_circuits.measures.repeats import after_earlier, last_target
from transformer_circuits.models import load_model
from transformer_circuits.models.bridge import matrices
from transformer_circuits.models.tokenizer import START
from transformer_circuits.pages import render
from transformer_circuits.training.film import NAMES

MODEL = "attn-only-2l"
CODE = ("tree_broadcast_center", 14)  # a held-out passage, and how many lines of it
SEGMENT, COPIES = 20, 2  # of random tokens


# ---- the model as a script -------------------------------------------------------------------------------------------------


def weights(model: TransformerBridge) -> bytes:
    """Return W_E, then W_Q, W_K, W_V, and W_O of each layer, then W_U, all [in, out], in half precision as they are shipped."""
    W = matrices(model)
    found = [W["W_E"]]
    for layer in range(model.cfg.n_layers):
        found += [W[f"W_{side}"][layer].transpose(0, 1).flatten(1) for side in "QKV"]
        found.append(W["W_O"][layer].flatten(0, 1))
    found.append(W["W_U"])
    return b"".join(matrix.half().contiguous().numpy(force=True).tobytes() for matrix in found)


def tokenizer_data(model: TransformerBridge) -> dict[str, Any]:
    """Return the tokens by id, in the byte alphabet of the tokenizer's file, and its merges as ids, two each, in the order of their ranks."""
    content = json.loads(model.tokenizer.backend_tokenizer.to_str())["model"]
    ids = content["vocab"]
    return {
        "vocabulary": sorted(ids, key=ids.get),
        "merges": [ids[part] for pair in content["merges"] for part in pair],
        "start": START,
    }


def script(model: TransformerBridge, means: list[Any], facts: dict[str, Any]) -> str:
    """Return the content of model.js. One long string of weights: a page opened from disk may load scripts, but no other files."""
    content = weights(model)
    config = {key: getattr(model.cfg, key) for key in ("d_model", "n_heads", "d_head", "d_vocab", "n_ctx")}
    data = {
        "config": config,
        "facts": facts,
        "means": means,
        "tokenizer": tokenizer_data(model),
        "crc32": zlib.crc32(content),
    }
    return f'window.playModel = {json.dumps(data)};\nplayModel.weights = "{base64.b64encode(content).decode()}";\n'


# ---- the switches, as hooks ------------------------------------------------------------------------------------------------


def hidden_from(
    model: TransformerBridge, off: Sequence[Head], side: str, means: Sequence[Tensor] | None = None
) -> list[Hook]:
    """Return hooks that remove first-layer heads for the second layer's queries, keys, or values ("Q", "K", "V") alone.

    These read zero in place of what the heads write, or the heads' means.
    """
    mine, written = [head for layer, head in off if layer == 0], []

    def keep(z: Tensor, hook: Any) -> None:
        gone = z[:, :, mine] if means is None else z[:, :, mine] - means[0][mine]
        written[:] = [torch.einsum("bphd,hdm->bpm", gone, model.W_O[0][mine])]

    def subtract(read: Tensor, hook: Any) -> Tensor:
        return read - torch.einsum("bpm,hmd->bphd", written[0], getattr(model, f"W_{side}")[1])

    return [(get_act_name("z", 0), keep), (get_act_name(side.lower(), 1), subtract)]


def embedding_alone(model: TransformerBridge, side: str) -> list[Hook]:
    """Return hooks with which the second layer's queries, keys, or values read the embedding and the position alone."""
    return hidden_from(model, [(0, head) for head in range(model.cfg.n_heads)], side)


def frozen(model: TransformerBridge, tokens: Int[Tensor, "row pos"]) -> list[Hook]:
    """Return hooks that keep all patterns as the intact model has them on these tokens."""
    return heads.freeze(
        model.run_with_cache(tokens, names_filter=lambda name: name.endswith("hook_pattern"))[1]
    )


# ---- which head does what --------------------------------------------------------------------------------------------------


class Circuit(NamedTuple):
    """The second-layer head with the best induction score, the first-layer head with the best previous-token score, and all scores."""

    previous: Head
    induction: Head
    roles: dict[str, str]
    scores: list[list[str]]


def circuit(model: TransformerBridge, windows: Int[Tensor, "row pos"]) -> Circuit:
    previous, rest = heads.previous_token_scores(model, windows), heads.start_token_scores(model, windows)
    induces = heads.measured_induction(model).mean
    held = {
        "previous-token": previous >= PREVIOUS_TOKEN_HEAD,
        "induction": induces >= INDUCTION_HEAD,
        "resting": rest >= RESTING,
    }
    roles = {
        head_name(tuple(head)): role for role, holds in held.items() for head in holds.nonzero().tolist()
    }
    scores = [
        [f"{p:.0%} of its attention on the previous token, {r:.0%} on the start token; induction score {i:.2f}" for p, r, i in zip(*layer)]
        for layer in zip(previous.tolist(), rest.tolist(), induces.tolist())
    ]  # fmt: skip
    return Circuit((0, int(previous[0].argmax())), (1, int(induces[1].argmax())), roles, scores)


class Example(NamedTuple):
    """A place in the made-up names where the induction head attends most to the token that followed last time."""

    ids: Int[Tensor, "1 pos"]
    at: int
    target: int
    head: Head

    def measure(self, model: TransformerBridge, hooks: Sequence[Hook] = ()) -> tuple[float, float]:
        """Return the head's attention to the target, and the probability that the right token comes next."""
        with model.hooks(fwd_hooks=list(hooks)):
            chance = model(self.ids)[0, self.at].softmax(-1)[self.ids[0, self.at + 1]]
        pattern = heads.patterns(model, self.ids, hooks)[self.head[0], 0, self.head[1]]
        return float(pattern[self.at, self.target]), float(chance)


def example(model: TransformerBridge, head: Head) -> Example:
    ids = model.to_tokens(NAMES)
    targets = last_target(ids[0])[:-1]
    pattern = heads.patterns(model, ids)[head[0], 0, head[1], :-1]
    attended = pattern.gather(1, targets.clamp(min=0)[:, None])[:, 0]
    # What followed last time follows again.
    right = (targets >= 0) & (ids[0, targets.clamp(min=0)] == ids[0, 1:])
    at = int(attended.where(right, -1.0).argmax())
    return Example(ids, at, int(targets[at]), head)


# ---- the page --------------------------------------------------------------------------------------------------------------


def texts(model: TransformerBridge, found: Circuit, shown: Example) -> list[dict[str, Any]]:
    """Return the prepared texts: the label of the button, the text, the head and the token that are chosen at first, what to look for."""
    induces, previous = head_name(found.induction), head_name(found.previous)
    words = [
        name
        for i, name in enumerate(vocabulary())
        if re.fullmatch(" [a-z]{4,}", name) and model.tokenizer.encode(name, add_special_tokens=False) == [i]
    ]
    sentence = passage("candide").split(". ")[0] + "."
    return [
        {"label": "A made-up name", "text": NAMES, "head": found.induction, "at": shown.at,
         "note": f"Choose a piece of a name that occurs again. The arc leads to the token that followed it last time. Does head {induces} attend "
                 "there?"},
        {"label": "Random tokens, twice", "random": {"length": SEGMENT, "copies": COPIES, "words": words}, "head": found.induction,
         "at": SEGMENT + SEGMENT // 2,
         "note": "Each press draws new tokens. Only the first copy shows what comes next in the second. Compare the bars of the two copies "
                 "under \u201cLoss of each token\u201d."},
        {"label": "A sentence of Candide", "text": sentence, "head": found.induction, "at": 5,
         "note": f"Text that was left out of training. Choose a token that occurred before: head {induces} attends to the token that followed it. "
                 "From a new token, the head attends to the start token."},
        {"label": "Python", "text": "\n".join(passage(CODE[0]).splitlines()[: CODE[1]]) + "\n", "head": found.previous, "at": 20,
         "note": f"Code that was left out of training. Head {previous} attends mostly to the previous token."},
    ]  # fmt: skip


def still(model: TransformerBridge, found: Circuit, ids: Int[Tensor, "1 pos"]) -> Figure:
    """Draw, for readers without scripts, the induction head on the first text, intact and without the previous-token head."""
    words, rings = model.to_str_tokens(ids[0]), after_earlier(ids[0])
    fig, axes = plt.subplots(1, 2, figsize=(9.6, 4.6))
    induces, previous = head_name(found.induction), head_name(found.previous)
    titles = (f"head {induces}", f"head {induces} without {previous}")
    for ax, hooks, title in zip(axes, ([], heads.without_heads([found.previous])), titles):
        pattern = heads.patterns(model, ids, hooks)[found.induction[0], 0, found.induction[1]]
        plots.heatmap(
            pattern, x=words, y=words, label=f"attention of {title}", limits=(0, 1), rings=rings, ax=ax
        )
        ax.tick_params(labelsize=7)
    return fig


def percent(share: float) -> str:
    """Return a percentage as play.js shows it."""
    return f"{share:.0%}" if share >= 0.0995 else f"{share:.1%}" if share >= 0.001 else "&lt;0.1%"


def page(model: TransformerBridge, found: Circuit, shown: Example, megabytes: float) -> str:
    """Return the page: what to do, what to look for, and what this changes at the shown token."""
    induces, previous, off = head_name(found.induction), head_name(found.previous), [found.previous]
    gone = heads.without_heads(off)
    runs = {
        "intact": [],
        "off": gone,
        "frozen": [*frozen(model, shown.ids), *gone],
        "cut": embedding_alone(model, "K"),
        **{side: hidden_from(model, off, side) for side in "QKV"},
    }
    attention, chance = zip(*(shown.measure(model, hooks) for hooks in runs.values()))
    names = [html.escape(name) for name in model.to_str_tokens(shown.ids[0])]
    return render(
        "play.md",
        attribute=lambda edits: html.escape(json.dumps(edits)),
        n_heads=model.cfg.n_heads,
        megabytes=f"{megabytes:.0f}",
        induces=induces,
        previous=previous,
        off=off,
        source=names[shown.at],
        at=shown.at,
        target=names[shown.target],
        attention=dict(zip(runs, map(percent, attention))),
        chance=dict(zip(runs, map(percent, chance))),
        induction_head=INDUCTION_HEAD,
        previous_token_head=f"{PREVIOUS_TOKEN_HEAD:.0%}",
        resting=f"{RESTING:.0%}",
    )


def main(out: Path) -> None:
    use_style()
    with torch.no_grad():
        model = load_model(MODEL, device="cpu")
        windows = held_out_windows(16, model.cfg.n_ctx, model.cfg.d_vocab)[:, :-1]
        found = circuit(model, windows)
        shown = example(model, found.induction)
        means = [heads.mean_z(model, windows, layer).tolist() for layer in range(model.cfg.n_layers)]
        facts = {"roles": found.roles, "scores": found.scores, "texts": texts(model, found, shown)}
        folder = out.parent / "_static" / "play"
        folder.mkdir(parents=True, exist_ok=True)
        data = script(model, means, facts)
        (folder / "model.js").write_text(data, encoding="utf-8")
        still(model, found, shown.ids).savefig(folder / "still.png", dpi=110)
        out.write_text(page(model, found, shown, len(data) / 1e6), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
