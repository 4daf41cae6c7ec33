"""The ledger: the paper's claims, and the judge of what a chapter measured.

    from transformer_circuits.claims import judge, verdicts
    verdicts(judge("O5", largest_ratio=2.7, spread=0.3, spread_random=(0.01, 0.001), detail="head 0.7"), ...)

`verdicts`, the last value of a cell, shows the claims of a chapter. Its output also contains them as JSON, from which
the build reads a book's records. The criteria are in claims.yml; nothing here depends on any single claim.
"""

import ast
import enum
import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from transformer_circuits.paths import DATA

CLAIMS_FILE = Path(__file__).with_name("claims.yml")
FUNCTIONS = {"min": min, "max": max, "abs": abs}  # of criteria
ERRORS = 2  # standard errors within which a value counts as being at its threshold


class LedgerError(ValueError):
    """A claim or a value that the ledger rejects; the message says what to do."""


class Verdict(enum.StrEnum):
    REPRODUCED = "reproduced"
    PARTLY = "partly reproduced"
    NOT_REPRODUCED = "not reproduced"
    HOLDS = "identity holds"
    FAILS = "identity fails"
    NOTED = "note"


ANSWERS = {Verdict.REPRODUCED: "yes", Verdict.PARTLY: "partly", Verdict.NOT_REPRODUCED: "no"}  # to a question


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Quantity(Strict):
    """One named number of a claim; claims.yml explains the fields of this and the following."""

    what: str
    unit: str = ""
    over: str = ""
    exact: bool = False


class Case(Strict):
    """Numbers with which the claim's statement would be false."""

    case: str
    values: dict[str, float]


class Amendment(Strict):
    """A criterion that was replaced, with its result and the reason."""

    was: str
    result: str
    reason: str
    now: str = ""
    after_result: bool = False
    failed: bool = False


class Public(Strict):
    """What differs where a public model is measured: words, and the fields of the claim that hold for one model."""

    words: str
    ours: str = ""
    values: dict[str, Quantity] = {}
    reproduced: str = ""
    partly: str = ""


class Claim(Strict):
    """One entry of claims.yml."""

    id: Annotated[str, Field(pattern=r"^[A-Z]\d{1,2}$")]
    title: str
    ours: str = ""
    because: str = ""
    kind: Literal["identity", "finding", "question", "note"]
    weak: str = ""
    section: str
    statement: str
    in_words: str = ""
    metric: str
    chapter: str
    paper: str = ""
    chance: str = ""
    data: str = ""
    values: dict[str, Quantity] = {}
    optional: dict[str, Quantity] = {}
    reproduced: str = ""
    partly: str = ""
    why: str = ""
    known: str = ""
    null_model: str = ""
    fails_at: list[Case] = []
    paper_values: dict[str, float] = {}
    tolerance: FiniteFloat = 1e-4
    error: str = "relative error"
    public: Public | None = None
    amended: list[Amendment] = []
    unseen: str = ""

    @property
    def judged(self) -> bool:
        """Whether the claim has criteria."""
        return self.kind in ("finding", "question")

    @property
    def changed_late(self) -> bool:
        """Whether the criterion was changed after a result had been seen."""
        return any(old.after_result for old in self.amended)

    @property
    def undecided(self) -> bool:
        """Whether a criterion failed, was replaced after this result, and no model that was unseen then has decided."""
        return not self.unseen and any(old.failed for old in self.amended)

    @property
    def counted_in(self) -> str:
        """The tally that counts the claim: its kind, except for a result that barely tests its statement."""
        return "weak" if self.weak and self.judged else self.kind

    def words(self, verdict: str) -> str:
        """Return a verdict as pages show it: a question is answered."""
        return ANSWERS.get(verdict, verdict) if self.kind == "question" else verdict

    @property
    def on_public(self) -> "Claim":
        """The claim as a public model is judged by it, which no criterion was written for."""
        fields = self.public.model_fields_set - {"words"} if self.public else ()
        changed = {name: getattr(self.public, name) for name in fields} | {"unseen": self.unseen or "this one"}
        return self.model_copy(update={"optional": {}, **changed} if "values" in changed else changed)

    @property
    def quantities(self) -> dict[str, Quantity]:
        """All named numbers, those that may be left out too."""
        return self.values | self.optional

    @property
    def errors(self) -> dict[str, str]:
        """Each estimated value with the name of its standard error."""
        return {name: f"{name}_error" for name, quantity in self.quantities.items() if quantity.over}

    def label(self, name: str) -> str:
        """What a value, or the standard error of one, is called."""
        if name in self.quantities:
            return self.quantities[name].what
        return f"standard error of {self.quantities[name.removesuffix('_error')].what}"

    @property
    def criterion(self) -> str:
        """The criterion in one line. Records carry it, so that one judged by an older criterion is found."""
        if self.kind == "identity":
            return f"identity holds: {self.error} < {self.tolerance:g}"
        if self.kind == "note":
            return "a note, without a criterion"
        return f"reproduced: {self.reproduced} · partly: {self.partly}"


class Record(Strict):
    """What a chapter measured for one claim, with the verdict. `within_error`: see the function of this name. `public`:
    of a public model."""

    id: str
    values: dict[str, FiniteFloat]
    verdict: Verdict
    within_error: bool = False
    criterion: str
    detail: str = ""
    public: bool = False

    @property
    def claim(self) -> Claim:
        return claim_of(self.id).on_public if self.public else claim_of(self.id)


class Elsewhere(Strict):
    """What the same measures gave on another model: the held-out seed, or a public model. A YAML file: `model`, its
    name for people; `measured`, on what and when; `records`, as in a notebook."""

    model: str
    measured: str = ""
    records: list[Record]

    def of(self, id: str) -> Record | None:
        """Return the record of a claim, if there is one."""
        return next((record for record in self.records if record.id == id), None)


