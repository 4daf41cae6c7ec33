"""Measure the public models that the chapter "Real models" and the scoreboard read: `make public`.

    python -m book_tools.public [smollm2-135m ...]

`transformer_circuits.real.real_models` says what the files in data/public have, and reads them.
"""

import datetime
import json
import sys
from pathlib import Path
from typing import Any

import torch
import yaml
from jaxtyping import Float
from safetensors.torch import save
from torch import Tensor

from transformer_circuits.circuits import heads
from transformer_circuits.claims import ledger
from transformer_circuits.data import held_out_windows
from transformer_circuits.measures import estimates
from transformer_circuits.models import load_model, public
from transformer_circuits.models.shards import WeightsError
from transformer_circuits.models.view import View
from transformer_circuits.paths import data_file, write_atomically
from transformer_circuits.real import real_models

OURS = "attn-only-2l"
CONTROL_WINDOWS = 16


def four_bits(W: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
    """Return a matrix as a GGUF file in Q4_1, the format of the public models, stores it."""
    from gguf import GGMLQuantizationType, quants  # of the extra `public`

    stored = quants.quantize(W.numpy(force=True), GGMLQuantizationType.Q4_1)
    return torch.from_numpy(quants.dequantize(stored, GGMLQuantizationType.Q4_1)).to(W)


@torch.no_grad()
def control() -> tuple[dict[str, float], dict[str, Tensor]]:
    """Return what four bits change in the book's own model: its loss, and the scores of its heads."""
    model, arrays, losses = load_model(OURS), {}, {}
    windows = held_out_windows(CONTROL_WINDOWS, model.cfg.n_ctx).to(model.W_E.device)
    for bits in ("full", "four"):
        if bits == "four":
            for parameter in model.original_model.parameters():
                parameter.copy_(four_bits(parameter) if parameter.ndim == 2 else parameter)
        losses[bits] = View(model).losses(windows).mean(dim=1)
        arrays[f"induction, {bits}"] = heads.measured_induction(model).mean.cpu()
        arrays[f"previous, {bits}"] = heads.previous_token_scores(model, windows[:, :-1]).cpu()
    numbers = {f"loss, {bits}": float(loss.mean()) for bits, loss in losses.items()}
    rise, error = estimates.mean(losses["four"] - losses["full"])
    return numbers | {"rise": float(rise), "rise_error": float(error)}, arrays


def write(name: str, folder: Path) -> None:
    """Measure a public model, or CONTROL, and write its files."""
    made: dict[str, Any] = {"date": f"{datetime.date.today()}"}
    records = []
    if name == real_models.CONTROL:
        numbers, arrays = control()
        made["model"] = OURS
    else:
        found, listed = real_models.measure(load_model(name)), public.MODELS[name]
        numbers, arrays, records = found.numbers, found.arrays, found.records
        made |= {"model": name, "packages": [*listed.wheels], "sha256": listed.sha256, "license": listed.license}
    rounded = {key: float(f"{value:.5g}") for key, value in numbers.items()}
    metadata = {"version": real_models.VERSION, "numbers": rounded, "made": made}
    metadata = {key: json.dumps(value) for key, value in metadata.items()}
    half = {key: array.half().contiguous() for key, array in arrays.items()}
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / f"{name}.safetensors", save(half, metadata))
    if records:
        order = list(ledger.load_claims())
        judged = [record.model_dump(mode="json") for record in sorted(records, key=lambda one: order.index(one.id))]
        measured = f"{', '.join(made['packages'])}, in four bits, {made['date']}"
        content = {"model": real_models.LABELS[name], "measured": measured, "records": judged}
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)
        (folder / f"{name}.yml").write_text(text, encoding="utf-8")


def main(names: list[str]) -> None:
    try:
        for name in names or [*real_models.LABELS, real_models.CONTROL]:  # first what may not be had
            write(name, data_file(ledger.PUBLIC))
    except WeightsError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
