"""The ledger: load the claims, judge what a chapter measured, record it, and check the records of a whole book.

    from transformer_circuits.claims import record
    record("O5", {"largest_ratio": 2.7, "spread": 0.3, "spread_random": 0.01}, detail="head 0.7 to key of 1.4")

The criteria are in claims.yml and were written before the results; nothing here knows any claim by name.
"""

from __future__ import annotations

import ast
import difflib
import enum
import functools
import importlib.metadata
import json
import math
import os
import platform
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from simpleeval import InvalidExpression, SimpleEval

from transformer_circuits import paths

CLAIMS_FILE = Path(__file__).with_name("claims.yml")
ACCEPTED_FILE = paths.ROOT / "book" / "verdicts.yml"  # not below src/: accepting a verdict need not run the notebooks anew
FUNCTIONS = {"min": min, "max": max, "abs": abs}
PACKAGES = ("transformer-circuits-reproduced", "torch", "transformer-lens")  # whose versions a record keeps


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

    @property
    def chapter_number(self) -> int | None:
        """N where the claim belongs to chapter "N title", None for appendices and chapters that have no number yet."""
        found = re.match(r"(\d+) ", self.chapter)
        return int(found[1]) if found else None


class Record(Strict):
    """What a chapter measured for one claim, with the verdict. In a notebook it shows itself as a small box."""

    id: str
    values: dict[str, Finite]
    verdict: Verdict
    criterion: str
    detail: str = ""
    notebook: str = ""
    versions: dict[str, str] = {}

    @property
    def claim(self) -> Claim:
        return claim_of(self.id)

    def __repr__(self) -> str:
        from transformer_circuits.claims import show

        return show.box_text(self)

    __str__ = __repr__

    def _repr_html_(self) -> str:
        from transformer_circuits.claims import show

        return show.box_html(self)


def names_in(criterion: str) -> set[str]:
    """The values that a criterion refers to. Raises ValueError where it is no expression."""
    try:
        tree = ast.parse(criterion, mode="eval")
    except SyntaxError as error:
        raise ValueError(f"the criterion {criterion!r} is no expression") from error
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - FUNCTIONS.keys()


def evaluate(criterion: str, values: Mapping[str, float]) -> bool:
    """Whether the criterion is met: comparisons, and/or, arithmetic, min, max and abs over named numbers, and nothing else.

    Not met where it refers to an optional value that was not measured.
    """
    if not names_in(criterion) <= values.keys():
        return False
    try:
        met = SimpleEval(names=dict(values), functions=FUNCTIONS).eval(criterion)
    except (InvalidExpression, ZeroDivisionError, TypeError) as error:
        raise ValueError(f"the criterion {criterion!r} cannot be evaluated: {error}") from error
    if not isinstance(met, bool):
        raise ValueError(f"the criterion {criterion!r} is not a comparison")
    return met


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


def judge(claim: Claim, value: float | Mapping[str, float]) -> Verdict:
    """The verdict on a measured value, by the claim's criterion alone. Raises LedgerError as `measured` does."""
    numbers = measured(claim, value)
    if claim.kind == "identity":
        return Verdict.HOLDS if max(numbers.values()) < claim.tolerance else Verdict.FAILS
    if evaluate(claim.reproduced, numbers):
        return Verdict.REPRODUCED
    return Verdict.PARTLY if evaluate(claim.partly, numbers) else Verdict.NOT_REPRODUCED


def claims_folder() -> Path:
    """Where records are kept; the environment variable is read anew so that each notebook can have its own."""
    return Path(os.environ.get("TRANSFORMER_CIRCUITS_CLAIMS") or paths.CLAIMS)


def version(package: str) -> str:
    """The installed version of a package; that of this one is unknown where it is only on the path."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def record(id: str, value: float | Mapping[str, float], detail: str = "") -> Record:
    """Judge a measured value and keep it, with the verdict, as `<claims folder>/<id>.json` (written in one piece).

    `value`: a number, or a dict of the numbers that claims.yml names for the claim; of an identity its relative error,
    or a dict of errors by model. `detail`: a sentence for the reader, such as which heads. Returns the record, which a
    notebook shows as a box. Raises LedgerError for an unknown id and for values that cannot be judged.
    """
    claim = claim_of(id)
    numbers = measured(claim, value)
    result = Record(
        id=id,
        values=numbers,
        verdict=judge(claim, numbers),
        criterion=claim.criterion,
        detail=detail,
        # JupyterLab tells its kernels which notebook they run; elsewhere the name is not to be had.
        notebook=Path(os.environ.get("JPY_SESSION_NAME", "")).name,
        versions={"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
    )
    write_whole(claims_folder() / f"{id}.json", result.model_dump_json(indent=1) + "\n")
    return result


def write_whole(path: Path, text: str) -> None:
    """Write a file so that no reader, and no kill, ever meets half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False, encoding="utf-8") as part:
        part.write(text)
    try:
        os.chmod(part.name, 0o644)  # temporary files are private, this one is not
        os.replace(part.name, path)
    except OSError:
        os.unlink(part.name)
        raise


def read_record(path: Path) -> Record:
    """One record. Raises LedgerError for a file that is no record."""
    try:
        return Record.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except (ValidationError, ValueError) as error:
        raise LedgerError(f"{path.name} is not a claim's record: remove it and run its chapter anew.") from error


