"""The records of public models that chapter 18 and the scoreboard read: `make public` writes them.

In data/public, for each model NAME.yml with the verdicts of the ledger, and NAME.safetensors with scores of all heads
and, as metadata, the other numbers, the version of the measurement, and how it was made. `four_bits.safetensors` is
the control: what as many bits change in the book's own model.
"""

import json

from safetensors import safe_open

from transformer_circuits.claims import ledger
from transformer_circuits.paths import data_file
from transformer_circuits.real import real_models

LABELS = {"smollm2-135m": "SmolLM2-135M-Instruct", "gemma3-270m": "Gemma-3-270M"}
CONTROL = "four_bits"


def load(name: str) -> real_models.Measured:
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
    records = ledger.load_elsewhere(verdicts).records if verdicts.is_file() else []
    return real_models.Measured(numbers, arrays, records, made)
