"""Muon for each head: orthogonalized momentum for every head's W_Q, W_K, W_V, and W_O.

Muon (Jordan et al. 2024) replaces a matrix's momentum by the nearest matrix whose singular values are all equal. Here
the matrix is that of one head, as in "Per-Head Muon" (Kimi K3, 2026) and "Muon Split" (GLM-5, 2026): in the matrix of a
whole layer, heads with large momentum would decide the step of all others.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from transformer_circuits.models.architecture import Transformer
from transformer_circuits.training.settings import TrainingConfig

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of Jordan et al.: fast, and singular values end between 0.7 and 1.2
ITERATIONS = 5
MOMENTUM = 0.95
LIKE_ADAMW = 0.2  # root mean square of an update to which AdamW's rate and weight decay fit (Liu et al. 2025)


def orthogonalized(matrices: Float[Tensor, "*batch d_head d_model"]) -> Float[Tensor, "*batch d_head d_model"]:
    """Return each matrix with its singular values brought close to 1, by Newton-Schulz iterations. Zeros stay zeros.

    An iteration X <- a X + b (X X^T) X + c (X X^T)^2 X multiplies X from the left by a polynomial in its Gram matrix X
    X^T. So the iterations run on Gram matrices [d_head, d_head], and X itself is multiplied once, at the end.
    """
    a, b, c = COEFFICIENTS
    X = matrices / matrices.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    gram = X @ X.mT
    identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    product = identity
    for _ in range(ITERATIONS):
        factor = a * identity + b * gram + c * (gram @ gram)
        product = factor @ product
        gram = factor @ gram @ factor
    return product @ X


class HeadMuon(torch.optim.Optimizer):
    """Momentum with Nesterov's look-ahead, orthogonalized for each head, and decoupled weight decay.

    `readers`: weights of W_Q, W_K, W_V as `nn.Linear` stores them, [n_heads * d_head, d_model]. `writers`: those of
    W_O, [d_model, n_heads * d_head].
    """

    def __init__(self, readers: list[Tensor], writers: list[Tensor], d_head: int, lr: float, weight_decay: float = 0.1):
        groups = [{"params": readers, "writes": False}, {"params": writers, "writes": True}]
        super().__init__(groups, {"d_head": d_head, "lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        steps = []  # (weight, its group, direction): all heads of all layers in one product
        for group in self.param_groups:
            for weight in group["params"]:
                if weight not in self.state:
                    self.state[weight]["momentum"] = torch.zeros_like(weight)
                average = self.state[weight]["momentum"].lerp_(weight.grad, 1 - MOMENTUM)
                direction = weight.grad.lerp(average, MOMENTUM)
                steps.append((weight, group, direction.T if group["writes"] else direction))
        directions = torch.stack([direction for _, _, direction in steps])
        heads = directions.unflatten(1, (-1, self.defaults["d_head"]))  # [weight, head, d_head, d_model]
        scale = LIKE_ADAMW * max(heads.shape[-2:]) ** 0.5
        for (weight, group, _), update in zip(steps, orthogonalized(heads).flatten(1, 2)):
            weight.mul_(1 - group["lr"] * group["weight_decay"])
            weight.add_(update.T if group["writes"] else update, alpha=-group["lr"] * scale)


def optimizers_for(model: Transformer, config: TrainingConfig) -> list[torch.optim.Optimizer]:
    """Return AdamW for all parameters, or HeadMuon for the matrices of heads and AdamW for the rest (embeddings, MLPs,
    norms)."""
    heads = [block.attn for block in model.layers] if config.optimizer == "muon" else []
    readers = [linear.weight for attn in heads for linear in (attn.q, attn.k, attn.v)]
    writers = [attn.o.weight for attn in heads]
    of_heads, decay = {*readers, *writers}, config.weight_decay
    layers = [parameter for parameter in model.layers.parameters() if parameter not in of_heads]
    embeddings = [*model.tok_embed.parameters(), *model.ln_out.parameters(), *model.head.parameters()]
    groups = [
        {"params": layers, "weight_decay": decay},
        {"params": embeddings, "weight_decay": decay * config.decay_embeddings},
    ]
    adamw = torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, fused=True)
    return [HeadMuon(readers, writers, model.config.d_head, config.lr, decay), adamw] if heads else [adamw]
