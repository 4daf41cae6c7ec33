"""What chapter 15 needs to put the paper's questions to any model that TransformerLens bridges.

Everything else that the chapter computes comes from `heads` and `measures`, as in chapters 5 to 8. All functions take a bridge as
`load_model` returns it. Weights are read in single precision, whatever the model's own.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens import FactoredMatrix
from transformer_lens.utilities import get_act_name

from transformer_circuits.circuits.heads import Head
from transformer_circuits.data import held_out_windows, load_tokenizer
from transformer_circuits.measures import weights
from transformer_circuits.measures.repeats import row_length
from transformer_circuits.models.bridge import start_token

ROWS = 16  # windows of text


def check(model: Any) -> None:
    """Raise ValueError, in one sentence, unless the model is a decoder with attention heads in every layer."""
    n_layers, direction = model.cfg.n_layers, getattr(model.cfg, "attention_dir", None) or "causal"
    attending = sum(get_act_name("pattern", layer) in model.hook_dict for layer in range(n_layers))
    if direction != "causal":
        got = f"{direction} attention, as in an encoder"
    elif attending < max(1, n_layers):
        got = f"attention in {attending} of its {n_layers} layers"
    else:
        return
    raise ValueError(
        f"{model.cfg.model_name!r} must be a decoder with attention heads in every layer, got {got}; choose another model"
    )


def differences(model: Any) -> list[str]:
    """Return what the model has beyond the paper's, a sentence for each: what then no longer holds exactly, or is left out here."""
    cfg, original = model.cfg, model.original_model
    positions, shared = cfg.positional_embedding_type, getattr(cfg, "n_key_value_heads", None)
    biases = (p.any() for name, p in original.named_parameters() if "att" in name and name.endswith("bias"))
    smeared = getattr(getattr(original, "config", None), "smeared_keys", False)
    in_stream, neither = positions == "standard", positions not in ("standard", "shortformer")
    beyond = {
        "Normalization: its gains and its centering are folded into the matrices that read after it. The division by the length of "
        "the residual stream remains, so the logits are not exactly a sum over paths.": cfg.normalization_type,
        "MLPs: they also read what a head writes, so the direct path from a head to the logits is only a part of the head's "
        "effect.": not cfg.attn_only,
        "Positions in the residual stream: $W_{pos}$ reaches values and logits too, and heads can move it.": in_stream,
        f"Positions of type {positions!r}: there is no $W_{{pos}}$. Scores depend on the distance, and the QK circuit below leaves it "
        "out.": neither,
        f"Grouped-query attention: {cfg.n_heads} heads per layer share {shared} sets of keys and values, so their circuits are not "
        "independent.": shared and shared != cfg.n_heads,
        "Smeared keys: a key contains the previous token's key, which the QK circuit below leaves out.": smeared,
        "Biases: circuits leave out the biases of queries, keys, values, and outputs.": any(biases),
    }
    return [sentence for sentence, holds in beyond.items() if holds]


def text(model: Any, rows: int = ROWS) -> Int[Tensor, "row pos"]:
    """Return windows of held-out text in the model's own tokens behind its own start token; the last column is a target only.

    Models with the book's tokenizer, or a smaller vocabulary inside it, get `held_out_windows`; others get the same text, tokenized by
    their own tokenizer. A model without a tokenizer gets uniformly random tokens.
    """
    n_ctx, d_vocab, device = row_length(model.cfg.n_ctx), model.cfg.d_vocab, model.W_E.device
    tokenizer, ours = model.tokenizer, load_tokenizer()
    if tokenizer is None:
        random = torch.randint(1, d_vocab, (rows, n_ctx + 1), generator=torch.Generator().manual_seed(0))
        random[:, 0] = 0
        return random.to(device)
    if tokenizer.get_vocab().items() <= ours.get_vocab().items():
        return held_out_windows(rows, n_ctx, d_vocab).to(device)
    strings = ours.batch_decode(held_out_windows(rows, 512), skip_special_tokens=True)
    encoded = [tokenizer(string, add_special_tokens=False)["input_ids"] for string in strings]
    length = min(n_ctx, *(len(ids) for ids in encoded))
    return torch.tensor([[start_token(model), *ids[:length]] for ids in encoded], device=device)


class Weights(NamedTuple):
    """A model's matrices in single precision, with normalizations folded into what reads after them."""

    W_E: Float[Tensor, "d_vocab d_model"]
    QK: FactoredMatrix  # [layer, head, d_model, d_model]
    OV: FactoredMatrix
    W_U: Float[Tensor, "d_model d_vocab"]


def read_weights(model: Any) -> Weights:
    """Return the matrices that the paper's circuits are made of. Raises ValueError for attention without query, key, or value matrices."""
    try:
        QK, OV = model.QK, model.OV
    except AttributeError as error:
        raise ValueError(
            f"{model.cfg.model_name!r} has attention without W_Q, W_K, and W_V; choose another model"
        ) from error
    layers = range(model.cfg.n_layers)
    Q, K, V = (
        torch.stack([_folded(model, model.blocks[layer].ln1, W[layer]) for layer in layers])
        for W in (QK.A, QK.B.mT, OV.A)
    )
    W_U = _folded(model, model.ln_final, model.W_U)
    return Weights(model.W_E.float(), FactoredMatrix(Q, K.mT), FactoredMatrix(V, OV.B.float()), W_U)


def _folded(
    model: Any, norm: Any, W: Float[Tensor, "*batch d_model out"]
) -> Float[Tensor, "*batch d_model out"]:
    """Return a matrix that reads after a normalization as one that reads before it, but for the division, as `fold_ln` does."""
    W, kind = W.float(), model.cfg.normalization_type
    gain = getattr(norm, "w", None) if kind else None
    if gain is not None:
        W = W * (gain.float() + bool(getattr(model.cfg, "rmsnorm_uses_offset", False)))[:, None]
    return W - W.mean(dim=-2, keepdim=True) if kind in ("LN", "LNPre") else W


def composition(W: Weights, reader: Head, chance: bool = False) -> Float[Tensor, "side=3 layer head"]:
    """Return the composition ratios of one head with all heads of all earlier layers (`weights.composition_ratios`).

    `chance`: with a random rotation of the stream between the two heads, which keeps all singular values (`weights.turned`).
    """
    layer, head = reader
    QK, OV = W.QK[layer, [head]], W.OV[layer, [head]]
    written = FactoredMatrix(W.OV.A[:layer].flatten(0, 1), W.OV.B[:layer].flatten(0, 1))
    ratios = weights.composition_ratios(written, QK, OV)
    if chance:
        generator, sizes = torch.Generator().manual_seed(0), written.S.square()
        sides = [weights.turned(sizes, read.S.square(), len(W.W_U), generator) for read in (QK, QK, OV)]
        ratios = torch.stack(sides)
    return ratios[:, 0].unflatten(1, (layer, -1))
