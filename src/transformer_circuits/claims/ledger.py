"""The ledger: the claims, and the judge of what a chapter measured.

    from transformer_circuits.claims import judge, verdicts
    verdicts(judge("O5", largest_ratio=2.7, spread=0.3, spread_random=0.01, detail="head 0.7 to key of 1.4"), ...)

`verdicts`, the last value of a cell, shows the claims of a chapter as one list; its output also carries them as JSON, and the build
reads a book's records from the outputs of its notebooks and from nowhere else. The criteria are in claims.yml and were written before
the results; nothing here knows any claim by name.
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


class LedgerError(ValueError):
    """A claim, a value or a record that the ledger cannot take; the message says what to mend."""


class Verdict(enum.StrEnum):
    REPRODUCED = "reproduced"
    PARTLY = "partly"
    NOT_REPRODUCED = "not reproduced"
    HOLDS = "identity holds"
    FAILS = "identity fails"
    NOT_RUN = "not run"


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Quantity(Strict):
    """One named number of a claim: what it is and its unit ("share": a part of one, shown in per cent)."""

    what: str
    unit: str = ""


class Case(Strict):
    """Numbers with which the claim's statement would be false."""

    case: str
    values: dict[str, float]


class Amendment(Strict):
    """A criterion that was replaced because it mismeasured the statement, its result then, and the reason."""

    was: str
    result: str
    reason: str


Finite = Annotated[float, Field(allow_inf_nan=False)]


class Claim(Strict):
    """One entry of claims.yml; the fields are explained there."""

    id: Annotated[str, Field(pattern=r"^[A-Z]\d{1,2}$")]
    title: str
    kind: Literal["identity", "number", "qualitative"]
    section: str
    statement: str
    metric: str
    chapter: str
    not_run: str = ""
    paper: str = ""
    values: dict[str, Quantity] = {}
    optional: dict[str, Quantity] = {}
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
        if self.kind == "identity":
            if self.values or self.reproduced or self.partly:
                raise ValueError("an identity is judged by its error alone: no values, no criteria")
            return self
        for field in ("values", "reproduced", "partly", "why", "fails_at"):
            if not getattr(self, field):
                raise ValueError(f"{field} is missing")
        known = self.values.keys() | self.optional.keys()
        for criterion in (self.reproduced, self.partly):
            unknown = names_in(criterion) - known
            if unknown:
                raise ValueError(f"the criterion {criterion!r} uses {sorted(unknown)}, which are none of its values")
            evaluate(criterion, dict.fromkeys(known, 1.0))
        return self

    @property
    def quantities(self) -> dict[str, Quantity]:
        return {**self.values, **self.optional}

    @property
    def criterion(self) -> str:
        """The criterion in one line, for people."""
        if self.kind == "identity":
            return f"identity holds: {self.error} < {self.tolerance:g}"
        return f"reproduced: {self.reproduced} · partly: {self.partly}"


class Record(Strict):
    """What a chapter measured for one claim, with the verdict."""

    id: str
    values: dict[str, Finite]
    verdict: Verdict
    criterion: str
    detail: str = ""

    @property
    def claim(self) -> Claim:
        return claim_of(self.id)


def names_in(criterion: str) -> set[str]:
    """The values that a criterion refers to. Raises ValueError where it is no expression."""
    try:
        tree = ast.parse(criterion, mode="eval")
    except SyntaxError as error:
        raise ValueError(f"the criterion {criterion!r} is no expression") from error
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - FUNCTIONS.keys()


def compute(expression: str, values: Mapping[str, float]) -> object:
    """The value of comparisons, and/or, arithmetic, min, max and abs over named numbers. Raises ValueError for anything else."""
    try:
        return SimpleEval(names=dict(values), functions=FUNCTIONS).eval(expression)
    except (InvalidExpression, ZeroDivisionError, TypeError) as error:
        raise ValueError(f"the criterion {expression!r} cannot be evaluated: {error}") from error


