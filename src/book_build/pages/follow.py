"""The page "Follow a name": one example from its tokens to the prediction, through two heads.

The picture is `book/_static/follow/follow.js`. This module writes its numbers, from runs of the shipped models: the
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
TOP = 5  # tokens of a list
STRANDS = 9  # paths that are drawn one by one


class Circuit(NamedTuple):
    """The best induction head, the previous-token head, and the other first-layer head that the keys read most."""

    induction: Head
    previous: Head
    also: Head


def centered(logits: Float[Tensor, "*batch d_vocab"]) -> Float[Tensor, "*batch d_vocab"]:
    """Return logits minus their mean, which the softmax ignores."""
    return logits - logits.mean(dim=-1, keepdim=True)


def circuit(model: TransformerBridge) -> Circuit:
    """Return the heads that the picture is about."""
    scores = heads.measured_induction(model).mean[1]
    windows = held_out_windows(16, model.cfg.n_ctx, model.cfg.d_vocab)[:, :-1]
    back = heads.previous_token_scores(model, windows)[0]
    induction, previous = int(scores.argmax()), int(back.argmax())
    reads = (model.OV[0].AB @ model.W_K[1, induction]).norm(dim=(-2, -1)) / model.OV[0].norm()
    reads[previous] = 0
    return Circuit((1, induction), (0, previous), (0, int(reads.argmax())))


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


def sentence(two: TransformerBridge, one: TransformerBridge, which: Circuit, text: str) -> dict[str, Any]:
    """Return all numbers of the picture for one text, which ends with a token that occurred before."""
    ids = two.to_tokens(text)
    last, target = ids.shape[1] - 1, int(last_target(ids[0])[-1])
    answer, (layer, index) = int(ids[0, target]), which.induction
    intact, cache = run(two, ids, which.induction)
    wrote = torch.einsum("phd,hdm->hpm", cache["z", 0][0], two.W_O[0])
    cut, _ = run(two, ids, which.induction, keys_without(two, which.induction, wrote[which.previous[1]]))
    nearest = (0, int(heads.patterns(one, ids)[0, 0, :, last, target].argmax()))
    plain, _ = run(one, ids, nearest)
    runs = {"intact": intact, "cut": cut, "one": plain}

    # Scores are linear in the keys, and so in what each first-layer head wrote.
    query = cache["q", layer][0, last, index] / two.cfg.d_head**0.5
    contents = {"token": cache["embed"][0], "previous": wrote[which.previous[1]], "also": wrote[which.also[1]]}
    contents["rest"] = wrote.sum(dim=0) - contents["previous"] - contents["also"] + two.W_pos[: last + 1]
    parts = {source: content @ two.W_K[layer, index] @ query for source, content in contents.items()}

    moves = centered(cache["v", layer][0, :, index] @ two.W_O[layer, index] @ two.W_U)  # [source, d_vocab]
    best = [x["probabilities"].topk(TOP).indices for x in runs.values()]
    likely = torch.cat([*best, torch.tensor([answer])]).unique()
    every = paths(two, cache, answer)

    def names(tokens: Tensor) -> list[str]:
        return [show_token(token) for token in two.to_str_tokens(tokens)]

    return {
        "text": text,
        "tokens": ["start", *names(ids[0, 1:])],
        "answer": names(ids[0, [target]])[0],
        "target": target,
        "look_back": decimals(cache["pattern", 0][0, which.previous[1]], 2),
        "parts": {source: decimals(part, 3) for source, part in parts.items()},
        "moves": [[names(row.topk(TOP).indices), decimals(row.topk(TOP).values, 2)] for row in moves],
        "likely": names(likely),
        "one": head_name(nearest),
        "paths": [[name, round(value, 3)] for name, value in every[:STRANDS]],
        "others": [len(every) - STRANDS, round(sum(value for _, value in every[STRANDS:]), 3)],
        "runs": {
            name: {
                "scores": decimals(x["scores"], 3),
                "pattern": decimals(x["pattern"], 3),
                "adds": round(float(x["adds"][answer]), 3),
                "probabilities": decimals(x["probabilities"][likely], 4),
            }
            for name, x in runs.items()
        },
    }


@torch.no_grad()
def numbers(two: TransformerBridge, one: TransformerBridge) -> dict[str, Any]:
    """Return what the picture shows, for all of its texts."""
    which = circuit(two)
    names = {role: head_name(head) for role, head in which._asdict().items()}
    return {"heads": names, "sentences": {label: sentence(two, one, which, text) for label, text in TEXTS.items()}}


def main(out: Path) -> None:
    content = numbers(*(load_model(name, device="cpu") for name in (TWO, ONE)))
    folder = out.parent / "_static" / "follow"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "data.js").write_text(f"pageData({json.dumps(content)});\n", encoding="utf-8")
    out.write_text(render("follow.md", heads=content["heads"]), encoding="utf-8")
