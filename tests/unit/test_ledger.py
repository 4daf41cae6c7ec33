"""The ledger: its claims are the paper's, its criteria can fail and can be met."""

import ast
import re
import string

import pytest
import yaml
from bs4 import BeautifulSoup

from transformer_circuits.claims import Verdict, judge, ledger, show, verdicts
from transformer_circuits.claims.ledger import LedgerError, load_claims, names_in, verdict_on

JUDGED = [id for id, claim in load_claims().items() if claim.judged]

# For each claim numbers that bear its statement out, in the order of its `values`: a criterion that nothing can meet, or that
# was mistyped, shows here. They are inventions, not results.
BORNE_OUT = {
    "O5": (3, 0.4, 0.01), "O7": (0.6, 0.6, 0.29, 0.2, 0.5), "O8": (1, 2, 36), "O9": (3, 4, 1, 0.05),
    "Z1": (0.98, 0.1, 2.1, 0.95), "Z2": (0.02,), "Z3": (0.1, 1.5, 2, 0.9, 0.9, 0.6, 0.6, 0.9, 0.3, 0.3, 0.2, 0.2),
    "S1": (0.9, 0.02, 0.8, 0.2), "S2": (0.4, 0.2, 0.02, 0.01, 0.0004, 0.0004, 0.0001, 0.0001), "S3": (20, 0.1, 0.01),
    "S4": (50, 0.6, 0.02, 0.6, 0.02), "S5": (0.8, 0.6, 2, 12), "S8": (0.5, 0.1, 1), "S9": (0.95, 2),
    "E4": (0.99, 0.9, 0.95, 0.98, 0.7, 0.8), "E6": (0.1, 0.001, 4), "E7": (0.6, 1.2, 2),
    "T3": (4, 1, 1, 3, 3), "T5": (0.03,), "T6": (2, 0.7, 0.1, 0.14), "T7": (0.5, 0.7, 0.2, 4, 0.3),
    "T8": (0.02, 0.8, 0.001, 0.7, 0.1, 6, 8.3), "T9": (0.8, 0.1), "T10": (2, 2, 10, 0), "T12": (0.3, 0.05, 6),
    "T14": (0.8, 0.05, 0.75, 0.3, 12), "T16": (0.8, 0.6, 0.95, 0.6, 0.95), "T17": (0.9, 0.2, 0.7, 0.5, 0.2, 0.2),
    "T18": (0.95, 0.9, 0.01), "T19": (0.97, 0.95), "T20": (0.9,), "T21": (0.95, 3),
    "W1": (-0.05, -0.5, 0.45), "W2": (0.7, 400, 600, 800, 300, 2, 300, 0.7, 0.02), "W3": (0.7, 0.05, 0.8, 0.75, 0.9), "W4": (0.8, 0.02), "W5": (0.6, 0.4),
    "W6": (5, 3, 0.7, 5, 0.6), "W7": (2, 0.5, 0.6, 0.1, 0.9), "W8": (0.01, 0.8), "W9": (1.5, 0.5, 1e-6), "W10": (0.3, 0.3, 0.083), "W11": (0.9, 250, 240, 60),
}  # fmt: skip


def borne_out(id):
    """Values with which a claim is reproduced: the paper's, or invented ones, without error; of models that were trained alike. A fresh
    seed has the same ones."""
    claim = load_claims()[id]
    values = claim.paper_values or dict(zip(claim.values, BORNE_OUT[id], strict=True))
    values |= {name: values[name[6:]] for name in claim.optional if name.startswith("fresh_")}
    values |= dict.fromkeys((error for name, error in claim.errors.items() if name in values), 0)
    return {**values, "alike": 1} if "alike" in claim.optional else values


