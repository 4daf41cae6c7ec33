"""Evaluations kept on disk: computed once, and anew as soon as anything they depend on has changed."""

from __future__ import annotations

import pytest
import torch

from transformer_circuits import evaluations
from transformer_circuits.circuits.weights import Weights

calls: list[tuple] = []


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluations, "FOLDER", tmp_path / "evaluations")
    calls.clear()
    return tmp_path / "evaluations"


def double(x, note="") -> dict[str, torch.Tensor]:
    calls.append((x, note))
    return {"twice": 2 * x, "half": x[::2]}


def weights(scale: float = 1.0) -> Weights:
    shapes = {"W_E": (5, 4), "W_pos": (3, 4), "W_Q": (1, 1, 4, 2), "W_K": (1, 1, 4, 2), "W_V": (1, 1, 4, 2), "W_O": (1, 1, 2, 4)}
    return Weights(W_U=torch.full((4, 5), scale), **{name: torch.ones(shape) for name, shape in shapes.items()})


def of_weights(w) -> dict[str, torch.Tensor]:
    calls.append((w,))
    return {"sum": w.W_U.sum()[None]}


def test_computed_once_and_then_read():
    x = torch.arange(6.0)
    first, second = evaluations.kept(double, x), evaluations.kept(double, x.clone())
    assert len(calls) == 1
    assert all(torch.equal(first[name], second[name]) for name in ("twice", "half"))
    assert torch.equal(second["twice"], 2 * x)


@pytest.mark.parametrize("other", [(torch.arange(6.0) + 1,), (torch.arange(6.0).double(),), (torch.arange(6.0).view(2, 3),), (torch.arange(6.0), "K")])
def test_another_argument_is_another_evaluation(other):
    evaluations.kept(double, torch.arange(6.0))
    evaluations.kept(double, *other)
    assert len(calls) == 2


def test_one_weight_changed_is_another_model():
    assert evaluations.kept(of_weights, weights())["sum"] == 20
    assert evaluations.kept(of_weights, weights(2.0))["sum"] == 40
    assert evaluations.kept(of_weights, weights())["sum"] == 20
    assert len(calls) == 2


def test_changed_mathematics_is_computed_anew(tmp_path, monkeypatch):
    (tmp_path / "circuits").mkdir()
    (tmp_path / "circuits" / "module.py").write_text("a = 1")
    monkeypatch.setattr(evaluations, "PACKAGE", tmp_path)
    evaluations.kept(double, torch.ones(2))
    (tmp_path / "circuits" / "module.py").write_text("a = 2")
    evaluations.kept(double, torch.ones(2))
    assert len(calls) == 2


def test_changed_function_is_computed_anew():
    def make(factor):
        if factor == 1:
            def of(x):  # fmt: skip
                return {"x": x}
        else:
            def of(x):  # fmt: skip
                return {"x": 3 * x}
        return of  # fmt: skip

    assert evaluations.kept(make(1), torch.ones(2))["x"].sum() == 2
    assert evaluations.kept(make(3), torch.ones(2))["x"].sum() == 6


def test_a_damaged_file_is_computed_anew_and_replaced(folder):
    evaluations.kept(double, torch.ones(2))
    (path,) = folder.iterdir()
    path.write_bytes(path.read_bytes()[:20])
    assert evaluations.kept(double, torch.ones(2))["twice"].sum() == 4
    assert evaluations.kept(double, torch.ones(2))["twice"].sum() == 4
    assert len(calls) == 2
    assert [p.name for p in folder.iterdir()] == [path.name]  # nothing half-written is left


def test_without_a_place_to_write_it_is_computed_each_time(folder):
    folder.parent.mkdir(exist_ok=True)
    folder.write_text("a file where the folder would be")
    for _ in range(2):
        assert evaluations.kept(double, torch.ones(2))["twice"].sum() == 4
    assert len(calls) == 2


def test_other_arguments_are_refused():
    with pytest.raises(ValueError, match="not by a list"):
        evaluations.kept(double, [1, 2])
