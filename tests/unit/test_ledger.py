"""The ledger: its claims are the paper's, its criteria can fail and can be met, and no record slips by unseen."""

import json
import os
import re

import numpy as np
import pytest
import torch
import yaml

from transformer_circuits import paths
from transformer_circuits.claims import Verdict, __main__, ledger, record
from transformer_circuits.claims.ledger import LedgerError, judge, load_claims

# The paper's claims as this project lists them, section by section.
PAPER = """
O1 O2 O3 O4 O5 O6 O7 O8  Z1 Z2 Z3
P1 P2 P3 S1 S2 S3 S4 S5 S6 S7 S8 E1 E2 E3 E4 E5 E6
T1 T2 T3 T4 T5 T6 T7 T8 T9 T10 T11 T12 T13 T14 T15
W1 W2 W3 W4 W5 W6 W7 W8 W9 W10  X1 X2 X3  A1 A2 A3 A4
""".split()
IDENTITIES = set("O1 O2 O3 O4 P1 P2 P3 E3 E5 T1 T2 X1 X2 X3 A1 A2 A3 A4".split())
JUDGED = [id for id in PAPER if id not in IDENTITIES]

# For each claim numbers that bear its statement out, in the order of its `values`: a criterion that nothing can meet, or that
# was mistyped, shows here. They are inventions, not results.
BORNE_OUT = {
    "O5": (3, 0.4, 0.01), "O6": (1e-9, 1e-7, 1e-7), "O7": (0.6, 0.6, 0.29, 0.2, 0.5), "O8": (1, 2, 36),
    "Z1": (4.42, 4.4, 6.4, 0.1, 2.1, 0.95), "Z2": (0.02,), "Z3": (0.1, 1.5, 2, 0.9, 0.85, 0.8, 0.4, 0.2, 0.1),
    "S1": (5, 5, 0.8, 0.2), "S2": (0.4, 0.2, 0.02, 0.01, 0.0004, 0.0004, 0.0001, 0.0001), "S3": (20, 0.1, 0.01),
    "S4": (50, 30, 1), "S5": (3, 3, 12), "S6": (12, 0.01, 0.005, 0.015), "S8": (0.5, 0.1),
    "E2": (0.001, 0.002, 0.02), "E4": (0.8, 0.8, 0.8, -0.1), "E6": (0.1, 0.001, 4),
    "T3": (4, 1, 1, 3), "T4": (2.9, 1, 0.5), "T5": (0.03,), "T6": (5, 0.7, 0.1), "T7": (0.5, 0.7, 0.2, 4),
    "T8": (0.02, 0.8, 12, 8, 7.5, 12, 3, 2.5, 4.4), "T9": (0.8, 0.1), "T10": (2, 2, 10, 0), "T12": (0.3, 0.05, 0.01),
    "T13": (144, 24, 0.4, 0.1), "T14": (0.8, 0.05, 0.75), "T15": (500, 3, 0.2),
    "W1": (-0.05, -0.5, 0.01), "W2": (0.7, 400, 600, 800, 300, 0.7, 0.02), "W3": (0.7, 0.05), "W4": (0.8, 0.02), "W5": (0.6, 0.4),
    "W6": (5, 0.7, 5), "W7": (3, 0.5), "W8": (0.01, 0.8), "W9": (6, 4.5, 4, 1e-6), "W10": (0.3, 0.3, 0.083),
}  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A claims folder of the test's own."""
    monkeypatch.setenv("TRANSFORMER_CIRCUITS_CLAIMS", str(tmp_path / "claims"))
    return tmp_path / "claims"


# The claims


def test_the_ledger_holds_exactly_the_papers_claims():
    assert list(load_claims()) == sorted(PAPER, key=list(load_claims()).index)
    assert set(load_claims()) == set(PAPER) and len(PAPER) == 60


def test_exactly_the_papers_identities_are_identities():
    assert {id for id, claim in load_claims().items() if claim.kind == "identity"} == IDENTITIES


