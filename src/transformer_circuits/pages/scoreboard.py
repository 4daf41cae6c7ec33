"""The scoreboard, and the tallies and headlines on the front page: made from the records in the executed notebooks, never typed."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from transformer_circuits.claims import ledger, show
from transformer_circuits.claims.ledger import Claim, Record, Verdict
from transformer_circuits.pages import raw

# The claims that a reader wants to know first: the claim in a few words, and what to show of what was measured, with its unit or, after
# "n_", without.
HEADLINES = {
    "E1": ("Most heads of a one-layer model copy", "{n_copying_heads} of {n_heads} heads, resting heads left out"),
    "T3": ("Second-layer heads read first-layer heads through their keys", "largest composition ratio, resting heads left out: keys {n_k_largest}, queries {n_q_largest}, values {n_v_largest}; chance is 1"),
    "T8": ("Two layers continue a sequence that they have never seen; one layer cannot", "induction score {induction_2l} (one layer {induction_1l}); right first guesses {guess_2l} (one layer {guess_1l})"),
    "T14": ("Removing the head that an induction head reads destroys induction", "induction score {intact}; without that head {without_read}; without any one head that it barely reads, at least {without_unread}"),
    "T10": ("Eigenvalues separate induction heads from other heads", "both positivities high: {n_induction_in_corner} of {n_induction_heads} induction heads, {n_others_in_corner} of {n_others} other heads"),
    "T11": ("Single heads reduce the loss most, virtual heads little", "loss reduction: direct path {n_order_0}, single heads {n_order_1}, virtual heads {order_2}"),
    "S6": ("Skip-trigram bugs cost more than equal boosts of random tokens", "{n_bugs} bugs cost {cost} per token; equal boosts of random tokens cost {cost_random}"),
    "W1": ("A longer context helps two layers more than one", "loss late minus loss early in the context: {score_2l}; one layer {score_1l}"),
    "Z1": ("A model without layers is a table of bigrams", "held-out loss {loss_model}; loss of the bigram table {loss_bigram}"),
    "W2": ("Induction heads form abruptly", "score rises from 10% to 90% of its final value between {n_t10} and {t90}"),
    "S1": ("The paper's single source tokens copy themselves", "{n_self_copied} of {n_sources} have themselves or a variant among their five highest out tokens"),
    "T6": ("Weighting attention by value length shrinks it at the start token", "second-layer heads with at least 30% there: {n_resting_heads}; their attention to the start token {first_plain}, weighted {first_weighted}"),
    "O8": ("Some heads delete information", "{n_memory_heads} of {n_heads} heads"),
    "W5": ("With positions in the residual stream, heads do induction by pointers", "induction score {induction}; {pointer_share} of it is lost without moved positions"),
}  # fmt: skip

TALLIES = {
    "identity": "Exact identities",
    "finding": "The paper's findings on trained models",
    "question": "Questions that readers ask and the paper does not",
}
OUTCOMES = {
    "identity": (Verdict.HOLDS, Verdict.FAILS),
    "finding": (Verdict.REPRODUCED, Verdict.PARTLY, Verdict.NOT_REPRODUCED),
    "question": (Verdict.REPRODUCED, Verdict.PARTLY, Verdict.NOT_REPRODUCED),
}

PROSE = """\
# Scoreboard

This page lists every claim of the paper that the book measures. Code judges each claim by a criterion. The claims are counted in three
tallies that are never added up. An *exact identity* holds for any weights, up to rounding error. A *finding* is about trained models, and
ours are smaller than the paper's and have read less text (see [the models](models.md)). A *question* comes from readers, and the paper
does not test it. A *note* shows numbers without a verdict. "Not reproduced" is a result too. The [glossary](glossary.md) defines terms
such as *awake*, *composition ratio*, and *positivity*.

"""

# Templates; `badge` and `facts` are those of claims.show.
TALLY_TABLE = """\
<dl class="tc-tallies">
{% for name, total, counts in tallies %}
<div><dt>{{ name }} <span>({{ total }})</span></dt><dd>{% for verdict, count in counts %}<span class="tc-count">{{ count }} × {% include "badge" %}</span>
{% endfor %}</dd></div>
{% endfor %}
</dl>
"""
HEADLINE_TABLE = """\
<table class="tc-headlines" role="table">
<thead role="rowgroup"><tr role="row">
{% for name in ("Claim", "Here", "Verdict", "Chapter") %}<th scope="col" role="columnheader">{{ name }}</th>{% endfor %}

