"""How many rows run together, and on a GPU, where there is one, the losses of the CPU."""

import pytest
import torch

from transformer_circuits.data import held_out_windows
from transformer_circuits.models import load_model
from transformer_circuits.models.view import BATCH, View, batches, fitting


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_model_on_a_gpu_has_the_losses_of_the_cpu():
    rows = held_out_windows(7, 512)
    cpu, gpu = (View(load_model("attn-only-2l", device)).losses(rows.to(device)) for device in ("cpu", "cuda"))
    torch.testing.assert_close(gpu.cpu(), cpu, rtol=1e-3, atol=1e-3)


def test_rows_run_together_by_the_memory_that_the_first_ones_took():
    """A row of 512 tokens takes 1 GiB at 262 thousand tokens, and 16 MiB at 4 thousand."""
    gib = 1 << 30
    assert [fitting(15 * gib, BATCH * took) for took in (gib, gib >> 6, 40 * gib)] == [12, 768, 1]


def test_on_a_cpu_all_rows_run_a_few_at_a_time_the_longest_first():
    ends = torch.tensor([5, 9, 7, 8, 6])
    parts = [part.tolist() for part in batches(ends)]
    assert parts == [[1, 3], [2, 4], [0]]
