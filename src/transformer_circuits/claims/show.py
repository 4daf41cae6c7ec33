"""How claims look: numbers in words, the box that a notebook shows, the rows of the scoreboard. Everything is escaped."""

from __future__ import annotations

from collections.abc import Sequence

import jinja2

from transformer_circuits.claims.ledger import Claim, Record, Verdict

SYMBOLS = {
    Verdict.REPRODUCED: "✓",
    Verdict.PARTLY: "◐",
    Verdict.NOT_REPRODUCED: "✗",
    Verdict.HOLDS: "✓",
    Verdict.FAILS: "✗",
    Verdict.NOT_RUN: "–",
}
# Where no style sheet of the book is loaded (JupyterLab, Colab) only this line at the box's edge has a colour.
EDGES = {
    Verdict.REPRODUCED: "#0b5cad",
    Verdict.PARTLY: "#8a5a00",
    Verdict.NOT_REPRODUCED: "#b3261e",
    Verdict.HOLDS: "#00665e",
    Verdict.FAILS: "#b3261e",
    Verdict.NOT_RUN: "#5a6270",
}


def show_number(x: float) -> str:
    """A number in at most four digits; whole numbers without a point, tiny ones as 1.2e-6."""
    if x == 0:
        return "0"
    if abs(x) >= 1000:
        return f"{x:,.0f}"
    if x == int(x):
        return f"{x:.0f}"
    if abs(x) < 1e-3:
        mantissa, exponent = f"{x:.1e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{x:.4g}" if abs(x) >= 1 else f"{x:.3g}"


def show_quantity(x: float, unit: str = "") -> str:
    """A number with its unit; a share of one in per cent."""
    if unit == "share":
        return f"{show_number(100 * x)} %"
    if x == 1 and unit.isalpha():
        unit = unit.removesuffix("s")  # 1 head, but 1 million tokens
    return f"{show_number(x)} {unit}".strip()


def show_values(claim: Claim, values: dict[str, float]) -> list[tuple[str, str]]:
    """What was measured, and how much: pairs of words."""
    if claim.kind == "identity":
        return [(claim.error if name == "error" else f"error, {name}", show_number(x)) for name, x in values.items()]
    return [(claim.quantities[name].what, show_quantity(x, claim.quantities[name].unit)) for name, x in values.items()]


def css_class(verdict: Verdict) -> str:
    return "tc-" + verdict.replace(" ", "-")


def box_text(record: Record) -> str:
    """The box as plain text."""
    claim = record.claim
    lines = [f"{record.id} {claim.title}: {record.verdict}"]
    lines += [f"  {what}: {value}" for what, value in show_values(claim, record.values)]
    lines += [f"  {record.detail}"] if record.detail else []
    return "\n".join(lines)


TEMPLATES = jinja2.Environment(
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
    loader=jinja2.DictLoader(
        {
            "badge": """\
<span class="tc-verdict {{ verdict|css_class }}"><span aria-hidden="true">{{ symbols[verdict] }}</span> {{ verdict }}</span>
""",
            "values": """\
<dl class="tc-values">
{% for what, value in claim|show_values(values) %}
<div><dt>{{ what }}</dt><dd>{{ value }}</dd></div>
{% endfor %}
</dl>
""",
            "criterion": """\
<details class="tc-criterion"><summary>How it is judged</summary>
<p>{{ claim.metric }}</p>
{% if claim.kind == "identity" %}
<p>The identity holds if the largest error is below <code>{{ claim.tolerance|show_number }}</code>.</p>
{% else %}
<p>Reproduced if <code>{{ claim.reproduced }}</code>.</p>
<p>Partly if <code>{{ claim.partly }}</code>.</p>
<p>Here {% for name, quantity in claim.quantities.items() %}<code>{{ name }}</code> is {{ quantity.what }}{{ "; " if not loop.last else "." }}{% endfor %}</p>
<p>{{ claim.why }}</p>
{% endif %}
{% for old in claim.amended %}
<p><strong>Amended.</strong> Before: {{ old.was }}. Result then: {{ old.result }}. {{ old.reason }}</p>
{% endfor %}
</details>
""",
            "list": """\
<section class="tc-claims" aria-label="Claims of this chapter">
{% for record in records %}
{% set claim, values, verdict, detail = record.claim, record.values, record.verdict, record.detail %}
<div class="tc-claim {{ verdict|css_class }}" id="claim-{{ claim.id }}" style="border-left: 5px solid {{ edges[verdict] }}; padding: 0.2em 1em; margin: 0.6em 0">
<p class="tc-head"><strong>{{ claim.id }} · {{ claim.title }}</strong> {% include "badge" %}</p>
{% include "values" %}
{% if claim.paper %}
<p class="tc-paper">The paper: {{ claim.paper }}</p>
{% endif %}
{% if detail %}
<p class="tc-detail">{{ detail }}</p>
{% endif %}
{% include "criterion" %}
</div>
{% endfor %}
</section>
""",
            "table": """\
<table class="tc-scoreboard" role="table">
<thead role="rowgroup"><tr role="row">
<th scope="col" role="columnheader">Claim</th><th scope="col" role="columnheader">Paper</th>
<th scope="col" role="columnheader">Here</th><th scope="col" role="columnheader">Verdict</th>
</tr></thead>
<tbody role="rowgroup">
{% for claim in claims %}
{% set record = records.get(claim.id) %}
{% set verdict = record.verdict if record else not_run %}
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
{% if record.detail %}
<p class="tc-detail">{{ record.detail }}</p>
{% endif %}
{% else %}
<p>{{ claim.not_run or "no reason given" }}</p>
{% endif %}
</td>
<td role="cell" data-label="Verdict">{% include "badge" %}
{% if links.get(claim.id) %}
<p><a href="{{ links[claim.id] }}#claim-{{ claim.id }}">{{ claim.chapter }}</a></p>
{% elif record %}
<p>{{ claim.chapter }}</p>
{% endif %}
</td>
</tr>
{% endfor %}
</tbody>
</table>
""",
            "counts": """\
<p class="tc-counts">{% for verdict, count in counts %}<span class="tc-count">{{ count }} × {% include "badge" %}</span>
{% endfor %}</p>
""",
        }
    ),
)
TEMPLATES.filters.update(show_number=show_number, show_values=show_values, css_class=css_class)
TEMPLATES.globals.update(symbols=SYMBOLS, edges=EDGES, not_run=Verdict.NOT_RUN)


def html(template: str, **variables: object) -> str:
    """One of the templates, filled in. Without blank lines and backticks, so that it may stand inside Markdown."""
    text = TEMPLATES.get_template(template).render(**variables)
    return "\n".join(line for line in text.replace("`", "&#96;").splitlines() if line.strip())


MIME = "application/vnd.transformer-circuits.claims+json"


class Verdicts:
    """The claims of a chapter as one list. A notebook's output carries it as HTML, as text, and as JSON for the build."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = list(records)

    def __repr__(self) -> str:
        return "\n".join(box_text(record) for record in self.records)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, object]:
        return {
            "text/plain": repr(self),
            "text/html": html("list", records=self.records),
            MIME: [record.model_dump(mode="json") for record in self.records],
        }


def verdicts(*records: Record) -> Verdicts:
    """Show what `judge` said of a chapter's claims: the last value of a cell near its end."""
    return Verdicts(records)