@pytest.mark.parametrize("id", JUDGED)
def test_a_false_statement_is_judged_not_reproduced(id):
    claim = load_claims()[id]
    for case in claim.fails_at:
        assert judge(claim, case.values) is Verdict.NOT_REPRODUCED, case.case


@pytest.mark.parametrize("id", JUDGED)
def test_a_true_statement_is_judged_reproduced(id):
    claim = load_claims()[id]
    if id in BORNE_OUT:
        assert judge(claim, dict(zip(claim.values, BORNE_OUT[id], strict=True))) is Verdict.REPRODUCED
    for values in [claim.paper_values] if claim.paper_values else []:
        assert judge(claim, values) is Verdict.REPRODUCED
    assert id in BORNE_OUT or claim.paper_values or id == "S7"


def test_a_part_that_was_not_measured_cannot_make_a_claim_reproduced():
    s7 = load_claims()["S7"]
    assert judge(s7, {"main": 1, "second": 1}) is Verdict.REPRODUCED
    assert judge(s7, {"main": 1}) is Verdict.PARTLY
    assert judge(s7, {"main": 0.5, "second": 1}) is Verdict.NOT_REPRODUCED


def test_an_identity_is_judged_by_its_largest_error():
    o1 = load_claims()["O1"]
    assert judge(o1, 9e-5) is Verdict.HOLDS
    assert judge(o1, 1e-4) is Verdict.FAILS
    assert judge(o1, {"attn-only-1l": 1e-7, "attn-only-2l": 2e-4}) is Verdict.FAILS
    assert judge(load_claims()["X3"], 0.02) is Verdict.HOLDS


def test_every_claim_says_what_is_measured_where_and_why_not_yet():
    for claim in load_claims().values():
        assert claim.statement and claim.metric and claim.chapter and claim.not_run, claim.id
        assert claim.chapter_number is None or 1 <= claim.chapter_number <= 14


def entry(**changes):
    claim = {
        "id": "T1", "title": "t", "kind": "number", "statement": "s", "metric": "m", "chapter": "c", "why": "w",
        "values": {"x": {"what": "x"}}, "reproduced": "x > 2", "partly": "x > 1", "fails_at": [{"case": "c", "values": {"x": 0}}],
    }  # fmt: skip
    return {**claim, **changes}


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([entry(), entry()], "two claims T1"),
        ([entry(id="first")], "id"),
        ([entry(kind="guess")], "kind"),
        ([entry(reproduced="y > 2")], "'y'"),
        ([entry(reproduced="x >")], "no expression"),
        ([entry(reproduced="x + 1")], "not a comparison"),
        ([entry(reproduced="__import__('os').getcwd() == x")], "__import__"),
        ([entry(reproduced="x.__class__ == x")], "cannot be evaluated"),
        ([entry(reproduced="[y for y in (1, 2)] == x")], "'y'"),
        ([entry(partly="")], "partly is missing"),
        ([entry(fails_at=[])], "fails_at is missing"),
        ([entry(colour="red")], "colour"),
        ([entry(kind="identity")], "no criteria"),
    ],
)
def test_a_ledger_with_a_mistake_is_refused(tmp_path, entries, words):
    path = tmp_path / "claims.yml"
    path.write_text(yaml.safe_dump({"sections": [{"title": "s", "claims": entries}]}))
    with pytest.raises(LedgerError, match=re.escape(words)) as caught:
        load_claims(path)
    assert "\n" not in str(caught.value)


# Recording


def test_a_record_is_kept_with_its_verdict_criterion_and_versions(folder):
    shown = record("Z2", 0.3, detail="of 8,192 tokens")
    kept = json.loads((folder / "Z2.json").read_text())
    assert [path.name for path in folder.iterdir()] == ["Z2.json"]
    assert kept["values"] == {"self_largest": 0.3} and kept["verdict"] == "partly" and kept["detail"] == "of 8,192 tokens"
    assert kept["criterion"] == load_claims()["Z2"].criterion and kept["versions"]["torch"] == torch.__version__
    assert shown == ledger.read_record(folder / "Z2.json")


