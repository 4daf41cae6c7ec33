"""The page "Follow a name": one example from its tokens to the prediction, through two heads.

The picture is `book/_static/follow/`. This module writes its numbers, from runs of the shipped models: the
two-layer model as it is (`intact`); with the keys of the induction head cut from what the previous-token head wrote
(`cut`: its mean is left); and the one-layer model. Scores say which heads.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from book_build.pages import render
from transformer_circuits.circuits import heads
from transformer_circuits.circuits.heads import Head, Hook, head_name
from transformer_circuits.data import held_out_windows
from transformer_circuits.figures.tokens import show_token
from transformer_circuits.measures import ablation
from transformer_circuits.measures.repeats import last_target
from transformer_circuits.models import load_model
from transformer_circuits.training.evaluation import decimals

TWO, ONE = "attn-only-2l", "attn-only-1l"
TEXTS = {  # all names are made up
    "A name": "Peter met Mrs. Gramley, and Mr. Gram",
    "Another name": "Old Kettleby sat down, and Old Kett",
    "Code": "self.flimber = flimber or self.fl",
    "Found, but outvoted": "He called it the Quiblen, and so the Quib",
}
TOP = 6  # tokens of a list
SEEN = 0.15  # of the attention of a head, from which on its notes are said to hold a token
STRANDS = 6  # paths that are drawn one by one


class Circuit(NamedTuple):
    """The best induction head, and the best previous-token head."""

    induction: Head
    previous: Head


def centered(logits: Float[Tensor, "*batch d_vocab"]) -> Float[Tensor, "*batch d_vocab"]:
    """Return logits minus their mean, which the softmax ignores."""
    return logits - logits.mean(dim=-1, keepdim=True)


def circuit(model: TransformerBridge) -> Circuit:
    """Return the heads that the picture is about."""
    scores = heads.measured_induction(model).mean[1]
    windows = held_out_windows(16, model.cfg.n_ctx, model.cfg.d_vocab)[:, :-1]
    back = heads.previous_token_scores(model, windows)[0]
    return Circuit((1, int(scores.argmax())), (0, int(back.argmax())))


def keys_without(model: TransformerBridge, head: Head, written: Float[Tensor, "pos d_model"]) -> list[Hook]:
    """Return hooks that replace `written` by its mean in the keys of a head."""
    layer, index = head

    def cut(k: Float[Tensor, "row pos head d_head"], hook: Any) -> Tensor:
        k = k.clone()
        k[0, :, index] -= (written - written.mean(dim=0)) @ model.W_K[layer, index]
        return k

    return [(f"blocks.{layer}.attn.hook_k", cut)]


def run(
    model: TransformerBridge, ids: Int[Tensor, "1 pos"], head: Head, hooks: list[Hook] = ()
) -> tuple[dict[str, Tensor], Any]:
    """Return a head's scores at a text's last token, its pattern, what it adds to the logits there; and the cache."""
    (layer, index), last = head, ids.shape[1] - 1
    with model.hooks(fwd_hooks=list(hooks)):
        logits, cache = model.run_with_cache(ids)
    result = {
        "scores": cache["attn_scores", layer][0, index, last],
        "pattern": cache["pattern", layer][0, index],
        "adds": centered(cache["z", layer][0, last, index] @ model.W_O[layer, index] @ model.W_U),
        "probabilities": logits[0, last].softmax(dim=-1),
    }
    return result, cache


def paths(model: TransformerBridge, cache: Any, answer: int) -> list[tuple[str, float]]:
    """Return what every path adds to the centered logit of a token at the last position, with the patterns of the run:
    the direct path, single heads, virtual heads. Largest first, and they add up to that logit (claims P1 and T1)."""
    read = centered(model.W_U)[:, answer]
    embed, patterns = cache["embed"][0], [cache["pattern", layer][0] for layer in range(2)]
    parts = {"": float(embed[-1] @ read)}
    # [head, pos, d_model]
    moved = [patterns[0] @ (embed @ model.OV[0].AB), (patterns[1][:, -1:] @ (embed @ model.OV[1].AB))]
    for layer, of_layer in enumerate(moved):
        parts |= {head_name((layer, head)): float(value) for head, value in enumerate(of_layer[:, -1] @ read)}
    values = torch.einsum("hp,ipd,hde,e->hi", patterns[1][:, -1], moved[0], model.OV[1].AB, read)  # [second, first]
    for second, row in enumerate(values.tolist()):
        parts |= {f"{head_name((1, second))}·{head_name((0, first))}": value for first, value in enumerate(row)}
    return sorted(parts.items(), key=lambda part: -abs(part[1]))


def shown(model: TransformerBridge, likely: Tensor) -> list[str]:
    """Return tokens as a page writes them."""
    return [show_token(token) for token in model.to_str_tokens(likely)]


def predicted(model: TransformerBridge, result: dict[str, Tensor], answer: int) -> list[list[Any]]:
    """Return the likeliest next tokens and the answer, with their probabilities."""
    best = result["probabilities"].topk(TOP).indices.tolist()
    listed = torch.tensor(best if answer in best else [*best, answer])
    chances = decimals(result["probabilities"][listed], 6)
    return [[name, chance] for name, chance in zip(shown(model, listed), chances)]


def split(model: TransformerBridge, cache: Any, which: Circuit, cut: bool) -> dict[str, Float[Tensor, " pos"]]:
    """Return what each part of the stream adds to the keys' scores for the last query: the token, its place, and what
    each first-layer head wrote. Scores are linear in the keys, and keys in the stream."""
    layer, index = which.induction
    query = cache["q", layer][0, -1, index] / model.cfg.d_head**0.5
    wrote = torch.einsum("phd,hdm->hpm", cache["z", 0][0], model.W_O[0])
    if cut:
        wrote[which.previous[1]] = wrote[which.previous[1]].mean(dim=0)
    streams = {"token": cache["embed"][0], "place": model.W_pos[: len(wrote[0])]}
    streams |= {head_name((0, head)): written for head, written in enumerate(wrote)}
    return {name: stream @ model.W_K[layer, index] @ query for name, stream in streams.items()}


def split_of_target(parts: dict[str, Tensor], previous: str, target: int) -> dict[str, Any]:
    """Return the split of every key's score: the note, the token, the other head that says most at the target, and the
    rest."""
    at_target = {name: abs(float(part[target] - part.mean())) for name, part in parts.items() if name[0] == "0"}
    at_target.pop(previous)
    also = max(at_target, key=at_target.get)
    chosen = {"note": parts[previous], "token": parts["token"], "also": parts[also]}
    chosen["rest"] = sum(parts.values()) - sum(chosen.values())
    return {"also": also, "parts": {name: decimals(part, 3) for name, part in chosen.items()}}


def sentence(two: TransformerBridge, one: TransformerBridge, which: Circuit, text: str) -> dict[str, Any]:
    """Return what the picture shows of one text, which ends with a token that occurred before, in three runs."""
    ids = two.to_tokens(text)
    last, target = ids.shape[1] - 1, int(last_target(ids[0])[-1])
    answer = int(ids[0, target])
    intact, cache = run(two, ids, which.induction)
    wrote = torch.einsum("phd,hdm->hpm", cache["z", 0][0], two.W_O[0])[which.previous[1]]
    cut, cut_cache = run(two, ids, which.induction, keys_without(two, which.induction, wrote))
    nearest = (0, int(heads.patterns(one, ids)[0, 0, :, last, target].argmax()))
    plain, _ = run(one, ids, nearest)
    previous, induction = head_name(which.previous), head_name(which.induction)
    common = {
        "names": ["start", *shown(two, ids[0, 1:])],
        "at": last,
        "followed": target,
        "answer": shown(two, ids[0, [target]])[0],
        "low": previous,
    }

    def view(result: dict[str, Tensor], model: TransformerBridge, head: str) -> dict[str, Any]:
        return {
            **common,
            "high": head,
            "row": decimals(result["pattern"][last], 5),
            "adds": round(float(result["adds"][answer]), 3),
            "next": predicted(model, result, answer),
        }

    runs = {}
    for name, result, of in (("intact", intact, cache), ("cut", cut, cut_cache)):
        parts = split_of_target(split(two, of, which, name == "cut"), previous, target)
        every = paths(two, of, answer)
        sees = of["pattern", 0][0, int(parts["also"][2:]), target]
        best = [int(i) for i in sees.argsort(descending=True)[:3] if sees[i] >= SEEN]
        runs[name] = (
            view(result, two, induction)
            | parts
            | {
                "alsoSees": [common["names"][i] for i in sorted(best)],
                "back": decimals(of["pattern", 0][0, which.previous[1]], 2),
                "paths": [[path, round(value, 3)] for path, value in every[:STRANDS]],
                "others": [len(every) - STRANDS, round(sum(value for _, value in every[STRANDS:]), 3)],
            }
        )
    runs["one"] = view(plain, one, head_name(nearest))
    return {"text": text, "runs": runs}


@torch.no_grad()
def numbers(two: TransformerBridge, one: TransformerBridge) -> dict[str, Any]:
    """Return what the picture shows, for all of its texts."""
    which = circuit(two)
    names = {role: head_name(head) for role, head in which._asdict().items()}
    return {"heads": names, "sentences": {label: sentence(two, one, which, text) for label, text in TEXTS.items()}}


def percent(share: float) -> str:
    """Return a share as the picture writes it."""
    return f"{share:.1%}" if share < 0.1 or share > 0.99 else f"{share:.0%}"


def said(sentence: dict[str, Any]) -> dict[str, str]:
    """Return the numbers in the page's words on a text. Scores are above the mean over the text."""
    runs = sentence["runs"]
    intact, at = runs["intact"], runs["intact"]["followed"]
    lead = {name: part[at] - sum(part) / len(part) for name, part in intact["parts"].items()}
    chance = {run: percent(dict(view["next"])[view["answer"]]) for run, view in runs.items()}
    return {
        "answer": intact["answer"],
        "asks": intact["names"][intact["at"]],
        "note": f"{lead['note']:.1f}",
        "token": f"{lead['token']:.1f}".replace("-", "−"),
        "score": f"{sum(lead.values()):.1f}",
        "attention": percent(intact["row"][at]),
        "cut_attention": percent(runs["cut"]["row"][at]),
        "chance": chance["intact"],
        "cut_chance": chance["cut"],
        "one_chance": chance["one"],
    }


def main(out: Path) -> None:
    content = numbers(*(load_model(name, device="cpu") for name in (TWO, ONE)))
    folder = out.parent / "_static" / "follow"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "data.js").write_text(f"pageData({json.dumps(content)});\n", encoding="utf-8")
    words = said(content["sentences"]["A name"])
    out.write_text(render("follow.md", heads=content["heads"], works=ablation.WORKS, **words), encoding="utf-8")
