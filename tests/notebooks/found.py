"""Numbers in what people wrote about results: each must stand in what a cell above it printed, or in a criterion of the ledger.

A Markdown cell with the tag `found` reports results. Its numbers are compared with the stored outputs above it in the same notebook, rounded to
the digits that are written: "71%" for a printed 0.7148 or 71.48. A threshold may stand in a sentence that
names its claim, whose `in_words` has it.
"""

import re
from collections.abc import Iterator
from decimal import Decimal

from nbformat import NotebookNode

from transformer_circuits.claims.ledger import load_claims

FOUND = "found"
NUMBER = re.compile(r"(?<![\w.])([-\N{MINUS SIGN}]?)(\d[\d,]*(?:\.\d+)?)(e[-+]\d+)?\s?(%|million\b)?")
# What is no result: code, links, formulas, claim codes, and numbers that name a chapter, a figure, an exercise, a layer, or a year.
NO_RESULT = re.compile(
    r"`[^`]*`|\[(?:[Cc]hapter )?\d+\]\([^)]*\)|\]\([^)]*\)|\$[^$]*\$|\b\d+ minutes|\b[A-Z]\d{1,2}\b|\b(?:chapters?|appendix|exercises?|Fig\.|section|layer)\s\[?[\dA-Ea-e.]+(?:(?:, | and | to )\[?\d+)*"
    r"|\b(?:19|20)\d\d\b|^\s*\d+\.\s",
    re.MULTILINE,
)
Value = tuple[Decimal, Decimal]  # a number, and half of its last digit


def numbers(text: str) -> Iterator[tuple[str, list[Value]]]:
    """Yield each number of a text as it is written, with what it may mean: a percentage is a fraction too."""
    for match in NUMBER.finditer(text):
        sign, digits, exponent, unit = match.groups()
        value = Decimal(f"{'-' if sign else ''}{digits.replace(',', '')}{exponent or ''}")
        half = Decimal(5).scaleb(value.as_tuple().exponent - 1)
        scale = {"%": Decimal("0.01"), "million": Decimal(1_000_000)}.get(unit)
        yield match[0].strip(), [(value, half), *([(value * scale, half * scale)] if scale else [])]


def printed(cell: NotebookNode) -> list[str]:
    """Return what a code cell printed, and the text form of its tables, as stored."""
    outputs = cell.get("outputs", [])
    return ["".join(output.get("text") or output.get("data", {}).get("text/plain", "")) for output in outputs]


def stands_in(wanted: list[Value], text: str) -> bool:
    """Return whether a text has the number, up to the digits that are written; a number without a sign may be the size of a negative one."""
    for _, there in numbers(text):
        for value, half in wanted:
            for other, _ in there:
                if abs(value - other) <= half or (value >= 0 and abs(value + other) <= half):
                    return True
    return False


def unfounded_in(text: str, printed_above: list[str]) -> Iterator[tuple[str, str]]:
    """Yield each sentence of a text with a number that neither outputs nor the criterion of a claim named there have, and that number."""
    claims = load_claims()
    text = re.sub(r"\$\$.*?\$\$", " ", text, flags=re.DOTALL)
    for sentence in re.split(r"(?<!Fig\.)(?<=[.?!;:])\s+|\n\n", text):
        codes = re.findall(r"\b[A-Z]\d{1,2}\b", sentence)
        sources = printed_above + [claims[code].in_words for code in codes if code in claims]
        for number, wanted in numbers(NO_RESULT.sub(" ", sentence)):
            if not any(stands_in(wanted, source) for source in sources):
                yield sentence.strip(), number


def unfounded(notebook: NotebookNode) -> list[tuple[str, str]]:
    """Return each sentence with a number that nothing above it printed, and that number."""
    above, found = [], []
    everything = [text for cell in notebook.cells if cell.cell_type == "code" for text in printed(cell)]
    for place, cell in enumerate(notebook.cells):
        if cell.cell_type == "code":
            above += printed(cell)
        elif FOUND in cell.metadata.get("tags", []):
            # The opening says what the chapter finds, before it is computed.
            found += unfounded_in(cell.source, above if place else everything)
    return found


def unfounded_on_the_page_of_failures(page: str, notebooks: dict[str, NotebookNode]) -> list[tuple[str, str]]:
    """Return what no output of the chapters that an entry links to has, nor its claim's criterion and paper value."""
    found = []
    for id, entry in entries(page).items():
        claim = load_claims()[id]
        linked = [notebooks[name] for name in re.findall(r"notebooks/(\w+)\.ipynb", entry)]
        sources = [text for notebook in linked for cell in notebook.cells for text in printed(cell)]
        found += unfounded_in(entry, [*sources, claim.in_words, claim.paper or "", claim.statement])
    return found


def entries(page: str) -> dict[str, str]:
    """Return what the page of failures has on each claim: the section below `(why-t8)=`."""
    parts = re.split(r"^\(why-(\w+)\)=$", page, flags=re.MULTILINE)
    return {id.upper(): re.split(r"^## ", text, flags=re.MULTILINE)[0] for id, text in zip(parts[1::2], parts[2::2])}
