"""The page "Play": the two-layer model in the reader's browser, to be taken apart there.

    python -m transformer_circuits.pages.play OUT.md       (the build does; model.js and a still picture go to _static/play beside it)

The page is `book/_static/play/`: engine.js computes, play.js draws, both written by hand. What is written here is their data: weights and
tokenizer, which heads are which, the prepared texts. All of it is computed from the shipped model, no head is named by hand.
"""

from __future__ import annotations

import argparse
import base64
import html
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.utilities import get_act_name

from transformer_circuits.circuits import heads, induction
from transformer_circuits.circuits.head_dump import by_source
from transformer_circuits.circuits.heads import Head, Hook, head_name
from transformer_circuits.circuits.skip_trigrams import top_count
from transformer_circuits.circuits.words import word_of
from transformer_circuits.data import bigram_counts, held_out_windows, passage, vocabulary
from transformer_circuits.figures import plots, use_style
from transformer_circuits.models import load_model
from transformer_circuits.models.bridge import START, matrices
from transformer_circuits.training.scores import Repeated, repeated_random_tokens

MODEL = "attn-only-2l"
STATIC = "../_static/play"  # from the page book/play.html
NAMES = "Old Zorblax met Quennifer at the gate. Zorblax bowed, and Quennifer laughed."
CODE = ("tree_broadcast_center", 14)  # a held-out passage, and how many lines of it


# ---- the model as a script -------------------------------------------------------------------------------------------------


def weights(model: TransformerBridge) -> bytes:
    """W_E, then W_Q, W_K, W_V and W_O of each layer, then W_U, all [in, out], in half precision as they are shipped."""
    W = matrices(model)
    reads = [[W[f"W_{side}"][layer].transpose(0, 1).flatten(1) for side in "QKV"] for layer in range(model.cfg.n_layers)]
    layers = [matrix for layer, read in enumerate(reads) for matrix in (*read, W["W_O"][layer].flatten(0, 1))]
    return b"".join(matrix.half().contiguous().numpy(force=True).tobytes() for matrix in (W["W_E"], *layers, W["W_U"]))


def tokenizer_data(model: TransformerBridge) -> dict[str, Any]:
    """Tokens by id, in the byte alphabet of the tokenizer's file, and its merges as ids, two each, in the order of their ranks."""
    content = json.loads(model.tokenizer.backend_tokenizer.to_str())["model"]
    ids = content["vocab"]
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in content["merges"]]
    return {"vocabulary": sorted(ids, key=ids.get), "merges": [ids[part] for pair in pairs for part in pair], "start": START}


def script(model: TransformerBridge, means: list[Any], facts: dict[str, Any]) -> str:
    """What model.js says. One long string of weights: a page opened from disk may load scripts, but no other files."""
    content = weights(model)
    config = {key: getattr(model.cfg, key) for key in ("d_model", "n_heads", "d_head", "d_vocab", "n_ctx")}
    data = {"config": config, "facts": facts, "means": means, "tokenizer": tokenizer_data(model), "crc32": zlib.crc32(content)}
    return f'window.playModel = {json.dumps(data)};\nplayModel.weights = "{base64.b64encode(content).decode()}";\n'


# ---- which head does what --------------------------------------------------------------------------------------------------


def embedding_alone(model: TransformerBridge, side: str) -> list[Hook]:
    """Queries, keys or values of layer 1 ("Q", "K", "V") as if layer 0 wrote nothing: they read the embedding, and the position as ever."""
    written: list[torch.Tensor] = []

    def keep(out: torch.Tensor, hook: Any) -> None:
        written[:] = [out]

    return [("blocks.0.attn.hook_out", keep), _less(model, side, written)]


def missed_by(model: TransformerBridge, off: Sequence[Head], side: str, means: Sequence[torch.Tensor] | None = None) -> list[Hook]:
    """Heads of layer 0 are off for the queries, keys or values of layer 1 alone: these read them as zero, or as their means."""
    mine, written = [head for layer, head in off if layer == 0], []

    def keep(z: torch.Tensor, hook: Any) -> None:
        gone = z[:, :, mine] if means is None else z[:, :, mine] - means[0][mine]
        written[:] = [torch.einsum("bphd,hdm->bpm", gone, model.W_O[0][mine])]

    return [(get_act_name("z", 0), keep), _less(model, side, written)]


