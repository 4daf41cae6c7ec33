"""The scoreboard, and the headlines on the front page, from the records in the executed notebooks."""

import re
from collections.abc import Mapping, Sequence
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
OURS = "Our models"  # among those that the criteria judged
# The steps of the argument, by the number of the paper's section, in the order of this book.
STEPS = {
    "2": "No layers: which token follows which",
    "3": "One layer: copies, and patterns of three tokens",
    "4": "Two layers: looking up what came next last time",
    "5": "In training, and with other parts",
    "1": "Remarks on embeddings, heads, and neurons",
}
SIGNS = {">=": "\u2265", "<=": "\u2264", "==": "=", " * ": " \u00d7 "}


def counted_in(tally: str) -> list[Claim]:
    return [claim for claim in ledger.load_claims().values() if claim.counted_in == tally]


def link(notebook: str, place: str) -> str:
    """Return the address of a place in a chapter, seen from a page in book/."""
    return f"../notebooks/{quote(notebook)}.html#{place}"


class Results:
    """The records of a book, by claim, with what pages in `book/` need of them.

    `recorded`: records by notebook, without suffix, one for each claim; `shown`: by claim, the address of the cell that
    shows it, if it is not the list of verdicts. `links`: where the book shows each claim.
    """

    def __init__(self, recorded: Mapping[str, Sequence[Record]], shown: Mapping[str, str] = {}) -> None:
        public = [ledger.load_elsewhere(path) for path in sorted((DATA / ledger.PUBLIC).glob("*.yml"))]
        self.others = {"Held-out seed": [ledger.held_out_seed()], "Public models": public}
        self.records: dict[str, Record] = {}
        self.links: dict[str, str] = {}
        for notebook, records in recorded.items():
            self.records |= {record.id: record for record in records}
            self.links |= {record.id: link(notebook, f"claim-{record.id}") for record in records}
        self.links |= shown

    def elsewhere(self, id: str) -> dict[str, list[tuple[str, Record]]]:
        """Return the records of a claim on other models, with the models' names, where there are any."""
        found = {}
        for where, models in self.others.items():
            if records := [(model.model, record) for model in models if (record := model.of(id))]:
                found[where] = records
        return found

    def tallies(self) -> dict[str, list[Verdict]]:
        """Return the verdicts on the paper's findings, on our models and on each other one that the criteria judged."""
        found = {OURS: [self.records[claim.id].verdict for claim in counted_in("finding")]}
        for where, models in self.others.items():
            for model in models:
                name = model.model if len(models) > 1 else where
                found[name] = [record.verdict for record in model.records if record.claim.counted_in == "finding"]
        return found

    def counted(self, claims: Sequence[Claim]) -> str:
        """Return how many of these claims, all of one kind, have each verdict: "6 yes, 5 partly, 3 no"."""
        verdicts = [self.records[claim.id].verdict for claim in claims]
        words = {verdict: claims[0].words(verdict) for verdict in JUDGED}
        return ", ".join(f"{verdicts.count(verdict)} {SHORT.get(word, word)}" for verdict, word in words.items())

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


TEMPLATES.filters["labeled"] = labeled
TEMPLATES.globals["SHORT"] = SHORT


def headlines(results: Results) -> str:
    """Return what the front page includes, in parts that comments divide: a square a finding, three sentences."""
    findings = results.tallies()[OURS]
    return render("headlines.md", results=results, claims=counted_in("finding"), findings=findings)


def page(results: Results) -> str:
    claims = ledger.load_claims().values()
    groups = {group: counted_in(group) for group in ("finding", "question", "weak", "note", "identity")}
    in_order = sorted(groups["finding"], key=lambda claim: list(STEPS).index(claim.section[0]))
    findings = {
        verdict: [claim for claim in in_order if results.records[claim.id].verdict is verdict] for verdict in JUDGED
    }
    return render(
        "scoreboard.md",
        results=results,
        judged=JUDGED,
        steps=STEPS,
        findings=findings,
        groups=groups,
        hold=sum(results.records[claim.id].verdict is Verdict.HOLDS for claim in groups["identity"]),
        tallies=results.tallies(),
        amended=sum(bool(claim.amended) for claim in claims),
        late=[claim for claim in claims if claim.changed_late],
        known=[claim for claim in claims if claim.known and not claim.changed_late],
        noisy=[record.claim for record in results.records.values() if record.within_error],
    )
