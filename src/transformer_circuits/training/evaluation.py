"""What the trainer measures at each snapshot: the scores of the chapters, by the same functions."""

import json
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from transformer_circuits.circuits import heads
from transformer_circuits.measures import ablation, attention, prediction, repeats, weights
from transformer_circuits.models.architecture import Transformer
from transformer_circuits.models.bridge import wrap
from transformer_circuits.models.view import View
from transformer_circuits.training.settings import TrainingConfig
from transformer_circuits.training.windows import Windows


def view_of(model: Transformer) -> View:
    """Return the view of a model in training: of a bridge that shares its weights as they are now."""
    return View(wrap(model, shared=True))


def decimals(values: Any, digits: int = 4) -> Any:
    """Return tensors as lists, in numbers of a few decimals, anywhere in what JSON can write otherwise."""
    text = json.dumps(values, default=lambda t: t.float().tolist())
    return json.loads(text, parse_float=lambda x: round(float(x), digits))


class Evaluation:
    """Measures a model on fixed held-out windows and repeated random tokens: a row of the log (losses in nats a token).

    held_out, in_context     loss; loss late in the window minus loss early in it
    previous_token, rest     of each head on held-out text; `rest` is its attention to the start token
    induction                of each head on repeated tokens drawn uniformly
    first_guess              share of right first guesses in the second copies of these
    positivity               of each head's OV circuit (`weights.copying_positivity`): near 1 for a copying head
    cost, cost_error         what removing each head costs on `few_windows` windows, and its standard error over them
    pair                     with two layers, the head with the highest induction score and the earlier head that its
                             keys read most: their K-composition ratio, and the positivity of their circuit

    Logs shipped with the book are older: their attention to the previous and the start token is that on prose alone,
    and their positivity is taken without centering the embeddings.
    """

    def __init__(self, held_out: Windows, d_vocab: int, config: TrainingConfig):
        count = min(held_out.count, config.evaluate_windows)
        self.rows = held_out.rows(np.linspace(0, held_out.count - 1, count).astype(int).tolist())
        self.few = self.rows[:: max(1, count // config.few_windows)][: config.few_windows]  # of all kinds of text
        repeated = repeats.repeated_random_tokens(d_vocab, held_out.n_ctx, config.repeats, seed=config.seed)
        self.repeated = repeated.to(self.rows.device)

    @torch.no_grad()
    def __call__(self, model: Transformer) -> dict[str, Any]:
        view = view_of(model)
        nats = view.losses(self.rows)
        scores = {"held_out": float(nats.mean()), "in_context": float(prediction.in_context_score(nats).mean())}
        if not view.cfg.n_layers:
            return scores
        scores["previous_token"] = heads.previous_token_scores(view, self.few[:, :-1])
        scores["rest"] = heads.mean_score(view, self.few[:, :-1], attention.start_token_score)
        scores["induction"] = heads.induction_scores(view, self.repeated)
        scores["cost"], scores["cost_error"] = ablation.effects(ablation.ablate_heads(view, self.few))
        _, right = view.losses_and_guesses(self.repeated.tokens)
        scores["first_guess"] = float(self.repeated.by_copy(right.float())[1])
        if model.config.has_plain_circuits:
            scores |= weight_scores(view, scores["induction"])
        return decimals(scores)


@torch.autocast("cpu", enabled=False)
@torch.autocast("cuda", enabled=False)
def weight_scores(view: View, induction: Float[Tensor, "layer head"]) -> dict[str, Any]:
    """Return what the log has of the weights (see `Evaluation`)."""
    numbers = {"positivity": weights.copying_positivity(view)}
    if view.cfg.n_layers == 2:
        reader = (1, int(induction[1].argmax()))
        read = weights.ratios_of_reader(view, reader)[weights.SIDES.index("K"), 0]
        writer = (0, int(read.argmax()))
        match = weights.match_positivity(view, reader, writer)
        pair = {"induction": reader[1], "previous": writer[1]}
        numbers["pair"] = pair | {"k_composition": read[writer[1]], "k_positivity": match}
    return numbers