def _less(model: TransformerBridge, side: str, written: list[torch.Tensor]) -> Hook:
    def subtract(read: torch.Tensor, hook: Any) -> torch.Tensor:
        return read - torch.einsum("bpm,hmd->bphd", written[0], getattr(model, f"W_{side}")[1])

    return get_act_name(side.lower(), 1), subtract


def frozen(model: TransformerBridge, tokens: torch.Tensor) -> list[Hook]:
    """All patterns as in the intact model, on these tokens."""
    return heads.freeze(model.run_with_cache(tokens, names_filter=lambda name: name.endswith("hook_pattern"))[1])


class Circuit(NamedTuple):
    """The head that looks up what followed last time, the one that tells it by its keys, and what becomes of it without."""

    previous: Head
    induction: Head
    roles: dict[str, str]
    scores: list[list[str]]
    attention: dict[str, float]  # of the induction head, to what followed last time, on repeated random tokens
    loss: dict[str, float]  # there, from the second copy on
    copies: list[float]  # loss of the intact model in each copy


def circuit(model: TransformerBridge, windows: torch.Tensor, repeated: Repeated) -> Circuit:
    looks_back, induces = heads.previous_token_scores(model, windows), heads.induction_scores(model, repeated)
    rests = heads.start_token_scores(model, windows)
    previous, best = (0, int(looks_back[0].argmax())), (1, int(induces[1].argmax()))
    roles = {head_name(tuple(head)): "previous-token" for head in (looks_back >= 0.4).nonzero().tolist()}
    roles |= {head_name(tuple(head)): "induction" for head in (induces >= 0.3).nonzero().tolist()}
    roles |= {head_name(previous): "previous-token", head_name(best): "induction"}
    scores = [
        [f"{looks_back[layer, h]:.0%} to the token before, {rests[layer, h]:.0%} to the start token, {induces[layer, h]:.0%} to what followed "
         "last time (on random tokens)" for h in range(model.cfg.n_heads)] for layer in range(model.cfg.n_layers)
    ]  # fmt: skip
    edits = {"intact": [], "off": heads.without_heads([previous]), "missed": missed_by(model, [previous], "K"),
             "keys": embedding_alone(model, "K")}  # fmt: skip
    attention = {name: float(heads.induction_scores(model, repeated, hooks)[best]) for name, hooks in edits.items()}
    by_copy = {name: repeated.by_copy(heads.losses(model, repeated.tokens, hooks)) for name, hooks in edits.items()}
    rows = [heads.losses(model, row[None], frozen(model, row[None, :-1]) + edits["off"]) for row in repeated.tokens]
    by_copy["frozen"] = repeated.by_copy(torch.cat(rows))
    losses = {name: float(found[1:].mean()) for name, found in by_copy.items()}
    return Circuit(previous, best, roles, scores, attention, losses, by_copy["intact"].tolist())


# ---- a skip-trigram bug ----------------------------------------------------------------------------------------------------


class Bug(NamedTuple):
    """Two skip-trigrams of one head and source; the head raises the out of each behind the destination of the other as well."""

    head: int
    source: int
    right: tuple[tuple[int, int], tuple[int, int]]  # destination, out: pairs that the training text has
    pairs: tuple[int, int]  # how often; the crossed pairs never
    boost: float  # nats that attending to the source adds to the logit of the crossed outs, the lesser of the two


def whole_words(names: tuple[str, ...]) -> list[int]:
    """Tokens that are lower-case words by themselves, not beginnings of longer ones: few of the tokens that follow go on with a letter."""
    counts, letters = bigram_counts(), torch.tensor([name[:1].isalpha() for name in names])
    words = []
    for i, name in enumerate(names):
        following, count = counts[i]
        if len(name) > 3 and name[0] == " " and name.isascii() and word_of(name) == name[1:] and count.sum() >= 200:
            if count[letters[following]].sum() < 0.05 * count.sum():
                words.append(i)
    return words


