"""Can the paper's questions be put to a model that TransformerLens bridges (chapters 18 and 19), what do its formulas
leave out, and what text does it read?"""

from pathlib import Path

import torch
import yaml
from jaxtyping import Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.utilities import get_act_name

from transformer_circuits.data import held_out_windows, load_tokenizer
from transformer_circuits.measures.attention import PATTERN_WINDOWS
from transformer_circuits.measures.repeats import row_length
from transformer_circuits.models import reading
from transformer_circuits.models.shards import WeightsError
from transformer_circuits.models.view import View


def check(model: TransformerBridge) -> None:
    """Raise WeightsError, in one sentence, unless the paper's questions can be put to the model.

    It must be a decoder with attention heads in every layer, with W_Q, W_K, and W_V, that embeds into the residual
    stream and reads it before it normalizes it, and with a start token (`reading.choose` chooses one).
    """
    cfg = model.cfg
    direction = getattr(cfg, "attention_dir", None) or "causal"
    attending = sum(get_act_name("pattern", layer) in model.hook_dict for layer in range(cfg.n_layers))
    unfit = {
        "an encoder and a decoder": getattr(getattr(model.original_model, "config", None), "is_encoder_decoder", False),
        f"{direction} attention, as in an encoder": direction != "causal",
        f"attention in {attending} of its {cfg.n_layers} layers": attending < max(1, cfg.n_layers),
    }
    if got := [what for what, holds in unfit.items() if holds]:
        raise WeightsError(
            f"{cfg.model_name!r} must be a decoder with attention heads in every layer, got {got[0]}; choose another "
            "model"
        )
    first = reading.start_token(model)
    if not (hasattr(model, "QK") and hasattr(model, "OV")):
        raise WeightsError(f"{cfg.model_name!r} has attention without W_Q, W_K, and W_V; choose another model")
    if (width := model.W_E.shape[1]) != cfg.d_model:
        between = f"embeddings of {width} dimensions and a projection to the {cfg.d_model} of the residual stream"
        raise WeightsError(f"{cfg.model_name!r} has {between}; choose a model that embeds into the stream itself")
    names = ["blocks.0.hook_in", "blocks.0.ln1.hook_in"]
    tokens = torch.full((1, 2), first, device=model.W_E.device)
    # What the first layer's normalization, if there is one, reads must be the stream that the layer is given.
    if set(names) <= model.hook_dict.keys() and not torch.equal(*View(model).activations(tokens, names).values()):
        todo = "heads then read no sum of what was written; choose a model with normalization before attention"
        raise WeightsError(f"{cfg.model_name!r} normalizes the residual stream after attention; {todo}")


def differences(model: TransformerBridge) -> list[str]:
    """Return what the model has beyond the paper's, and what that does to the paper's formulas: a sentence for each."""
    cfg, config, block = model.cfg, getattr(model.original_model, "config", None), model.blocks[0]
    named = model.original_model.named_parameters()
    positions, shared = cfg.positional_embedding_type, getattr(cfg, "n_key_value_heads", None)
    window = getattr(config, "sliding_window", None) or getattr(config, "window_size", None)
    kinds = getattr(config, "layer_types", None) or getattr(config, "attention_layers", None) or ["local"]
    has = {
        "Normalization": cfg.normalization_type,
        "Normalization after attention": hasattr(block, "ln1_post"),
        "Normalization of queries and keys": hasattr(block.attn, "q_norm"),
        "MLPs": not cfg.attn_only,
        "Positions in the residual stream": positions == "standard",
        "Positions of type": positions not in ("standard", "shortformer"),
        "Windows": window and {"sliding_attention", "local"} & set(kinds[: cfg.n_layers]),
        "Soft-capped scores": getattr(config, "attn_logit_softcapping", None),
        "Soft-capped logits": getattr(config, "final_logit_softcapping", None),
        "Grouped-query attention": shared and shared != cfg.n_heads,
        "Smeared keys": getattr(config, "smeared_keys", False),
        "Biases": any("att" in name and name.endswith("bias") and bool(x.any()) for name, x in named),
    }
    does = yaml.safe_load(Path(__file__).with_name("differences.yml").read_text(encoding="utf8"))
    details = {"Positions of type": f" {positions!r}", "Windows": f" of {window} tokens"}
    return [f"{name}{details.get(name, '')}: {does[name]}" for name, holds in has.items() if holds]


def text(model: TransformerBridge, rows: int = PATTERN_WINDOWS) -> Int[Tensor, "row pos"]:
    """Return windows of held-out text in the model's own tokens behind its own start token; the last column is a target
    only.

    A model that cannot read text (`models.reading`) gets random tokens, uniformly from those that it has.
    """
    n_ctx, device = row_length(model.cfg.n_ctx), model.W_E.device
    reads, start = reading.of(model), reading.start_token(model)
    tokenizer, ours = model.tokenizer, load_tokenizer()
    if not reads.reads_text:
        places = torch.randint(len(reads.drawn), (rows, n_ctx), generator=torch.Generator().manual_seed(0))
        tokens = reads.drawn[places]
    elif tokenizer.get_vocab().items() <= ours.get_vocab().items():
        d_vocab = len(tokenizer.get_vocab())  # a model may have more rows
        tokens = held_out_windows(rows, n_ctx, d_vocab)[:, 1:]
    else:
        strings = ours.batch_decode(held_out_windows(rows, 512), skip_special_tokens=True)
        encoded = [tokenizer(string, add_special_tokens=False)["input_ids"] for string in strings]
        length = min(n_ctx, *(len(ids) for ids in encoded))
        tokens = torch.tensor([ids[:length] for ids in encoded])
    return torch.nn.functional.pad(tokens, (1, 0), value=start).to(device)
