"""The paper's questions, put to any model that TransformerLens bridges (chapters 18 and 19), each with what chance gives."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformer_lens import FactoredMatrix
from transformer_lens.utilities import get_act_name

from transformer_circuits.circuits import heads
from transformer_circuits.circuits.heads import Head
from transformer_circuits.data import held_out_windows, load_tokenizer
from transformer_circuits.measures import ablation, attention, weights
from transformer_circuits.measures.repeats import Repeated, row_length
from transformer_circuits.models import bridge
from transformer_circuits.models.shards import WeightsError

ROWS = 16  # windows of text
DRAWN = 8  # rows of random tokens on which heads are removed
OTHERS = 3  # heads that are removed for comparison


def check(model: Any, start: int | None = None) -> None:
    """Raise WeightsError, in one sentence, unless the paper's questions can be put to the model.

    It must be a decoder with attention heads in every layer, with W_Q, W_K, and W_V, that reads the residual stream
    before it normalizes it, and with a start token. `start`: that token, if it is not the one that tokenizer and
    configuration name.
    """
    cfg = model.cfg
    direction = getattr(cfg, "attention_dir", None) or "causal"
    attending = sum(get_act_name("pattern", layer) in model.hook_dict for layer in range(cfg.n_layers))
    unfit = {
        "an encoder and a decoder": getattr(_config(model), "is_encoder_decoder", False),
        f"{direction} attention, as in an encoder": direction != "causal",
        f"attention in {attending} of its {cfg.n_layers} layers": attending < max(1, cfg.n_layers),
    }
    if got := [what for what, holds in unfit.items() if holds]:
        raise WeightsError(
            f"{cfg.model_name!r} must be a decoder with attention heads in every layer, got {got[0]}; choose "
            f"another model"
        )
    if start is not None:
        bridge.set_reading(model, start=start)
    first = bridge.start_token(model)
    try:
        _ = model.QK, model.OV
    except AttributeError:
        raise WeightsError(
            f"{cfg.model_name!r} has attention without W_Q, W_K, and W_V; choose another model"
        ) from None
    if not _normalizes_before(model, torch.full((1, 2), first, device=model.W_E.device)):
        todo = "heads then read no sum of what was written; choose a model with normalization before attention"
        raise WeightsError(f"{cfg.model_name!r} normalizes the residual stream after attention; {todo}")


def _normalizes_before(model: Any, tokens: Int[Tensor, "row pos"]) -> bool:
    """Return whether the first layer's normalization, if it has one, reads the residual stream that the layer is
    given."""
    names = ["blocks.0.hook_in", "blocks.0.ln1.hook_in"]
    if not set(names) <= model.hook_dict.keys():
        return True
    _, cache = model.run_with_cache(tokens, names_filter=names)
    return torch.equal(*(cache[name] for name in names))


def _config(model: Any) -> Any:
    """Return the configuration of the bridged model, as the library that made it wrote it."""
    return getattr(model.original_model, "config", None)


def differences(model: Any) -> list[str]:
    """Return what the model has beyond the paper's, a sentence for each: what then no longer holds exactly, or is left
    out here."""
    cfg, original, config = model.cfg, model.original_model, _config(model)
    positions, shared = cfg.positional_embedding_type, getattr(cfg, "n_key_value_heads", None)
    biases = any(p.any() for name, p in original.named_parameters() if "att" in name and name.endswith("bias"))
    kind, block = cfg.normalization_type, model.blocks[0]
    folded = "gains and its centering are" if kind in ("LN", "LNPre") else "gains are"
    limited, test, short = [window for window in windows(model) if window], row_length(cfg.n_ctx), ""
    if min(limited, default=test) < test:
        short = f" The rows of the tests have {test} tokens, so scores of these layers are too low where the token to find is farther back."
    capped = getattr(config, "attn_logit_softcapping", None)
    sentences = [
        (kind, f"Normalization: its {folded} folded into the matrices that read after it. The division by the "
         "length of the residual stream remains, so the logits are not exactly a sum over paths."),
        (hasattr(block, "ln1_post"), "Normalization after attention: its gains are folded into the OV circuits. The division by the length of what "
         "all heads of a layer write together remains, so what one head writes depends on the others: OV "
         "circuits have the right "
         "direction and no fixed size."),
        (hasattr(block.attn, "q_norm"), "Normalization of queries and keys: its gains are folded into the QK circuits. The division by the length of "
         "each query and key remains, so every score is an entry of the QK circuit times a positive number "
         "that depends on the two tokens."),
        (not cfg.attn_only, "MLPs: they also read what a head writes, so the direct path from a head to the logits is only a part of the "
         "head's effect."),
        (positions == "standard", "Positions in the residual stream: $W_{pos}$ reaches values and logits too, and heads can move it."),
        (positions not in ("standard", "shortformer"), f"Positions of type {positions!r}: there is no $W_{{pos}}$. Scores depend on the distance, and "
         "the QK circuit below leaves it out."),
        (limited, f"Windows: {len(limited)} of {cfg.n_layers} layers attend only to the last {max(limited, default=0)} tokens. The QK circuit says "
         f"nothing about tokens farther back.{short}"),
        (capped, f"Soft-capped scores: a score s becomes {capped} tanh(s / {capped}). The QK circuit gives their order, not their size."),
        (getattr(config, "final_logit_softcapping", None), "Soft-capped logits: the OV circuit gives what a head adds before the cap, which keeps the "
         "order of the logits and not their sum over paths."),
        (shared and shared != cfg.n_heads, f"Grouped-query attention: {cfg.n_heads} heads per layer share {shared} sets of keys and values, so "
         "their circuits are not independent."),
        (getattr(config, "smeared_keys", False), "Smeared keys: a key contains the previous token's key, which the QK circuit below leaves out."),
        (biases, "Biases: circuits leave out the biases of queries, keys, values, and outputs."),
    ]  # fmt: skip
    return [sentence for holds, sentence in sentences if holds]


def windows(model: Any) -> list[int | None]:
    """Return how many tokens each layer can attend to, itself included: None for all of them."""
    config, n_layers = _config(model), model.cfg.n_layers
    size = getattr(config, "sliding_window", None) or getattr(config, "window_size", None)
    kinds = getattr(config, "layer_types", None) or getattr(config, "attention_layers", None) or ["local"] * n_layers
    return [size if kind in ("sliding_attention", "local") else None for kind in kinds[:n_layers]]


def text(model: Any, rows: int = ROWS) -> Int[Tensor, "row pos"]:
    """Return windows of held-out text in the model's own tokens behind its own start token; the last column is a target
    only.

    A model that cannot read text (`models.bridge.reading`) gets random tokens, uniformly from those that it has.
    """
    n_ctx, device = row_length(model.cfg.n_ctx), model.W_E.device
    reading, start = bridge.reading(model), bridge.start_token(model)
    tokenizer, ours = model.tokenizer, load_tokenizer()
    if not reading.reads_text:
        places = torch.randint(len(reading.drawn), (rows, n_ctx), generator=torch.Generator().manual_seed(0))
        tokens = reading.drawn[places]
    elif tokenizer.get_vocab().items() <= ours.get_vocab().items():
        d_vocab = len(tokenizer.get_vocab())  # a model may have more rows
        tokens = held_out_windows(rows, n_ctx, d_vocab)[:, 1:]
    else:
        strings = ours.batch_decode(held_out_windows(rows, 512), skip_special_tokens=True)
        encoded = [tokenizer(string, add_special_tokens=False)["input_ids"] for string in strings]
        length = min(n_ctx, *(len(ids) for ids in encoded))
        tokens = torch.tensor([ids[:length] for ids in encoded])
    return torch.nn.functional.pad(tokens, (1, 0), value=start).to(device)


class Weights(NamedTuple):
    """A model's matrices in single precision, with normalizations folded into what reads after them."""

    W_E: Float[Tensor, "d_vocab d_model"]
    QK: FactoredMatrix  # [layer, head, d_model, d_model]
    OV: FactoredMatrix
    W_U: Float[Tensor, "d_model d_vocab"]


