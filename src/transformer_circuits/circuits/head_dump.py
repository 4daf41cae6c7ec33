"""First-layer heads as lists: the tokens that attend most to each source, and the out tokens it raises most (claim S7).

Paper: "Skip-Trigrams" and the full lists that accompany it. Positions are left out: this is about which tokens, at
equal distance. Softmax does not see what a destination gives to all sources alike, nor what a source gives to all out
tokens alike, so both are subtracted.
"""

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens import FactoredMatrix
from transformer_lens.model_bridge import TransformerBridge

from transformer_circuits.circuits.factored import ranks, row_blocks, top_k

SHARE = 0.01  # of the vocabulary: how far down a QK column, a QK row, or an OV row a token may be
EXPONENT = 0.1  # of a token's frequency: a hundred times rarer counts 0.63 times as much


def by_source(model: TransformerBridge, dtype: torch.dtype | None = None) -> tuple[FactoredMatrix, FactoredMatrix]:
    """Return QK [head, source, destination] and OV [head, source, out] of all first-layer heads.

    Scores are divided by sqrt(d_head) and above their destination's mean; boosts of logits are above their mean.
    """
    layer = (model.W_E, model.W_U, model.W_Q[0], model.W_K[0], model.W_V[0], model.W_O[0])
    W_E, W_U, Q, K, V, O = (W.to(dtype) for W in layer)
    boosts = O @ (W_U - W_U.mean(dim=-1, keepdim=True))
    keys = (W_E - W_E.mean(dim=0)) @ K / model.cfg.d_head**0.5
    return FactoredMatrix(keys, (W_E @ Q).mT), FactoredMatrix(W_E @ V, boosts)


def top_share(n: int) -> int:
    """Return how many of n tokens are in the top SHARE, at least one."""
    return max(1, int(SHARE * n))


def head_dump(
    model: TransformerBridge, frequency: Float[Tensor, " d_vocab"], n_sources: int | None, k: int = 10
) -> pd.DataFrame:
    """Return a row for each first-layer head and source, best first: score = max QK * max OV * p(source)^0.1.

    `frequency`: share of each token in the training text. `n_sources`: rows to keep of each head (None: all). `k`: how
    many destinations and outs to list. Columns: head, rank (from 1), source, score, destinations,
    destination_scores, in_row (whether the source is in the top share of the destination's row too), outs, out_boosts
    (lists, largest first). A source that only repels gets a negative score, one that never occurred gets zero.
    """
    columns, rows = by_source(model)
    heads = []
    for head in range(model.cfg.n_heads):
        QK, OV = columns[head], rows[head]
        # The largest entry is all that most rows are asked for, and quicker than `top_k`.
        max_QK, max_OV = (torch.cat([block.amax(dim=1) for _, block in row_blocks(M)]) for M in (QK, OV))
        best = max_QK * max_OV * frequency.to(QK.A) ** EXPONENT
        sources = best.argsort(descending=True, stable=True)[:n_sources]
        matches, destinations = top_k(QK, k, sources)
        boosts, outs = top_k(OV, k, sources)
        rank = ranks(QK.T, destinations.flatten(), sources.repeat_interleave(k)).view_as(destinations)
        lists = {
            "source": sources,
            "score": best[sources],
            "destinations": destinations,
            "destination_scores": matches,
            "in_row": rank < top_share(QK.ldim),
            "outs": outs,
            "out_boosts": boosts,
        }
        row = {"head": head, "rank": range(1, len(sources) + 1)}
        heads.append(pd.DataFrame(row | {name: values.tolist() for name, values in lists.items()}))
    return pd.concat(heads, ignore_index=True)
