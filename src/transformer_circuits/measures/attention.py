"""Scores read from attention patterns [..., head, destination, source], and the thresholds that name a head."""

from jaxtyping import Float
from torch import Tensor

from transformer_circuits.measures.repeats import Repeated

PREVIOUS_TOKEN_HEAD = 0.4  # mean attention to the previous token; uniform attention gives about 1%
POSITIONAL_HEAD = 0.5  # mean attention to the current and the previous token together; uniform: about 2%
# Held-out windows behind a head's mean attention: its standard error is at most one percentage point.
PATTERN_WINDOWS = 16
INDUCTION_HEAD = 0.3  # induction score; uniform attention gives about 0.3% at 512 tokens, a perfect head 1
CURRENT_TOKEN_HEAD = 0.4  # mean attention to the current token; uniform: about 1%
SUCCESSOR_HEAD = 0.5  # fraction of digits, letters, and number words whose successor a head's OV circuit raises most
ATTENTION_SINK = 0.95  # mean attention to the start token: the head moves almost nothing
RECENT_TOKENS_HEAD = 0.5  # mean attention to the five tokens before the current one; uniform: 5%
# Attention p to its target at which a head's softmax is open or saturated (claim T15): its slope p (1 - p) is at least
# half of its largest value, 1/4, between the first two, and at most a tenth of it from the third on.
OPEN, CERTAIN = (0.15, 0.85), 0.975


def previous_token_score(patterns: Float[Tensor, "*batch dest src"]) -> Float[Tensor, "*batch"]:
    """Return the mean attention to the previous token. Destinations 0 and 1 are left out."""
    return patterns.diagonal(offset=-1, dim1=-2, dim2=-1)[..., 1:].mean(dim=-1)


def current_token_score(patterns: Float[Tensor, "*batch dest src"]) -> Float[Tensor, "*batch"]:
    """Return the mean attention to the current token from the positions after the start token."""
    return patterns.diagonal(dim1=-2, dim2=-1)[..., 1:].mean(dim=-1)


def start_token_score(patterns: Float[Tensor, "*batch dest src"]) -> Float[Tensor, "*batch"]:
    """Return the mean attention to the start token from the positions after it. From ATTENTION_SINK on a head rests."""
    return patterns[..., 1:, 0].mean(dim=-1)


def induction_score(patterns: Float[Tensor, "row head dest src"], repeated: Repeated) -> Float[Tensor, " head"]:
    """Return the mean attention from each token of the second copy to the token after its first occurrence."""
    return patterns[repeated.rows, :, repeated.destinations, repeated.targets].mean(dim=0)