def read_weights(model: Any) -> Weights:
    """Return the matrices that the paper's circuits are made of, of a model that `check` accepts."""
    QK, OV = model.QK, model.OV
    parts = []  # of each layer
    for block, W_Q, W_K, W_V, W_O in zip(model.blocks, QK.A, QK.B.mT, OV.A, OV.B):
        W_Q, W_K, W_V = (_folded(model, getattr(block, "ln1", None), W) for W in (W_Q, W_K, W_V))
        W_Q = W_Q * _head_gain(model, getattr(block.attn, "q_norm", None))
        W_K = W_K * _head_gain(model, getattr(block.attn, "k_norm", None))
        parts.append((W_Q, W_K, W_V, W_O.float() * _gain(model, getattr(block, "ln1_post", None), W_O.shape[-1])))
    Q, K, V, O = map(torch.stack, zip(*parts))
    W_U = _folded(model, getattr(model, "ln_final", None), model.W_U)
    return Weights(model.W_E.float(), FactoredMatrix(Q, K.mT), FactoredMatrix(V, O), W_U)


def _gain(model: Any, norm: Any, size: int) -> Float[Tensor, " size"]:
    """Return what a normalization multiplies each dimension by, after its division; ones if there is nothing."""
    gain = getattr(norm, "w", None) if model.cfg.normalization_type else None
    if gain is None:
        return torch.ones(size, device=model.W_E.device)
    return gain.float() + bool(getattr(model.cfg, "rmsnorm_uses_offset", False))


