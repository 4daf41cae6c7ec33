"""What a head is worth: the same for the plain module, the hooked model, and the record that pages show."""

import pytest
import torch

from transformer_circuits.circuits import heads
from transformer_circuits.data import held_out_windows
from transformer_circuits.measures.ablation import WINDOWS, WORKS, Worth, head_costs, recorded_worth, worth
from transformer_circuits.models import load_model
from transformer_circuits.models.architecture import ModelConfig, Transformer
from transformer_circuits.models.bridge import wrap
from transformer_circuits.models.shards import WeightsError


def costs(model, rows, layers):
    return head_costs(model, [block.attn.o for block in layers], 3, rows).mean(dim=-1)


@torch.no_grad()
def test_costs_are_those_of_hooks_and_a_head_that_is_switched_off_is_without_effect():
    torch.manual_seed(0)
    plain = Transformer(ModelConfig(2, 24, 3, 8, 40, 16)).double()
    for parameter in plain.layers.parameters():
        parameter.mul_(4)
    plain.head.weight.mul_(20)
    plain.layers[0].attn.o.weight[:, 8:16] = 0  # head 0.1
    rows, hooked = torch.randint(40, (6, 17)), wrap(plain)
    found = costs(plain, rows, plain.layers)
    torch.testing.assert_close(found, costs(hooked, rows, hooked.blocks))
    intact = heads.losses(hooked, rows).mean(dim=-1)
    for layer, head in ((0, 2), (1, 0)):
        means = {layer: heads.mean_z(hooked, rows[:, :-1], layer)}
        without = heads.losses(hooked, rows, heads.without_heads([(layer, head)], means)).mean(dim=-1)
        torch.testing.assert_close(found[layer, head], without - intact)
    assert found[0, 1].abs().max() == 0 and not worth(found).working[0, 1]
    assert not any(block.attn.o._forward_pre_hooks for block in plain.layers), "nothing stays on the model"


def test_a_head_works_if_its_cost_is_large_enough_and_certain_enough():
    cost = torch.tensor([[WORKS, WORKS * 0.99, 0.1, -0.1]])
    assert Worth(cost, torch.tensor([[0.0, 0, 0.06, 0.01]])).working.tolist() == [[True, False, False, False]]


def test_the_record_that_pages_show_is_what_the_text_gives():
    model = load_model("small-1l")
    rows = held_out_windows(WINDOWS, model.cfg.n_ctx, model.cfg.d_vocab)
    again = worth(head_costs(model, [model.blocks[0].attn.o], model.cfg.n_heads, rows).mean(dim=-1))
    recorded = recorded_worth("small-1l")
    # The trainer measured it before the weights were stored in 8 bits.
    torch.testing.assert_close(torch.stack(again), torch.stack(recorded), atol=1e-5, rtol=5e-3)
    assert torch.equal(again.working, recorded.working)
    with pytest.raises(WeightsError, match="came without the costs of its heads"):
        recorded_worth("attn-only-0l")
