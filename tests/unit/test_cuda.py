"""On a GPU, where there is one: a shipped model gives the CPU's losses, and a small one trains."""

import pytest
import torch

from transformer_circuits.data import held_out_windows
from transformer_circuits.measures.prediction import BATCH, batch_size, losses
from transformer_circuits.models import load_model
from transformer_circuits.models.architecture import ModelConfig, Transformer
from transformer_circuits.training.train import NextTokenLoss

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@needs_gpu
def test_a_model_on_a_gpu_has_the_losses_of_the_cpu():
    rows = held_out_windows(3)
    cpu, gpu = (losses(load_model("attn-only-2l", device=device), rows.to(device)) for device in ("cpu", "cuda"))
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


def test_as_many_rows_run_together_as_fit_the_device(monkeypatch):
    assert batch_size(torch.device("cpu")) == BATCH
    for free, rows in ((1 << 26, BATCH), (16 << 30, 64)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, 1 << 40))
        assert batch_size(torch.device("cuda")) == rows
