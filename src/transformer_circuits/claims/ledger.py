"""The ledger: the paper's claims, and the judge of what a chapter measured.

    from transformer_circuits.claims import judge, verdicts
    verdicts(judge("O5", largest_ratio=2.7, spread=0.3, spread_random=0.01, detail="head 0.7 to key of 1.4"), ...)

`verdicts`, the last value of a cell, shows the claims of a chapter as one list. Its output also contains them as JSON, and the build
reads a book's records from the outputs of its notebooks and from nowhere else. The criteria are in claims.yml; nothing here depends on
any single claim.
"""

from __future__ import annotations

import ast
import difflib
import enum
import functools
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from simpleeval import InvalidExpression, SimpleEval

from transformer_circuits.paths import ROOT

CLAIMS_FILE = Path(__file__).with_name("claims.yml")
ACCEPTED_FILE = ROOT / "book" / "verdicts.yml"
FUNCTIONS = {"min": min, "max": max, "abs": abs}
ERRORS = 2  # standard errors within which a value counts as being at its threshold


class LedgerError(ValueError):
    """A claim, a value or a record that the ledger rejects; the message says what to do."""


class Verdict(enum.StrEnum):
    REPRODUCED = "reproduced"
    PARTLY = "partly reproduced"
    NOT_REPRODUCED = "not reproduced"
    HOLDS = "identity holds"
    FAILS = "identity fails"
    NOTED = "note"
    NOT_RUN = "not run"


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Quantity(Strict):
    """One named number of a claim: what it is, its unit ("share": a fraction, shown in percent), whether it is what chance gives."""

    what: str
    unit: str = ""
    chance: bool = False


class Case(Strict):
    """Numbers with which the claim's statement would be false."""

    case: str
    values: dict[str, float]


class Amendment(Strict):
    """A criterion that was replaced: the old one, its result on the models of the time, and the reason.

    `now`: the verdict of the new criterion on the same models. `after_result`: the new criterion was first applied to models on which
    the old one's result was known; otherwise it was committed before the next models were judged.
    """

    was: str
    result: str
    reason: str
    now: str = ""
    after_result: bool = False


Finite = Annotated[float, Field(allow_inf_nan=False)]


class Claim(Strict):
    """One entry of claims.yml; the fields are explained there."""

    id: Annotated[str, Field(pattern=r"^[A-Z]\d{1,2}$")]
    title: str
    kind: Literal["identity", "number", "qualitative", "note"]
    tally: Literal["finding", "question"] = "finding"
    section: str
    statement: str
    in_words: str = ""
    metric: str
    chapter: str
    not_run: str = ""
    paper: str = ""
    chance: str = ""
    values: dict[str, Quantity] = {}
    optional: dict[str, Quantity] = {}
    errors: dict[str, str] = {}
    reproduced: str = ""
    partly: str = ""
    why: str = ""
    fails_at: list[Case] = []
    paper_values: dict[str, float] = {}
    tolerance: Finite = 1e-4
    error: str = "relative error"
    needs_network: bool = False
    amended: list[Amendment] = []

    @model_validator(mode="after")
    def complete(self) -> Claim:
        known = self.values.keys() | self.optional.keys()
        if unknown := {*self.errors, *self.errors.values()} - known:
            raise ValueError(f"errors names {sorted(unknown)}; expected names of its values")
        if not self.judged:
            if self.reproduced or self.partly or self.errors:
                raise ValueError(f"claim of kind {self.kind} must have no criteria and no errors")
            if bool(self.values) == (self.kind == "identity"):
                raise ValueError(
                    "a note needs values, and an identity is judged by its error alone: no values"
                )
            return self
        for field in ("in_words", "values", "reproduced", "partly", "why", "fails_at"):
            if not getattr(self, field):
                raise ValueError(f"{field} is missing")
        for criterion in (self.reproduced, self.partly):
            if unknown := names_in(criterion) - known:
                raise ValueError(
                    f"criterion {criterion!r} uses {sorted(unknown)}; expected names of its values"
                )
            evaluate(criterion, dict.fromkeys(known, 1.0))
        return self

    @property
    def judged(self) -> bool:
        """Whether the claim has criteria: a finding or a question, not an identity or a note."""
        return self.kind in ("number", "qualitative")

    @property
    def group(self) -> Literal["identity", "finding", "question", "note"]:
        """The tally that counts the claim; notes are in none."""
        return self.tally if self.judged else self.kind  # type: ignore[return-value]

    @property
    def without_record(self) -> str:
        """What pages say of a claim that has not been recorded."""
        return self.not_run or f"Not measured yet: see {self.chapter}."

    @property
    def quantities(self) -> dict[str, Quantity]:
        return {**self.values, **self.optional}

    @property
    def criterion(self) -> str:
        """The criterion in one line. Records carry it, so that one judged by an older criterion is found."""
        if self.kind == "identity":
            return f"identity holds: {self.error} < {self.tolerance:g}"
        if self.kind == "note":
            return "a note, without a criterion"
        return f"reproduced: {self.reproduced} · partly: {self.partly}"


