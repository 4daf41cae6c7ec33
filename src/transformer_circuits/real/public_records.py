"""The measurements of public models that the chapter "Real models" and the scoreboard read: `make public` writes them.

    python -m transformer_circuits.real.public_records [smollm2-135m ...]

In data/public, for each model NAME.yml with the verdicts of the ledger, and NAME.safetensors with scores of all heads
and, as metadata, the other numbers, the model's source, the machine, seconds, and memory. `four_bits.safetensors` is
the control: the book's own model in as many bits.
"""

import argparse
import datetime
import hashlib
import inspect
import json
import os
import platform
import resource
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from transformer_circuits.circuits import heads
from transformer_circuits.claims import ledger
from transformer_circuits.data import held_out_windows
from transformer_circuits.models import load_model, public
from transformer_circuits.models.release import data_file
from transformer_circuits.models.shards import WeightsError, write_atomically
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
    texts: dict[str, list[str]]
    made: dict[str, Any]  # model, packages, sha256, date, machine, seconds of each part, peak_mib


def load(name: str) -> Recorded:
    """Return the record of a public model, or of CONTROL. Raises ValueError that lists the names."""
    folder = data_file(ledger.PUBLIC)
    names = sorted(path.stem for path in folder.glob("*.safetensors"))
    if name not in names:
        raise ValueError(f"there is no record of {name!r}; there are: {', '.join(names)} (`make public` writes them)")
    with safe_open(folder / f"{name}.safetensors", "pt") as file:
        arrays = {key: file.get_tensor(key).float() for key in file.keys()}
        numbers, texts, made = (json.loads(file.metadata()[key]) for key in ("numbers", "texts", "made"))
    verdicts = folder / f"{name}.yml"
    return Recorded(numbers, arrays, ledger.load_elsewhere(verdicts).records if verdicts.is_file() else [], texts, made)


def digest() -> str:
    """Return the SHA-256 of the code that decides what is measured."""
    return hashlib.sha256((inspect.getsource(real_models) + inspect.getsource(four_bits)).encode()).hexdigest()


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


def machine() -> str:
    """Return processor, number of cores, and system, without the name of the machine."""
    from transformer_circuits.training.train import processor  # slow

    return f"{processor()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads, {platform.system()}"


def peak_mib() -> float:
    """Return the most memory that this process has had so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def write(name: str, folder: Path) -> None:
    """Measure a public model, or CONTROL, and write its files."""
    begun = time.perf_counter()
    made: dict[str, Any] = {"date": f"{datetime.date.today()}", "machine": machine()}
    records, texts = None, {}
    if name == CONTROL:
        numbers, arrays = control()
        made |= {"model": OURS, "seconds": {"all": round(time.perf_counter() - begun)}}
    else:
        model = load_model(name)
        loaded = time.perf_counter() - begun
        numbers, arrays, records, texts, seconds = real_models.measure(model)
        listed = public.MODELS[name]
        made |= {"model": name, "packages": [*listed.wheels], "sha256": listed.sha256, "license": listed.license}
        made["seconds"] = {part: round(each) for part, each in {"loading": loaded, **seconds}.items()}
    made["peak_mib"] = round(peak_mib())
    rounded = {key: float(f"{value:.5g}") for key, value in numbers.items()}
    metadata = {"code": digest(), "numbers": json.dumps(rounded), "texts": json.dumps(texts), "made": json.dumps(made)}
    half = {key: array.half().contiguous() for key, array in arrays.items()}
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / f"{name}.safetensors", lambda partial: partial.write_bytes(save(half, metadata)))
    if records:
        measured = f"{', '.join(made['packages'])}, in four bits, {made['date']}"
        ledger.save_elsewhere(folder / f"{name}.yml", LABELS[name], measured, records)
    print(f"{name}: {sum(made['seconds'].values())} s, {made['peak_mib']:,} MiB")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Measure public models for the chapter on real models.")
    parser.add_argument("names", nargs="*", default=[CONTROL, *LABELS], help="which (default: all, and the control)")
    options = parser.parse_args(arguments)
    try:
        for name in options.names:
            write(name, data_file(ledger.PUBLIC))
    except WeightsError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
