"""The scoreboard, and the table of headlines on the front page: made from the records in the executed notebooks, never typed."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from urllib.parse import quote

import jinja2

from transformer_circuits.claims import ledger, show
from transformer_circuits.claims.ledger import Claim, Record, Verdict
from transformer_circuits.pages import raw

# The claims that a reader wants to know first: what the paper says in a few words, and what to show of what was measured, with its unit
# or, after "n_", without.
HEADLINES = {
    "E1": ("Most heads of a one-layer model copy", "{n_copying_heads} of {heads}"),
    "T3": ("Second-layer heads read first-layer heads through their keys", "largest composition by keys {n_k_largest}, queries {n_q_largest}, values {n_v_largest}; chance is 1"),
    "T8": ("Two layers repeat what they never saw before; one layer cannot", "induction score {induction_2l}; one layer {induction_1l}"),
    "T14": ("Without the previous-token head there is no induction", "score {intact}; without that head {without_previous}"),
    "T10": ("Eigenvalues tell induction heads from all others", "{n_induction_in_corner} of {induction_heads} in the corner, {n_others_in_corner} of {n_others} others"),
    "T11": ("Single heads carry the loss, virtual heads little", "direct path {n_order_0}, heads {n_order_1}, virtual heads {order_2}"),
    "S6": ("Skip-trigrams come with bugs", "{bugs}, which cost {cost} a token"),
    "W1": ("Two layers learn from their context", "in-context score {score_2l}; one layer {score_1l}"),
    "Z1": ("No layers at all: a table of bigrams", "loss {loss_model}; of the table {loss_bigram}"),
    "W2": ("Induction comes at once", "from a tenth to nine tenths of its score between {n_t10} and {t90}"),
}  # fmt: skip

PROSE = """\
# Scoreboard

Every claim of the paper that this book measures, judged by code against a criterion that was written down before its result was
seen. *Identities* hold on any weights, up to rounding; the other claims are about trained models, and ours are smaller than the
paper's and have read less (see [the models](models.md)). "Not reproduced" is a result too.

"""

TEMPLATES = show.TEMPLATES.overlay(
    loader=jinja2.ChoiceLoader(
        [
            jinja2.DictLoader(
                {
                    "headlines": """\
<table class="tc-headlines" role="table">
<thead role="rowgroup"><tr role="row">
{% for name in ("The paper says", "Here", "Verdict", "Chapter") %}<th scope="col" role="columnheader">{{ name }}</th>{% endfor %}

</tr></thead>
<tbody role="rowgroup">
{% for claim, says, here, verdict, link in rows %}
<tr role="row"><th scope="row" role="rowheader"><a href="{{ scoreboard }}#{{ claim.id }}">{{ says }}</a></th>
<td role="cell" data-label="Here">{{ here }}</td>
<td role="cell" data-label="Verdict">{% include "badge" %}</td>
<td role="cell" data-label="Chapter">{% if link %}<a href="{{ link }}">{{ claim.chapter.split()[0] }}</a>{% else %}{{ claim.chapter.split()[0] }}{% endif %}</td></tr>
{% endfor %}
</tbody>
</table>
""",
                    "glance": """\
<div class="tc-glance">
{% for section, group in sections %}
<div class="tc-row" role="group" aria-label="{{ section }}"><span class="tc-section">{{ section }}</span><div>
{% for claim, verdict in group %}
<a class="tc-cell {{ verdict|css_class }}" href="#{{ claim.id }}" title="{{ claim.title }}: {{ verdict }}" aria-label="{{ claim.id }}, {{ verdict }}">{{ claim.id }}<span aria-hidden="true">{{ symbols[verdict] }}</span></a>
{% endfor %}
</div></div>
{% endfor %}
<p class="tc-counts">{% for verdict, count in counts %}<span class="tc-count">{{ count }} × {% include "badge" %}</span>
{% endfor %}</p>
</div>
""",
                    "table": """\
<table class="tc-scoreboard" role="table">
<thead role="rowgroup"><tr role="row">
{% for name in ("Claim", "Paper", "Here", "Verdict") %}<th scope="col" role="columnheader">{{ name }}</th>{% endfor %}

