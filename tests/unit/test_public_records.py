"""The stored measurements of public models are those of the code and of the criteria; what four bits do to a matrix."""

import gguf
import pytest
import torch
from safetensors import safe_open

from transformer_circuits.circuits import heads
from transformer_circuits.claims import judge
from transformer_circuits.models import load_model, public
from transformer_circuits.paths import DATA
from transformer_circuits.real import public_records

NAMES = [public_records.CONTROL, *public_records.LABELS]


@pytest.mark.parametrize("name", NAMES)
def test_the_records_belong_to_the_code(name):
    with safe_open(DATA / "public" / f"{name}.safetensors", "pt") as file:
        assert file.metadata()["code"] == public_records.digest(), "what is measured changed: run `make public`"


@pytest.mark.parametrize("name", public_records.LABELS)
def test_the_records_say_what_was_measured_and_are_judged_by_the_present_criteria(name):
    recorded = public_records.load(name)
    made = recorded.made
    assert made["sha256"] == public.MODELS[name].sha256 and made["packages"] == [*public.MODELS[name].wheels]
    assert {"date", "machine", "seconds", "peak_mib"} <= made.keys()
    assert recorded.records
    for record in recorded.records:
        assert record.public and judge(record.id, record.values, detail=record.detail, public=True) == record


@pytest.mark.skipif(
    not (public.folder_in_cache("smollm2-135m")).is_dir(),
    reason="the model is not on this machine: `make public` fetches it",
)
def test_the_best_heads_score_measured_again():
    recorded = public_records.load("smollm2-135m")
    layer, head = (int(recorded.numbers[name]) for name in ("best_layer", "best_head"))
    model = load_model("smollm2-135m")
    draw = heads.measured_draws(model)[0].select(torch.arange(8))
    again = heads.induction_scores(model, draw, n_layers=layer + 1)[layer, head]
    assert float(again) == pytest.approx(recorded.numbers["induction"], abs=0.05)


def test_four_bits_are_those_of_the_file_format():
    W = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    W[2, :32] = 0.25  # a block of equal weights
    kind = gguf.GGMLQuantizationType.Q4_1
    expected = gguf.quants.dequantize(gguf.quants.quantize(W.numpy(), kind), kind)
    assert torch.equal(public_records.four_bits(W), torch.from_numpy(expected))
