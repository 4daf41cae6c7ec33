"""How claims look in a notebook, and how its outputs carry them: numbers in words, cards, JSON. Everything is escaped."""

import ast
import math
import re
from collections.abc import Iterator, Mapping

import jinja2
import markupsafe

from transformer_circuits.claims.ledger import Claim, Record, Verdict, compute, names_in, unmet

# A sign, and a color. Where the book's style sheet is not loaded (JupyterLab, Colab), only the line at a card's edge has the color.
LOOKS = {
    Verdict.REPRODUCED: ("✓", "#0b5cad"),
    Verdict.PARTLY: ("◐", "#8a5a00"),
    Verdict.NOT_REPRODUCED: ("✗", "#b3261e"),
    Verdict.HOLDS: ("✓", "#00665e"),
    Verdict.FAILS: ("✗", "#b3261e"),
    Verdict.NOTED: ("·", "#5a6270"),
    Verdict.NOT_RUN: ("–", "#5a6270"),
}
SYMBOLS, EDGES = ({verdict: look[part] for verdict, look in LOOKS.items()} for part in (0, 1))
DIGITS = 3  # of a measured number
YES_OR_NO = "yes or no"


def show_number(x: float, digits: int = DIGITS) -> str:
    """Write a number in a few digits: whole numbers and large ones without a point, tiny ones as 1.2e−6."""
    if x == int(x) or abs(x) >= 10**digits - 0.5:
        text = f"{x:z,.0f}"
    elif abs(x) < 1e-4:
        mantissa, exponent = f"{x:.{digits - 2}e}".split("e")
        text = f"{mantissa}e{int(exponent)}"
    else:
        text = f"{x:,.{digits}g}"
    return text.replace("-", "\N{MINUS SIGN}")


def show_quantity(x: float, unit: str = "", digits: int = DIGITS) -> str:
    """Write a number with its unit; a share in percent, 1 and 0 of unit "yes or no" as words."""
    if unit == YES_OR_NO:
        return "yes" if x else "no"
    if unit == "share":
        return f"{show_number(100 * x, digits)}%"
    return f"{show_number(x, digits)} {unit}".strip()


def show_values(claim: Claim, values: Mapping[str, float], chance: bool | None = None) -> list[tuple[str, str]]:
    """Return what was measured and how much, as pairs of words; a standard error follows its value.

    `chance`: only values that are what chance gives, or only the others.
    """
    if claim.kind == "identity":
        names = [claim.error if name == "error" else f"error, {name}" for name in values]
        return [] if chance else list(zip(names, map(show_number, values.values())))
    shown = []
    for name, quantity in claim.quantities.items():
        if name in values and chance in (None, quantity.chance):
            shown.append((quantity.what, show_estimate(claim, name, values)))
    return shown


def show_estimate(claim: Claim, name: str, values: Mapping[str, float], digits: int = DIGITS) -> str:
    """Write a measured value with its unit, and with its standard error if it has one: "49.6% ± 0.7%"."""
    unit, error = claim.quantities[name].unit, values.get(claim.errors.get(name, ""))
    if error is None:
        return show_quantity(values[name], unit, digits)
    of_value = unit if unit == "share" else ""  # 49.6% ± 0.7%, but 3.1 ± 0.2 nats
    return f"{show_quantity(values[name], of_value, digits)} ± {show_quantity(error, unit, digits=2)}"


# ---- criteria in words ----------------------------------------------------------------------------------------------------

BOUNDS = {ast.GtE: "at least", ast.Gt: "more than", ast.LtE: "at most", ast.Lt: "less than", ast.Eq: "exactly"}
OPERATORS = {ast.Add: "plus", ast.Sub: "minus", ast.Mult: "times", ast.Div: "divided by"}
EXTREMES = {"min": ("lower", "lowest"), "max": ("higher", "highest")}  # of two values, of more


def unmet_conditions(record: Record, brief: bool = False) -> list[str]:
    """Say why a claim was not reproduced: each condition of its criterion that is not met, with both numbers.

    `brief`: leave out how a threshold is computed from other values.
    """
    if record.verdict not in (Verdict.PARTLY, Verdict.NOT_REPRODUCED):
        return []
    conditions = unmet(record.claim.reproduced, record.values)
    return [condition_in_words(record.claim, condition, record.values, brief) for condition in conditions]


def expression_in_words(claim: Claim, expression: ast.expr) -> str:
    """Write arithmetic with the labels of its values, in quotation marks."""
    match expression:
        case ast.Name(id=name):
            return f"“{claim.label(name)}”"
        case ast.Constant(value=value):
            return show_number(value)
        case ast.BinOp(left=left, op=op, right=right):
            sides = [expression_in_words(claim, side) for side in (left, right)]
            return f" {OPERATORS[type(op)]} ".join(sides)
        case ast.Call(func=ast.Name(id="abs"), args=[arg]):
            return f"the absolute value of {expression_in_words(claim, arg)}"
        case ast.Call(func=ast.Name(id=name), args=args):
            values = " and ".join(expression_in_words(claim, arg) for arg in args)
            return f"the {EXTREMES[name][len(args) > 2]} of {values}"


