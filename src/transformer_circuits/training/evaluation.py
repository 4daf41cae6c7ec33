"""What the trainer measures at each snapshot, on the plain module: the scores of `measures`, and losses by order."""

import itertools
import json
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from transformer_circuits.measures import ablation, attention, prediction, repeats, weights
from transformer_circuits.models.architecture import Transformer


def head_matrices(model: Transformer) -> dict[str, Tensor]:
    """Return W_Q, W_K, W_V [layer, head, d_model, d_head] and W_O [layer, head, d_head, d_model], in float32 on the
    CPU."""
    shape = (model.config.n_layers, model.config.n_heads, model.config.d_head, model.config.d_model)
    matrices = {}
    for part in "qkvo":
        layers = [block.attn.get_submodule(part).weight.detach().float().cpu() for block in model.layers]
        stacked = torch.stack(layers)  # [layer, output, input]
        matrices[f"W_{part.upper()}"] = stacked.mT.reshape(shape) if part == "o" else stacked.reshape(shape).mT
    return matrices


def vocabulary_product(model: Transformer) -> Tensor:
    """Return W_U W_E [d_model, d_model]: a direction of the stream, read as a token and embedded again."""
    return (model.head.weight.detach().float().T @ model.tok_embed.weight.detach().float()).cpu()


def composition(W: dict[str, Tensor]) -> Float[Tensor, "side=3 reader writer"]:
    """Return the composition ratios of the heads of a two-layer model, the second layer reading the first."""
    writes, reads = weights.Product(W["W_V"][0], W["W_O"][0]), weights.Product(W["W_Q"][1], W["W_K"][1].mT)
    return weights.composition_ratios(writes, reads, weights.Product(W["W_V"][1], W["W_O"][1]))


@torch.no_grad()
def attention_patterns(model: Transformer, tokens: Int[Tensor, "row pos"]) -> Float[Tensor, "layer row head dest src"]:
    """Return the attention of every head on every row."""
    (residual, positions), patterns = model.start(tokens), []
    for block in model.layers:
        patterns.append(block.attn(block.ln1(residual), positions=positions, pattern_fn=lambda p: p)[1])
        (residual,) = block(residual, positions=positions)
    return torch.stack(patterns)


@torch.no_grad()
def losses_by_order(model: Transformer, rows: Tensor) -> list[float]:
    """Return the mean loss with frozen patterns and only paths through at most 0, 1, ... heads (term importance, claim
    T11)."""
    patterns = attention_patterns(model, rows[:, :-1])
    embedding = model.tok_embed(rows[:, :-1])
    orders = [embedding]  # entry n: what all paths through exactly n heads have written so far
    for block, pattern in zip(model.layers, patterns):
        attn = block.attn
        moved = []
        for x in orders:
            values = attn.v(x).unflatten(-1, (attn.n_heads, attn.d_head)).transpose(1, 2)
            moved.append(attn.o((pattern @ values).transpose(1, 2).flatten(-2)))
        orders = [a + b for a, b in zip([*orders, 0.0], [0.0, *moved])]

    def loss(residual: Tensor) -> float:
        return float(F.cross_entropy(model.head(residual).float().flatten(0, 1), rows[:, 1:].flatten()))

    return [loss(residual) for residual in itertools.accumulate(orders)]


def decimals(values: Any, digits: int = 4) -> Any:
    """Return tensors as lists, in numbers of a few decimals, anywhere in what JSON can write otherwise."""
    text = json.dumps(values, default=lambda t: t.float().tolist())
    return json.loads(text, parse_float=lambda x: round(float(x), digits))


def ablation_effects_of(model: Transformer, rows: Int[Tensor, "row pos"]) -> ablation.AblationEffects:
    """Return what removing each head costs on these windows."""
    outputs = [block.attn.o for block in model.layers]
    return ablation.effects(ablation.ablate_heads(model, outputs, model.config.n_heads, rows).mean(dim=-1))


class Evaluation:
    """Measures a model on fixed held-out windows and repeated random tokens, and returns a row of the log (losses in
    nats per token):

    held_out, in_context     loss; loss late in the window minus loss early in it
    previous_token, rest     of each head on held-out text; `rest` is its attention to the start token
    induction                of each head on repeated tokens drawn uniformly
    copies, first_guess      loss in the first and second copy of these; share of right first guesses in the second
    positivity               of each head's OV circuit: near 1 for a copying head
    cost, cost_error         what removing each head costs on `few_windows` windows, and its standard error over them
    orders                   loss with frozen patterns and only paths through at most 0, 1, ... heads
    pair                     with two layers, the head with the highest induction score and the earlier head that its
        keys read most:
                             their K-composition ratio, and the positivity of their K-composition circuit
    """

    def __init__(self, held_out: Any, d_vocab: int, config: Any, device: torch.device):
        count = min(held_out.count, config.evaluate_windows)
        windows = np.linspace(0, held_out.count - 1, count).astype(int)
        self.rows, self.few = held_out.rows(windows).to(device), config.few_windows
        self.spread = self.rows[:: max(1, count // self.few)][: self.few]  # from all parts of the held-out text
        repeated = repeats.repeated_random_tokens(d_vocab, held_out.n_ctx, config.repeats, seed=config.seed)
        self.repeated = repeated.to(device)

    def __call__(self, model: Transformer) -> dict[str, Any]:
        by_position = prediction.losses(model, self.rows)
        scores = {"held_out": float(by_position.mean()), "in_context": prediction.in_context_score(by_position)}
        if not model.config.n_layers:
            return scores
        text = attention_patterns(model, self.rows[: self.few, :-1])
        scores["previous_token"] = attention.previous_token_score(text).mean(dim=1)
        scores["rest"] = attention.start_token_score(text).mean(dim=1)
        del text
        patterns = attention_patterns(model, self.repeated.tokens)
        scores["induction"] = torch.stack([attention.induction_score(layer, self.repeated) for layer in patterns])
        scores["cost"], scores["cost_error"] = ablation_effects_of(model, self.spread)
        nats, right = prediction.losses_and_guesses(model, self.repeated.tokens)
        scores["copies"] = self.repeated.by_copy(nats)
        scores["first_guess"] = float(self.repeated.by_copy(right.float())[1])
        if model.config.has_plain_circuits:
            scores |= self.circuits(model, scores["induction"])
        if not model.config.beyond:
            scores["orders"] = losses_by_order(model, self.rows[: self.few])
        return decimals(scores)

    @torch.autocast("cpu", enabled=False)
    @torch.autocast("cuda", enabled=False)
    def circuits(self, model: Transformer, induction: Tensor) -> dict[str, Any]:
        W = head_matrices(model)
        numbers = {"positivity": weights.factored_positivity(W["W_V"], W["W_O"] @ vocabulary_product(model))}
        if model.config.n_layers == 2:
            head = int(induction[1].argmax())
            ratio = composition(W)[weights.SIDES.index("K"), head]
            writer = int(ratio.argmax())
            # the circuit W_E W_QK W_OV^T W_E^T, [query token, token before the key], as the product of W_E W_Q and the
            # rest
            W_E = model.tok_embed.weight.detach().float().cpu()
            OV = W["W_V"][0, writer] @ W["W_O"][0, writer]
            match = weights.factored_positivity(W_E @ W["W_Q"][1, head], W["W_K"][1, head].T @ OV.T @ W_E.T)
            pair = {"induction": head, "previous": writer}
            numbers["pair"] = pair | {"k_composition": ratio[writer], "k_positivity": match}
        return numbers