def bug(model: TransformerBridge, names: tuple[str, ...], text: str = " ...") -> Bug | None:
    """The bug of a first-layer head that adds most to two wrong tokens; None if no head has any.

    Looked for among whole words. Destinations and outs are hits, in the top share of a source's QK column and OV row (chapter 4). A pair
    is right if it is at least five times as frequent in the training text as its tokens let expect, twenty times or more, and wrong if it
    is never there. It has to happen, too: in `source ... destination` at least half of the head's attention is on the source, both ways.
    """
    words, counts = torch.tensor(whole_words(names)), bigram_counts()
    pairs = counts.dense(words)[:, words]
    outs = torch.bincount(counts.following, counts.count.double(), minlength=model.cfg.d_vocab)
    expected = counts.dense(words).sum(1, keepdim=True) * (outs / outs.sum())[words].float()
    right, wrong = (pairs >= 20) & (pairs >= 5 * expected), pairs == 0
    columns, rows, k = *by_source(model), top_count(model.cfg.d_vocab)
    crossed, boosts = [], []
    for head in range(model.cfg.n_heads):
        to = (columns.A[head][words] @ columns.B[head][:, words]).topk(k // 2)
        out = (rows.A[head][words] @ rows.B[head][:, words]).topk(k // 2)
        s, d, o = right[to.indices[:, :, None], out.indices[:, None, :]].nonzero(as_tuple=True)
        destination, raised, boost = to.indices[s, d], out.indices[s, o], out.values[s, o]
        for same in torch.arange(len(s)).split(s.bincount(minlength=len(words)).tolist()):  # every two right ones of a source
            i, j = same[torch.triu_indices(len(same), len(same), 1)]
            other = (s[i] != destination[i]) & (s[i] != destination[j]) & (s[i] != raised[i]) & (s[i] != raised[j])
            found = wrong[destination[i], raised[j]] & wrong[destination[j], raised[i]] & other
            i, j = i[found], j[found]
            crossed.append(torch.stack([torch.full_like(i, head), s[i], destination[i], raised[i], destination[j], raised[j]]))
            boosts.append(torch.minimum(boost[i], boost[j]))
    boost, order = torch.cat(boosts).sort(descending=True, stable=True)
    head, s, *places = torch.cat(crossed, dim=1)[:, order[:1000]]
    middle = torch.tensor(model.tokenizer.encode(text, add_special_tokens=False)).expand(len(s), -1)
    attended = torch.ones(len(s))
    for destination in places[::2]:
        prompts = torch.cat([torch.zeros(len(s), 1, dtype=torch.long), words[s, None], middle, words[destination, None]], dim=1)
        attended = attended.minimum(heads.patterns(model, prompts)[0, torch.arange(len(s)), head, -1, 1])
    amount = torch.where(attended >= 0.5, attended * boost[: len(s)], 0.0)
    if not len(amount) or amount.max() == 0:
        return None
    best = int(amount.argmax())
    d, o, e, p = (int(place[best]) for place in places)
    ids = ((int(words[d]), int(words[o])), (int(words[e]), int(words[p])))
    return Bug(int(head[best]), int(words[s[best]]), ids, (int(pairs[d, o]), int(pairs[e, p])), float(amount[best]))


# ---- the page --------------------------------------------------------------------------------------------------------------


def texts(model: TransformerBridge, found: Circuit, names: tuple[str, ...]) -> list[dict[str, Any]]:
    """The prepared texts: what is on the button, the text, the head and the token that are chosen at first, what to see."""
    ids = model.to_tokens(NAMES)
    place = induction.last_target(ids[0])
    pattern = heads.patterns(model, ids)[found.induction[0], 0, found.induction[1]]
    best = int(pattern.gather(1, place.clamp(min=0)[:, None])[:, 0].where(place >= 0, -1.0).argmax())
    looks_up, before = head_name(found.induction), head_name(found.previous)
    words = [names[i] for i in whole_words(names) if model.tokenizer.encode(names[i], add_special_tokens=False) == [i]]
    prepared: list[dict[str, Any]] = [
        {"label": "A made-up name", "text": NAMES, "head": found.induction, "at": best,
         "note": f"Choose a piece of a name that comes back: the arc leads to what followed it last time. Does head {looks_up} look there?"},
        {"label": "Random tokens, three times", "random": {"length": 16, "copies": 3, "words": words}, "head": found.induction, "at": 26,
         "note": "Drawn anew with each press. Only looking back can predict the second and third copy. Over many draws the mean loss "
                 f"of the three copies is {', '.join(f'{loss:.1f}' for loss in found.copies)} nats."},
        {"label": "Python", "text": "\n".join(passage(CODE[0]).splitlines()[: CODE[1]]) + "\n", "head": found.previous, "at": 20,
         "note": f"Code that the model has not been trained on. Head {before} looks at the token before, mostly."},
    ]  # fmt: skip
    if wrong := bug(model, names):
        (d, o), (e, p) = ((names[d].strip(), names[o].strip()) for d, o in wrong.right)
        source = names[wrong.source].strip()
        prepared.append(
            {"label": "A skip-trigram bug", "text": f" {source} ... {d}", "head": (0, wrong.head), "at": 3, "target": wrong.right[1][1],
             "note": f"“{source} … {d} → {o}” and “{source} … {e} → {p}” are both right, but head 0.{wrong.head} holds what it looks at and what it "
                     f"raises apart, so behind “{d}” it raises “{p}” as well: a pair that never occurs in the training text (“{d} {o}” does "
                     f"{wrong.pairs[0]:,} times). Put “{e}” in place of “{d}”: now “{o}” is wrong, and raised."}
        )  # fmt: skip
    return prepared


def still(model: TransformerBridge, found: Circuit) -> Figure:
    """For readers without scripts: the induction head on the first text, intact and without the previous-token head."""
    ids = model.to_tokens(NAMES)
    words, rings = model.to_str_tokens(ids[0]), induction.after_earlier(ids[0])
    fig, axes = plt.subplots(1, 2, figsize=(9.6, 4.6))
    looks_up, before = head_name(found.induction), head_name(found.previous)
    for ax, hooks, label in zip(axes, ([], heads.without_heads([found.previous])), (f"head {looks_up}", f"head {looks_up} without {before}")):
        pattern = heads.patterns(model, ids, hooks)[found.induction[0], 0, found.induction[1]]
        plots.heatmap(pattern, x=words, y=words, label=f"attention of {label}", limits=(0, 1), rings=rings, ax=ax)
        ax.tick_params(labelsize=7)
    return fig


PAGE = """\
# Play: take a two-layer transformer apart, on your own text

The two-layer model of this book runs in this page, as it was trained; what you type stays here. It has {n_heads} attention heads in each layer
and nothing else. Choose a token and a head to see where the head looks; switch heads off to see what they were for.
Its weights, {megabytes:.0f} MB, are loaded with this page.

```{{raw}} html
<link rel="stylesheet" href="{static}/play.css">
<div id="play" class="play tex2jax_ignore mathjax_ignore">
<noscript><p>With scripts switched on, the model runs here on any text. Without them, a still picture: where head {looks_up} looks on a sentence
with made-up names; rings mark what followed last time.</p>
<img src="{static}/still.png" alt="Attention of head {looks_up} on a sentence in which two made-up names come twice: on the left of the intact
model, on the right without head {before}, with rings where the token is that followed last time." width="1056"></noscript>
<p class="play-status" role="status"></p>
<div class="play-app"></div>
<h2>Try this</h2>
<ol>
{steps}
</ol>
</div>
<script defer src="{static}/engine.js"></script><script defer src="{static}/play.js"></script>
```

```{{rubric}} What is computed
```

Everything, from the weights, each time: these are the shipped ones, in half precision, computed with in single precision. Probabilities and
logits agree with TransformerLens to rounding; a test of the book holds them to it, for each kind of switch.

- **A head that is off** adds nothing, or its mean on held-out text. Layer 1 reads what layer 0 wrote, so that a head of layer 0 can also be
  missed by its queries, keys or values alone, while everything else still has it.
- **Composition** off: queries, keys or values of layer 1 are computed from the embedding (and the position) alone
  ([chapter 6](../notebooks/06_composition.ipynb)).
- **Frozen patterns** keep each head's attention as it is in the intact model, so that only what is moved changes
  ([chapter 8](../notebooks/08_term_importance.ipynb)).
- **Value-weighted** attention is multiplied by the length of the value vector, over the largest of that head in the text: a head rests on
  tokens whose values are short ([chapter 7](../notebooks/07_induction_heads.ipynb)).
- **What a head adds** to a logit is exact, for the stream is a sum; it does not say where the head got it from.

Marked as *induction* and *previous* are heads with an induction score of 0.3 and a previous-token score of 0.4 or more, and the best of each.
In the browser's console, `await play.run("some text", {{off: [[0, 1]]}})` returns patterns, losses and logits.
"""


def step(sentence: str, button: str, does: dict[str, Any]) -> str:
    return f'<li><span>{sentence}</span><button type="button" disabled data-do="{html.escape(json.dumps(does))}">{button}</button></li>'


def page(model: TransformerBridge, found: Circuit, megabytes: float) -> str:
    looks_up, before, a, loss = head_name(found.induction), head_name(found.previous), found.attention, found.loss
    off, head = [found.previous], found.induction
    steps = [
        step(f"Turn head {before} off, and watch head {looks_up}, in the layer above: on repeated random tokens its attention to what followed last "
             f"time goes from {a['intact']:.0%} to {a['off']:.0%}, and the loss there from {loss['intact']:.2f} to {loss['off']:.2f} nats.",
             f"{before} off", {"text": 1, "edits": {"off": off}, "head": head}),
        step(f"Was it what {before} writes into the <em>keys</em> of layer 1? Off for these alone: attention {a['missed']:.0%}, "
             f"loss {loss['missed']:.2f}. Try the queries and the values.",
             f"{before} off for the keys", {"text": 1, "edits": {"off": off, "from": "K"}, "head": head}),
        step(f"Let these keys read the embedding alone, as if there were no K-composition: attention {a['keys']:.0%}, loss {loss['keys']:.2f}.",
             "no K-composition", {"text": 1, "edits": {"cut": "K"}, "head": head}),
        step(f"Switch {before} off with the patterns frozen: head {looks_up} looks where it did, and the loss is "
             f"{loss['frozen']:.2f}, not {loss['off']:.2f}.",
             f"{before} off, frozen", {"text": 1, "edits": {"off": off, "frozen": True}, "head": head}),
    ]  # fmt: skip
    return PAGE.format(
        n_heads=model.cfg.n_heads, megabytes=megabytes, static=STATIC, looks_up=looks_up, before=before, steps="\n".join(steps)
    )


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m transformer_circuits.pages.play", description="Write the page of the live model.")
    parser.add_argument("out", type=Path, help="Markdown file of the page; what it loads goes into the folder _static/play beside it")
    out = parser.parse_args(argv).out
    use_style()
    with torch.no_grad():
        model = load_model(MODEL, device="cpu")
        windows = held_out_windows(16, model.cfg.n_ctx // 2, model.cfg.d_vocab)[:, :-1]
        repeated = repeated_random_tokens(model.cfg.d_vocab, model.cfg.n_ctx // 2, rows=16)
        found, names = circuit(model, windows, repeated), vocabulary()
        means = [heads.mean_z(model, windows, layer).tolist() for layer in range(model.cfg.n_layers)]
        facts = {"roles": found.roles, "scores": found.scores, "texts": texts(model, found, names)}
        folder = out.parent / "_static" / "play"
        folder.mkdir(parents=True, exist_ok=True)
        data = script(model, means, facts)
        (folder / "model.js").write_text(data, encoding="utf-8")
        still(model, found).savefig(folder / "still.png", dpi=110)
    out.write_text(page(model, found, len(data) / 1e6), encoding="utf-8")


if __name__ == "__main__":
    main()
