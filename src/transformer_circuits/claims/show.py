"""How claims look in a notebook, and how its outputs carry them: numbers in words, boxes, JSON. Everything is escaped."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

import jinja2

from transformer_circuits.claims.ledger import Claim, Record, Verdict, compute, names_in, unmet

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


BOUNDS = {ast.GtE: "at least", ast.Gt: "more than", ast.LtE: "at most", ast.Lt: "less than", ast.Eq: "just"}


def shortfalls(record: Record) -> list[str]:
    """Why a claim was not reproduced: each condition of its criterion that is not met, in words, with what was measured."""
    claim = record.claim
    if record.verdict not in (Verdict.PARTLY, Verdict.NOT_REPRODUCED):
        return []
    return [condition_in_words(claim, condition, record.values) for condition in unmet(claim.reproduced, record.values)]


def condition_in_words(claim: Claim, condition: ast.expr, values: Mapping[str, float]) -> str:
    """For example "largest composition ratio: 1.2 times random, needed: at least 2 times random"."""
    text = ast.unparse(condition)
    if absent := [claim.quantities[name].what for name in sorted(names_in(text) - values.keys())]:
        return f"not measured: {', '.join(absent)}"
    if not (isinstance(condition, ast.Compare) and len(condition.ops) == 1 and type(condition.ops[0]) in BOUNDS):
        return f"not met: {text}"

    left, right = (ast.unparse(side) for side in (condition.left, condition.comparators[0]))
    units = {claim.quantities[name].unit for name in names_in(left)}
    unit = units.pop() if len(units) == 1 else ""

    def in_words(side: str) -> str:
        return claim.quantities[side].what if side in claim.quantities else side

    here, needed = (show_quantity(float(compute(side, values)), unit) for side in (left, right))
    reason = f" ({in_words(right)})" if names_in(right) else ""
    return f"{in_words(left)}: {here}, needed: {BOUNDS[type(condition.ops[0])]} {needed}{reason}"


def css_class(verdict: Verdict) -> str:
    return "tc-" + verdict.replace(" ", "-")


def box_text(record: Record) -> str:
    """The box as plain text."""
    claim = record.claim
    lines = [f"{record.id} {claim.title}: {record.verdict}"]
    lines += [f"  {what}: {value}" for what, value in show_values(claim, record.values)]
    lines += [f"  short of reproduced: {shortfall}" for shortfall in shortfalls(record)]
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
            "shortfalls": """\
{% for shortfall in record|shortfalls %}
<p class="tc-short">{{ "Short of reproduced. " if loop.first else "" }}{{ shortfall }}</p>
{% endfor %}
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
{% include "shortfalls" %}
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
        }
    ),
)
TEMPLATES.filters.update(show_number=show_number, show_values=show_values, css_class=css_class, shortfalls=shortfalls)
TEMPLATES.globals.update(symbols=SYMBOLS, edges=EDGES)


def html(template: jinja2.Template, **variables: object) -> str:
    """A template filled in, without blank lines and backticks, so that it may stand inside Markdown."""
    text = template.render(**variables)
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
            "text/html": html(TEMPLATES.get_template("list"), records=self.records),
            MIME: [record.model_dump(mode="json") for record in self.records],
        }


def records_in(notebook: Mapping) -> Iterator[Record]:
    """What the outputs of an executed notebook carry. Raises ValueError (pydantic's) for what is no record."""
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            yield from (Record.model_validate(entry) for entry in output.get("data", {}).get(MIME, []))


def verdicts(*records: Record) -> Verdicts:
    """Show what `judge` said of a chapter's claims: the last value of a cell near its end."""
    return Verdicts(records)
