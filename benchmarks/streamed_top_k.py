"""The head dump's top-k of a vocabulary-sized circuit, beside the matrix products alone and the usual ways, in one run.

    python benchmarks/streamed_top_k.py

- products: the blocks of the circuit, formed and dropped; nothing that reads every entry can be faster
- streamed: `circuits.factored.top_k`, the same blocks, the largest of groups first
- torch.topk: the same blocks, each sorted by PyTorch
- dense: the whole circuit in memory, then torch.topk

Ways alternate, in each round all of them; medians, and ratios to the products alone. Memory (on Linux) is the peak above what a
process with both factors holds, in a process for each way. One head: all source tokens of the smaller vocabulary, as many rows
of the larger one, where all 50,257 would take six times as long, and 10 GB to form whole; the dense way is therefore measured
at the smaller one only. A head dump takes two circuits of each head.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from training_step import medians
from transformer_lens import FactoredMatrix

from transformer_circuits.circuits.factored import row_blocks, top_k

D_HEAD, K, ROUNDS = 64, 10, 7
SIZES = {8_192: 8_192, 50_257: 8_192}  # d_vocab: how many rows


def circuit(d_vocab: int) -> FactoredMatrix:
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(SIZES[d_vocab], D_HEAD, generator=generator)
    return FactoredMatrix(A, torch.randn(D_HEAD, d_vocab, generator=generator))


def products(matrix: FactoredMatrix) -> None:
    for _ in row_blocks(matrix):
        pass


def streamed(matrix: FactoredMatrix) -> None:
    top_k(matrix, K)


def sorted_blocks(matrix: FactoredMatrix) -> None:
    found = [block.topk(K) for _, block in row_blocks(matrix)]
    torch.cat([f.values for f in found]), torch.cat([f.indices for f in found])


def dense(matrix: FactoredMatrix) -> None:
    (matrix.A @ matrix.B).topk(K)


WAYS: dict[str, Callable[[FactoredMatrix], None]] = {
    "products alone": products,
    "streamed (ours)": streamed,
    "torch.topk on blocks": sorted_blocks,
    "whole matrix, torch.topk": dense,
}


def peak_memory(way: str, d_vocab: int) -> float:
    """MB above the process with its factors; in a process of its own, since a process never forgets its peak."""
    command = [sys.executable, __file__, "--memory", way, str(d_vocab)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def print_peak(way: str, d_vocab: int) -> None:
    matrix = circuit(d_vocab)
    # What every way needs once: threads, the library's own buffers.
    WAYS[way](FactoredMatrix(matrix.A[:2], matrix.B[:, :2000]))
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of importing
    before = resident_peak()
    WAYS[way](matrix)
    print(resident_peak() - before)


def resident_peak() -> float:
    """MB. Not `getrusage`, whose peak a process inherits from the one that starts it."""
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) / 1024


def main() -> None:
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, float32, d_head {D_HEAD}, k = {K}, median of {ROUNDS}"
    )
    for d_vocab, rows in SIZES.items():
        matrix = circuit(d_vocab)
        ways = {way: run for way, run in WAYS.items() if run is not dense or d_vocab * rows < 10**8}
        found = medians({way: functools.partial(run, matrix) for way, run in ways.items()}, ROUNDS)
        print(f"\n{rows:,} rows of {d_vocab:,} columns ({4e-6 * rows * d_vocab:,.0f} MB if formed whole)")
        for way, seconds in found.items():
            ratio = seconds / found["products alone"]
            print(
                f"  {way:26} {seconds:8.3f} s   {ratio:6.2f} x products   peak memory {peak_memory(way, d_vocab):6.0f} MB"
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--memory"]:
        print_peak(sys.argv[2], int(sys.argv[3]))
    else:
        main()
