"""What an induction head computes: its scores as a sum over content and over paths (claims T16, T18 to T21).

Every function takes a two-layer attention-only bridge, rows of tokens [row, pos], and a head of the second layer. The
stream that this layer reads is a constant plus parts. `by_content` has a part for each number of tokens back,
`by_path` one for each head of the first layer. A score is then a sum over pairs, one part in the query, one in the key.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.utilities import get_act_name

from transformer_circuits.measures import repeats, weights
from transformer_circuits.models.view import BATCH, View
from transformer_circuits.paths import data_file

REACH = 7  # content is split by how many tokens back it comes from: 0 to 6; what is older is one more part
TWO_MATCHES = [(0, 1), (1, 2)]  # this token matches; the one before it matches too
LONGEST_MATCH = 3  # matching tokens that are told apart (claim T20)
START = LONGEST_MATCH + 1  # the start token, among the kinds of `match_lengths`


def recorded() -> dict[str, Any]:
    """Return what `book_tools.matches` measured, by model, in pairs of an estimate and its standard error."""
    return json.loads(data_file("matches.json").read_text())


class Parts(NamedTuple):
    """What is added up in the queries and in the keys of one head. The last part is the constant."""

    queries: Float[Tensor, "part row pos d_head"]
    keys: Float[Tensor, "part row pos d_head"]


def _sides(parts: Sequence[Float[Tensor, "... pos two_d_head"]]) -> Parts:
    return Parts(*torch.stack([part.expand_as(parts[0]) for part in parts]).chunk(2, dim=-1))


def by_content(model: Any, tokens: Int[Tensor, "row pos"], head: int) -> Parts:
    """Return the parts that come from 0 to REACH - 1 tokens back, from further back, and the constant.

    Content is a token's embedding less the mean over these rows, moved by all first-layer heads as they attend (and, 0
    back, the embedding itself). The constant is the position and the mean embedding, which every head moves alike.
    """
    mean = model.W_E[tokens].mean(dim=(0, 1))
    reads = torch.cat([model.W_Q[1, head], model.W_K[1, head]], dim=-1)  # first, so that few numbers are added up
    writes = model.W_O[0] @ reads
    found: list[list[Tensor]] = [[] for _ in range(REACH + 1)]
    for rows in tokens.split(BATCH):
        (A,) = View(model).pattern_scores(rows, lambda pattern: pattern, layers=[0])
        own = model.W_E[rows] - mean
        v = torch.einsum("rpm,hmd->rhpd", own, model.W_V[0])
        older = A @ v
        for back in range(REACH):
            moved = torch.zeros_like(v)
            moved[:, :, back:] = A.diagonal(-back, -2, -1)[..., None] * v[:, :, : v.shape[2] - back]
            older = older - moved
            found[back].append(torch.einsum("rhpd,hde->rpe", moved, writes) + (own @ reads if back == 0 else 0))
        found[REACH].append(torch.einsum("rhpd,hde->rpe", older, writes))
    moved_mean = mean + torch.einsum("m,hmd,hde->e", mean, model.W_V[0], model.W_O[0])
    constant = (model.W_pos[: tokens.shape[1]] + moved_mean) @ reads
    return _sides([*(torch.cat(part) for part in found), constant])


def by_path(model: Any, tokens: Int[Tensor, "row pos"], head: int) -> Parts:
    """Return the token's own part, one for each first-layer head, and the constant: the position, and all means over
    these rows and positions, which the other parts lack."""
    name, reads = get_act_name("z", 0), torch.cat([model.W_Q[1, head], model.W_K[1, head]], dim=-1)
    z = torch.cat([View(model).activations(rows, [name])[name] for rows in tokens.split(BATCH)])
    parts = [(model.W_E @ reads)[tokens], *torch.einsum("rphd,hde->hrpe", z, model.W_O[0] @ reads)]
    means = [part.mean(dim=(0, 1)) for part in parts]
    constant = model.W_pos[: tokens.shape[1]] @ reads + torch.stack(means).sum(dim=0)
    return _sides([*(part - mean for part, mean in zip(parts, means)), constant])


def mask_of(pairs: Iterable[tuple[int, int]], n_parts: int, constants: bool = True) -> Float[Tensor, "query key"]:
    """Return a mask over pairs of parts (query, key): these pairs, and all pairs with the constant on a side."""
    mask = torch.zeros(n_parts, n_parts)
    if constants:
        mask[-1], mask[:, -1] = 1.0, 1.0
    for query, key in pairs:
        mask[query, key] = 1.0
    return mask


def scores_with(
    parts: Parts, mask: Float[Tensor, "query key"], row: int, at: Any = slice(None)
) -> Float[Tensor, "dest src"]:
    """Return the attention scores of one row, from these pairs of parts alone, at some destinations."""
    keys = torch.einsum("ab,bsd->asd", mask.to(parts.keys), parts.keys[:, row])
    return torch.einsum("aid,ajd->ij", parts.queries[:, row, at], keys) / parts.keys.shape[-1] ** 0.5


def causal_softmax(scores: Float[Tensor, "*batch dest src"], first: int = 0) -> Float[Tensor, "*batch dest src"]:
    """Return the softmax over sources up to each destination; `first` is the position of the first one."""
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1 + first)
    return scores.masked_fill(later, -torch.inf).softmax(dim=-1)


def second_copies(draws: Sequence[repeats.Repeated]) -> Iterable[tuple[int, int, int, int, int]]:
    """Yield (draw, row among all, start, first position of the second copy, its end)."""
    row = 0
    for n, draw in enumerate(draws):
        for start, length in zip(draw.start.tolist(), draw.length.tolist()):
            yield n, row, start, start + length, start + 2 * length
            row += 1


def induction_from(
    draws: Sequence[repeats.Repeated], score_of: Callable[[int, slice, int], Float[Tensor, "*batch dest src"]]
) -> Float[Tensor, "*batch draw"]:
    """Return a head's induction score (`attention.induction_score`) on each draw, from its attention scores, which
    `score_of(row, destinations, end)` gives."""
    total: list[Any] = [0.0 for _ in draws]
    for n, row, start, first, end in second_copies(draws):
        A = causal_softmax(score_of(row, slice(first, end), end), first)
        total[n] = total[n] + A.diagonal(start + 1, -2, -1).sum(dim=-1)
    return torch.stack([value / draw.length.sum() for value, draw in zip(total, draws)], dim=-1)


def induction_with(parts: Parts, mask: Float[Tensor, "query key"], draws: Sequence[repeats.Repeated]) -> Tensor:
    """Return the induction score on each draw if only these pairs of parts are compared."""
    return induction_from(draws, lambda row, at, end: scores_with(parts, mask, row, at)[:, :end])


def path_circuits(model: Any, head: int) -> tuple[Float[Tensor, "query key"], Float[Tensor, "query key"]]:
    """Return, for each path of `by_path`, its match by weights in units of score, and its composition ratio.

    The match is the mean over tokens of the circuit's own entry less the mean of its row (claim T10). The ratio is the
    circuit's norm over those of its factors, as a multiple of chance, with white embeddings (claim T3).
    """
    W_V, W_O, W_Q, W_K = model.W_V[0], model.W_O[0], model.W_Q[1, head], model.W_K[1, head]
    embedded = [model.W_E, *(model.W_E @ V @ O for V, O in zip(W_V, W_O))]
    q, k = (torch.stack([E @ W for E in embedded]) for W in (W_Q, W_K))
    own = torch.einsum("avd,bvd->ab", q, k) / len(model.W_E)
    match = (own - q.mean(dim=1) @ k.mean(dim=1).mT) / W_Q.shape[-1] ** 0.5
    OV, _ = weights.white_circuits(model.OV[0], model.QK[0], model.W_E)
    _, QK = weights.white_circuits(model.OV[1], model.QK[1], model.W_E)
    movers = torch.stack([torch.eye(len(W_Q)).to(W_Q), *(OV.A @ OV.B)])
    left, right = movers @ QK.A[head], movers @ QK.B[head].mT
    norms = torch.einsum("amd,ame,bnd,bne->ab", left, left, right, right).clamp(min=0).sqrt()
    size = torch.linalg.matrix_norm(movers)
    whole = torch.linalg.matrix_norm(QK.A[head] @ QK.B[head])
    return match, norms / (size[:, None] * size * whole) * len(W_Q)


def overlaps(model: Any, tokens: Int[Tensor, "row pos"]) -> Float[Tensor, "query key"]:
    """Return, for each path, the sum over o of a(o) b(o + 1): `a` is the mean attention of the query's head to the
    token o back, `b` that of the key's. The direct path has all of it at 0. The start token is left out."""
    reach = 64  # tokens back
    total = torch.zeros(model.cfg.n_heads, reach + 1)
    for rows in tokens.split(BATCH):
        (A,) = View(model).pattern_scores(rows, lambda pattern: pattern, layers=[0])
        means = [A.diagonal(-back, -2, -1)[..., 1:].mean(dim=-1).sum(dim=0) for back in range(reach + 1)]
        total += torch.stack(means, dim=1).cpu()
    attention = torch.cat([torch.eye(1, reach + 1), total / len(tokens)])
    return attention[:, :-1] @ attention[:, 1:].mT


def match_lengths(tokens: Int[Tensor, "row pos"]) -> Int[Tensor, "row dest src"]:
    """Return how many tokens up to the one before a source equal the last ones up to the destination: 0 to
    LONGEST_MATCH. START marks the start token, which matches nothing."""
    longer = one = repeats.after_earlier(tokens)
    one[:, :, 1] = False  # after the start token
    lengths = one.long()
    for _ in range(LONGEST_MATCH - 1):
        longer = one & torch.nn.functional.pad(longer[:, :-1, :-1], (1, 0, 1, 0))
        lengths = lengths + longer
    lengths[:, :, 0] = START
    return lengths
