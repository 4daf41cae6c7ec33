"""What an optimizer step costs, side by side, for the two-layer model of the family on the CPU; the gradients are there
already.

    python benchmarks/optimizer_step.py

- AdamW for all parameters
- torch.optim.Muon for the matrices of whole layers, AdamW for the embeddings
- Muon for each head (training.muon), AdamW for the embeddings
- what Muon for each head does to 96 matrices of single heads, with Newton-Schulz iterations on Gram matrices, and on
  the matrices in bfloat16

The ways alternate within one run; medians, and the ratio to the first. On one thread of a machine that other programs
kept busy, so that all times are several times too long and the ratios are what counts:

    AdamW                                                21.7 ms     1.00
    torch.optim.Muon, matrices of whole layers          451.2 ms    20.76
    Muon for each head                                  165.9 ms     7.63

    Newton-Schulz on Gram matrices, float32             151.5 ms     1.00
    Newton-Schulz on the matrices, bfloat16             161.5 ms     1.07
"""

from __future__ import annotations

import torch
from torch import Tensor
from training_step import compare

from transformer_circuits.models.architecture import Transformer
from transformer_circuits.training.muon import COEFFICIENTS, ITERATIONS, optimizers_for, orthogonalized
from transformer_circuits.training.settings import read_config


def on_matrices(matrices: Tensor) -> Tensor:
    """The iterations as Jordan et al. (2024) write them."""
    a, b, c = COEFFICIENTS
    X = (matrices / matrices.norm(dim=(-2, -1), keepdim=True)).bfloat16()
    for _ in range(ITERATIONS):
        gram = X @ X.mT
        X = a * X + (b * gram + c * gram @ gram) @ X
    return X.to(matrices)


def main() -> None:
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    _, shape, muon = read_config("attn-only-2l")
    _, _, adamw = read_config("attn-only-2l", ["optimizer='adamw'"])
    model = Transformer(shape)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.randn_like(parameter)
    layers = list(model.layers.parameters())
    embeddings = torch.optim.AdamW([model.tok_embed.weight, model.head.weight], fused=True)
    whole = [torch.optim.Muon(layers, adjust_lr_fn="match_rms_adamw"), embeddings]
    ways = {
        "AdamW": optimizers_for(model, adamw),
        "torch.optim.Muon, matrices of whole layers": whole,
        "Muon for each head": optimizers_for(model, muon),
    }
    compare({way: lambda all=optimizers: [one.step() for one in all] for way, optimizers in ways.items()})
    heads = torch.randn(96, shape.d_head, shape.d_model)
    compare({
        "Newton-Schulz on Gram matrices, float32": lambda: orthogonalized(heads),
        "Newton-Schulz on the matrices, bfloat16": lambda: on_matrices(heads),
    })  # fmt: skip


if __name__ == "__main__":
    main()
