"""The page "Follow a name": one example from its tokens to the prediction, through two heads.

The picture is `book/_static/follow/`. This module writes its numbers for prepared texts, from three runs of the shipped
models: the two-layer model as it is (`intact`); with the keys of the induction head cut from what the previous-token
head wrote (`cut`: its mean is left); and the one-layer model (`one`). `engine` writes the models, for any other text,
and the snapshots of their training.
"""

import json
import math
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from book_build.pages import engine, render
from transformer_circuits.circuits import heads
from transformer_circuits.circuits.heads import Head, head_name
from transformer_circuits.data import held_out_windows
from transformer_circuits.figures.tokens import show_token
from transformer_circuits.measures import ablation
from transformer_circuits.measures.attention import INDUCTION_HEAD, PATTERN_WINDOWS, PREVIOUS_TOKEN_HEAD
from transformer_circuits.measures.repeats import last_target
from transformer_circuits.models import load_model
from transformer_circuits.models.registry import training_log
from transformer_circuits.training.evaluation import decimals

TEXTS = {  # all names are made up
    "A name": "Peter met Mrs. Gramley, and Mr. Gram",
    "Another name": "Old Kettleby sat down, and Old Kett",
    "Code": "self.flimber = flimber or self.fl",
    "Found, but outvoted": "He called it the Quiblen, and so the Quib",
}
TOP = 6  # tokens of a list
SEEN = 0.15  # of the attention of a head, from which on its notes are said to hold a token
STRANDS = 6  # paths that are drawn one by one


def view(
    model: TransformerBridge, logits: Float[Tensor, " d_vocab"], cache: Any, head: Head, answer: int
) -> dict[str, Any]:
    """Return what every run shows of a head at the last token: its attention, what it adds to the logit of the answer,
    and the likeliest next tokens, with the answer."""
    layer, index = head
    W_U = model.W_U - model.W_U.mean(dim=-1, keepdim=True)  # softmax ignores the mean
    chances = logits.softmax(dim=-1)
    best = chances.topk(TOP).indices.tolist()
    listed = torch.tensor(best if answer in best else [*best, answer])
    adds = cache["z", layer][0, -1, index] @ model.W_O[layer, index] @ W_U
    return {
        "high": head_name(head),
        "row": decimals(cache["pattern", layer][0, index, -1], 5),
        "adds": round(float(adds[answer]), 3),
        "next": [[name, chance] for name, chance in zip(shown(model, listed), decimals(chances[listed], 6))],
    }


def paths(model: TransformerBridge, cache: Any, answer: int) -> list[tuple[str, float]]:
    """Return what every path adds to the centered logit of a token at the last position, with the patterns of the run:
    the direct path, single heads, virtual heads. Largest first, and they add up to that logit (claims P1 and T1)."""
    read = model.W_U[:, answer] - model.W_U.mean(dim=-1)
    embed, A = cache["embed"][0], [cache["pattern", layer][0] for layer in range(2)]
    first = A[0] @ (embed @ model.OV[0].AB)  # [head, pos, d_model]
    second = A[1][:, -1:] @ (embed @ model.OV[1].AB)
    virtual = torch.einsum("hp,ipd,hde,e->hi", A[1][:, -1], first, model.OV[1].AB, read)  # [second, first]
    parts = {"": float(embed[-1] @ read)}
    for layer, moved in enumerate((first, second)):
        parts |= {head_name((layer, head)): value for head, value in enumerate((moved[:, -1] @ read).tolist())}
    for high, row in enumerate(virtual.tolist()):
        parts |= {f"{head_name((1, high))}·{head_name((0, low))}": value for low, value in enumerate(row)}
    return sorted(parts.items(), key=lambda part: -abs(part[1]))


def split(
    model: TransformerBridge, cache: Any, wrote: Float[Tensor, "head pos d_model"], pair: tuple[Head, Head], target: int
) -> dict[str, Any]:
    """Return how every key's score for the last query is split: the note, the token, the other head that says most at
    the target, and the rest; and at which positions that head looked there. Scores are linear in the keys, and keys in
    the stream. `wrote`: what the keys read of each first-layer head."""
    previous, (layer, index) = pair
    read = model.W_K[layer, index] @ cache["q", layer][0, -1, index] / model.cfg.d_head**0.5
    parts = {head_name((0, head)): stream @ read for head, stream in enumerate(wrote)}
    note = parts.pop(head_name(previous))
    also = max(parts, key=lambda name: abs(float(parts[name][target] - parts[name].mean())))
    sees = cache["pattern", 0][0, int(also[2:]), target]
    chosen = {"note": note, "token": cache["embed"][0] @ read, "also": parts.pop(also)}
    chosen["rest"] = sum(parts.values(), model.W_pos[: len(note)] @ read)
    return {
        "also": also,
        "alsoSees": sorted(i for i in sees.argsort(descending=True)[:3].tolist() if sees[i] >= SEEN),
        "parts": {name: decimals(part, 3) for name, part in chosen.items()},
    }


