"""The head dump: what every head of the first layer does with every source token, as lists (claim S7).

Paper: "Skip-Trigrams" and the full lists that accompany it. For a head and a source token: the destinations that want to
attend to it most (largest entries of its QK column), and the outs that it raises most if attended to (largest entries of
its OV row). Source tokens come in the paper's order:

    score = max QK * max OV * p(source token)^0.1

- QK: token-token scores over sqrt(d_head), as softmax receives them; the maximum is over destinations.
- OV: boosts of logits above their mean over all outs, because softmax does not see what is added to every logit alike;
  the maximum is over outs, and so never negative.
- A source token whose QK column has only negative entries gets a negative score: it ranks after those that some destination
  wants. A token that never occurs in the training text gets zero.
- Positions are left out: this is about which tokens, at equal distance.
"""

from __future__ import annotations

import math

import pandas as pd
from jaxtyping import Float
from torch import Tensor
from transformer_lens import FactoredMatrix

from transformer_circuits.circuits.factored import TopK, top_k
from transformer_circuits.circuits.qk_ov import full_ov, full_qk
from transformer_circuits.circuits.weights import Weights

EXPONENT = 0.1  # of a token's frequency: a hundred times rarer counts 0.63 times as much


def ov_boosts(weights: Weights, layer: int, head: int) -> FactoredMatrix:
    """The OV circuit [source token, out token], each row less its mean over outs: same predictions, comparable rows.

    Raises ValueError for a head that does not exist.
    """
    circuit = full_ov(weights, layer, head)
    return FactoredMatrix(circuit.A, circuit.B - circuit.B.mean(dim=1, keepdim=True))


def qk_columns(weights: Weights, layer: int, head: int) -> FactoredMatrix:
    """The QK circuit seen from the sources: [source token, destination token], over sqrt(d_head).

    Raises ValueError for a head that does not exist.
    """
    circuit = full_qk(weights, layer, head)
    return FactoredMatrix(circuit.B.T / math.sqrt(weights.d_head), circuit.A.T)


def head_dump(
    weights: Weights, frequency: Float[Tensor, " d_vocab"], n_sources: int | None = 300, k: int = 10
) -> pd.DataFrame:
    """A row for each head of the first layer and each source token, best first; streamed, never a whole circuit.

    Args:
        weights: a model with at least one layer. Second-layer heads read more than tokens: no list describes them.
        frequency: share of each token in the training text (`SmoothedBigrams.frequency`).
        n_sources: source tokens to keep for each head; None keeps all of them. All are ranked in any case.
        k: how many destinations and how many outs to list for each.

    Returns:
        Columns layer, head, rank (from 1 within a head), source (token id), score, destinations (k ids), destination_scores,
        outs (k ids), out_boosts (logits above the row's mean), lists with the largest first.

    Raises:
        ValueError: a model without layers, frequencies that do not fit it, or more tokens asked for than there are.
    """
    weights.check_head(0, 0)
    d_vocab = len(weights.W_E)
    if frequency.shape != (d_vocab,) or not bool((frequency >= 0).all()):
        raise ValueError(
            f"`frequency` must be {d_vocab} shares of zero or more, one for each token of the model's vocabulary, "
            f"not a tensor of shape {list(frequency.shape)}" + (" with other entries" if frequency.shape == (d_vocab,) else "")
        )
    if n_sources is not None and not 0 < n_sources <= d_vocab:
        raise ValueError(f"there are {d_vocab} source tokens, not {n_sources}: pass n_sources=None to keep all")
    if not 0 < k <= d_vocab:
        raise ValueError(f"a list can hold 1 to {d_vocab} tokens of this vocabulary, not {k}")
    familiar = frequency.to(weights.W_E) ** EXPONENT
    return pd.concat([_of_head(weights, head, familiar, n_sources, k) for head in range(weights.n_heads)], ignore_index=True)


def _of_head(
    weights: Weights, head: int, familiar: Float[Tensor, " d_vocab"], n_sources: int | None, k: int
) -> pd.DataFrame:
    destinations, outs = top_k(qk_columns(weights, 0, head), k), top_k(ov_boosts(weights, 0, head), k)
    scores = destinations.values[:, 0] * outs.values[:, 0] * familiar
    order = scores.argsort(descending=True, stable=True)[:n_sources]

    def lists(found: TopK) -> tuple[list[list[int]], list[list[float]]]:
        return found.indices[order].tolist(), found.values[order].tolist()

    (to, wanted), (out, boosts) = lists(destinations), lists(outs)
    return pd.DataFrame(
        {
            "layer": 0,
            "head": head,
            "rank": range(1, len(order) + 1),
            "source": order.tolist(),
            "score": scores[order].tolist(),
            "destinations": to,
            "destination_scores": wanted,
            "outs": out,
            "out_boosts": boosts,
        }
    )
