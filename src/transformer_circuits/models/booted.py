"""Models of the transformers library, which TransformerLens boots: loaded as a whole, and computed as that library
computes them, or not at all."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.sources import transformers as source
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel

from .. import paths
from . import reading
from .shards import TOKENIZER, WeightsError, reason
from .tokenizer import as_pretrained

# Buffers of old checkpoints that hold no weights, and that transformers does not pass over: causal masks.
CONSTANT = re.compile(r"\.(attn|attention)\.(bias|masked_bias)$")
# What libraries say, and what it means for a reader.
CAUSES = {
    "custom code": "it needs code of its own, which is not run here; choose a model of a common architecture",
    "no file named": "it has no weights in a format of the transformers library; fetch it again",
    "rchitecture": "TransformerLens has no bridge for its architecture; choose another one, such as GPT-2's or Llama's",
    "(?i)incomplete|deserializing header": "its weights are incomplete; fetch it again",
    "(?i)offline|connect|name resolution": "the hub is not reached; connect to a network",
    "(?i)out of memory": "it does not fit into memory; choose a smaller one",
}
# How far logits (as a fraction of the largest) and patterns may be from those of transformers: 100 times rounding.
ROUNDING = {torch.float64: 1e-8, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}
COMPARED = 16  # tokens of each of two rows


@torch.no_grad()
def boot(name: str, device: torch.device, dtype: torch.dtype) -> TransformerBridge:
    """Return a model of the transformers library, from a folder or the hub.

    Raises WeightsError, in one sentence, for weights that are not exactly those of its configuration, for NaN and
    infinity, and unless the bridge gives the logits and attention patterns of the library itself on random tokens.
    """
    with one_sentence(name):
        plain = whole(name, dtype).to(device).eval()
        config = plain.config.get_text_config()
        length = min(COMPARED, getattr(config, "max_position_embeddings", None) or COMPARED)
        tokens = torch.randint(config.vocab_size, (2, length), generator=torch.Generator().manual_seed(0)).to(device)
        # Before TransformerLens takes the module apart. An encoder with a decoder takes more than tokens.
        expected = None if config.is_encoder_decoder else plain(tokens, output_attentions=True)
        options = {"hf_model": plain, "device": device, "dtype": dtype}
        folder = Path(name)
        if bare := folder.is_dir() and not [*folder.glob("*token*"), *folder.glob("vocab*"), *folder.glob("*.model")]:
            # transformers would make an empty tokenizer, or fail
            options["tokenizer"] = as_pretrained(paths.data_file(TOKENIZER))
        model = TransformerBridge.boot_transformers(name, **options).eval().requires_grad_(False)
        if bare:
            model.tokenizer = None
        # TransformerLens gives its own copy of the tokenizer more tokens.
        reading.choose(model, None if bare else AutoTokenizer.from_pretrained(name))
        if expected is not None:
            check_against(expected, model, tokens)
    return model


@contextlib.contextmanager
def one_sentence(name: str) -> Iterator[None]:
    """Turn what the libraries raise into a WeightsError that says what to do."""
    try:
        yield
    except WeightsError:
        raise
    except Exception as error:  # of the hub's client, the HTTP library, transformers, TransformerLens
        known = (advice for words, advice in CAUSES.items() if re.search(words, str(error)))
        unknown = f"transformers or TransformerLens cannot read it ({reason(error)}); choose another model"
        todo = next(known, unknown)
        raise WeightsError(f"{name!r} could not be loaded: {todo}") from None


def whole(name: str, dtype: torch.dtype) -> PreTrainedModel:
    """Return the plain module of a model. Raises WeightsError for weights that do not fit, and for NaN and infinity."""
    config = AutoConfig.from_pretrained(name, trust_remote_code=False)
    kind = source.get_hf_model_class_for_architecture(source.determine_architecture_from_hf_config(config))
    options = {"config": config, "dtype": dtype, "attn_implementation": "eager", "trust_remote_code": False}
    model, report = kind.from_pretrained(name, output_loading_info=True, ignore_mismatched_sizes=True, **options)
    wrong = {
        "unexpected": [key for key in report["unexpected_keys"] if not CONSTANT.search(key)],
        "missing": report["missing_keys"],
        "mismatched": [key for key, *_ in report["mismatched_keys"]],
    }
    for what, keys in wrong.items():
        if keys:
            trouble = f"do not fit its configuration: {what} {', '.join(sorted(keys)[:3])}"
            raise WeightsError(f"the weights of {name} {trouble}; fetch or export it again")
    for key, weight in model.named_parameters():
        if not weight.isfinite().all():
            raise WeightsError(f"{key} in {name} contains NaN or infinity; fetch or export it again")
    return model


def check_against(expected: Any, model: TransformerBridge, tokens: Int[Tensor, "row pos"]) -> None:
    """Raise WeightsError unless a bridge computes the logits and patterns [row, head, dest, src] that transformers
    computes on these tokens."""
    names = [name for name in model.hook_dict if name.endswith("attn.hook_pattern")]
    logits, cache = model.run_with_cache(tokens, names_filter=names)
    limit, right = ROUNDING[expected.logits.dtype], expected.logits.float()
    differences = {"logits": (logits.float() - right).abs().max() / (right - right.mean()).abs().max()}
    patterns = [pattern for pattern in getattr(expected, "attentions", None) or () if pattern is not None]
    if names and len(names) == len(patterns):
        apart = [(cache[name] - pattern).abs().max() for name, pattern in zip(names, patterns)]
        differences["attention patterns"] = torch.stack(apart).max()
    for what, difference in differences.items():
        if not difference <= limit:  # nor NaN
            raise WeightsError(
                f"{model.cfg.model_name!r} is not computed as the transformers library computes it: "
                f"on {len(tokens)} rows {what} differ by {difference:.2g} (at most {limit:g} is rounding); "
                "TransformerLens does not support a setting of its config.json: choose another model"
            )