</tr></thead>
<tbody role="rowgroup">
{% for claim, says, here, unmet, within_error in rows %}
{% set verdict, link = results.verdict(claim.id), results.links.get(claim.id) %}
<tr role="row"><th scope="row" role="rowheader"><a href="scoreboard.html#{{ claim.id }}">{{ says }}</a></th>
<td role="cell" data-label="Here">{{ here }}{% if unmet %}<p class="tc-unmet">Not met: {{ unmet[0] }}{% if unmet[1:] %} ({{ unmet|length - 1 }} more on its card){% endif %}.</p>{% endif %}</td>
<td role="cell" data-label="Verdict">{% include "badge" %}</td>
<td role="cell" data-label="Chapter">{% if link %}<a href="{{ link }}">{{ claim.chapter.split()[0] }}</a>{% else %}{{ claim.chapter.split()[0] }}{% endif %}</td></tr>
{% endfor %}
</tbody>
</table>
"""
GLANCE = """\
<div class="tc-glance">
{% for section, group in sections %}
<div class="tc-row" role="group" aria-label="{{ section }}"><span class="tc-section">{{ section }}</span><div>
{% for claim in group %}
{% set verdict = results.verdict(claim.id) %}
<a class="tc-cell {{ verdict|css_class }}" href="#{{ claim.id }}" title="{{ claim.title }}: {{ verdict }}" aria-label="{{ claim.id }}, {{ verdict }}">{{ claim.id }}<span aria-hidden="true">{{ symbols[verdict] }}</span></a>
{% endfor %}
</div></div>
{% endfor %}
</div>
"""
CARDS = """\
<div class="tc-scoreboard">
{% for claim in claims %}
{% set record, verdict, link = results.records.get(claim.id), results.verdict(claim.id), results.links.get(claim.id) %}
{% set within_error = record.within_error if record else false %}
{% set shown_at = results.shown.get(claim.id) %}
{% set paper = claim.statement + (" In the paper: " + claim.paper.rstrip(".") + "." if claim.paper else "") %}
<section class="tc-claim {{ verdict|css_class }}" id="{{ claim.id }}" aria-label="{{ claim.id }}">
<p class="tc-head"><strong>{{ claim.id }} · {{ claim.title }}</strong> {% include "badge" %}</p>
{% include "facts" %}
<p class="tc-where">{% if link %}<a href="{{ link }}">{{ claim.chapter }}</a>{% else %}{{ claim.chapter }}{% endif %}{% if shown_at %}
 · <a class="tc-shown" href="{{ shown_at[0] }}">the {{ shown_at[1] }}</a>{% endif %}</p>