def test_the_notebooks_name_is_kept_where_the_kernel_knows_it(folder, monkeypatch):
    monkeypatch.setenv("JPY_SESSION_NAME", "/somewhere/private/02_zero_layers.ipynb")
    assert record("Z2", 0.3).notebook == "02_zero_layers.ipynb"


@pytest.mark.parametrize("value", [0.3, np.float32(0.3), np.array(0.3), torch.tensor(0.3), torch.tensor([0.3])])
def test_any_kind_of_one_number_is_a_number(value):
    kept = record("Z2", value).values["self_largest"]
    assert type(kept) is float and kept == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("id", "value", "words"),
    [
        ("o1", 0.0, "did you mean O1"),
        ("T16", 0.0, "did you mean T6, T1"),
        ("?", 0.0, "the ids are O1, O2"),
        ("O1", float("nan"), "nan: only finite"),
        ("O1", {"attn-only-1l": float("inf")}, "inf: only finite"),
        ("O1", -1e-9, "cannot be negative"),
        ("O1", {}, "no error at all"),
        ("O1", "small", "must be a number, not 'small'"),
        ("O1", True, "must be a number, not True"),
        ("O1", 1j, "must be one number, not complex"),
        ("O1", torch.zeros(2), "must be one number, not Tensor"),
        ("O1", None, "must be one number, not NoneType"),
        ("O5", 2.0, "needs 3 named numbers: largest_ratio, spread, spread_random"),
        ("O5", {"largest_ratio": 2.0, "spread": 1.0}, "misses spread_random"),
        ("Z2", {"self_largest": 0.1, "own": 1.0}, "has no value own"),
    ],
)
def test_what_cannot_be_judged_is_refused_in_one_sentence_and_leaves_nothing(folder, id, value, words):
    with pytest.raises(LedgerError, match=re.escape(words)) as caught:
        record(id, value)
    assert "\n" not in str(caught.value) and not folder.exists()


