"""The measurements of public models that the chapter "Real models" and the scoreboard read: `make public` writes them.

In data/public, for each model NAME.yml with the verdicts of the ledger, and NAME.safetensors with scores of all heads
and, as metadata, the other numbers, the version of the measurement, the model's source, the machine, seconds, and
memory. `four_bits.safetensors` is the control: the book's own model in as many bits.
"""

import json
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from safetensors import safe_open
from torch import Tensor

from transformer_circuits.circuits import heads
from transformer_circuits.claims import ledger
from transformer_circuits.data import held_out_windows
from transformer_circuits.models import load_model
from transformer_circuits.models.release import data_file
from transformer_circuits.real import real_models

LABELS = {"smollm2-135m": "SmolLM2-135M-Instruct", "gemma3-270m": "Gemma-3-270M"}
CONTROL, OURS = "four_bits", "attn-only-2l"
BLOCK, LEVELS = 32, 15  # of Q4_1: weights that share a scale and an offset, and steps between the two ends
CONTROL_WINDOWS = 16


class Recorded(NamedTuple):
    """What data/public has of one model."""

    numbers: dict[str, float]
    arrays: dict[str, Tensor]  # [layer, head] most of them
    records: list[ledger.Record]
    made: dict[str, Any]  # model, packages, sha256, date, machine, seconds of each part, peak_mib


def load(name: str) -> Recorded:
    """Return the record of a public model, or of CONTROL. Raises ValueError that lists the names, or for a record of
    another version of the measurement."""
    folder = data_file(ledger.PUBLIC)
    names = sorted(path.stem for path in folder.glob("*.safetensors"))
    if name not in names:
        raise ValueError(f"there is no record of {name!r}; there are: {', '.join(names)} (`make public` writes them)")
    with safe_open(folder / f"{name}.safetensors", "pt") as file:
        arrays = {key: file.get_tensor(key).float() for key in file.keys()}
        numbers, made, version = (json.loads(file.metadata()[key]) for key in ("numbers", "made", "version"))
    if version != real_models.VERSION:
        raise ValueError(f"{name!r} was measured by version {version}, not {real_models.VERSION}: run `make public`")
    verdicts = folder / f"{name}.yml"
    return Recorded(numbers, arrays, ledger.load_elsewhere(verdicts).records if verdicts.is_file() else [], made)


def four_bits(W: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
    """Return a matrix as Q4_1 stores it: in each BLOCK of neighbors the lowest weight plus up to LEVELS steps, step and
    lowest weight in half precision."""
    blocks = W.float().unflatten(-1, (-1, BLOCK))
    low, high = blocks.amin(dim=-1, keepdim=True), blocks.amax(dim=-1, keepdim=True)
    step = (high - low) / LEVELS
    level = ((blocks - low) / step.clamp(min=1e-12)).round().clamp(0, LEVELS)
    return (level * step.half().float() + low.half().float()).flatten(-2).to(W)


@torch.no_grad()
def control() -> tuple[dict[str, float], dict[str, Tensor]]:
    """Return what four bits change in the book's own model: its loss, and the scores of its heads."""
    numbers, arrays = {}, {}
    model = load_model(OURS)
    windows = held_out_windows(CONTROL_WINDOWS, model.cfg.n_ctx).to(model.W_E.device)
    for bits in ("full", "four"):
        if bits == "four":
            for name, parameter in model.original_model.named_parameters():
                if parameter.ndim == 2:
                    before = parameter.clone()
                    parameter.copy_(four_bits(parameter))
                    numbers[f"error of {name.removesuffix('.weight')}"] = float(
                        (parameter - before).norm() / before.norm()
                    )
        loss = heads.losses(model, windows).mean(dim=1)
        scores, errors = heads.measured_induction(model)
        numbers |= {f"loss, {bits}": float(loss.mean()), f"induction, {bits}": float(scores.max())}
        numbers[f"induction, {bits}_error"] = float(errors.flatten()[scores.argmax()])
        arrays[f"induction, {bits}"] = scores.cpu()
        arrays[f"previous, {bits}"] = heads.previous_token_scores(model, windows[:, :-1]).cpu()
        arrays[f"loss, {bits}"] = loss.cpu()
    rise = arrays["loss, four"] - arrays["loss, full"]
    numbers |= {"rise": float(rise.mean()), "rise_error": float(rise.std() / len(rise) ** 0.5)}
    return numbers, arrays
