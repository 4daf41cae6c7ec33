"""Run the trainings of chapter 15, and store what it reads: `make small-runs`, two minutes."""

import torch
from safetensors.torch import save

from transformer_circuits import data
from transformer_circuits.models.shards import half_precision
from transformer_circuits.paths import data_file
from transformer_circuits.training.small_runs import experiments, train

# Models that the chapter measures after their training
MEASURED = ("always 16 apart", *(f"seed {seed}" for seed in range(1, 5)))


def main() -> None:
    stored = {}
    for name, (model, how) in experiments().items():
        stored[f"{name}/log"] = torch.tensor(train(model, **how), dtype=torch.float16)
        if name in MEASURED:
            weights = {key: weight for key, weight in model.named_parameters() if weight.requires_grad}
            stored |= half_precision({f"{name}/{key}": weight.detach() for key, weight in weights.items()})
    data_file(data.SMALL_RUNS).write_bytes(save(stored))


if __name__ == "__main__":
    main()
