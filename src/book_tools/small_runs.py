"""Run the trainings of chapter 15, and store what it reads: `make small-runs`, two minutes."""

import torch
from safetensors.torch import save

from transformer_circuits import data
from transformer_circuits.models.release import data_file
from transformer_circuits.models.shards import eight_bits
from transformer_circuits.training.small_runs import MEASURED, experiments, train_all


def main() -> None:
    runs, stored = experiments(), {}
    for name, history in train_all(runs).items():
        stored[f"{name}/log"] = torch.tensor(history, dtype=torch.float16)
    for name in MEASURED:
        weights = {key: weight for key, weight in runs[name][0].named_parameters() if weight.requires_grad}
        stored |= eight_bits({f"{name}/{key}": weight.detach() for key, weight in weights.items()})
    data_file(data.SMALL_RUNS).write_bytes(save(stored))


if __name__ == "__main__":
    main()