HELD_OUT, PUBLIC = Path("held_out_seed.yml"), Path("public")  # in the folder of the data


def held_out_seed(data: Path = DATA) -> Elsewhere:
    """Return the verdicts on the held-out seed, judged after all criteria were committed."""
    return load_elsewhere(data / HELD_OUT)


def load_elsewhere(path: Path) -> Elsewhere:
    return Elsewhere.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))


def names_in(expression: ast.AST) -> set[str]:
    """Return the values that a part of a criterion refers to."""
    return {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)} - FUNCTIONS.keys()


def compute(expression: ast.expr, values: Mapping[str, float | int]) -> float | int:
    """Evaluate a part of a criterion, which claims.yml alone decides: arithmetic and FUNCTIONS over named numbers."""
    return eval(compile(ast.Expression(expression), "claims.yml", "eval"), {"__builtins__": FUNCTIONS}, dict(values))


def unmet(criterion: str, values: Mapping[str, float | int]) -> list[ast.Compare]:
    """Return those comparisons of a criterion, joined by `and`, that are not met. A comparison with an optional value
    that was not measured is one of them."""
    tree = ast.parse(criterion, mode="eval").body
    parts = tree.values if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And) else [tree]
    return [part for part in parts if not (names_in(part) <= values.keys() and compute(part, values))]


@functools.cache
def load_claims() -> dict[str, Claim]:
    """Load all claims by id, in the paper's order. Raises pydantic's ValueError if an entry of claims.yml is not
    valid."""
    text = CLAIMS_FILE.read_text(encoding="utf-8")
    sections = yaml.load(text, yaml.CSafeLoader)["sections"]  # safe_load takes ten times as long
    entries = [{"section": section["title"], **entry} for section in sections for entry in section["claims"]]
    return {entry["id"]: Claim(**entry) for entry in entries}


def claim_of(id: str) -> Claim:
    """Return the claim of this id. Raises LedgerError that lists the ids if there is none."""
    claims = load_claims()
    if id not in claims:
        raise LedgerError(f"unknown claim {id!r}; the ids are {', '.join(claims)}")
    return claims[id]


def measured(claim: Claim, given: Mapping[str, object]) -> dict[str, float]:
    """Return what was measured as finite numbers, in the order of claims.yml. Raises LedgerError for names and numbers
    that do not fit."""
    try:
        numbers = {str(name): float(number) for name, number in given.items()}
        if not all(map(math.isfinite, numbers.values())):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        pairs = "pairs of a number and its standard error"
        raise LedgerError(f"{claim.id} needs finite numbers, or {pairs}, got {given}") from None
    if claim.kind == "identity" and numbers:
        return numbers
    known = [*claim.quantities, *claim.errors.values()]
    needed = [*(claim.values or ["error"]), *(error for name, error in claim.errors.items() if name in numbers)]
    if missing := [name for name in needed if name not in numbers]:
        raise LedgerError(f"{claim.id} is missing {', '.join(missing)}; an estimate comes with its standard error")
    if unknown := [name for name in numbers if name not in known]:
        raise LedgerError(f"{claim.id} has no value {', '.join(unknown)}; claims.yml describes each value")
    return {name: numbers[name] for name in known if name in numbers}


def verdict_on(claim: Claim, numbers: Mapping[str, float | int]) -> Verdict:
    """Return the verdict on measured values, by the claim's criterion; at most "partly" if the claim is `undecided`."""
    if claim.kind == "identity":
        return Verdict.HOLDS if max(map(abs, numbers.values())) < claim.tolerance else Verdict.FAILS
    if claim.kind == "note":
        return Verdict.NOTED
    if not unmet(claim.reproduced, numbers):
        return Verdict.PARTLY if claim.undecided else Verdict.REPRODUCED
    return Verdict.NOT_REPRODUCED if unmet(claim.partly, numbers) else Verdict.PARTLY


def within_error(claim: Claim, numbers: Mapping[str, float | int]) -> bool:
    """Return whether moving one value by ERRORS of its standard errors, up or down, changes the verdict."""
    verdicts = {verdict_on(claim, numbers)}
    for name, error in claim.errors.items():
        for moved in (-ERRORS, ERRORS) if error in numbers else ():
            verdicts.add(verdict_on(claim, {**numbers, name: numbers[name] + moved * numbers[error]}))
    return len(verdicts) > 1


def judge(id: str, value: object = None, *, detail: str = "", public: bool = False, **values: object) -> Record:
    """Judge what a chapter measured for a claim, by the criterion in claims.yml.

    `value` or keywords: the numbers that claims.yml names, a pair being an estimate and its standard error; for an
    identity its error, or errors by model. `detail`: a sentence for the reader. `public`: they are those of one public
    model. Raises LedgerError for an unknown id and for values that cannot be judged.
    """
    claim = claim_of(id).on_public if public else claim_of(id)
    if isinstance(value, Mapping):
        values = {**value, **values}
    elif value is not None:
        values = {next(iter(claim.values), "error"): value}
    pairs = {name: pair for name, pair in values.items() if isinstance(pair, tuple) and len(pair) == 2}
    values |= {name: estimate for name, (estimate, _) in pairs.items()}
    values |= {f"{name}_error": error for name, (_, error) in pairs.items()}
    numbers = measured(claim, values)
    found = {"verdict": verdict_on(claim, numbers), "within_error": within_error(claim, numbers)}
    return Record(id=id, values=numbers, criterion=claim.criterion, detail=detail, public=public, **found)