def test_a_record_that_cannot_be_written_leaves_the_old_one_whole(folder, monkeypatch):
    record("O1", 1e-7)

    def no_space(*_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", no_space)
    with pytest.raises(OSError, match="no space"):
        record("O1", 5e-7)
    assert ledger.read_record(folder / "O1.json").values == {"error": 1e-7}
    assert [path.name for path in folder.iterdir()] == ["O1.json"]


# The box in the notebook


def test_the_box_escapes_everything_and_tells_the_verdict_in_words():
    bs4 = pytest.importorskip("bs4")
    text = record("O1", {"<td": 1e-7}, detail="</script> & `code`")._repr_html_()
    assert "<td" not in text and "</script>" not in text and "`" not in text
    box = bs4.BeautifulSoup(text, "html.parser").section
    assert box["id"] == "claim-O1" and box["aria-label"] == "Claim O1: identity holds"
    assert "error, <td" in box.text and "1.0e-7" in box.text and "</script> & `code`" in box.text and "identity holds" in box.text
    assert "tc-identity-holds" in box["class"]


def test_the_box_as_text():
    assert repr(record("Z2", 0.034)).splitlines() == [
        "Z2 The unembedding is not the inverse of the embedding: reproduced",
        "  tokens that predict themselves most: 3.4 %",
    ]


# The records of a whole book


@pytest.fixture
def book(tmp_path, folder, monkeypatch):
    """A book of two notebooks with their records, in which all is well."""
    one_claim = {id: claim for id, claim in load_claims().items() if id in ("Z1", "Z2", "Z3", "E5")}
    monkeypatch.setattr(ledger, "load_claims", lambda path=None: one_claim)
    notebooks = tmp_path / "notebooks"
    notebooks.mkdir()
    write_notebook(notebooks / "02_zero_layers.ipynb", "z2 = 0.01", 'record("Z1", z)', "claims.record(\n 'Z2', z2)", 'record("Z3", z)')
    z1 = dict(zip(one_claim["Z1"].values, BORNE_OUT["Z1"]))
    z3 = dict(zip(one_claim["Z3"].values, BORNE_OUT["Z3"]))
    record("Z1", z1), record("Z2", 0.02), record("Z3", z3)

    class Small:
        accepted = {"Z1": "reproduced", "Z2": "reproduced", "Z3": "reproduced", "E5": "not run"}
        changelog = ""
        claims = one_claim

        def problems(self):
            return ledger.check_records(folder, notebooks, self.accepted, self.changelog)

    small = Small()
    small.folder, small.notebooks = folder, notebooks
    assert small.problems() == []
    return small


def write_notebook(path, *cells):
    path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": cell.splitlines(keepends=True)} for cell in cells]}))


def test_calls_of_record_are_found_in_code_only(tmp_path):
    path = tmp_path / "01_x.ipynb"
    cells = [
        {"cell_type": "markdown", "source": ['record("O1", 1)']},
        {"cell_type": "code", "source": ['# record("O2", 1)\n', 'record_number("loss", 1); record( "O3", e)']},
        {"cell_type": "code", "source": "record('O4',\n e)"},
    ]
    path.write_text(json.dumps({"cells": cells}))
    assert ledger.recorded_in(path) == ["O3", "O4"]


def test_a_claim_without_record_and_without_reason_is_a_problem(book):
    book.claims["E5"] = book.claims["E5"].model_copy(update={"not_run": ""})
    assert book.problems() == ["E5 has neither a record nor a reason in claims.yml (not_run) why there is none."]


def test_a_notebook_that_left_no_record_is_a_problem(book):
    (book.folder / "Z2.json").unlink()
    assert book.problems()[0] == "02_zero_layers.ipynb should record Z2 but left no record: run it anew."


def test_only_a_claim_that_needs_the_network_may_be_left_unrecorded_by_its_chapter(tmp_path):
    assert [id for id, claim in load_claims().items() if claim.needs_network] == ["W7"]

    def problems(*cells):
        write_notebook(tmp_path / "13_more.ipynb", *cells)
        return ledger.check_records(tmp_path, tmp_path, accepted=dict.fromkeys(load_claims(), "not run"))

    assert problems('record("W7", 1)') == ["W6 belongs to 13_more.ipynb, which does not record it."]
    assert problems('record("W6", 1)') == [
        "13_more.ipynb should record W6 but left no record: run it anew.",
        "W7 belongs to 13_more.ipynb, which does not record it.",
    ]


def test_a_chapter_that_does_not_record_its_claims_is_a_problem(book):
    (book.folder / "Z3.json").unlink()
    write_notebook(book.notebooks / "02_zero_layers.ipynb", 'record("Z1", 1)', 'record("Z2", 1)')
    assert book.problems()[0] == "Z3 belongs to 02_zero_layers.ipynb, which does not record it."


def test_a_record_without_claim_is_a_problem(book):
    other = (book.folder / "Z2.json").read_text().replace('"Z2"', '"Q7"')
    (book.folder / "Q7.json").write_text(other)
    write_notebook(book.notebooks / "03_more.ipynb", 'record("Q8", 1)')
    assert book.problems() == [
        "Q7.json records claim 'Q7', and there is no such claim: correct its chapter.",
        "03_more.ipynb records 'Q8', and there is no such claim in claims.yml.",
    ]
    with pytest.raises(LedgerError, match="no claim 'Q7'"):
        ledger.read_records(book.folder)


def test_a_record_that_no_notebook_makes_is_a_problem(book):
    record("E5", 1e-9)
    book.accepted["E5"] = "identity holds"
    assert book.problems() == ["E5 has a record, but no notebook records it: remove the record, or bring the notebook back."]


@pytest.mark.parametrize("damage", ['{"id": "Z2"', "[]", '{"id": "Z2", "values": {"self_largest": NaN}}'])
def test_a_damaged_record_is_a_problem(book, damage):
    (book.folder / "Z2.json").write_text(damage)
    assert book.problems()[0] == "Z2.json is not a claim's record: remove it and run its chapter anew."


def test_a_record_under_a_foreign_name_is_a_problem(book):
    (book.folder / "Z2.json").rename(book.folder / "E5.json")
    assert "E5.json records claim 'Z2'" in book.problems()[0]
    with pytest.raises(LedgerError, match="holds the record of Z2"):
        ledger.read_records(book.folder)


def test_a_record_edited_by_hand_is_a_problem(book):
    path = book.folder / "Z2.json"
    path.write_text(path.read_text().replace("0.02", "0.9"))
    assert book.problems() == ["The record of Z2 was judged by a criterion that has changed since: run its chapter anew."]


def test_a_record_of_older_values_is_a_problem(book):
    path = book.folder / "Z2.json"
    path.write_text(path.read_text().replace("self_largest", "diagonal"))
    assert "does not fit its claim" in book.problems()[0]


def test_a_changed_verdict_needs_its_line_in_the_changelog(book):
    record("Z2", 0.4)
    assert len(book.problems()) == 1 and "Z2 is now 'partly', the accepted verdict is 'reproduced'" in book.problems()[0]
    book.changelog = "- Z2: partly, as the new model repeats itself more"
    assert book.problems() == []


@pytest.mark.parametrize("line", ["- Z1: partly", "- Z22: partly", "- Z2: reproduced", "- Z2\n- partly"])
def test_a_line_about_something_else_does_not_announce_it(book, line):
    record("Z2", 0.4)
    book.changelog = line
    assert len(book.problems()) == 1


def test_not_reproduced_does_not_announce_reproduced():
    assert ledger.announced("- Z2: not reproduced", "Z2", "not reproduced")
    assert not ledger.announced("- Z2: not reproduced", "Z2", "reproduced")


def test_only_the_newest_part_of_the_changelog_announces():
    changelog = "# Changelog\n\n## Unreleased\n\n- Z1: partly\n\n## 0.1\n\n- Z2: partly\n"
    assert ledger.announced(changelog, "Z1", "partly") and not ledger.announced(changelog, "Z2", "partly")


def test_a_verdict_never_accepted_and_an_accepted_one_of_no_claim_are_problems(book):
    del book.accepted["Z2"]
    book.accepted["Q1"] = "reproduced"
    assert len(book.problems()) == 2


def test_accepting_writes_first_results_and_refuses_silent_changes(book, tmp_path):
    path = tmp_path / "verdicts.yml"
    ledger.accept(book.folder, path)
    assert ledger.read_accepted(path) == book.accepted
    record("Z2", 0.4)
    with pytest.raises(LedgerError, match=r"no line for Z2 \(reproduced -> partly\)"):
        ledger.accept(book.folder, path)
    assert ledger.read_accepted(path) == book.accepted
    ledger.accept(book.folder, path, changelog="- Z2: partly")
    assert ledger.read_accepted(path)["Z2"] == "partly"


def test_the_command_needs_records(capsys, folder):
    assert __main__.main(["check"]) == 1
    assert "make book" in capsys.readouterr().err


def test_the_command_lists_problems(capsys, folder):
    folder.mkdir()
    (folder / "Q1.json").write_text("{}")
    assert __main__.main(["check"]) == 1
    assert "Q1.json is not a claim's record" in capsys.readouterr().out


def test_the_accepted_verdicts_name_every_claim_once():
    accepted = ledger.read_accepted()
    assert list(accepted) == list(load_claims())
    assert set(accepted.values()) <= set(Verdict)
    lines = [line for line in (paths.ROOT / "book" / "verdicts.yml").read_text().splitlines() if not line.startswith("#")]
    assert len(lines) == len(accepted)
