"""What the trainer does differently from the obvious, side by side with it, forward and backward, at the family's size
on the CPU.

    python benchmarks/training_step.py

- attention: in blocks of queries against only the keys they can see, beside PyTorch's fused kernel
- loss: chunked, keeping only the logits' gradient in bf16, beside cross-entropy over float32 logits of the whole batch

The two ways alternate within one run; medians, and the ratio to the first.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from transformer_circuits.training.kernels import blocked_attention, linear_cross_entropy

BATCH, N_CTX, N_HEADS, D_HEAD, D_MODEL, D_VOCAB, ROUNDS = 4, 512, 12, 64, 384, 4096, 15


def medians(ways: dict[str, Callable[[], object]], rounds: int = ROUNDS) -> dict[str, float]:
    """Return the median seconds of each way. They alternate, and two rounds warm up."""
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds + 2):
        for way, run in ways.items():
            start = time.perf_counter()
            run()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            seconds[way].append(time.perf_counter() - start)
    return {way: statistics.median(found[2:]) for way, found in seconds.items()}


def compare(ways: dict[str, Callable[[], object]]) -> None:
    """Print the median time of each way, and its ratio to the first."""
    found = medians(ways)
    first = next(iter(found.values()))
    for way, median in found.items():
        print(f"{way:48} {1e3 * median:8.1f} ms   {median / first:6.2f}")
    print()


def main() -> None:
    torch.manual_seed(0)
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, bf16, {BATCH} x {N_CTX} tokens, median of {ROUNDS}\n"  # noqa: E501
    )
    q, k, v = (torch.randn(BATCH, N_HEADS, N_CTX, D_HEAD).bfloat16().requires_grad_() for _ in range(3))
    compare({
        "attention, fused kernel": lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward(),
        "attention, blocks of 128 queries": lambda: blocked_attention(q, k, v).sum().backward(),
    })  # fmt: skip
    residual = torch.randn(BATCH * N_CTX, D_MODEL).bfloat16().requires_grad_()
    W_U = (0.02 * torch.randn(D_VOCAB, D_MODEL)).bfloat16().requires_grad_()
    targets = torch.randint(D_VOCAB, (BATCH * N_CTX,))
    compare({
        "loss, cross-entropy over all float32 logits": lambda: F.cross_entropy((residual @ W_U.T).float(), targets).backward(),  # noqa: E501
        "loss, chunks of 256 rows": lambda: linear_cross_entropy(residual, W_U, targets).backward(),
    })  # fmt: skip


if __name__ == "__main__":
    main()
