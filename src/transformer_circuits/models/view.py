"""The one view of a model: what the paper reads of it, its matrices and its runs, each thing once.

Everything that measures takes a `View`, or the hooked model that it is made of (`load_model`, or any other bridge of
TransformerLens): the trainer, the chapters, the map of heads, "Your own model", and the public models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from tqdm.auto import tqdm
from transformer_lens import FactoredMatrix
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.exceptions import StopAtLayerException
from transformer_lens.utilities import get_act_name

Head = tuple[int, int]
Hook = tuple[str, Callable[..., Any]]  # a hook point's name, and what is done to the activation there

# rows run together on a CPU: patterns of 12 heads at 512 tokens take 25 MB; the system zeroes larger tensors each time
BATCH = 2
ENTRIES = 1 << 27  # of the logits, and of one layer's patterns, of rows run together on a GPU: half a gigabyte


class View:
    """A hooked model as the paper reads it.

    Its matrices are in single precision at least, and read when they are first asked for: make a new view after the
    weights have changed. Normalizations are folded into what reads after them, but for the division by a length.
    `hooks`: a list as for `run_with_hooks`.
    """

    def __init__(self, model: TransformerBridge):
        self.model, self.cfg = model, model.cfg

    @classmethod
    def of(cls, model: View | TransformerBridge) -> View:
        return model if isinstance(model, cls) else cls(model)

    # ---- the matrices ----------------------------------------------------------------------------------------------

    @cached_property
    def W_E(self) -> Float[Tensor, "d_vocab d_model"]:
        return single(self.model.W_E)

    @cached_property
    def W_U(self) -> Float[Tensor, "d_model d_vocab"]:
        return self._folded(getattr(self.model, "ln_final", None), self.model.W_U)

    @cached_property
    def QK(self) -> FactoredMatrix:
        """W_Q W_K^T [layer, head, d_model, d_model], without what depends on positions."""
        circuits, sides = self.model.QK, ([], [])
        for block, Q, K in zip(self.model.blocks, circuits.A, circuits.B.mT):
            for found, W, name in zip(sides, (Q, K), ("q_norm", "k_norm")):
                gain = self._gain(getattr(block.attn, name, None), self.cfg.d_head).view(-1, 1, self.cfg.d_head)
                # of each head, of each set of keys that heads share, or one for all
                gain = gain.repeat_interleave(self.cfg.n_heads // len(gain), dim=0) if len(gain) > 1 else gain
                found.append(self._folded(getattr(block, "ln1", None), W) * gain)
        return FactoredMatrix(torch.stack(sides[0]), torch.stack(sides[1]).mT)

    @cached_property
    def OV(self) -> FactoredMatrix:
        """W_V W_O [layer, head, d_model, d_model]."""
        circuits, V, O = self.model.OV, [], []
        for block, W_V, W_O in zip(self.model.blocks, circuits.A, circuits.B):
            V.append(self._folded(getattr(block, "ln1", None), W_V))
            O.append(single(W_O) * self._gain(getattr(block, "ln1_post", None), W_O.shape[-1]))
        return FactoredMatrix(torch.stack(V), torch.stack(O))

    def _gain(self, norm: Any, size: int) -> Float[Tensor, " n"]:
        """Return what a normalization multiplies each dimension by, after its division; ones if there is nothing."""
        gain = getattr(norm, "w", None) if self.cfg.normalization_type else None
        if gain is None:
            return torch.ones(size, device=self.model.W_E.device)
        return single(gain) + bool(getattr(self.cfg, "rmsnorm_uses_offset", False))

    def _folded(self, norm: Any, W: Float[Tensor, "*batch d_model out"]) -> Float[Tensor, "*batch d_model out"]:
        """Return a matrix that reads after a normalization (None: none) as one that reads before it, but for the
        division, as TransformerLens's `fold_ln` does."""
        if norm is None:
            return single(W)
        W = single(W) * self._gain(norm, W.shape[-2])[:, None]
        return W - W.mean(dim=-2, keepdim=True) if self.cfg.normalization_type in ("LN", "LNPre") else W

    # ---- the runs --------------------------------------------------------------------------------------------------

    def patterns(
        self, tokens: Int[Tensor, "row pos"], hooks: Sequence[Hook] = ()
    ) -> Float[Tensor, "layer row head dest src"]:
        """Return the attention patterns of all heads. For a few rows: each takes 12 MB a layer at 512 tokens."""
        return self.pattern_scores(tokens, lambda pattern: pattern, hooks)

    def pattern_scores(
        self,
        tokens: Int[Tensor, "row pos"],
        score: Callable[[Tensor], Tensor],
        hooks: Sequence[Hook] = (),
        layers: Sequence[int] | None = None,
    ) -> Float[Tensor, "layer ..."]:
        """Return `score(pattern)` for every layer (for these). Raises ValueError if there is none."""
        names = [get_act_name("pattern", layer) for layer in (range(self.cfg.n_layers) if layers is None else layers)]
        if not names:
            raise ValueError(f"the model must have at least one layer with attention heads, got {self.cfg.n_layers}")
        found = self.activations(tokens, names, hooks, lambda pattern: score(single(pattern)))
        return torch.stack(list(found.values()))

    def activations(
        self,
        tokens: Int[Tensor, "row pos"],
        names: Sequence[str],
        hooks: Sequence[Hook] = (),
        read: Callable[[Tensor], Tensor] = lambda activation: activation,
    ) -> dict[str, Tensor]:
        """Return `read` of the activations at these hook points, of a run that ends at the last of them."""
        found: dict[str, Tensor] = dict.fromkeys(names)

        def keep(activation: Tensor, hook: Any, name: str) -> None:  # its own name may be another one
            found[name] = read(activation)
            if all(value is not None for value in found.values()):
                # With `stop_at_layer` the last layer would be run to its logits.
                raise StopAtLayerException(activation)

        self.model.run_with_hooks(tokens, fwd_hooks=[*hooks, *((name, partial(keep, name=name)) for name in names)])
        return found

    def losses(self, rows: Int[Tensor, "row pos"], hooks: Sequence[Hook] = ()) -> Float[Tensor, "row pos-1"]:
        """Return the loss (nats) at each token after the first."""
        return self.losses_and_guesses(rows, hooks=hooks)[0]

    @torch.no_grad()
    def losses_and_guesses(
        self, rows: Int[Tensor, "row pos"], ends: Int[Tensor, " row"] | None = None, hooks: Sequence[Hook] = ()
    ) -> tuple[Float[Tensor, "row pos-1"], Bool[Tensor, "row pos-1"]]:
        """Return the loss (nats) at each token after the first, and whether it is the first guess.

        `ends`: how many tokens of each row matter; what follows costs no time, and its losses mean nothing.
        """
        # Made beforehand: small results between large temporary ones would keep the heap from being reused.
        precision = torch.promote_types(self.model.W_E.dtype, torch.float32)
        nats = torch.zeros(rows[:, 1:].shape, dtype=precision, device=rows.device)
        right = torch.zeros_like(nats, dtype=torch.bool)
        ends = torch.full_like(rows[:, 0], rows.shape[1]) if ends is None else ends
        order = ends.argsort(descending=True, stable=True)
        of_one = rows.shape[1] * (self.cfg.d_vocab + self.cfg.n_heads * rows.shape[1])
        together = max(1, ENTRIES // of_one) if rows.is_cuda else BATCH
        with self.model.hooks(fwd_hooks=list(hooks)):
            for part in tqdm(order.split(together), desc="losses", leave=False, delay=2):
                tokens = rows[part, : ends[part].max()]
                logits, targets = single(self.model(tokens[:, :-1]).flatten(0, 1)), tokens[:, 1:].reshape(-1, 1)
                # One row per token: eight times as fast on CPUs as [row, d_vocab, pos].
                of_part = F.cross_entropy(logits, targets[:, 0], reduction="none")
                nats[part, : tokens.shape[1] - 1] = of_part.view(len(part), -1)
                best = logits.amax(dim=-1, keepdim=True)  # a tenth of the time of argmax
                right[part, : tokens.shape[1] - 1] = (logits.gather(1, targets) == best).view(len(part), -1)
        return nats, right

    # ---- the same with parts removed -------------------------------------------------------------------------------

    def mean_z(self, tokens: Int[Tensor, "row pos"], layer: int) -> Float[Tensor, "head d_head"]:
        """Return the mean `z` of each head of a layer over all positions of these rows."""
        name = get_act_name("z", layer)
        sums = [self.activations(rows, [name], read=single)[name].sum((0, 1)) for rows in tokens.split(BATCH)]
        return torch.stack(sums).sum(0) / tokens.numel()

    def only_in(self, side: str, layer: int, tokens: Int[Tensor, "row pos"], hooks: Sequence[Hook]) -> Hook:
        """Return a hook that makes the queries, keys, or values ("q", "k", "v") of one layer those of a run with
        `hooks` on these rows, and changes nothing else: with `without_heads`, connections are removed, not heads.

        They are replaced as the projections give them; rotations and normalizations act on what is put there. The
        hook takes the same rows, or their beginnings.
        """
        name = f"blocks.{layer}.attn.hook_{side}"
        other = self.activations(tokens, [name], hooks)[name]
        return name, lambda read, hook: other[:, : read.shape[1]]


def without_heads(heads: Sequence[Head], means: Sequence[Tensor] | dict[int, Tensor] | None = None) -> list[Hook]:
    """Return hooks that remove heads: each head's `z` is replaced by its mean, `means[layer]` [head, d_head], or by
    zero."""

    def replace(z: Float[Tensor, "row pos head d_head"], hook: Any) -> Tensor:
        z, mine = z.clone(), [head for layer, head in heads if layer == hook.layer()]
        z[:, :, mine] = 0.0 if means is None else means[hook.layer()][mine].to(z)
        return z

    return [(get_act_name("z", layer), replace) for layer in sorted({layer for layer, _ in heads})]


def single(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return a tensor in single precision at least."""
    return x.float() if x.dtype.itemsize == 2 else x