def evaluate(criterion: str, values: Mapping[str, float]) -> bool:
    """Whether the criterion is met; not met where it refers to an optional value that was not measured."""
    if not names_in(criterion) <= values.keys():
        return False
    met = compute(criterion, values)
    if not isinstance(met, bool):
        raise ValueError(f"the criterion {criterion!r} is not a comparison")
    return met


def unmet(criterion: str, values: Mapping[str, float]) -> list[ast.expr]:
    """Of the conditions that `and` joins to a criterion, those that are not met."""
    tree = ast.parse(criterion, mode="eval").body
    parts = tree.values if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And) else [tree]
    return [part for part in parts if not evaluate(ast.unparse(part), values)]


@functools.cache
def load_claims(path: Path = CLAIMS_FILE) -> dict[str, Claim]:
    """All claims by id, in the paper's order. Raises LedgerError where claims.yml is not as it should be."""
    claims: dict[str, Claim] = {}
    for section in yaml.safe_load(path.read_text(encoding="utf-8"))["sections"]:
        for entry in section["claims"]:
            try:
                claim = Claim(section=section["title"], **entry)
            except ValidationError as error:
                first = error.errors()[0]
                where = ".".join(map(str, first["loc"])) or "entry"
                raise LedgerError(f"{path.name}, claim {entry.get('id', '?')}, {where}: {first['msg']}.") from error
            if claim.id in claims:
                raise LedgerError(f"{path.name} has two claims {claim.id}: give one of them another id.")
            claims[claim.id] = claim
    return claims


def claim_of(id: str) -> Claim:
    """The claim of this id. Raises LedgerError with near matches for one that does not exist."""
    claims = load_claims()
    if id in claims:
        return claims[id]
    near = difflib.get_close_matches(str(id).strip().upper(), claims, n=4, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else f"the ids are {', '.join(claims)}."
    raise LedgerError(f"There is no claim {str(id)!r} in claims.yml: {hint}")


def number(value: object, what: str) -> float:
    """`value` as a finite Python float; numbers of NumPy and one-element tensors are numbers. LedgerError otherwise."""
    if isinstance(value, (bool, str)):
        raise LedgerError(f"{what} must be a number, not {value!r}.")
    try:
        result = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError) as error:
        raise LedgerError(f"{what} must be one number, not {type(value).__name__}.") from error
    if not math.isfinite(result):
        raise LedgerError(f"{what} is {result}: only finite numbers can be judged.")
    return result


def measured(claim: Claim, value: float | Mapping[str, float]) -> dict[str, float]:
    """The value as named finite numbers: for an identity one error, or one for each model; else the names of claims.yml.

    Raises LedgerError for names that are missing or unknown, for what is no finite number, for a negative error.
    """
    if claim.kind == "identity":
        errors = value if isinstance(value, Mapping) else {"error": value}
        if not errors:
            raise LedgerError(f"{claim.id} was given no error at all: hand over one number, or one for each model.")
        numbers = {str(name): number(error, f"{claim.id}: the error {name!r}") for name, error in errors.items()}
        for name, error in numbers.items():
            if error < 0:
                raise LedgerError(f"{claim.id}: the error {name!r} is {error:g}, but an error cannot be negative.")
        return numbers
    if not isinstance(value, Mapping):
        if len(claim.values) != 1:
            raise LedgerError(f"{claim.id} needs {len(claim.values)} named numbers: {', '.join(claim.values)}; hand over a dict.")
        value = {next(iter(claim.values)): value}
    if missing := [name for name in claim.values if name not in value]:
        raise LedgerError(f"{claim.id} misses {', '.join(missing)}: claims.yml says what they are.")
    if unknown := [str(name) for name in value if name not in claim.quantities]:
        raise LedgerError(f"{claim.id} has no value {', '.join(unknown)}: claims.yml names {', '.join(claim.quantities)}.")
    return {name: number(value[name], f"{claim.id}: {name}") for name in claim.quantities if name in value}