def shown(model: TransformerBridge, ids: Int[Tensor, " token"]) -> list[str]:
    """Return tokens as a page writes them."""
    return [show_token(token) for token in model.to_str_tokens(ids)]


def sentence(two: TransformerBridge, one: TransformerBridge, pair: tuple[Head, Head], text: str) -> dict[str, Any]:
    """Return what the picture shows of one text, which ends with a token that occurred before, in three runs."""
    (_, writer), (layer, index) = pair
    ids = two.to_tokens(text)
    target = int(last_target(ids[0])[-1])
    answer, names = int(ids[0, target]), ["start", *shown(two, ids[0, 1:])]
    common = {"names": names, "at": len(names) - 1, "followed": target, "answer": names[target]}
    common["low"] = head_name(pair[0])
    intact = two.run_with_cache(ids)
    wrote = torch.einsum("phd,hdm->hpm", intact[1]["z", 0][0], two.W_O[0])  # each first-layer head
    left = wrote.clone()
    left[writer] = wrote[writer].mean(dim=0)

    def cut(k: Float[Tensor, "row pos head d_head"], hook: Any) -> Tensor:
        k = k.clone()
        k[0, :, index] -= (wrote - left)[writer] @ two.W_K[layer, index]
        return k

    with two.hooks(fwd_hooks=[(f"blocks.{layer}.attn.hook_k", cut)]):
        without = two.run_with_cache(ids)
    runs = {}
    for name, (logits, cache), in_keys in (("intact", intact, wrote), ("cut", without, left)):
        found = common | view(two, logits[0, -1], cache, pair[1], answer) | split(two, cache, in_keys, pair, target)
        found["alsoSees"] = [names[i] for i in found["alsoSees"]]
        every = paths(two, cache, answer)
        found["back"] = decimals(cache["pattern", 0][0, writer], 2)
        found["paths"] = [[path, round(value, 3)] for path, value in every[:STRANDS]]
        found["others"] = [len(every) - STRANDS, round(sum(value for _, value in every[STRANDS:]), 3)]
        runs[name] = found
    logits, cache = one.run_with_cache(ids)
    nearest = (0, int(cache["pattern", 0][0, :, -1, target].argmax()))
    runs["one"] = common | view(one, logits[0, -1], cache, nearest, answer)
    return {"text": text, "runs": runs}


@torch.no_grad()
def numbers(two: TransformerBridge, one: TransformerBridge) -> dict[str, Any]:
    """Return what the picture shows, for all of its texts, of the best previous-token head and the best induction
    head."""
    windows = held_out_windows(PATTERN_WINDOWS, two.cfg.n_ctx, two.cfg.d_vocab)[:, :-1]
    back = heads.previous_token_scores(two, windows)[0]
    pair = (0, int(back.argmax())), (1, int(heads.measured_induction(two).mean[1].argmax()))
    names = dict(zip(("previous", "induction"), map(head_name, pair)))
    sentences = {label: sentence(two, one, pair, text) for label, text in TEXTS.items()}
    return {"n_heads": two.cfg.n_heads, "heads": names, "sentences": sentences}


def percent(share: float) -> str:
    """Return a share as the picture writes it."""
    return f"{share:.1%}" if share < 0.1 or share > 0.99 else f"{share:.0%}"


def said(sentence: dict[str, Any]) -> dict[str, Any]:
    """Return what the page says about a text: of the intact run, and of others. Scores (`lead`: of each part of the
    key, and of the whole in a run) are above their mean over the text."""
    runs = sentence["runs"]
    intact, at = runs["intact"], runs["intact"]["followed"]
    lead = {
        run: {name: part[at] - sum(part) / len(part) for name, part in runs[run]["parts"].items()}
        for run in ("intact", "cut")
    }
    chances = {run: dict(view["next"])[view["answer"]] for run, view in runs.items()}
    bare = intact["adds"] - math.log(chances["intact"] / (1 - chances["intact"]))  # the odds against it, as a logit
    return intact | {
        "lead": lead["intact"] | {run: sum(of_run.values()) for run, of_run in lead.items()},
        "own": dict(intact["paths"])[intact["high"]],
        "cut_adds": runs["cut"]["adds"],
        "attention": {run: percent(runs[run]["row"][at]) for run in lead},
        "chance": {run: percent(p) for run, p in chances.items()},
        "bare": percent(1 / (1 + math.exp(bare))),
    }


def main(folder: Path) -> str:
    models = [load_model(name, device="cpu") for name in engine.MODELS]
    content = numbers(*models)
    data = folder / "_static" / "follow" / "data.js"
    data.parent.mkdir(parents=True)
    data.write_text(f"pageData({json.dumps(content)});\n", encoding="utf-8")
    engine.write(folder / "_static" / "play", models, content["heads"])
    words = said(content["sentences"]["A name"]) | {
        "heads": content["heads"],
        "snapshots": len(training_log(models[0].cfg.model_name)),
        "works": ablation.WORKS,
        "previous": f"{PREVIOUS_TOKEN_HEAD:.0%}",
        "induction": INDUCTION_HEAD,
    }
    return render("follow.md", **words)
