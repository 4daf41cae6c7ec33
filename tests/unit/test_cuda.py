"""On a GPU, where there is one: a shipped model gives the CPU's losses, and a small one trains."""

import pytest
import torch

from transformer_circuits.data import held_out_windows
from transformer_circuits.models import load_model
from transformer_circuits.models.architecture import ModelConfig, Transformer
from transformer_circuits.models.view import BATCH, View, batches, fitting
from transformer_circuits.training.train import NextTokenLoss

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@needs_gpu
def test_a_model_on_a_gpu_has_the_losses_of_the_cpu():
    rows = held_out_windows(7, 512)
    cpu, gpu = (View(load_model("attn-only-2l", device)).losses(rows.to(device)) for device in ("cpu", "cuda"))
    torch.testing.assert_close(gpu.cpu(), cpu, rtol=1e-3, atol=1e-3)


@needs_gpu
def test_a_model_trains_on_a_gpu():
    torch.manual_seed(0)
    module = NextTokenLoss(Transformer(ModelConfig(2, 32, 4, 8, 60, 24))).cuda()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2, fused=True)
    rows, found = torch.randint(60, (8, 25), device="cuda"), []
    for _ in range(20):
        found.append(module(rows))
        found[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert found[-1] < found[0] - 0.1


def test_rows_run_together_by_the_memory_that_the_first_ones_took():
    """A row of 512 tokens takes 1 GiB at 262 thousand tokens, and 16 MiB at 4 thousand."""
    gib = 1 << 30
    assert [fitting(15 * gib, BATCH * took) for took in (gib, gib >> 6, 40 * gib)] == [12, 768, 1]


def test_on_a_cpu_all_rows_run_a_few_at_a_time_the_longest_first():
    ends = torch.tensor([5, 9, 7, 8, 6])
    parts = [part.tolist() for part in batches(ends)]
    assert parts == [[1, 3], [2, 4], [0]]
