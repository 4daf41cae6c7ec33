"""The scoreboard, and the headlines on the front page, from the records in the executed notebooks."""

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from book_build.pages import TEMPLATES, render
from transformer_circuits.claims import ledger, show
from transformer_circuits.claims.ledger import Claim, Record, Verdict
from transformer_circuits.paths import DATA

JUDGED = (Verdict.REPRODUCED, Verdict.PARTLY, Verdict.NOT_REPRODUCED)
SHORT = {
    Verdict.REPRODUCED: "held up",
    Verdict.PARTLY: "in part",
    Verdict.NOT_REPRODUCED: "failed",
    Verdict.HOLDS: "holds",
}
TALLIES = {
    "finding": "The paper's findings on trained models",
    "question": "Questions that readers ask and the paper does not",
    "weak": "Results that barely test their statement",
}
# The steps of the paper's argument, and the claims that each rests on. The page begins with them.
ARGUMENT = {
    "Without attention: which token follows which": ["Z1"],
    "One layer: copies, and patterns of three tokens": ["E1", "S4", "S5"],
    "Two layers: one kind of head looks up what came next last time": [
        "T3", "T9", "T17", "T18", "T8",
    ],
    "What this is worth": ["T11", "W1"],
    "In other people's models": ["W7"],
}  # fmt: skip
SIGNS = {">=": "\u2265", "<=": "\u2264", "==": "=", " * ": " \u00d7 "}


def counted_in(tally: str) -> list[Claim]:
    return [claim for claim in ledger.load_claims().values() if claim.counted_in == tally]


class Results:
    """The records of a book, by claim, with what pages in `book/` need of them.

    `recorded`: records by notebook, without suffix, one for each claim; `shown`: by claim, the address of the cell that
    shows it, if it is not the list of verdicts; `data`: the folder with the records of the held-out seed and of public
    models. `links`: where the book shows each claim.
    """

    def __init__(
        self, recorded: Mapping[str, Sequence[Record]], shown: Mapping[str, str] = {}, data: Path = DATA
    ) -> None:
        seed = ledger.held_out_seed(data)
        self.others = {"Held-out seed": [seed] if seed else [], "Public models": ledger.public_models(data)}
        self.records: dict[str, Record] = {}
        self.links: dict[str, str] = {}
        for notebook, records in recorded.items():
            self.records |= {record.id: record for record in records}
            page = f"../notebooks/{quote(notebook)}.html"
            self.links |= {record.id: f"{page}#claim-{record.id}" for record in records}
        self.links |= shown

    def elsewhere(self, id: str) -> dict[str, list[tuple[str, Record]]]:
        """Return the records of a claim on other models, with the models' names, where there are any."""
        found = {}
        for where, models in self.others.items():
            if records := [(model.model, record) for model in models if (record := model.of(id))]:
                found[where] = records
        return found

    def tallies(self) -> dict[str, list[Verdict]]:
        """Return the verdicts of each group of claims, and those on each other model that the same criteria judged."""
        found = {
            name: [self.records[claim.id].verdict for claim in counted_in(tally)] for tally, name in TALLIES.items()
        }
        for where, models in self.others.items():
            for model in models:
                name = f"{model.model if len(models) > 1 else where}: the paper's findings"
                found[name] = [record.verdict for record in model.records if record.claim.counted_in == "finding"]
        return found

    def value(self, id: str, name: str, digits: int) -> str:
        """Return a measured number with its unit, unbroken."""
        unit = ledger.claim_of(id).quantities[name].unit
        return show.show_quantity(self.records[id].values[name], unit, digits).replace(" ", "\N{NO-BREAK SPACE}")


def labeled(text: str, claim: Claim, every: bool = False) -> str:
    """Return a text with the labels of a claim's quantities in place of their names.

    `every`: of a criterion, in which all words are names. In a sentence, a name has an underscore or a colon after it.
    """
    labels = {name: f"\u201c{claim.label(name)}\u201d" for name in claim.quantities}
    labels |= {error: f"the error of {labels[name]}" for name, error in claim.errors.items()}
    names = [name if every or "_" in name else f"{name}(?=:)" for name in sorted(labels, key=len, reverse=True)]
    found = rf"(?<![\w*])({'|'.join(names) or '(?!)'})(?![\w*])"
    text = re.sub(found, lambda name: labels[name[0]], text)
    for sign, shown in SIGNS.items() if every else ():
        text = text.replace(sign, shown)
    return text


def place(chapter: str) -> str:
    """Return what a sentence calls a chapter: "chapter 7" for "7 Induction heads", "appendix 2" for "A2 Low rank"."""
    number = chapter.split()[0]
    return f"appendix {number[1:]}" if number.startswith("A") else f"chapter {number}"


TEMPLATES.filters.update(labeled=labeled, place=place)
TEMPLATES.globals |= {"UNDECIDED": show.UNDECIDED, "SHORT": SHORT}


def sections() -> dict[str, list[Claim]]:
    """Return all claims by the paper's section, without its number, which is not a chapter's."""
    titled = itertools.groupby(ledger.load_claims().values(), lambda claim: re.sub(r"^\d+ ", "", claim.section))
    return {title: list(group) for title, group in titled}


def headlines(results: Results) -> str:
    """Return what the front page includes, in parts that comments divide: a square a finding, three sentences."""
    findings = results.tallies()[TALLIES["finding"]]
    return render("headlines.md", results=results, claims=counted_in("finding"), findings=findings)


def page(results: Results) -> str:
    claims = ledger.load_claims()
    argued = sum(ARGUMENT.values(), start=[])
    left = [claim for claim in claims.values() if claim.id not in argued]
    groups = {group: [claim for claim in left if claim.counted_in == group] for group in (*TALLIES, "note", "identity")}
    failed = [claim for claim in groups["finding"] if results.records[claim.id].verdict is Verdict.NOT_REPRODUCED]
    return render(
        "scoreboard.md",
        results=results,
        judged=JUDGED,
        sections=sections(),
        argument={step: [claims[id] for id in ids] for step, ids in ARGUMENT.items()},
        groups=groups,
        failed=failed,
        hold=sum(results.records[claim.id].verdict is Verdict.HOLDS for claim in groups["identity"]),
        findings=results.tallies()[TALLIES["finding"]],
        amended=sum(bool(claim.amended) for claim in claims.values()),
        late=[claim for claim in claims.values() if claim.changed_late],
        known=[claim for claim in claims.values() if claim.known and not claim.changed_late],
        noisy=[record.claim for record in results.records.values() if record.within_error],
    )
