"""The map of all heads: for each head of a model its ablation effect, where it attends, what it writes, and the names
that follow (chapter 16).

Any model will do that `survey.check` accepts. With MLPs or normalization, positivity and successors describe the
direct path.
"""

import itertools

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.utilities import get_act_name

from transformer_circuits.circuits import heads, survey
from transformer_circuits.circuits.heads import head_name
from transformer_circuits.data import held_out_documents, load_tokenizer
from transformer_circuits.measures import ablation, attention, weights
from transformer_circuits.measures.cache import cached_on
from transformer_circuits.models import reading
from transformer_circuits.models.architecture import BOS
from transformer_circuits.models.view import BATCH, View, single

# Windows, and tokens of each, for costs that no trainer has recorded: GPT-2's 144 heads take two minutes.
COST_WINDOWS, COST_TOKENS = 4, 64
PLACES = 64  # positions at which we look up what a head raises most
KINDS = ("prose", "docs", "latex", "html", "python")
SEQUENCES = (
    "0 1 2 3 4 5 6 7 8 9", "one two three four five six seven eight nine ten", "first second third fourth fifth sixth",
    "Monday Tuesday Wednesday Thursday Friday Saturday Sunday", "January February March April May June July August September October",
    "a b c d e f g h i j k l m n o p q r s t u v w x y z", "A B C D E F G H I J K L M N O P Q R S T U V W X Y Z",
)  # fmt: skip


def windows_of(model: TransformerBridge) -> Int[Tensor, "row pos"]:
    """Return the text of the map: two windows of 256 tokens of each of the KINDS of held-out text, in order; for a
    model with a shorter context, or another vocabulary than the book's, ten windows of `survey.text`."""
    ours = reading.of(model).reads_text and model.tokenizer.get_vocab() == load_tokenizer().get_vocab()
    if not ours or model.cfg.n_ctx < 256:
        return survey.text(model, 2 * len(KINDS))[:, :257]
    rows, documents = [], held_out_documents()
    for kind in KINDS:
        whole = torch.cat([tokens[1:] for about, tokens in documents if about["kind"] == kind])
        rows += [whole[at : at + 256] for at in (len(whole) // 4, 3 * len(whole) // 4)]
    return torch.nn.functional.pad(torch.stack(rows), (1, 0), value=BOS).to(model.W_E.device)


def rises(model: TransformerBridge, windows: Int[Tensor, "row pos"]) -> Float[Tensor, "layer head row pos-1"]:
    """Return by how much the loss (nats) at each token rises when one head is replaced by its mean over these
    windows."""
    return cached_on(model, "rises", lambda: ablation.ablate_heads(model, windows), windows).cpu()


def _succeeds(view: View, E: Tensor, U: Tensor) -> Float[Tensor, "layer head"]:
    """Return for what fraction of the tokens of SEQUENCES each head's OV circuit raises the successor more than any
    other token of the sequence but the token itself; NaN for a model that has no such tokens."""
    hits, OV, tokenizer = [], view.OV, view.model.tokenizer
    for words, space in itertools.product(SEQUENCES, ("", " ")) if reading.of(view.model).reads_text else ():
        ids = [tokenizer.encode(space + word, add_special_tokens=False) for word in words.split()]
        whole = {i[0] for i in ids if len(i) == 1}
        for one, two in itertools.pairwise(ids):
            if len(one) == len(two) == 1 and len(whole) > 3:
                others = sorted(whole - set(one))
                boost = (E[one] @ OV.A @ OV.B @ U[:, others])[..., 0, :]
                hits.append(boost.argmax(dim=-1) == others.index(two[0]))
    return torch.stack(hits).float().mean(dim=0) if hits else torch.full(OV.A.shape[:-2], torch.nan)


def _raised(view: View, text: Int[Tensor, "row pos"], U: Float[Tensor, "d_model d_vocab"]) -> list[list[int]]:
    """Return the five tokens that each head raises most often above all others. `U`: the unembedding, centered."""
    names = [get_act_name("z", layer) for layer in range(view.cfg.n_layers)]
    runs = [view.activations(rows, names, read=single) for rows in text.split(BATCH)]
    raised = []
    for name, W_O in zip(names, view.OV.B):
        z = torch.cat([run[name] for run in runs])
        z = z - z.mean(dim=(0, 1))
        some = z.flatten(0, 1)[:: max(1, z[..., 0, 0].numel() // PLACES)].transpose(0, 1)  # [head, some, d_head]
        for mine, O in zip(some, W_O):
            tokens, times = (mine @ O @ U).argmax(dim=-1).unique(return_counts=True)
            raised.append(tokens[times.argsort(descending=True, stable=True)[:5]].tolist())
    return raised


def _names(found: pd.DataFrame, threshold: float) -> list[list[str]]:
    """Return the names of each working head of a map. `threshold`: for copying. What chance gives is in chapter 16."""
    holds = {
        "previous": found["previous"] >= attention.PREVIOUS_TOKEN_HEAD,
        "current": found["current"] >= attention.CURRENT_TOKEN_HEAD,
        "induction": found["induction"] >= attention.INDUCTION_HEAD,
        "copying": found["positivity"] > threshold,
        "negative": found["positivity"] < -threshold,
        "successor": found["successor"] >= attention.SUCCESSOR_HEAD,
    }
    named = pd.DataFrame(holds) & found[["works"]].to_numpy()
    return [list(row.index[row]) for _, row in named.iterrows()]


def head_map(
    model: TransformerBridge,
    windows: Int[Tensor, "row pos"] | None = None,
    ablated: ablation.AblationEffects | None = None,
    induction: Float[Tensor, "layer head"] | None = None,
) -> pd.DataFrame:
    """Return a row for each head, named as in "1.2": cost, error, works; the mean attention to the current and to
    the previous token; induction, positivity, successor, raises (token ids), names.

    `windows`: `windows_of(model)` if None. `ablated`: the effect of removing each head (`recorded_effects`), measured
    on COST_TOKENS tokens of up to COST_WINDOWS evenly spaced windows if None. `induction`: induction scores, measured if None.
    """
    view = View(model)
    windows = windows_of(model) if windows is None else windows
    text = windows[:, :-1]
    if ablated is None:
        ablated = ablation.effects(rises(model, windows[:: 1 + (len(windows) - 1) // COST_WINDOWS, : COST_TOKENS + 1]))
    columns = {"cost": ablated.cost, "error": ablated.error, "works": ablated.working}
    columns["current"] = heads.mean_score(view, text, attention.current_token_score)
    columns["previous"] = heads.previous_token_scores(view, text)
    columns["induction"] = heads.measured_induction(model).mean if induction is None else induction
    E, U = weights.centered(view.W_E, view.W_U)
    columns["positivity"], threshold = weights.copying(view)
    columns["successor"] = _succeeds(view, E, U)
    index = [head_name(head) for head in itertools.product(range(model.cfg.n_layers), range(model.cfg.n_heads))]
    found = pd.DataFrame({name: column.flatten().cpu() for name, column in columns.items()}, index)
    found["raises"], found["names"] = _raised(view, text, U), _names(found, threshold)
    return found
