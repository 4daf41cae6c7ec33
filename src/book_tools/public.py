"""Measure the public models that the chapter "Real models" and the scoreboard read: `make public`.

    python -m book_tools.public [smollm2-135m ...]

`transformer_circuits.real.public_records` says what the files in data/public have, and reads them.
"""

import argparse
import datetime
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

from safetensors.torch import save

from transformer_circuits.claims import ledger
from transformer_circuits.models import load_model, public
from transformer_circuits.models.release import data_file
from transformer_circuits.models.shards import WeightsError, write_atomically
from transformer_circuits.real import public_records, real_models
from transformer_circuits.training.train import processor


def write(name: str, folder: Path) -> None:
    """Measure a public model, or CONTROL, and write its files."""
    begun, records = time.perf_counter(), []
    machine = f"{processor()}, {os.cpu_count()} cores, {platform.system()}"
    made: dict[str, Any] = {"date": f"{datetime.date.today()}", "machine": machine}
    if name == public_records.CONTROL:
        numbers, arrays = public_records.control()
        made["model"] = public_records.OURS
    else:
        found, listed = real_models.measure(load_model(name)), public.MODELS[name]
        numbers, arrays, records = found.numbers, found.arrays, found.records
        made |= {"model": name, "packages": [*listed.wheels], "sha256": listed.sha256, "license": listed.license}
    made["seconds"] = round(time.perf_counter() - begun)
    rounded = {key: float(f"{value:.5g}") for key, value in numbers.items()}
    metadata = {"version": real_models.VERSION, "numbers": rounded, "made": made}
    metadata = {key: json.dumps(value) for key, value in metadata.items()}
    half = {key: array.half().contiguous() for key, array in arrays.items()}
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / f"{name}.safetensors", lambda partial: partial.write_bytes(save(half, metadata)))
    if records:
        measured = f"{', '.join(made['packages'])}, in four bits, {made['date']}"
        ledger.save_elsewhere(folder / f"{name}.yml", public_records.LABELS[name], measured, records)
    print(f"{name}: {made['seconds']} s")


def main(arguments: list[str] | None = None) -> None:
    names = [public_records.CONTROL, *public_records.LABELS]
    parser = argparse.ArgumentParser(description="Measure public models for the chapter on real models.")
    parser.add_argument("names", nargs="*", default=names, help="which (default: all, and the control)")
    options = parser.parse_args(arguments)
    try:
        for name in options.names:
            write(name, data_file(ledger.PUBLIC))
    except WeightsError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
