"""Standard errors of numbers that are estimated from a sample."""

from jaxtyping import Float, Num
from torch import Tensor


def mean(values: Float[Tensor, "draw *rest"]) -> tuple[Tensor, Tensor]:
    """Return the mean over two or more windows or draws, and its standard error."""
    return values.mean(dim=0), values.std(dim=0) / len(values) ** 0.5


def ratio(parts: Float[Tensor, "*batch n"], wholes: Num[Tensor, "*batch n"]) -> tuple[Tensor, Tensor]:
    """Return the sum of `parts` over that of `wholes` for n independent windows or draws, and its standard error."""
    total = wholes.sum(dim=-1)
    found = parts.sum(dim=-1) / total
    residuals = parts - found[..., None] * wholes
    return found, residuals.std(dim=-1) * residuals.shape[-1] ** 0.5 / total.abs()
