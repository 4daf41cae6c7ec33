"""The scoreboard, and the tallies and headlines on the front page, from the records in the executed notebooks."""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from book_build.pages import TEMPLATES, render
from transformer_circuits.claims import ledger, show
from transformer_circuits.claims.ledger import Claim, Record, Verdict
from transformer_circuits.paths import DATA

JUDGED = (Verdict.REPRODUCED, Verdict.PARTLY, Verdict.NOT_REPRODUCED)
TALLIES = {  # each with its possible outcomes
    "identity": ("Exact identities", (Verdict.HOLDS, Verdict.FAILS)),
    "finding": ("The paper's findings on trained models", JUDGED),
    "question": ("Questions that readers ask and the paper does not", JUDGED),
    "weak": ("Results that barely test their statement", JUDGED),
}


def number_of(notebook: str) -> str:
    """Return the number of a chapter as the sidebar shows it: 7 for 07_induction_heads, A1 for a1_notation."""
    return notebook.split("_")[0].lstrip("0").upper()


def counted_in(tally: str) -> list[Claim]:
    return [claim for claim in ledger.load_claims().values() if claim.counted_in == tally]


@dataclass
class Tally:
    """How often each outcome occurs; `claim` is one that is counted, whose words the outcomes have."""

    name: str
    claim: Claim
    outcomes: Sequence[Verdict]
    verdicts: Sequence[Verdict]

    @property
    def counts(self) -> list[tuple[Verdict, int]]:
        shown = [v for v in (*self.outcomes, Verdict.NOT_RUN) if v in self.outcomes or v in self.verdicts]
        return [(verdict, self.verdicts.count(verdict)) for verdict in shown]


class Results:
    """The records of a book, by claim, with what pages in `book/` need of them.

    `recorded`: records by notebook, without suffix; `shown`: by claim, the place that shows it and what is there, a
    figure or numbers; `data`: the folder with the records of the held-out seed and of public models.
    """

    def __init__(
        self, recorded: Mapping[str, Sequence[Record]], shown: Mapping[str, tuple[str, str]] = {}, data: Path = DATA
    ) -> None:
        seed = ledger.held_out_seed(data)
        self.others = {"Held-out seed": [seed] if seed else [], "Public models": ledger.public_models(data)}
        self.shown = shown
        self.records = {record.id: record for records in recorded.values() for record in records}
        chapters = {number_of(notebook): f"../notebooks/{quote(notebook)}.html" for notebook in recorded}
        numbers = {claim.id: claim.chapter.split()[0] for claim in ledger.load_claims().values()}
        self.links = {id: chapters[number] for id, number in numbers.items() if number in chapters}
        for notebook, records in recorded.items():
            link = chapters[number_of(notebook)]
            self.links |= {record.id: f"{link}#claim-{record.id}" for record in records}

    def verdict(self, id: str) -> Verdict:
        return self.records[id].verdict if id in self.records else Verdict.NOT_RUN

    def elsewhere(self, id: str) -> dict[str, list[tuple[str, Record]]]:
        """Return the records of a claim on other models, with the models' names, where there are any."""
        found = {}
        for where, models in self.others.items():
            if records := [(model.model, record) for model in models if (record := model.of(id))]:
                found[where] = records
        return found

    def tallies(self) -> list[Tally]:
        """Return a tally for each group of claims, and one for each other model that the same criteria judged."""
        found = []
        for tally, (name, outcomes) in TALLIES.items():
            if claims := counted_in(tally):
                found.append(Tally(name, claims[0], outcomes, [self.verdict(claim.id) for claim in claims]))
        for where, models in self.others.items():
            for model in models:
                judged = [record for record in model.records if record.claim.counted_in == "finding"]
                name = f"{model.model if len(models) > 1 else where}: the paper's findings"
                found.append(Tally(name, counted_in("finding")[0], JUDGED, [record.verdict for record in judged]))
        return found

    def value(self, id: str, name: str, digits: int = show.DIGITS) -> str:
        """Return a measured number with its unit (after "n_" without), unbroken; "–" if it was not measured."""
        plain = name.removeprefix("n_")
        if id not in self.records or plain not in self.records[id].values:
            return "–"
        unit = "" if name.startswith("n_") else ledger.claim_of(id).quantities[plain].unit
        return show.show_quantity(self.records[id].values[plain], unit, digits).replace(" ", "\N{NO-BREAK SPACE}")


def labeled(text: str, claim: Claim, every: bool = False) -> str:
    """Return a text with the labels of a claim's quantities in place of their names.

    `every`: of a criterion, in which all words are names. In a sentence, a name has an underscore or a colon after it.
    """
    names = sorted([*claim.quantities, *claim.errors.values()], key=len, reverse=True)
    labels = {f"{error}": f"the error of \u201c{claim.label(name)}\u201d" for name, error in claim.errors.items()}
    labels = {name: f"\u201c{claim.label(name)}\u201d" for name in claim.quantities} | labels
    found = rf"(?<![\w*])({'|'.join(map(re.escape, names))})(?![\w*])" if names else r"(?!)"
    if every:
        signs = {">=": "\u2265", "<=": "\u2264", "==": "=", " * ": " \u00d7 "}
        return re.sub(
            "|".join(map(re.escape, signs)),
            lambda sign: signs[sign[0]],
            re.sub(found, lambda name: labels[name[0]], text),
        )
    return re.sub(
        found, lambda name: labels[name[0]] if "_" in name[0] or text[name.end() :][:1] == ":" else name[0], text
    )


def place(chapter: str) -> str:
    """Return what a sentence calls a chapter: "chapter 7" for "7 Induction heads", "appendix 2" for "A2 Low rank"."""
    number = chapter.split()[0]
    return f"appendix {number[1:]}" if number.startswith("A") else f"chapter {number}"


TEMPLATES.filters.update(labeled=labeled, place=place)
TEMPLATES.globals["UNDECIDED"] = show.UNDECIDED


def sections() -> dict[str, list[Claim]]:
    """Return all claims by the paper's section, without its number, which is not a chapter's."""
    titled = itertools.groupby(ledger.load_claims().values(), lambda claim: re.sub(r"^\d+ ", "", claim.section))
    return {title: list(group) for title, group in titled}


def headlines(results: Results) -> str:
    """Return what the front page includes, in parts that comments divide: a square for each claim, three sentences."""
    findings = next(tally for tally in results.tallies() if tally.name == TALLIES["finding"][0])
    counts = {verdict: findings.verdicts.count(verdict) for verdict in JUDGED}
    return render(
        "headlines.md",
        results=results,
        sections=sections(),
        findings=len(findings.verdicts),
        counts=counts,
        asked=len(counted_in("question")),
    )


def page(results: Results) -> str:
    amended = [claim for claim in ledger.load_claims().values() if claim.amended]
    identities = counted_in("identity")
    return render(
        "scoreboard.md",
        results=results,
        asked=len(counted_in("question")),
        amended=len(amended),
        late=sum(claim.changed_late for claim in amended),
        sections=sections(),
        identities=identities,
        hold=sum(results.verdict(claim.id) is Verdict.HOLDS for claim in identities),
    )
