"""The scoreboard, and the tallies and headlines on the front page: made from the records in the executed notebooks, never typed."""

import itertools
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from transformer_circuits.claims import ledger, show
from transformer_circuits.claims.ledger import Claim, Record, Verdict
from transformer_circuits.pages import render

# The claims that a reader wants to know first: the claim in a few words, and what to show of what was measured, with its unit or, after
# "n_", without.
HEADLINES = {
    "E1": ("Most heads of a one-layer model copy", "{n_copying_heads} of {n_heads} heads, resting heads left out"),
    "T3": ("Second-layer heads read first-layer heads through their keys", "largest composition ratio among working heads: keys {n_k_largest}, queries {n_q_largest}, values {n_v_largest}; chance is 1"),
    "T8": ("Two layers continue a sequence that they have never seen; one layer cannot", "induction score {induction_2l} (one layer {induction_1l}); right first guesses {guess_2l} (one layer {guess_1l})"),
    "T14": ("Removing the head that an induction head reads destroys induction", "induction score {intact}; without that head, {left_read} of it remains; without any one working head that it barely reads, at least {left_unread}"),
    "T10": ("Eigenvalues separate induction heads from other heads", "both positivities beyond random heads: {n_induction_in_corner} of {n_induction_heads} induction heads, {n_others_in_corner} of {n_others} other working heads"),
    "T11": ("Single heads reduce the loss most, virtual heads little", "loss reduction: direct path {n_order_0}, single heads {n_order_1}, virtual heads {order_2}"),
    "S6": ("Skip-trigram bugs cost more than equal boosts of random tokens", "{n_bugs} bugs cost {cost} per token; equal boosts of random tokens cost {cost_random}"),
    "W1": ("A longer context helps two layers more than one", "loss late minus loss early in the context: {score_2l}; one layer {score_1l}"),
    "Z1": ("A model without layers is a table of bigrams", "held-out loss {loss_model}; loss of the bigram table {loss_bigram}"),
    "W2": ("Induction heads form abruptly", "score rises from 10% to 90% of its final value between {n_t10} and {t90}"),
    "S1": ("The paper's single source tokens copy themselves", "{n_self_copied} of {n_sources} have themselves or a variant among their five highest out tokens"),
    "T6": ("Weighting attention by value length shrinks it at the start token", "attention of {n_induction_heads} induction heads to the start token: {start_plain}, weighted {start_weighted}"),
    "O8": ("Some heads delete information", "{n_memory_heads} of {n_heads} heads"),
    "W5": ("With positions in the residual stream, heads do induction by pointers", "induction score {induction}; {pointer_share} of it is lost without moved positions"),
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
        self.records: dict[str, Record] = {}
        self.links: dict[str, str] = {}
        for notebook, records in recorded.items():
            link = f"../notebooks/{quote(notebook)}.html"
            for claim in ledger.load_claims().values():
                if claim.chapter.split()[0] == number_of(notebook):
                    self.links.setdefault(claim.id, link)
            for record in records:
                self.records[record.id] = record
                self.links[record.id] = f"{link}#claim-{record.id}"

    def verdict(self, id: str) -> Verdict:
        return self.records[id].verdict if id in self.records else Verdict.NOT_RUN

    def tallies(self) -> list[tuple[str, int, list[tuple[Verdict, int]], Claim]]:
        """Count the outcomes of each group of claims: all that are possible, failures too, and "not run" if there is any.

        A row is the group's name, its size, the counts, and one of its claims, which has the words for verdicts.
        """
        found = []
        for group, (name, outcomes) in TALLIES.items():
            claims = claims_of(group)
            verdicts = [self.verdict(claim.id) for claim in claims]
            if Verdict.NOT_RUN in verdicts:
                outcomes = (*outcomes, Verdict.NOT_RUN)
            counts = [(verdict, verdicts.count(verdict)) for verdict in outcomes]
            found.append((name, len(verdicts), counts, claims[0]))
        return found

    def value(self, id: str, name: str, digits: int = show.DIGITS) -> str:
        """Return a measured number with its unit, or without it after "n_", without line breaks; "–" if it was not measured."""
        plain = name.removeprefix("n_")
        found = self.records[id].values.get(plain) if id in self.records else None
        if found is None:
            return "–"
        unit = "" if name.startswith("n_") else ledger.claim_of(id).quantities[plain].unit
        return show.show_quantity(found, unit, digits).replace(" ", "\N{NO-BREAK SPACE}")

    def headlines(self) -> list[tuple[Claim, str, str, list[str], bool]]:
        """Return the rows of the table, those of HEADLINES and a finding that is not reproduced if none of these fails.

        A row is a claim, what it says, what was measured, its unmet conditions, and whether it is within error of the threshold.
        """
        ids, rows = list(HEADLINES), []
        failures = [c.id for c in claims_of("finding") if self.verdict(c.id) is Verdict.NOT_REPRODUCED]
        if failures and not set(failures) & set(ids):
            ids.append(failures[0])
        for id in ids:
            claim, record = ledger.claim_of(id), self.records.get(id)
            says, here = HEADLINES.get(id, (claim.title, ""))
            if record is None:
                rows.append((claim, says, claim.without_record, [], False))
            else:
                names = [name for plain in claim.quantities for name in (plain, f"n_{plain}")]
                shown = here.format(**{name: self.value(id, name) for name in names})
                unmet = show.unmet_conditions(record, brief=True)
                rows.append((claim, says, shown, unmet, record.within_error))
        return rows


def headlines(results: Results) -> str:
    """Return what the front page includes: the result in two sentences, then after comments the tallies and the table of headlines."""
    return render("headlines.md", results=results)


def page(results: Results) -> str:
    """Return the scoreboard in MyST Markdown."""
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