class Record(Strict):
    """What a chapter measured for one claim, with the verdict.

    `within_error`: the verdict would change if one of the values moved by two standard errors.
    """

    id: str
    values: dict[str, Finite]
    verdict: Verdict
    within_error: bool = False
    criterion: str
    detail: str = ""

    @property
    def claim(self) -> Claim:
        return claim_of(self.id)


def names_in(criterion: str) -> set[str]:
    """Return the values that a criterion refers to. Raises ValueError if it is not an expression."""
    try:
        tree = ast.parse(criterion, mode="eval")
    except SyntaxError as error:
        raise ValueError(f"the criterion {criterion!r} is not an expression") from error
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - FUNCTIONS.keys()


def compute(expression: str, values: Mapping[str, float]) -> object:
    """Evaluate comparisons, and/or, arithmetic, min, max and abs over named numbers. Raises ValueError for anything else."""
    try:
        return SimpleEval(names=dict(values), functions=FUNCTIONS).eval(expression)
    except (InvalidExpression, ZeroDivisionError, TypeError) as error:
        raise ValueError(f"the criterion {expression!r} cannot be evaluated: {error}") from error


def evaluate(criterion: str, values: Mapping[str, float]) -> bool:
    """Return whether the criterion is met; it is not if it refers to an optional value that was not measured."""
    if not names_in(criterion) <= values.keys():
        return False
    met = compute(criterion, values)
    if not isinstance(met, bool):
        raise ValueError(f"the criterion {criterion!r} is not a comparison")
    return met


def unmet(criterion: str, values: Mapping[str, float]) -> list[ast.expr]:
    """Return those conditions of a criterion, joined by `and`, that are not met."""
    tree = ast.parse(criterion, mode="eval").body
    parts = tree.values if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And) else [tree]
    return [part for part in parts if not evaluate(ast.unparse(part), values)]


@functools.cache
def load_claims(path: Path = CLAIMS_FILE) -> dict[str, Claim]:
    """Load all claims by id, in the paper's order. Raises LedgerError if an entry of claims.yml is not valid."""
    claims: dict[str, Claim] = {}
    for section in yaml.safe_load(path.read_text(encoding="utf-8"))["sections"]:
        for entry in section["claims"]:
            try:
                claim = Claim(section=section["title"], **entry)
            except ValidationError as error:
                first = error.errors()[0]
                where = ".".join(map(str, first["loc"])) or "entry"
                raise LedgerError(
                    f"{path.name}, claim {entry.get('id', '?')}, {where}: {first['msg']}"
                ) from error
            if claim.id in claims:
                raise LedgerError(f"{path.name} has two claims {claim.id}; give one of them another id")
            claims[claim.id] = claim
    return claims


def claim_of(id: str) -> Claim:
    """Return the claim of this id. Raises LedgerError with near matches if there is none."""
    claims = load_claims()
    if id in claims:
        return claims[id]
    near = difflib.get_close_matches(str(id).strip().upper(), claims, n=4, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else f"the ids are {', '.join(claims)}"
    raise LedgerError(f"unknown claim {str(id)!r}; {hint}")


def number(value: object, what: str) -> float:
    """Return `value` as a finite Python float; NumPy's numbers and one-element tensors are numbers. Raises LedgerError otherwise."""
    if isinstance(value, (bool, str)):
        raise LedgerError(f"{what} must be a number, got {value!r}")
    try:
        result = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError) as error:
        raise LedgerError(f"{what} must be one number, got {type(value).__name__}") from error
    if not math.isfinite(result):
        raise LedgerError(f"{what} must be finite, got {result}")
    return result


def measured(claim: Claim, value: float | Mapping[str, float]) -> dict[str, float]:
    """Return the value as named finite numbers: for an identity one error, or one for each model; otherwise the names of claims.yml.

    Raises LedgerError for names that are missing or unknown, for values that are not finite numbers, and for a negative error.
    """
    if claim.kind == "identity":
        errors = value if isinstance(value, Mapping) else {"error": value}
        if not errors:
            raise LedgerError(
                f"{claim.id} must have an error, got none; pass one number, or one for each model"
            )
        numbers = {str(name): number(error, f"{claim.id}: error {name!r}") for name, error in errors.items()}
        for name, error in numbers.items():
            if error < 0:
                raise LedgerError(f"{claim.id}: error {name!r} must not be negative, got {error:g}")
        return numbers
    if not isinstance(value, Mapping):
        if len(claim.values) != 1:
            raise LedgerError(
                f"{claim.id} needs {len(claim.values)} named numbers; pass a dict with {', '.join(claim.values)}"
            )
        value = {next(iter(claim.values)): value}
    if missing := [name for name in claim.values if name not in value]:
        raise LedgerError(f"{claim.id} is missing {', '.join(missing)}; claims.yml describes each value")
    if unknown := [str(name) for name in value if name not in claim.quantities]:
        raise LedgerError(
            f"{claim.id} has no value {', '.join(unknown)}; expected {', '.join(claim.quantities)}"
        )
    return {name: number(value[name], f"{claim.id}: {name}") for name in claim.quantities if name in value}