def condition_in_words(claim: Claim, condition: ast.Compare, values: Mapping[str, float], brief: bool) -> str:
    """Write a condition that is not met: "best induction score is 40.7%; the criterion requires at least 50%"."""
    absent = sorted(names_in(condition) - values.keys())
    if absent:
        return f"not measured: {', '.join(map(claim.label, absent))}"
    left, right = condition.left, condition.comparators[0]
    here, required = (compute(side, values) for side in (left, right))
    units = {claim.quantities[name].unit for name in names_in(left)}
    unit = units.pop() if len(units) == 1 else ""
    digits = DIGITS  # a number is never rounded onto its threshold
    tied = math.isclose(here, required, rel_tol=1e-6)  # a tie of counts differs by rounding only
    while not tied and show_number(here, digits) == show_number(required, digits):
        digits += 1
    shown = [show_quantity(x, unit, digits) for x in (here, required)]

    what = expression_in_words(claim, left)
    if isinstance(left, ast.Name):  # without quotation marks, and a label that contains a comma ends with one
        what = claim.label(left.id)
        what += "," * ("," in what)
        shown[0] = show_estimate(claim, left.id, values, digits)
    if unit == YES_OR_NO:
        return f"{what}: {shown[0]}; the criterion requires {shown[1]}"
    source = "" if brief or not names_in(right) else f" ({expression_in_words(claim, right)})"
    bound = BOUNDS[type(condition.ops[0])]
    if not unit and here == int(here) and required != int(required):  # at least 3.2 of 4 are all 4
        limit = required_count(condition, required, values)
        return f"{what} is {shown[0]}; the criterion requires {limit}{source}"
    return f"{what} is {shown[0]}; the criterion requires {bound} {shown[1]}{source}"


def required_count(condition: ast.Compare, required: float, values: Mapping[str, float]) -> str:
    """Write a threshold of a count that lies between whole numbers as the count that meets it: "all 4", "none", "at least 2"."""
    if isinstance(condition.ops[0], (ast.LtE, ast.Lt)):
        return f"at most {math.floor(required)}" if required >= 1 else "none"
    least = math.ceil(required)
    of = {values[name] for name in names_in(condition.comparators[0])}
    return f"all {least}" if of == {least} else f"at least {least}"


def subscripts(text: str) -> markupsafe.Markup:
    """Return a sentence as HTML: matrices and vectors with subscripts and transposes (W_E^T, r_h), longer names such as d_head in code font."""
    escaped = re.sub(r"(?<![\w*])(?!W_|r_)[\w*]*_[\w.]*\w", r"<code>\g<0></code>", str(markupsafe.escape(text)))
    named = re.sub(r"\b([Wr])_(\w+)", r"\1<sub>\2</sub>", escaped)
    return markupsafe.Markup(named.replace("</sub>^T", "</sub><sup>T</sup>"))


def css_class(verdict: Verdict) -> str:
    return "tc-" + verdict.replace(" ", "-")


def card_text(record: Record) -> str:
    claim, within = record.claim, ", within error of the threshold" if record.within_error else ""
    lines = [f"{record.id} {claim.title}: {claim.words(record.verdict)}{within}"]
    lines += [f"  {what}: {value}" for what, value in show_values(claim, record.values)]
    lines += [f"  not met: {condition}" for condition in unmet_conditions(record)]
    lines += [f"  {record.detail}"] if record.detail else []
    return "\n".join(lines)


# ---- the card of a claim --------------------------------------------------------------------------------------------------

TEMPLATES = jinja2.Environment(
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
    loader=jinja2.PackageLoader("transformer_circuits.claims"),
)
for function in (show_number, show_values, subscripts, css_class, unmet_conditions):
    TEMPLATES.filters[function.__name__] = function
TEMPLATES.globals.update(symbols=SYMBOLS, edges=EDGES)


def html(template: jinja2.Template, **variables: object) -> str:
    """Fill in a template, without blank lines and backticks, so that Markdown may contain it."""
    text = template.render(**variables)
    return "\n".join(line for line in text.replace("`", "&#96;").splitlines() if line.strip())


MIME = "application/vnd.transformer-circuits.claims+json"


class Verdicts:
    """The claims of a chapter as one list. A notebook's output carries it as HTML, as text, and as JSON for the build."""

    def __init__(self, *records: Record) -> None:
        self.records = list(records)

    def __repr__(self) -> str:
        return "\n".join(map(card_text, self.records))

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, object]:
        return {
            "text/plain": repr(self),
            "text/html": html(TEMPLATES.get_template("list.html"), records=self.records),
            MIME: [record.model_dump(mode="json") for record in self.records],
        }


verdicts = Verdicts  # shows what `judge` found for a chapter's claims: the last value of a cell near its end


def records_in(notebook: Mapping) -> Iterator[Record]:
    """Yield the records that the outputs of an executed notebook carry. Raises pydantic's ValueError for malformed ones."""
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            yield from map(Record.model_validate, output.get("data", {}).get(MIME, []))
