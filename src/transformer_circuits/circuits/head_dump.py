"""First-layer heads as lists: for each source token the tokens that attend to it most, and the outs that it raises most (claim S7).

Paper: "Skip-Trigrams" and the full lists that accompany it. Positions are left out: this is about which tokens, at equal distance.
"""

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens import FactoredMatrix
from transformer_lens.model_bridge import TransformerBridge

from transformer_circuits.circuits.factored import top_k

EXPONENT = 0.1  # of a token's frequency: a hundred times rarer counts 0.63 times as much


def by_source(model: TransformerBridge, dtype: torch.dtype | None = None) -> tuple[FactoredMatrix, FactoredMatrix]:
    """Return QK [head, source, destination] and OV [head, source, out] of all first-layer heads.

    Scores are divided by sqrt(d_head), as softmax receives them; boosts of logits are above their mean over all outs, as softmax sees them.
    """
    layer = (model.W_E, model.W_U, model.W_Q[0], model.W_K[0], model.W_V[0], model.W_O[0])
    W_E, W_U, Q, K, V, O = (W.to(dtype) for W in layer)
    boosts = O @ (W_U - W_U.mean(dim=-1, keepdim=True))
    return FactoredMatrix(W_E @ K / model.cfg.d_head**0.5, (W_E @ Q).mT), FactoredMatrix(W_E @ V, boosts)


def head_dump(
    model: TransformerBridge, frequency: Float[Tensor, " d_vocab"], n_sources: int | None = 300, k: int = 10
) -> pd.DataFrame:
    """Return a row for each first-layer head and source token, best first: score = max QK * max OV * p(source)^0.1, the paper's order.

    `frequency`: share of each token in the training text. `n_sources`: rows to keep of each head (None: all). `k`: how many destinations
    and outs to list. Columns: layer, head, rank (from 1), source, score, destinations, destination_scores, outs, out_boosts (lists,
    largest first). A source that only repels gets a negative score, one that never occurred gets zero.
    """
    columns, rows = by_source(model)
    heads = []
    for head in range(model.cfg.n_heads):
        matches, destinations = top_k(columns[head], k)
        boosts, outs = top_k(rows[head], k)
        scores = matches[:, 0] * boosts[:, 0] * frequency.to(boosts) ** EXPONENT
        order = scores.argsort(descending=True, stable=True)[:n_sources]
        found = dict(score=scores, destinations=destinations, destination_scores=matches, outs=outs, out_boosts=boosts)
        about = {"layer": 0, "head": head, "rank": range(1, len(order) + 1), "source": order.tolist()}
        heads.append(pd.DataFrame(about | {name: values[order].tolist() for name, values in found.items()}))
    return pd.concat(heads, ignore_index=True)