</section>
{% endfor %}
</div>
"""


class Results:
    """The records of a book, by claim, with what pages in `book/` need of them.

    `recorded`: records by notebook, without suffix; `shown`: by claim, the place that shows it and what is there, a figure or numbers.
    """

    def __init__(
        self, recorded: Mapping[str, Sequence[Record]], shown: Mapping[str, tuple[str, str]] | None = None
    ) -> None:
        self.shown = shown or {}
        self.records: dict[str, Record] = {}
        self.links: dict[str, str] = {}
        for notebook, records in recorded.items():
            for record in records:
                self.records[record.id] = record
                self.links[record.id] = f"../notebooks/{quote(notebook)}.html#claim-{record.id}"

    def verdict(self, id: str) -> Verdict:
        return self.records[id].verdict if id in self.records else Verdict.NOT_RUN

    def tally(self, group: str) -> list[tuple[Verdict, int]]:
        """Count the outcomes of one group of claims: all that are possible, failures too, and "not run" if there is any."""
        verdicts = [self.verdict(claim.id) for claim in claims_of(group)]
        counts = [(verdict, verdicts.count(verdict)) for verdict in OUTCOMES[group]]
        not_run = verdicts.count(Verdict.NOT_RUN)
        return counts + ([(Verdict.NOT_RUN, not_run)] if not_run else [])

    def value(self, id: str, name: str, digits: int = show.DIGITS) -> str:
        """Return a measured number with its unit, or without it after "n_", without line breaks; "–" if it was not measured."""
        plain = name.removeprefix("n_")
        found = self.records[id].values.get(plain) if id in self.records else None
        if found is None:
            return "–"
        unit = "" if name.startswith("n_") else ledger.claim_of(id).quantities[plain].unit
        return show.show_quantity(found, unit, digits).replace(" ", "\N{NO-BREAK SPACE}")


def claims_of(group: str) -> list[Claim]:
    return [claim for claim in ledger.load_claims().values() if claim.group == group]


def filled(template: str, **variables: object) -> str:
    return raw(show.html(show.TEMPLATES.from_string(template), **variables))


def tally_table(results: Results) -> str:
    tallies = [(name, len(claims_of(group)), results.tally(group)) for group, name in TALLIES.items()]
    return filled(TALLY_TABLE, tallies=tallies)


def headline_ids(results: Results) -> list[str]:
    """Return the claims of the table: HEADLINES, and a finding that is not reproduced if none of these fails."""
    ids = list(HEADLINES)
    failures = [c.id for c in claims_of("finding") if results.verdict(c.id) is Verdict.NOT_REPRODUCED]
    if failures and not set(failures) & set(ids):
        ids.append(failures[0])
    return ids


def headline_table(results: Results) -> str:
    rows = []
    for id in headline_ids(results):
        claim, record = ledger.claim_of(id), results.records.get(id)
        says, here = HEADLINES.get(id, (claim.title, ""))
        names = [name for plain in claim.quantities for name in (plain, f"n_{plain}")]
        if record is None:
            rows.append((claim, says, claim.without_record, [], False))
        else:
            shown = here.format(**{name: results.value(id, name) for name in names})
            unmet = show.unmet_conditions(record, brief=True)
            rows.append((claim, says, shown, unmet, record.within_error))
    return filled(HEADLINE_TABLE, rows=rows, results=results)


def headlines(results: Results) -> str:
    """Return what the front page includes: the result in two sentences, then after a comment the tallies and the table of headlines."""
    two, one = (results.value("T8", name, digits=2) for name in ("induction_2l", "induction_1l"))
    text = (
        "This book trains small attention-only transformers and checks every claim of *A Mathematical Framework for Transformer Circuits* "
        "on them. **On random tokens that occur twice, the best head of our two-layer model puts "
        f"{two} of its attention on the token that followed last time; the best head of the one-layer model puts {one} there.**"
    )
    return f"{text}\n\n% the table\n\n{tally_table(results)}\n{headline_table(results)}"


def about_amendments() -> str:
    """Say how many criteria were amended, and which of them after their result was seen."""
    amended = [claim for claim in ledger.load_claims().values() if claim.amended]
    late = [claim.id for claim in amended if any(old.after_result for old in claim.amended)]
    return (
        f"The criteria were written down before any result was seen. Later, {len(amended)} claims were amended because their criteria "
        f"did not measure the statement. {' and '.join(late)} {'was' if len(late) == 1 else 'were'} amended after the result was seen. "
        f"The other {len(amended) - len(late)} were amended before the next models were judged. "
        "Each card shows the old criterion, its result, and the reason.\n"
    )


def page(results: Results) -> str:
    """Return the scoreboard in MyST Markdown."""
    claims = ledger.load_claims().values()
    sections = [
        (title, list(group)) for title, group in itertools.groupby(claims, lambda claim: claim.section)
    ]
    parts = [
        PROSE,
        about_amendments(),
        f"\n## The three tallies\n\n{tally_table(results)}",
        f"\n## Headlines\n\n{headline_table(results)}",
        "\n## Every claim at a glance\n\nColors and signs are those of the verdicts above, and a dot marks a note. Each claim links to its card.\n\n",
        filled(GLANCE, sections=sections, results=results),
    ]
    for title, group in sections:
        if measured := [claim for claim in group if claim.kind != "identity"]:
            parts += [f"\n## {title}\n\n", filled(CARDS, claims=measured, results=results)]
    parts += [
        "\n## Identities\n\n",
        raw('<details class="tc-folded"><summary>Each exact identity with its error</summary>'),
        filled(CARDS, claims=claims_of("identity"), results=results),
        raw("</details>"),
    ]
    return "".join(parts)
