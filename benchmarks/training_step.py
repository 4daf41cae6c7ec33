"""What the trainer does differently from the obvious, side by side with it, at the family's size on the CPU.

    python benchmarks/training_step.py

- an optimizer step of the two-layer model, gradients given: AdamW, torch.optim.Muon for the matrices of whole layers,
  and Muon for each head (both with AdamW for the embeddings)

The ways alternate within one run; medians, and the ratio to the first. On one thread of a machine that other programs
kept busy, so that all times are several times too long and the ratios are what counts:

    AdamW                                                16.7 ms     1.00
    torch.optim.Muon, matrices of whole layers          422.2 ms    25.33
    Muon for each head                                  184.9 ms    11.09
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from transformer_circuits.models.architecture import Transformer
from transformer_circuits.training.muon import optimizers_for
from transformer_circuits.training.settings import read_config

ROUNDS = 15


def compare(ways: dict[str, Callable[[], object]]) -> None:
    """Print the median time of each way, and its ratio to the first. They alternate, and two rounds warm up."""
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(ROUNDS + 2):
        for way, run in ways.items():
            start = time.perf_counter()
            run()
            seconds[way].append(time.perf_counter() - start)
    medians = {way: statistics.median(found[2:]) for way, found in seconds.items()}
    first = next(iter(medians.values()))
    for way, median in medians.items():
        print(f"{way:48} {1e3 * median:8.1f} ms   {median / first:6.2f}")
    print()


def main() -> None:
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads\n")
    _, shape, muon = read_config("attn-only-2l")
    _, _, adamw = read_config("attn-only-2l", ["optimizer=adamw"])

    model = Transformer(shape)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.randn_like(parameter)
    embeddings = torch.optim.AdamW([model.tok_embed.weight, model.head.weight], fused=True)
    ways = {
        "AdamW": optimizers_for(model, adamw),
        "torch.optim.Muon, matrices of whole layers": [
            torch.optim.Muon(list(model.layers.parameters()), adjust_lr_fn="match_rms_adamw"),
            embeddings,
        ],
        "Muon for each head": optimizers_for(model, muon),
    }
    compare({way: lambda all=optimizers: [one.step() for one in all] for way, optimizers in ways.items()})


if __name__ == "__main__":
    main()