def _head_gain(model: Any, norm: Any) -> Float[Tensor, "head 1 d_head"]:
    """Return the gains of a normalization of queries or keys: of each head, or one for all."""
    gain = _gain(model, norm, model.cfg.d_head).view(-1, 1, model.cfg.d_head)
    return gain if len(gain) == 1 else gain.repeat_interleave(model.cfg.n_heads // len(gain), dim=0)


def _folded(model: Any, norm: Any, W: Float[Tensor, "*batch d_model out"]) -> Float[Tensor, "*batch d_model out"]:
    """Return a matrix that reads after a normalization (None: none) as one that reads before it, but for the division,
    as `fold_ln` does."""
    if norm is None:
        return W.float()
    W = W.float() * _gain(model, norm, W.shape[-2])[:, None]
    return W - W.mean(dim=-2, keepdim=True) if model.cfg.normalization_type in ("LN", "LNPre") else W


def composition(W: Weights, reader: Head, chance: bool = False) -> Float[Tensor, "side=3 layer head"]:
    """Return the composition ratios of one head with all heads of all earlier layers (`weights.composition_ratios`).

    `chance`: with a random rotation of the stream between the two heads (`weights.turned`).
    """
    layer, head = reader
    measure = weights.turned if chance else weights.composition_ratios
    written = FactoredMatrix(W.OV.A[:layer].flatten(0, 1), W.OV.B[:layer].flatten(0, 1))
    return measure(written, W.QK[layer, [head]], W.OV[layer, [head]])[:, 0].unflatten(1, (layer, W.OV.A.shape[1]))


class Attending(NamedTuple):
    """Where the heads attend, and which of them work."""

    previous: Float[Tensor, "layer head"]  # previous-token scores on text
    induction: heads.Scores
    working: Bool[Tensor, "layer head"]
    chance: dict[str, float]  # both scores of attention that is spread evenly


def recorded_effects(name: str) -> ablation.AblationEffects | None:
    """Return what our trainer recorded of the removal of each head; None for any other model."""
    try:
        return ablation.recorded_effects(name)
    except WeightsError:
        return None


def draw(model: Any) -> Repeated:
    """Return the rows of repeated random tokens on which heads are removed, the first of `heads.measured_draws`."""
    return heads.measured_draws(model)[0].select(torch.arange(DRAWN))


def attending(
    model: Any, windows: Int[Tensor, "row pos"], effects: ablation.AblationEffects | None = None
) -> Attending:
    """Return where the heads attend. `effects`: of removing each head; all heads count as working if None."""
    previous = heads.previous_token_scores(model, windows[:, :-1]).cpu()
    working = torch.ones_like(previous, dtype=torch.bool) if effects is None else effects.working
    places = {"previous": torch.arange(2, windows.shape[1] - 1), "induction": draw(model).destinations}
    chance = {name: (1 / (place + 1)).mean().item() for name, place in places.items()}
    return Attending(previous, heads.measured_induction(model), working, chance)


class Copying(NamedTuple):
    """Which heads raise the token that they attend to."""

    positivity: Float[Tensor, "layer head"]  # of the OV circuit
    threshold: float  # of random heads between the same embeddings
    copies: Bool[Tensor, "layer head"]  # working heads above it


def copying(model: Any, W: Weights, working: Bool[Tensor, "layer head"]) -> Copying:
    """Return which working heads copy."""
    E, U = weights.centered(W.W_E, W.W_U)
    positivity = weights.factored_positivity(U @ E @ W.OV.A, W.OV.B).cpu()
    threshold = weights.copying_threshold(E, U, model.cfg.d_head)
    return Copying(positivity, threshold, (positivity > threshold) & working)


class Composing(NamedTuple):
    """What the best induction head reads."""

    reader: Head  # with the highest induction score, after the first layer
    writer: Head  # the working head that its keys read most
    ratios: Float[Tensor, "side=3 layer head"]
    chance: Float[Tensor, "side=3 layer head"]  # with a random rotation between the two heads
    match: float  # positivity of the K-composition circuit of reader and writer
    random_match: float  # standard deviation of that of random heads


def composing(W: Weights, seen: Attending) -> Composing | None:
    """Return what the best induction head reads; None if no working head comes before it."""
    n_heads = seen.previous.shape[1]
    if len(seen.previous) < 2:
        return None
    layer, head = divmod(n_heads + int(seen.induction.mean[1:].argmax()), n_heads)
    if not seen.working[:layer].any():
        return None
    reader = layer, head
    ratios, chance = composition(W, reader).cpu(), composition(W, reader, chance=True).cpu()
    writer = divmod(int(ratios[1].where(seen.working[:layer], 0).argmax()), n_heads)
    circuit = W.QK[reader] @ W.OV[writer].T
    match = weights.factored_positivity(W.W_E.T @ W.W_E @ circuit.A, circuit.B).item()
    random = weights.random_match_positivities(W.W_E, W.OV.A.shape[-1]).std().item()
    return Composing(reader, writer, ratios, chance, match, random)


class Removal(NamedTuple):
    """The best induction score of a layer that remains without a head of an earlier layer."""

    head: Head  # the previous-token head that is removed
    intact: float
    without: float
    others: list[float]  # without one other head of the same layer


def removal(model: Any, reader: Head, seen: Attending) -> Removal:
    """Remove the head with the highest previous-token score before the reader's layer, and others of its layer for
    comparison."""
    rows, layer = draw(model), reader[0]
    earlier, head = divmod(int(seen.previous[:layer].argmax()), seen.previous.shape[1])
    means = {earlier: heads.mean_z(model, rows.tokens, earlier)}
    others = [h for h in seen.working[earlier].nonzero()[:, 0].tolist() if h != head][:OTHERS]

    def best_without(*removed: int) -> float:
        hooks = heads.without_heads([(earlier, h) for h in removed], means)
        return heads.induction_scores(model, rows, hooks, layer + 1)[layer].max().item()

    return Removal((earlier, head), best_without(), best_without(head), [best_without(other) for other in others])


def answers(
    seen: Attending, copied: Copying, read: Composing | None = None, kept: Removal | None = None
) -> list[tuple[str, int | str, int | str]]:
    """Return the chapter's table, a row for each question: question, answer, chance."""
    scores, chance = seen.induction.mean, seen.chance
    rows = [
        ("previous-token heads", int((seen.previous >= attention.PREVIOUS_TOKEN_HEAD).sum()), 0),
        ("highest previous-token score", f"{seen.previous.max():.2f}", f"{chance['previous']:.2f}"),
        ("induction heads", int((scores >= attention.INDUCTION_HEAD).sum()), 0),
        ("highest induction score", f"{scores.max():.2f}", f"{chance['induction']:.3f}"),
        ("heads without effect", int((~seen.working).sum()), ""),
        ("copying heads among working ones", int(copied.copies.sum()), 0),
    ]
    if read is None:
        return rows
    reader, writer = heads.head_name(read.reader), heads.head_name(read.writer)
    for side, ratio, random in zip(weights.SIDES, read.ratios, read.chance):
        most = ratio.where(seen.working[: len(ratio)], 0).max()
        rows.append((f"{side}-composition of {reader}, highest ratio", f"{most:.1f}", f"{random.max():.1f}"))
    rows.append((f"match of {reader} with {writer}, positivity", f"{read.match:z.2f}", f"0 ± {read.random_match:.2f}"))
    if kept is not None and kept.intact >= attention.INDUCTION_HEAD:
        mean = f"{sum(kept.others) / len(kept.others) / kept.intact:.0%}" if kept.others else ""
        question = f"induction score kept without {heads.head_name(kept.head)}"
        rows.append((question, f"{kept.without / kept.intact:.0%}", mean))
    return rows