def verdict_on(claim: Claim, numbers: Mapping[str, float]) -> Verdict:
    """Return the verdict on measured values, by the claim's criterion alone."""
    if claim.kind == "identity":
        return Verdict.HOLDS if max(numbers.values()) < claim.tolerance else Verdict.FAILS
    if claim.kind == "note":
        return Verdict.NOTED
    if evaluate(claim.reproduced, numbers):
        return Verdict.REPRODUCED
    return Verdict.PARTLY if evaluate(claim.partly, numbers) else Verdict.NOT_REPRODUCED


def within_error(claim: Claim, numbers: Mapping[str, float]) -> bool:
    """Return whether moving one value by ERRORS of its standard errors, up or down, changes the verdict."""
    verdict = verdict_on(claim, numbers)
    for name, error in claim.errors.items():
        if name in numbers and error in numbers:
            shift = ERRORS * numbers[error]
            for moved in (numbers[name] - shift, numbers[name] + shift):
                if verdict_on(claim, {**numbers, name: moved}) is not verdict:
                    return True
    return False


def record(claim: Claim, numbers: dict[str, float], detail: str = "") -> Record:
    return Record(
        id=claim.id,
        values=numbers,
        verdict=verdict_on(claim, numbers),
        within_error=within_error(claim, numbers),
        criterion=claim.criterion,
        detail=detail,
    )


def judge(
    id: str, value: float | Mapping[str, float] | None = None, *, detail: str = "", **values: float
) -> Record:
    """Judge what a chapter measured for a claim, by the criterion in claims.yml.

    `value` or keywords: the numbers that claims.yml names; for an identity its error, or errors by model. Tensors of one element are
    numbers. `detail`: a sentence for the reader, such as which heads. Pass the results of a chapter to `verdicts`.
    Raises LedgerError for an unknown id and for values that cannot be judged.
    """
    claim = claim_of(id)
    given = {**value, **values} if isinstance(value, Mapping) else values if value is None else value
    return record(claim, measured(claim, given), detail)


# ---- the records of a whole book ----------------------------------------------------------------------------------------


def problems(recorded: Mapping[str, Sequence[Record]]) -> list[str]:
    """Return what is wrong with the records of a book's notebooks (by notebook), one sentence each."""
    found: list[str] = []
    owner: dict[str, str] = {}
    for notebook, records in recorded.items():
        for given in records:
            claim = load_claims().get(given.id)
            if claim is None:
                found.append(f"{notebook} records claim {given.id!r}, which claims.yml does not have.")
                continue
            try:
                again = record(claim, measured(claim, given.values), given.detail)
            except LedgerError as error:
                found.append(f"{notebook}: {error}.")
                continue
            if again != given:
                found.append(
                    f"{notebook} judged {given.id} by another criterion than that of claims.yml; use judge()."
                )
            if given.id in owner:
                found.append(f"{given.id} is recorded by both {owner[given.id]} and {notebook}; keep one.")
            owner[given.id] = notebook
    return found


def missing(recorded: Collection[str]) -> list[Claim]:
    """Return the claims without a record, except for those that need the network."""
    return [claim for id, claim in load_claims().items() if id not in recorded and not claim.needs_network]


def read_accepted(path: Path | None = None) -> dict[str, Verdict]:
    """Read the verdict last accepted for each claim. Raises LedgerError for an unknown verdict."""
    path = path or ACCEPTED_FILE
    stored = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    if wrong := [id for id, verdict in stored.items() if verdict not in set(Verdict)]:
        raise LedgerError(
            f"{path.name} has an unknown verdict for {', '.join(wrong)}; expected one of: {', '.join(Verdict)}"
        )
    return {id: Verdict(verdict) for id, verdict in stored.items()}


def accept(now: Mapping[str, Verdict], path: Path | None = None) -> None:
    """Write the accepted verdict of every claim, in the ledger's order; "not run" without a record."""
    head = "# The verdict on every claim as last accepted: python -m transformer_circuits.claims accept\n"
    lines = (f"{id}: {now.get(id, Verdict.NOT_RUN)}\n" for id in load_claims())
    path = path or ACCEPTED_FILE
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(head + "".join(lines), encoding="utf-8")
    partial.replace(path)


def changed(now: Mapping[str, Verdict], accepted: Mapping[str, Verdict]) -> list[tuple[str, str, str]]:
    """Return (claim, accepted verdict, verdict now) wherever they differ; "none" for a claim that was never accepted."""
    verdicts = {id: now.get(id, Verdict.NOT_RUN) for id in load_claims()}
    differing = [
        (id, accepted.get(id, "none"), verdict)
        for id, verdict in verdicts.items()
        if accepted.get(id) != verdict
    ]
    return differing + [(id, verdict, "none") for id, verdict in accepted.items() if id not in verdicts]
