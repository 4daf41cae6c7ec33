"""Tokens a second of training, and the share of the machine's matrix rate that this uses, at several batch sizes.

    python benchmarks/training_throughput.py [--config attn-only-2l] [--batch 4 16 64] [--compile] [--set n_ctx=1024]

The rate to compare with is that of one large bf16 product, timed in the same run. Operations are those of matrix
products, as torch counts them. On CUDA where there is one; medians.
"""

from __future__ import annotations

import argparse

import torch
from torch.utils.flop_counter import FlopCounterMode
from training_step import medians

from transformer_circuits.models.architecture import Transformer
from transformer_circuits.training.muon import optimizers_for
from transformer_circuits.training.settings import read_config
from transformer_circuits.training.train import NextTokenLoss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="attn-only-2l")
    parser.add_argument("--batch", type=int, nargs="+")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    cuda = device.type == "cuda"
    name, shape, training = read_config(args.config, args.set)

    n = 8192 if cuda else 1024
    a, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(2))
    peak = 2 * n**3 / medians({"product": lambda: a @ b}, args.rounds)["product"] / 1e12
    print(
        f"{torch.cuda.get_device_name() if cuda else 'CPU'}, torch {torch.__version__}, {torch.get_num_threads()} threads"  # noqa: E501
    )
    print(f"one {n} x {n} x {n} bf16 product: {peak:.3g} TFLOP/s\n")
    print(f"{name}, context {shape.n_ctx}, {training.optimizer}{', compiled' * args.compile}")
    print("batch  tokens/s   TFLOP/s  of the product's rate   GB")
    for batch in args.batch or ([16, 64, 128] if cuda else [2, 4, 8]):
        torch.manual_seed(0)
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        module = NextTokenLoss(Transformer(shape)).to(device)
        parameters = [p for p in module.parameters() if p.requires_grad]
        optimizers = optimizers_for(module.model, training)
        rows = torch.randint(1, shape.d_vocab, (batch, shape.n_ctx + 1), device=device)

        def step() -> None:
            with torch.autocast(device.type, torch.bfloat16):
                loss = module(rows)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, training.clip)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()

        with FlopCounterMode(display=False) as counter:
            step()
        if args.compile:
            module.compile()
        seconds = medians({"step": step}, args.rounds)["step"]
        achieved = counter.get_total_flops() / seconds / 1e12
        memory = torch.cuda.max_memory_allocated() / 1e9 if cuda else 0.0
        rate = batch * shape.n_ctx / seconds
        print(f"{batch:5} {rate:9,.0f} {achieved:9.3g}  {achieved / peak:>21.0%} {memory:4.1f}", flush=True)


if __name__ == "__main__":
    main()
