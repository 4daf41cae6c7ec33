"""The stored measurements of public models are those of the present measurement and criteria."""

import pytest

from transformer_circuits.claims import judge
from transformer_circuits.models import load_model, public
from transformer_circuits.real import real_models

# What version 1 of the measurement gives for a small model
VERSION, SMALL = 1, "small-2l"
NUMBERS = {
    "induction": 0.27298, "guess": 0.07268, "second_copy": 8.38176, "logit_effect": 3.19838, "loss, intact": 2.43298,
    "kept, everywhere": 0.04328, "kept, keys": 0.08934, "kept, queries": 0.45642, "kept_others_keys": 0.42384,
    "self-match by stream": 0.79061, "corner_OV": 0.20731, "corner_match": 0.21262,
}  # fmt: skip


def test_a_measurement_that_changes_gets_another_version():
    measured = real_models.measure(load_model(SMALL, "cpu")).numbers
    changed = [name for name, number in NUMBERS.items() if measured[name] != pytest.approx(number, rel=1e-3)]
    assert real_models.VERSION == VERSION and not changed, (
        "the measurement changed: raise real_models.VERSION, write its numbers here, and run `make public`"
    )


def test_a_record_of_another_version_is_refused(monkeypatch):
    real_models.load(real_models.CONTROL)
    monkeypatch.setattr(real_models, "VERSION", real_models.VERSION + 1)
    with pytest.raises(ValueError, match="was measured by version 1, not 2: run `make public`"):
        real_models.load(real_models.CONTROL)


@pytest.mark.parametrize("name", real_models.LABELS)
def test_the_records_say_what_was_measured_and_are_judged_by_the_present_criteria(name):
    recorded = real_models.load(name)
    made = recorded.made
    assert made["sha256"] == public.MODELS[name].sha256 and made["packages"] == [*public.MODELS[name].wheels]
    assert made["date"] and recorded.records
    for record in recorded.records:
        assert record.public and judge(record.id, record.values, detail=record.detail, public=True) == record
