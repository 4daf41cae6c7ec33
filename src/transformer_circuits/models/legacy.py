"""The two public attention-only Shortformers of TransformerLens before 4.0, which TransformerLens 4 does not load.

They are state dicts of its HookedTransformer, read with `weights_only=True`, which runs no code. TransformerLens's
`convert_tl_checkpoint` names the tensors and their shapes.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import torch
from transformer_lens.utilities.tl_checkpoint_conversion import convert_tl_checkpoint
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from .architecture import ModelConfig, Transformer
from .shards import WeightsError, build, reason

SHORTFORMERS = {  # their state dicts, by hub names
    "callummcdougall/attn_only_2L_half": "attn_only_2L_half.pth",
    "NeelNanda/Attn-Only-2L512W-Shortformer-6B-big-lr": "model_final.pth",
}
# The first one has no config.json; this is what its authors' tutorial (ARENA 1.2) says of it.
SETTINGS = {"normalization": None, "tokenizer_name": "EleutherAI/gpt-neox-20b"}
OUR_NAMES = dict(embed="tok_embed", pos_embed="pos", blocks="layers", ln_final="ln_out", unembed="head")


def read(folder: Path, name: str) -> tuple[Transformer, PreTrainedTokenizerBase | None]:
    """Return one of the SHORTFORMERS, whose files are in `folder`, in float32 on the CPU, and its tokenizer (None if
    that is not available). Raises WeightsError for a file that is no state dict, or not that of a whole Shortformer."""
    file, config = folder / SHORTFORMERS[name], folder / "config.json"
    settings = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else SETTINGS
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
        (d_vocab, d_model), n_ctx = state["embed.W_E"].shape, len(state["pos_embed.W_pos"])
        n_layers = len({key.split(".")[1] for key in state if key.startswith("blocks.")})
        n_heads, _, d_head = state["blocks.0.attn.W_Q"].shape
        sizes = SimpleNamespace(n_heads=n_heads, n_key_value_heads=n_heads, d_model=d_model, d_head=d_head)
        converted = convert_tl_checkpoint(state, sizes)
        shape = ModelConfig(n_layers, d_model, n_heads, d_head, d_vocab, n_ctx, settings["normalization"])
    except Exception as error:  # unpickling a malformed file can raise any exception
        raise WeightsError(f"{file} is not a Shortformer's state dict of tensors: {reason(error)}") from error
    tensors = {}
    for key, tensor in converted.items():
        part, _, rest = key.partition(".")
        if rest.endswith("bias") and "ln" not in key and not tensor.any():
            continue  # ours has no such bias; `build` adds it where it is not zero
        tensors[f"{OUR_NAMES.get(part, part)}.{rest}"] = tensor.float()
    try:
        tokenizer = AutoTokenizer.from_pretrained(settings["tokenizer_name"])
    except (OSError, ValueError):  # no network
        tokenizer = None
    return build(shape, tensors, str(file)), tokenizer
