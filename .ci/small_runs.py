"""Run the trainings of chapter 15 with its own code, and store their logs and some of the weights for it: `make small-runs`.

tests/notebooks/test_small_runs.py says when this must be done again.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK, STORED = ROOT / "notebooks" / "15_grow_one.ipynb", ROOT / "data" / "small_runs.safetensors"
KEPT = [
    "always 16 apart",
    "seed 1",
    "seed 2",
    "seed 3",
    "seed 4",
]  # models that the chapter measures after their training


def cells() -> list[str]:
    """Return the code of the chapter's cells from the imports to the trainings, without those that draw."""
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    code = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    last = next(i for i, source in enumerate(code) if source.startswith("AGAIN = False"))
    return [source for source in code[1 : last + 1] if "figure" not in source]


def digest() -> str:
    """Return the SHA-256 of the cells that decide what the trainings give: all but the imports and the last."""
    return hashlib.sha256("\n".join(cells()[1:-1]).encode()).hexdigest()


def definitions() -> dict[str, Any]:
    """Return the chapter's names before its trainings."""
    names: dict[str, Any] = {"models": {}, "histories": {}}
    exec("\n".join(cells()[:-1]), names)
    return names


def main() -> None:
    names, stored = definitions(), {}
    exec(cells()[-1].replace("AGAIN = False", "AGAIN = True"), names)
    for name, history in names["histories"].items():
        stored[f"{name}/log"] = torch.tensor(history, dtype=torch.float16)
    for name in KEPT:
        weights = {key: weight for key, weight in names["models"][name].named_parameters() if weight.requires_grad}
        for key, weight in weights.items():
            step = weight.detach().abs().amax(dim=1, keepdim=True) / 127
            stored[f"{name}/{key}"] = (weight.detach() / step).round().to(torch.int8)
            stored[f"{name}/{key}.step"] = step
    STORED.write_bytes(save(stored, {"code": digest()}))


if __name__ == "__main__":
    main()
