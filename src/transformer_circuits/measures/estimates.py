"""Standard errors and critical values of numbers that are estimated from a sample."""

import torch
from jaxtyping import Float
from torch import Tensor


def mean(values: Float[Tensor, "draw *rest"]) -> tuple[Tensor, Tensor]:
    """Return the mean over two or more windows or draws, and its standard error."""
    return values.mean(dim=0), values.std(dim=0) / len(values) ** 0.5


def ratio(parts: Float[Tensor, "*batch n"], wholes: Float[Tensor, "*batch n"]) -> tuple[Tensor, Tensor]:
    """Return the sum of `parts` divided by the sum of `wholes` over n independent windows, rows, or draws, and its
    standard error.

    With counts as `wholes` this is a mean over tokens. The error is that of `parts - ratio * wholes`, so that what
    varies in both cancels.
    """
    total = wholes.sum(dim=-1)
    found = parts.sum(dim=-1) / total
    residuals = parts - found[..., None] * wholes
    return found, residuals.std(dim=-1) * residuals.shape[-1] ** 0.5 / total.abs()


def critical_spearman(n: int, p: float, draws: int = 200_000) -> float:
    """Return the Spearman correlation that random orders of n things reach with a probability of at most p (one-sided),
    if any can.

    Raises ValueError if n things are too few: even the same order comes about with a probability above p.
    """
    order = torch.rand(draws, n, generator=torch.Generator().manual_seed(0)).argsort(dim=1)
    distance = (order - torch.arange(n)).square().sum(dim=1)  # whole numbers: equal correlations stay equal
    distances, counts = distance.unique(return_counts=True)
    rare = distances[counts.cumsum(dim=0) <= p * draws]
    if not len(rare):
        raise ValueError(f"n must be large enough for a correlation of probability {p}, got {n}")
    return 1 - 6 * rare.max().item() / (n * (n * n - 1))
