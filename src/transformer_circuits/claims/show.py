"""How claims look in a notebook and on cards, all escaped, and how outputs carry them: numbers, lines, JSON."""

import ast
import math
import os
import re
from collections import defaultdict
from collections.abc import Mapping

import jinja2
import markupsafe

from transformer_circuits.claims.ledger import Claim, Record, Verdict, compute, names_in, unmet

LOOKS = {  # a sign, and a color, which outside the book only the line at a card's edge has
    Verdict.REPRODUCED: ("✓", "var(--tc-held, #0b6b50)"),
    Verdict.PARTLY: ("◐", "var(--tc-partly, #8a5a00)"),
    Verdict.NOT_REPRODUCED: ("✗", "var(--tc-failed, #b3261e)"),
    Verdict.HOLDS: ("✓", "var(--tc-identity, #44546a)"),
    Verdict.FAILS: ("✗", "var(--tc-failed, #b3261e)"),
    Verdict.NOTED: ("·", "var(--tc-note, #59616c)"),
}
DIGITS = 3  # of a measured number
YES_OR_NO = "yes or no"


def show_number(x: float | int, digits: int = DIGITS) -> str:
    """Write a number in a few digits: whole numbers and large ones without a point, tiny ones as 1.2e−6."""
    if x == int(x) or abs(x) >= 10**digits - 0.5:
        text = f"{x:z,.0f}"
    elif abs(x) < 1e-4:
        mantissa, exponent = f"{x:.{digits - 2}e}".split("e")
        text = f"{mantissa}e{int(exponent)}"
    else:
        text = f"{x:,.{digits}g}"
    return text.replace("-", "\N{MINUS SIGN}")


def show_quantity(x: float | int, unit: str = "", digits: int = DIGITS) -> str:
    """Write a number with its unit; a share in percent, 1 and 0 of unit "yes or no" as words."""
    if unit == YES_OR_NO:
        return "yes" if x else "no"
    if unit == "share":
        return f"{show_number(100 * x, digits)}%"
    return f"{show_number(x, digits)} {unit}".strip()


def show_values(claim: Claim, values: Mapping[str, float | int]) -> list[tuple[str, str]]:
    """Return what was measured and how much, as pairs of words; a standard error follows its value."""
    if claim.kind == "identity":
        names = [claim.error if name == "error" else f"error, {name}" for name in values]
        return list(zip(names, map(show_number, values.values())))
    measured = [name for name in claim.quantities if name in values]
    return [(claim.label(name), show_estimate(claim, name, values)) for name in measured]


def show_estimate(claim: Claim, name: str, values: Mapping[str, float | int], digits: int = DIGITS) -> str:
    """Write a measured value with its unit, and with its standard error if it has one: "49.6% ± 0.7%"."""
    unit, error = claim.quantities[name].unit, values.get(claim.errors.get(name, ""))
    if unit == "share" and abs(values[name]) >= 10:
        unit = "times"  # −205 times says more than −20,487%
    if error is None:
        return show_quantity(values[name], unit, digits)
    of_value = unit if unit == "share" else ""  # 49.6% ± 0.7%, but 3.1 ± 0.2 nats
    return f"{show_quantity(values[name], of_value, digits)} ± {show_quantity(error, unit, digits=2)}"


UNDECIDED = "an earlier criterion failed here, and no model that was unseen when it was replaced has decided"
SIGNS = {ast.GtE: "≥", ast.Gt: ">", ast.LtE: "≤", ast.Lt: "<", ast.Eq: "="}


def unmet_conditions(record: Record) -> list[str]:
    """Say why a claim was not reproduced: of each part of its criterion that is not met, the values and needs."""
    if record.verdict not in (Verdict.PARTLY, Verdict.NOT_REPRODUCED):
        return []
    claim, parts = record.claim, unmet(record.claim.reproduced, record.values)
    return [needed(claim, part, record.values) for part in parts] or [UNDECIDED]


