"""The scoreboard, and the tallies and headlines on the front page: made from the records in the executed notebooks, never typed."""

import itertools
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from transformer_circuits.claims import ledger, show
from transformer_circuits.claims.ledger import Claim, Record, Verdict
from transformer_circuits.pages import render

# What a reader wants to know first, in the paper's order: the claim in a few words, and what to show of what was measured, with its unit or,
# after "n_", without.
HEADLINES = {
    "Z1": ("A model without layers is a table of bigrams", "held-out loss {loss_model}; loss of the bigram table {loss_bigram}"),
    "S1": ("Single source tokens copy themselves", "{self_copied} of tokens have themselves or a variant among their five highest out tokens; by chance {self_copied_random}"),
    "S4": ("Heads store the paper's skip-trigrams", "{share} of those that the training text contains; shuffled ones {share_shuffled}"),
    "E1": ("Most heads of a one-layer model copy", "{n_copying_heads} of {n_heads} working heads"),
    "T3": ("Second-layer heads read first-layer heads through their keys", "pairs of working heads that compose: keys {n_k_pairs}, queries {n_q_pairs}, values {n_v_pairs}"),
    "T7": ("At a repeated token, induction heads attend to what followed, and raise it; at a new one, they attend to the start token", "attention to what followed {target}, whose logit the head raises by {logit_effect}; to the start token, at new tokens, {rest}"),
    "T8": ("Two layers continue a sequence that they have never seen; one layer cannot", "induction score {induction_2l} (one layer {induction_1l}); right first guesses {guess_2l} (one layer {guess_1l})"),
    "T9": ("Induction heads match the current token with the token before the target", "of the score at the target, {previous_share} comes from the token before it, and {direct_share} from the target itself"),
    "T10": ("Eigenvalues separate induction heads from other heads", "high positivity of both the OV and the K-composition circuit: {n_induction_in_corner} of {n_induction_heads} induction heads, {n_others_in_corner} of {n_others} other heads"),
    "T11": ("Single heads reduce the loss most, virtual heads little", "loss reduction: direct path {n_order_0}, single heads {n_order_1}, virtual heads {order_2}"),
}  # fmt: skip
# The same for what readers ask and the paper does not.
QUESTIONS = {
    "T14": ("Does induction collapse without the head that the induction head's keys read most, and only then?", "without that head {left_read} of the score remains; removing any single head that the keys barely read leaves at least {left_unread}"),
    "T12": ("Does K-composition matter at least twice as much as Q-composition?", "removing it raises the loss by {n_k_composition}, removing Q-composition by {q_composition}"),
    "W6": ("Do other random seeds form induction heads?", "{n_seeds_with_induction} of {n_seeds} seeds have an induction head"),
    "W8": ("Do such heads form on sequences that are not text?", "on melodies, induction score {induction_2l} with two layers and {induction_1l} with one"),
}  # fmt: skip

JUDGED = (Verdict.REPRODUCED, Verdict.PARTLY, Verdict.NOT_REPRODUCED)
TALLIES = {  # each with its possible outcomes
    "identity": ("Exact identities", (Verdict.HOLDS, Verdict.FAILS)),
    "finding": ("The paper's findings on trained models", JUDGED),
    "question": ("Questions that readers ask and the paper does not", JUDGED),
}


def number_of(notebook: str) -> str:
    """Return the number of a chapter as the sidebar shows it: 7 for 07_induction_heads, A1 for a1_notation."""
    return notebook.split("_")[0].lstrip("0").upper()


def claims_of(group: str) -> list[Claim]:
    return [claim for claim in ledger.load_claims().values() if claim.group == group]


class Results:
    """The records of a book, by claim, with what pages in `book/` need of them.

    `recorded`: records by notebook, without suffix; `shown`: by claim, the place that shows it and what is there, a figure or numbers.
    """

    def __init__(
        self, recorded: Mapping[str, Sequence[Record]], shown: Mapping[str, tuple[str, str]] | None = None
    ) -> None:
        self.shown = shown or {}
        self.records = {record.id: record for records in recorded.values() for record in records}
        chapters = {number_of(notebook): f"../notebooks/{quote(notebook)}.html" for notebook in recorded}
        numbers = {claim.id: claim.chapter.split()[0] for claim in ledger.load_claims().values()}
        self.links = {id: chapters[number] for id, number in numbers.items() if number in chapters}
        for notebook, records in recorded.items():
            link = chapters[number_of(notebook)]
            self.links |= {record.id: f"{link}#claim-{record.id}" for record in records}

    def verdict(self, id: str) -> Verdict:
        return self.records[id].verdict if id in self.records else Verdict.NOT_RUN

    def tallies(self) -> list[tuple[str, int, list[tuple[Verdict, int]], Claim]]:
        """Return a row for each group of claims: its name, its size, the counts of its outcomes, and one of its claims, which has their words."""
        found = []
        for group, (name, outcomes) in TALLIES.items():
            claims = claims_of(group)
            verdicts = [self.verdict(claim.id) for claim in claims]
            counts = [(v, verdicts.count(v)) for v in (*outcomes, Verdict.NOT_RUN) if v in outcomes or v in verdicts]
            found.append((name, len(verdicts), counts, claims[0]))
        return found

    def value(self, id: str, name: str, digits: int = show.DIGITS) -> str:
        """Return a measured number with its unit, or without it after "n_", without line breaks; "–" if it was not measured."""
        plain = name.removeprefix("n_")
        if id not in self.records or plain not in self.records[id].values:
            return "–"
        unit = "" if name.startswith("n_") else ledger.claim_of(id).quantities[plain].unit
        return show.show_quantity(self.records[id].values[plain], unit, digits).replace(" ", "\N{NO-BREAK SPACE}")

    def rows(self, words: Mapping[str, tuple[str, str]]) -> list[tuple[Claim, str, str]]:
        """Return rows of the front page: a claim, what it says in a few words, and what was measured."""
        found = []
        for id, (says, here) in words.items():
            claim = ledger.claim_of(id)
            values = {name: self.value(id, name) for plain in claim.quantities for name in (plain, f"n_{plain}")}
            found.append((claim, says, here.format(**values) if id in self.records else claim.without_record))
        return found

    def headlines(self) -> list[tuple[Claim, str, str]]:
        """Return the rows of HEADLINES, and of a finding that is not reproduced if none of these fails."""
        failures = [c for c in claims_of("finding") if self.verdict(c.id) is Verdict.NOT_REPRODUCED]
        unlisted = not any(claim.id in HEADLINES for claim in failures)
        return self.rows(HEADLINES | {claim.id: (claim.title, "") for claim in failures[:1] if unlisted})


def headlines(results: Results) -> str:
    """Return what the front page includes, in parts that comments divide."""
    return render("headlines.md", results=results, questions=results.rows(QUESTIONS))


def page(results: Results) -> str:
    claims = list(ledger.load_claims().values())
    amended = [claim for claim in claims if claim.amended]
    return render(
        "scoreboard.md",
        results=results,
        amended=amended,
        late=[claim.id for claim in amended if any(old.after_result for old in claim.amended)],
        sections={key: list(group) for key, group in itertools.groupby(claims, lambda claim: claim.section)},
        identities=claims_of("identity"),
    )
