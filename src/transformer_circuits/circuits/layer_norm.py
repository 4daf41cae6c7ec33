"""Layer normalization folded into the weights around it: what stays is one positive number for each token.

Paper: its appendix on layer normalization (claim A3). With C = Id - 1 1^T / d_model, which takes the mean off, a normalization is

    LN(x) = (x C / s) diag(gain) + bias,    s = sqrt(mean((x C)^2) + eps)

and all but the division by s is linear. C goes into the matrices that write into the residual stream, gain and bias into those
that read.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.utilities import get_act_name


def fold(model: TransformerBridge) -> TransformerBridge:
    """A copy of a hooked model whose normalizations do nothing but divide by `hook_scale` (claim A3).

    Its residual stream is the original one less its mean at each token. Positions that are added to queries and keys only come
    after the normalization: they pass no gain, and stay as hooks that add what the matrices as they were made of them. Raises
    ValueError if there is no normalization to fold.
    """
    if not model.cfg.normalization_type:
        raise ValueError("this model has no layer normalization: there is nothing to fold")
    folded = copy.deepcopy(model)
    if late := hasattr(folded, "positions"):  # added after the normalization
        folded.positions.original_component.weight.zero_()
    for layer, block in enumerate(folded.blocks):
        heads, norm = block.attn, block.ln1.original_component
        for part in "qkv":
            linear = getattr(heads, part).original_component
            if late and part != "v":
                # [n_ctx, head, d_head]
                table = (model.W_pos @ linear.weight.T).unflatten(-1, (model.cfg.n_heads, -1))
                folded.add_hook(get_act_name(part, layer), _adding(table), is_permanent=True)
            _read(linear, norm)
        _write(heads.o.original_component)
        if not model.cfg.attn_only:
            _read(getattr(block.mlp, "in").original_component, block.ln2.original_component)
            _write(block.mlp.out.original_component)
    _read(folded.unembed.original_component, folded.ln_final.original_component)
    for rows in [folded.W_E] if late else [folded.W_E, folded.W_pos]:
        rows.sub_(rows.mean(dim=-1, keepdim=True))
    for norm in (module for module in folded.modules() if isinstance(module, nn.LayerNorm)):
        norm.weight.fill_(1.0), norm.bias.zero_()
    return folded


def _read(linear: nn.Linear, norm: nn.LayerNorm) -> None:
    """Put gain and bias into a matrix that reads the normalized stream; stored [out, in]."""
    bias = linear.weight @ norm.bias
    linear.bias = nn.Parameter(bias if linear.bias is None else linear.bias + bias, requires_grad=False)
    linear.weight.mul_(norm.weight)


def _write(linear: nn.Linear) -> None:
    """Take the mean off all that a matrix writes into the stream; stored [out, in]."""
    linear.weight.sub_(linear.weight.mean(dim=0))
    if linear.bias is not None:
        linear.bias.sub_(linear.bias.mean())


def _adding(table: Float[Tensor, "n_ctx head d_head"]) -> Callable[..., Tensor]:
    return lambda activation, hook: activation + table[: activation.shape[1]]
