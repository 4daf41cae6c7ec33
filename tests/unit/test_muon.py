"""Muon for each head: it is torch's on one head, and heads do not depend on one another."""

import torch

from transformer_circuits.training.muon import HeadMuon


def test_one_head_is_updated_as_torchs_muon_does_it():
    torch.manual_seed(0)
    ours, theirs = (torch.nn.Parameter(weight) for weight in torch.randn(16, 48).expand(2, -1, -1).clone())
    optimizers = (
        HeadMuon([ours], [], d_head=16, lr=0.1),
        torch.optim.Muon([theirs], lr=0.1, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
    )
    for _ in range(3):
        before = ours.detach().clone()
        ours.grad = theirs.grad = torch.randn(16, 48)
        for optimizer in optimizers:
            optimizer.step()
        assert (ours - theirs).norm() < 0.05 * (ours - before).norm()  # torch's iterations run in bfloat16


def test_heads_do_not_depend_on_one_another_and_writers_are_transposed():
    torch.manual_seed(0)
    gradient = torch.randn(24, 32)

    def step(weight, grad, writes):
        weight = torch.nn.Parameter(weight)
        weight.grad = grad
        HeadMuon([weight] * (not writes), [weight] * writes, d_head=8, lr=0.1).step()
        return weight.detach()

    whole = step(torch.zeros(24, 32), gradient, writes=False)
    torch.testing.assert_close(whole[8:16], step(torch.zeros(8, 32), 1000 * gradient[8:16], writes=False))
    torch.testing.assert_close(whole.T, step(torch.zeros(32, 24), gradient.T, writes=True))