def verdict_on(claim: Claim, numbers: Mapping[str, float]) -> Verdict:
    """The verdict on measured values, by the claim's criterion alone."""
    if claim.kind == "identity":
        return Verdict.HOLDS if max(numbers.values()) < claim.tolerance else Verdict.FAILS
    if evaluate(claim.reproduced, numbers):
        return Verdict.REPRODUCED
    return Verdict.PARTLY if evaluate(claim.partly, numbers) else Verdict.NOT_REPRODUCED


def judge(id: str, value: float | Mapping[str, float] | None = None, *, detail: str = "", **values: float) -> Record:
    """Judge what a chapter measured for a claim, by the criterion in claims.yml.

    `value` or keywords: the numbers that claims.yml names; of an identity its error, or errors by model. Tensors of one element are
    numbers. `detail`: a sentence for the reader, such as which heads. Hand the results of a chapter to `verdicts`.
    Raises LedgerError for an unknown id and for values that cannot be judged.
    """
    claim = claim_of(id)
    given = {**value, **values} if isinstance(value, Mapping) else values if value is None else value
    numbers = measured(claim, given)
    return Record(id=id, values=numbers, verdict=verdict_on(claim, numbers), criterion=claim.criterion, detail=detail)


# ---- the records of a whole book ----------------------------------------------------------------------------------------


def problems(recorded: Mapping[str, Sequence[Record]]) -> list[str]:
    """What is wrong with the records of a book's notebooks (by notebook), a sentence each; empty if nothing is."""
    found: list[str] = []
    owner: dict[str, str] = {}
    for notebook, record in [(notebook, record) for notebook, records in recorded.items() for record in records]:
        claim = load_claims().get(record.id)
        if claim is None:
            found.append(f"{notebook} records claim {record.id!r}, and there is no such claim in claims.yml.")
            continue
        try:
            as_judged = verdict_on(claim, measured(claim, record.values)), claim.criterion
        except LedgerError as error:
            found.append(f"{notebook}: {error}")
            continue
        if as_judged != (record.verdict, record.criterion):
            found.append(f"{notebook} judged {record.id} by another criterion than that of claims.yml: use judge().")
        if record.id in owner:
            found.append(f"{record.id} is recorded twice, by {owner[record.id]} and by {notebook}: keep one of them.")
        owner[record.id] = notebook
    return found


def missing(recorded: Collection[str]) -> list[Claim]:
    """The claims without a record, those aside that need the network."""
    return [claim for id, claim in load_claims().items() if id not in recorded and not claim.needs_network]


def read_accepted(path: Path | None = None) -> dict[str, Verdict]:
    """The verdict last accepted for each claim. Raises LedgerError for what is no verdict."""
    path = path or ACCEPTED_FILE
    stored = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    if wrong := [id for id, verdict in stored.items() if verdict not in set(Verdict)]:
        raise LedgerError(f"{path.name} gives {', '.join(wrong)} a verdict that does not exist.")
    return {id: Verdict(verdict) for id, verdict in stored.items()}


def accept(now: Mapping[str, Verdict], path: Path | None = None) -> None:
    """Write the verdicts as accepted: of every claim, in the ledger's order; "not run" without a record."""
    head = "# The verdict on every claim as last accepted: python -m transformer_circuits.claims accept\n"
    lines = (f"{id}: {now.get(id, Verdict.NOT_RUN)}\n" for id in load_claims())
    path = path or ACCEPTED_FILE
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(head + "".join(lines), encoding="utf-8")
    partial.replace(path)


def changed(now: Mapping[str, Verdict], accepted: Mapping[str, Verdict]) -> list[tuple[str, str, str]]:
    """(claim, accepted verdict, verdict now) wherever they differ; "none" for a claim that was never accepted."""
    verdicts = {id: now.get(id, Verdict.NOT_RUN) for id in load_claims()}
    differing = [(id, accepted.get(id, "none"), verdict) for id, verdict in verdicts.items() if accepted.get(id) != verdict]
    return differing + [(id, verdict, "none") for id, verdict in accepted.items() if id not in verdicts]