def read_records(folder: Path) -> dict[str, Record]:
    """All records of a folder by id, in the ledger's order; a missing folder holds none. Raises LedgerError for a
    file that is no record, and for the record of a claim that does not exist."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        found[path.stem] = read_record(path)
        if path.stem != claim_of(found[path.stem].id).id:
            raise LedgerError(f"{path.name} holds the record of {found[path.stem].id}: remove it and run its chapter anew.")
    return {id: found[id] for id in load_claims() if id in found}


def verdicts(records: Mapping[str, Record]) -> dict[str, Verdict]:
    """The verdict on every claim, "not run" included."""
    return {id: records[id].verdict if id in records else Verdict.NOT_RUN for id in load_claims()}


def recorded_in(notebook: Path) -> list[str]:
    """The ids that a notebook's code hands to `record`, in order. They must stand there as literals: record("O1", ...)."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    code = re.sub(r"^\s*#.*$", "", code, flags=re.MULTILINE)
    return re.findall(r"""\brecord\(\s*["']([^"']*)["']""", code)


def notebooks_of_claims(notebooks: Path) -> dict[str, Path]:
    """Which notebook of a folder records which claim."""
    return {id: path for path in sorted(notebooks.glob("*.ipynb")) for id in recorded_in(path)}


def read_accepted(path: Path = ACCEPTED_FILE) -> dict[str, str]:
    """The verdicts last accepted, by id; none where the file does not exist yet."""
    return yaml.safe_load(path.read_text(encoding="utf-8")) or {} if path.is_file() else {}


def announced(changelog: str, id: str, verdict: str) -> bool:
    """Whether a line of the changelog's newest part names this claim together with this verdict."""
    newest = "".join(re.split(r"^## ", changelog, flags=re.MULTILINE)[:2])
    # "not reproduced" must not announce "reproduced".
    words = re.compile(rf"(?<!not ){re.escape(verdict)}\b")
    return any(re.search(rf"\b{id}\b", line) and words.search(line) for line in newest.splitlines())


def check_records(
    folder: Path, notebooks: Path, accepted: Mapping[str, str] | None = None, changelog: str = ""
) -> list[str]:
    """What is wrong with the records in `folder`, one sentence each; an empty list if all is well.

    - a record that is damaged, of no claim, of no notebook's making, or judged by a criterion that has changed since
    - a claim with neither a record nor a reason why not; one that a notebook records but that left no record, unless it
      needs the network; one whose chapter is there but records it nowhere
    - a verdict that is not the accepted one, without a line in the changelog that names the claim and the new verdict
    """
    claims, problems, records = load_claims(), [], {}
    for path in sorted(folder.glob("*.json")):
        try:
            found = read_record(path)
        except LedgerError as error:
            problems.append(str(error))
            continue
        if found.id not in claims or found.id != path.stem:
            problems.append(f"{path.name} records claim {found.id!r}, and there is no such claim: correct its chapter.")
        else:
            records[found.id] = found

    owners = notebooks_of_claims(notebooks)
    chapters = {int(found[1]): path.name for path in sorted(notebooks.glob("*.ipynb")) if (found := re.match(r"(\d+)_", path.name))}
    for id, path in owners.items():
        if id not in claims:
            problems.append(f"{path.name} records {id!r}, and there is no such claim in claims.yml.")
    for id, claim in claims.items():
        if id not in records:
            if id in owners and claim.needs_network:
                continue  # its chapter is there, and says why nothing was measured
            if id in owners:
                problems.append(f"{owners[id].name} should record {id} but left no record: run it anew.")
            elif claim.chapter_number in chapters:
                problems.append(f"{id} belongs to {chapters[claim.chapter_number]}, which does not record it.")
            elif not claim.not_run:
                problems.append(f"{id} has neither a record nor a reason in claims.yml (not_run) why there is none.")
            continue
        if id not in owners:
            problems.append(f"{id} has a record, but no notebook records it: remove the record, or bring the notebook back.")
        try:
            verdict = judge(claim, records[id].values)
        except LedgerError as error:
            problems.append(f"The record of {id} does not fit its claim; run its chapter anew. {error}")
            continue
        if (verdict, claim.criterion) != (records[id].verdict, records[id].criterion):
            problems.append(f"The record of {id} was judged by a criterion that has changed since: run its chapter anew.")

    for id, verdict in verdicts(records).items():
        before = (accepted or {}).get(id, "none")
        if verdict != before and not announced(changelog, id, verdict):
            problems.append(
                f"{id} is now '{verdict}', the accepted verdict is '{before}': say why in CHANGELOG.md, in a line that names "
                f"{id} and '{verdict}', and run `python -m transformer_circuits.claims accept`."
            )
    problems += [f"An accepted verdict names {id!r}, and there is no such claim." for id in accepted or {} if id not in claims]
    return problems


def accept(folder: Path, path: Path = ACCEPTED_FILE, changelog: str = "") -> dict[str, Verdict]:
    """Write the present verdicts as the accepted ones. A first result needs no announcement, any other change does.

    Raises LedgerError if one lacks its line in the changelog; nothing is written then.
    """
    before, now = read_accepted(path), verdicts(read_records(folder))
    silent = [
        f"{id} ({before[id]} -> {verdict})"
        for id, verdict in now.items()
        if before.get(id, Verdict.NOT_RUN) not in (Verdict.NOT_RUN, verdict) and not announced(changelog, id, verdict)
    ]
    if silent:
        raise LedgerError(f"CHANGELOG.md has no line for {', '.join(silent)}: name the claim and its new verdict there, and why.")
    lines = [f"{id}: {verdict}" for id, verdict in now.items()]
    header = "# The verdict on every claim as last accepted: python -m transformer_circuits.claims accept\n"
    write_whole(path, header + "\n".join(lines) + "\n")
    return now
