"""Standard errors and critical values of numbers that are estimated from a sample."""

import torch
from jaxtyping import Float
from torch import Tensor


def mean(values: Float[Tensor, "draw *rest"]) -> tuple[Tensor, Tensor]:
    """Return the mean over two or more windows or draws, and its standard error."""
    return values.mean(dim=0), values.std(dim=0) / len(values) ** 0.5


def ratio(above: Float[Tensor, "draw *rest"], below: Float[Tensor, "draw *rest"]) -> tuple[Tensor, Tensor]:
    """Return the ratio of two means over the same windows or draws, and its standard error.

    Both vary together from window to window. To first order the error is that of the mean of `above - ratio * below`.
    """
    found = above.mean(dim=0) / below.mean(dim=0)
    return found, mean(above - found * below)[1] / below.mean(dim=0).abs()


def critical_spearman(n: int, p: float, draws: int = 200_000) -> float:
    """Return the Spearman correlation that random orders of n things reach with a probability of at most p (one-sided), if any can.

    Raises ValueError if n things are too few: even the same order comes about with a probability above p.
    """
    order = torch.rand(draws, n, generator=torch.Generator().manual_seed(0)).argsort(dim=1)
    distance = (order - torch.arange(n)).square().sum(dim=1)  # whole numbers: equal correlations stay equal
    distances, counts = distance.unique(return_counts=True)
    rare = distances[counts.cumsum(dim=0) <= p * draws]
    if not len(rare):
        raise ValueError(f"n must be large enough for a correlation of probability {p}, got {n}")
    return 1 - 6 * rare.max().item() / (n * (n * n - 1))
