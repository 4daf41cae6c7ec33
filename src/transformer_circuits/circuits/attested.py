"""Which skip-trigrams of a model, and which of the paper's, occur in its training text (claims S4, S6).

`python -m book_tools.attested` counts: for each first-layer head the 300 sources that come first in the head dump, with
all their hits (`Candidates`). Definitions, fixed before any cost was known:

    occasions   n(s, d)     positions with destination d and a source s before it, in its document and the context
    seen        n(s, d, o)  those of them where out token o comes next
    right       n(s, d, o) >= 5, and n(s, d, o) / n(s, d) > n(d, o) / n(d): the source makes o more likely than d alone
    never       n(s, d, o) = 0, on 30 occasions or more
    wrong       never, on 300 occasions or more (`Attested.wrong` accepts the other numbers of LEVELS)

The paper's skip-trigrams are counted too, in every form that the vocabulary has. After n occasions without a triple,
its probability is below 3 / n with 95% confidence: a wrong one follows fewer than 1% of them.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from transformer_circuits.circuits.skip_trigrams import Candidates, Ways
from transformer_circuits.models.bridge import matrices
from transformer_circuits.models.shards import sha256
from transformer_circuits.paths import data_file

FILE = "attested_skip_trigrams.npz"
LEVELS = (30, 100, 300, 1000, 3000)  # minimum numbers of occasions that Attested.wrong accepts
OCCASIONS = 300  # of a wrong triple


class Attested(NamedTuple):
    """How often every candidate triple occurs in the training text, on the CPU."""

    candidates: Candidates
    level: Int[Tensor, "head source d"]  # how many of LEVELS the occasions reach
    right: Bool[Tensor, "head source d o"]
    never: Bool[Tensor, "head source d o"]  # on at least as many occasions as the first of LEVELS
    paper: Ways  # those forms of the paper's skip-trigrams that are right: ids of source, destination, and out token

    def wrong(self, least_occasions: int = OCCASIONS) -> Bool[Tensor, "head source d o"]:
        """Return which triples never occur in that many occasions. Raises ValueError for a number outside LEVELS."""
        return self.never & (self.level > LEVELS.index(least_occasions))[..., None]


def fingerprint(model: TransformerBridge) -> str:
    """Return the SHA-256 of the model's weights in half precision, as stored on disk."""
    stored = [W.to("cpu", torch.float16).numpy() for name, W in matrices(model).items() if name != "W_pos"]
    return sha256(b"".join(W.tobytes() for W in stored))


def load(model: TransformerBridge, working: Bool[Tensor, " head"] | None = None) -> Attested:
    """Load the counts for this model, without heads that do not work. Raises ValueError for other weights."""
    file = data_file(FILE)
    with np.load(file) as stored:
        if str(stored["weights_sha256"]) != fingerprint(model):
            raise ValueError(f"{file} was counted for other weights; run `python -m book_tools.attested` with it")
        candidates = Candidates.of(model, torch.from_numpy(stored["sources"].astype(np.int64)))
        shape = (*candidates.destinations.shape, candidates.outs.shape[-1])
        bits = (np.unpackbits(stored[key], count=math.prod(shape)) for key in ("right", "never"))
        right, never = (part.reshape(shape).astype(bool) for part in bits)
        if working is not None:
            right[~working.numpy()] = never[~working.numpy()] = False
        paper = torch.from_numpy(stored["paper"].astype(np.int64))
        return Attested(candidates, *map(torch.from_numpy, (stored["level"], right, never)), paper)