@pytest.mark.parametrize("id", load_claims())
def test_a_claim_that_is_judged_has_criteria_over_its_values_and_no_other_has(id):
    claim = load_claims()[id]
    criteria = (claim.in_words, claim.reproduced, claim.partly, claim.why, claim.fails_at)
    assert all(criteria) if id in JUDGED else not any((claim.reproduced, claim.partly, claim.errors))
    assert bool(claim.values) == bool(claim.ours) == (claim.kind != "identity")
    assert names_in(ast.parse(f"{claim.reproduced}\n{claim.partly}")) <= {*claim.quantities, *claim.errors.values()}
    named = {name for _, name, _, _ in string.Formatter().parse(claim.ours) if name}
    assert {name.removeprefix("n_") for name in named} <= claim.quantities.keys()


@pytest.mark.parametrize("id", JUDGED)
def test_an_estimate_is_not_judged_without_its_standard_error(id):
    claim, values = load_claims()[id], borne_out(id)
    assert not [name for name, value in claim.quantities.items() if bool(value.over) == value.exact]
    for error in claim.errors.values():
        if error in values:
            with pytest.raises(LedgerError, match=f"is missing {error}"):
                judge(id, {name: value for name, value in values.items() if name != error})


@pytest.mark.parametrize("id", JUDGED)
def test_a_false_statement_is_judged_not_reproduced_and_a_true_one_reproduced(id):
    claim = load_claims()[id]
    for case in claim.fails_at:
        assert verdict_on(claim, case.values) is Verdict.NOT_REPRODUCED, case.case
    assert verdict_on(claim.model_copy(update={"unseen": "another"}), borne_out(id)) is Verdict.REPRODUCED
    assert show.unmet_conditions(judge(id, borne_out(id))) == [show.UNDECIDED] * claim.undecided
    words = claim.in_words  # one plain sentence, with which the card begins
    start = claim.words(Verdict.REPRODUCED).capitalize()
    assert re.fullmatch(rf"{start} if [^`_]*\.", words) and len(words.split()) <= 45, words
    assert not re.search(r"[.!?] [A-Z]", words)


@pytest.mark.parametrize(("score", "error", "verdict", "within"), [
    (0.43, 0.03, "partly reproduced", False),
    (0.29, 0.01, "not reproduced", True),
])  # fmt: skip
def test_a_verdict_that_two_standard_errors_would_change_says_so(score, error, verdict, within):
    values = {**borne_out("T8"), "induction_2l": score, "induction_2l_error": error}
    record = judge("T8", values)
    assert (record.verdict, record.within_error) == (verdict, within)
    assert ("within error of the threshold" in repr(verdicts(record))) == within
    assert not judge("T8", {**values, "induction_2l_error": 0}).within_error


def test_an_identity_is_judged_by_its_largest_error_and_a_note_not_at_all():
    assert judge("O1", 9e-5).verdict is judge("X3", 0.02).verdict is Verdict.HOLDS
    assert judge("O1", 1e-4).verdict is Verdict.FAILS
    assert judge("O1", {"attn-only-1l": 1e-7, "attn-only-2l": 2e-4}).verdict is Verdict.FAILS
    note = judge("S7", main=0.5)
    assert note.verdict is Verdict.NOTED
    assert "note" in repr(verdicts(note)) and "50%" in repr(verdicts(note))


@pytest.mark.parametrize(("id", "value", "words"), [
    ("?", 0.0, "unknown claim '?'; the ids are O1, O2"),
    ("O5", {"largest_ratio": 2.0, "spread": 1.0}, "is missing spread_random"),
    ("Z2", {"self_largest": 0.1, "own": 1.0}, "has no value own"),
    ("O1", "small", "O1 needs finite numbers, or pairs of a number and its standard error, got {'error': 'small'}"),
    ("O1", None, "O1 is missing error"),
    ("Z2", {"self_largest": None}, "Z2 needs finite numbers"),
    ("Z2", (0.1, 0.2, 0.3), "Z2 needs finite numbers"),
    ("Z2", float("nan"), "Z2 needs finite numbers"),
    ("O1", {"attn-only-1l": float("inf")}, "O1 needs finite numbers"),
])  # fmt: skip
def test_what_cannot_be_judged_is_refused(id, value, words):
    with pytest.raises(LedgerError, match=re.escape(words)):
        judge(id, value)