</tr></thead>
<tbody role="rowgroup">
{% for claim, record, verdict, link, shown in rows %}
<tr role="row" id="{{ claim.id }}">
<th scope="row" role="rowheader"><strong>{{ claim.id }} · {{ claim.title }}</strong>
<p>{{ claim.statement }}</p>
{% include "criterion" %}
</th>
<td role="cell" data-label="Paper">{{ claim.paper or ("exact" if claim.kind == "identity" else "no number") }}</td>
<td role="cell" data-label="Here">
{% if record %}
{% set values = record.values %}
{% include "values" %}
{% include "shortfalls" %}
{% if record.detail %}
<p class="tc-detail">{{ record.detail }}</p>
{% endif %}
{% else %}
<p>{{ claim.not_run or "no reason given" }}</p>
{% endif %}
</td>
<td role="cell" data-label="Verdict">{% include "badge" %}
<p>{% if link %}<a href="{{ link }}">{{ claim.chapter }}</a>{% else %}{{ claim.chapter }}{% endif %}{% if shown %}
: <a class="tc-shown" href="{{ shown[0] }}">the {{ shown[1] }}</a>{% endif %}</p>
{% if claim.amended %}
<p class="tc-amended">criterion amended</p>
{% endif %}
</td>
</tr>
{% endfor %}
</tbody>
</table>
""",
                }
            ),
            show.TEMPLATES.loader,
        ]
    )
)


class Results:
    """The records of a book, by claim, with what pages in `book/` need of them.

    `recorded`: records by notebook, without suffix; `shown`: by claim, where it is shown, and what is there, a figure or numbers.
    """

    def __init__(self, recorded: Mapping[str, Sequence[Record]], shown: Mapping[str, tuple[str, str]] | None = None) -> None:
        self.shown = shown or {}
        self.records = {record.id: record for records in recorded.values() for record in records}
        self.links = {
            record.id: f"../notebooks/{quote(notebook)}.html#claim-{record.id}" for notebook, records in recorded.items() for record in records
        }

    def verdict(self, id: str) -> Verdict:
        return self.records[id].verdict if id in self.records else Verdict.NOT_RUN

    def count(self, *verdicts: Verdict) -> int:
        return sum(self.verdict(id) in verdicts for id in ledger.load_claims())

    def value(self, id: str, name: str) -> str:
        """A measured number in three digits with its unit, or without it after "n_", in one line; "–" where there is none."""
        quantity = ledger.claim_of(id).quantities[name.removeprefix("n_")]
        found = self.records[id].values.get(name.removeprefix("n_")) if id in self.records else None
        if found is not None and found != int(found):  # counts stay as they are
            found = float(f"{found:.3g}")
        shown = "–" if found is None else show.show_number(found) if name.startswith("n_") else show.show_quantity(found, quantity.unit)
        return shown.replace(" ", "\u00a0").replace("-", "\u2212")


def filled(template: str, **variables: object) -> str:
    return raw(show.html(TEMPLATES.get_template(template), **variables))


def headline_table(results: Results) -> str:
    rows = []
    for id, (says, here) in HEADLINES.items():
        claim = ledger.claim_of(id)
        names = {name: results.value(id, name) for plain in claim.quantities for name in (plain, f"n_{plain}")}
        shown = here.format(**names) if id in results.records else claim.not_run
        rows.append((claim, says, shown, results.verdict(id), results.links.get(id)))
    return filled("headlines", rows=rows, scoreboard="scoreboard.html")


def headlines(results: Results) -> str:
    """What the front page includes: the result in a sentence, and the table of headlines; a comment between them, for a figure to come there."""
    identities = [claim.id for claim in ledger.load_claims().values() if claim.kind == "identity"]
    others = len(ledger.load_claims()) - len(identities)
    text = (
        "This book trains small attention-only transformers and judges every claim of *A Mathematical Framework for Transformer Circuits* by "
        f"code: **of the paper's {len(identities)} exact identities {results.count(Verdict.HOLDS)} hold here, of its {others} claims about trained "
        f"models {results.count(Verdict.REPRODUCED)} are reproduced and {results.count(Verdict.PARTLY)} in part**; the best head of our two-layer "
        f"model puts {results.value('T8', 'induction_2l')} of its attention on what followed last time, in random tokens that it never saw "
        f"together, and the best of one layer {results.value('T8', 'induction_1l')}."
    )
    return f"{text}\n\n% the table\n\n{headline_table(results)}"


def page(results: Results) -> str:
    """The scoreboard in MyST Markdown."""
    claims = ledger.load_claims().values()

    def table(chosen: Sequence[Claim]) -> str:
        rows = [(c, results.records.get(c.id), results.verdict(c.id), results.links.get(c.id), results.shown.get(c.id)) for c in chosen]
        return filled("table", rows=rows)

    sections = [(title, list(group)) for title, group in itertools.groupby(claims, key=lambda claim: claim.section)]
    glance = filled(
        "glance",
        sections=[(title, [(claim, results.verdict(claim.id)) for claim in group]) for title, group in sections],
        counts=[(verdict, n) for verdict in Verdict if (n := results.count(verdict))],
    )
    parts = [PROSE, headline_table(results), f"\n## All {len(claims)} claims at a glance\n\n", glance]
    for title, group in sections:
        if measured := [claim for claim in group if claim.kind != "identity"]:
            parts += [f"\n## {title}\n\n", table(measured)]
    identities = [claim for claim in claims if claim.kind == "identity"]
    holding = sum(results.verdict(claim.id) is Verdict.HOLDS for claim in identities)
    parts += [
        f"\n## Identities\n\n{holding} of {len(identities)} hold.\n\n",
        raw('<details class="tc-folded"><summary>Each identity with its error</summary>'),
        table(identities),
        raw("</details>"),
    ]
    return "".join(parts)