def needed(claim: Claim, part: ast.Compare, values: Mapping[str, float | int]) -> str:
    """Write a comparison that is not met: "best induction score 40.7%, needs ≥ 50%"."""
    names = sorted(names_in(part.left), key=list(claim.quantities).index)
    if absent := [name for name in sorted(names_in(part)) if name not in values]:
        return f"not measured: {', '.join(map(claim.label, absent))}"
    bound = part.comparators[0]
    left, right = (compute(side, values) for side in (part.left, bound))
    units = {claim.quantities[name].unit for name in names}
    unit = units.pop() if len(units) == 1 else ""
    digits = DIGITS  # a number is never rounded onto its threshold
    while not math.isclose(left, right, rel_tol=1e-6) and show_number(left, digits) == show_number(right, digits):
        digits += 1
    here = "; ".join(f"{claim.label(name)}: {show_estimate(claim, name, values, digits)}" for name in names)
    what = f" ({claim.label(bound.id)})" if isinstance(bound, ast.Name) else ""
    return f"{here}, needs {SIGNS[type(part.ops[0])]} {show_quantity(right, unit, digits)}{what}"


def our_result(record: Record) -> str:
    """Return what we measured in a sentence: `ours` of the claim without what was not measured."""
    claim, values = record.claim, record.values
    if claim.kind == "identity":
        return f"{claim.error} {show_number(max(map(abs, values.values())))}"
    unmeasured = "–"
    words = defaultdict(lambda: unmeasured)
    for name, quantity in claim.quantities.items():
        if name in values:
            value, error = values[name], values.get(claim.errors.get(name, ""))
            if error and abs(value) < error:  # to the digit of its error: 0 for 0.009 ± 0.2
                value = round(value, -math.floor(math.log10(error)))
            digits = DIGITS if 0.95 < abs(value) < 1 else 2  # 0.998 is not 1
            words[name], words[f"n_{name}"] = show_quantity(value, quantity.unit, digits), show_number(value, digits)
    parts = [part.format_map(words) for part in claim.ours.split("; ")]
    return "; ".join(part for part in parts if unmeasured not in part)


def subscripts(text: str) -> markupsafe.Markup:
    """Return a sentence as HTML: W_E^T and r_h with subscripts and transposes, longer names such as d_head as code, and
    what is between backticks."""
    code = r"`([^`]+)`|(?<![\w*])((?!W_|r_)[\w*]*_[\w.]*\w)"
    escaped = re.sub(code, lambda found: f"<code>{found[1] or found[2]}</code>", str(markupsafe.escape(text)))
    named = re.sub(r"\b([Wr])_(\w+)", r"\1<sub>\2</sub>", escaped)
    return markupsafe.Markup(named.replace("</sub>^T", "</sub><sup>T</sup>"))


def css_class(verdict: Verdict) -> str:
    return "tc-" + verdict.replace(" ", "-")


def line_text(record: Record) -> str:
    claim, within = record.claim, ", within error of the threshold" if record.within_error else ""
    paper = f" (paper: {claim.paper})" if claim.paper else ""
    unmet = "".join(f"\n  not met: {condition}" for condition in unmet_conditions(record))
    said = f"{claim.words(record.verdict)}{within} · {claim.title} · {our_result(record)}{paper}"
    return f"{said} · {record.id}{unmet}"


# ---- the card of a claim ---------------------------------------------------------------------------------------------

TEMPLATES = jinja2.Environment(
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
    loader=jinja2.PackageLoader("transformer_circuits.claims"),
)
for function in (show_number, show_values, subscripts, css_class, unmet_conditions, our_result):
    TEMPLATES.filters[function.__name__] = function
TEMPLATES.globals["looks"] = LOOKS


def html(template: jinja2.Template, **variables: object) -> str:
    """Fill in a template, without blank lines and backticks, so that Markdown may contain it."""
    text = template.render(**variables)
    return "\n".join(line for line in text.replace("`", "&#96;").splitlines() if line.strip())


MIME = "application/vnd.transformer-circuits.claims+json"


class Verdicts:
    """What `judge` found for a chapter's claims, a line each: the last value of a cell near its end. Outputs carry it
    as HTML, text, and JSON."""

    def __init__(self, *records: Record) -> None:
        self.records = list(records)

    def __repr__(self) -> str:
        return "\n".join(map(line_text, self.records))

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, object]:
        # Where the cards are, seen from a notebook: on the book's page, or in the file that the build wrote
        cards = f"../book/scoreboard.{'html' if 'TRANSFORMER_CIRCUITS_BOOK' in os.environ else 'md'}"
        return {
            "text/plain": repr(self),
            "text/html": html(TEMPLATES.get_template("list.html"), records=self.records, scoreboard=cards),
            MIME: [record.model_dump(mode="json") for record in self.records],
        }