def test_the_list_of_verdicts_escapes_everything_and_leads_to_the_scoreboard(monkeypatch):
    monkeypatch.setenv("TRANSFORMER_CIRCUITS_BOOK", "1")
    odd = judge("O1", {"<td": 1e-7}).model_copy(update={"criterion": "</script> & `W_E`"})
    shown = verdicts(odd, judge("E1", copying_heads=9, heads=12, models=3, models_most=3))._repr_mimebundle_()
    lines = BeautifulSoup(shown["text/html"], "html.parser").select("li")
    assert [line.a["href"] for line in lines] == [f"../book/scoreboard.html#claim-{id}" for id in ("O1", "E1")]
    assert " ".join(lines[1].select_one(".tc-result").text.split()) == (
        "In our main model 9 of 12 do; most do in 3 of 3 such models, and we had asked for all. Paper: 10 of 12 heads."
    )
    assert "</script>" not in shown["text/html"]
    assert str(show.subscripts("<W_E^T W_QK")) == "&lt;W<sub>E</sub><sup>T</sup> W<sub>QK</sub>"


@pytest.mark.parametrize(("id", "changes", "words"), [
    ("T8", {"alike": 0}, "both models were trained alike: no, needs = yes"),
    # a number is never rounded onto its threshold
    ("W2", {"icl_share": 0.49996}, "fraction of the fall of the in-context score between 10% and 90%: 49.996% ± 0%, needs ≥ 50%"),
    ("W10", {"overlap_read": 0.1}, "overlap of read subspaces: 10%; overlap of write subspaces: 30%, needs ≥ 16.6%"),
    ("W1", {"alike": None}, "not measured: both models were trained alike"),
])  # fmt: skip
def test_a_claim_that_is_not_reproduced_says_why(id, changes, words):
    values = {name: x for name, x in {**borne_out(id), **changes}.items() if x is not None}
    assert words in show.unmet_conditions(judge(id, values))


def test_a_public_model_is_judged_alone_where_a_claim_compares_two():
    numbers = {"induction": (0.9, 0.01), "guess": (0.8, 0.01), "drop": (7.0, 0.1), "uniform": 10.8}
    record = judge("T8", numbers, public=True)
    assert record.verdict is Verdict.REPRODUCED and record.claim.criterion == record.criterion
    assert judge("T8", {**numbers, "guess": (0.4, 0.01)}, public=True).verdict is Verdict.PARTLY
    same = judge("O8", memory_heads=1, weak_memory_heads=2, heads=270, public=True)
    assert same.criterion == ledger.claim_of("O8").criterion and show.our_result(same) == "1 of 270 heads"


def test_records_of_other_models_are_read(tmp_path):
    record = judge("Z2", 0.02)
    content = {"model": "Some model", "records": [record.model_dump(mode="json")]}
    (tmp_path / ledger.HELD_OUT).write_text(yaml.safe_dump(content))
    assert ledger.held_out_seed(tmp_path).of("Z2") == record and ledger.held_out_seed(tmp_path).of("Z1") is None
    assert ledger.held_out_seed(tmp_path).model == "Some model"


def test_a_criterion_that_replaced_a_failed_one_after_its_result_counts_as_partly_until_an_unseen_model_decides():
    decided = load_claims()["T10"]
    reworded = [old.model_copy(update={"result": "words"}) for old in decided.amended]
    claim = decided.model_copy(update={"unseen": "", "amended": reworded})
    assert claim.undecided and verdict_on(claim, borne_out("T10")) is Verdict.PARTLY
    assert verdict_on(decided, borne_out("T10")) is Verdict.REPRODUCED
    assert not load_claims()["W4"].undecided  # judged on a model that was trained for it afterward
