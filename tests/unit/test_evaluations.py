"""Evaluations kept on disk: computed once, and anew as soon as anything they depend on has changed."""

from __future__ import annotations

import subprocess
import sys
import types
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file

from transformer_circuits import evaluations
from transformer_circuits.circuits.weights import Weights

log = types.ModuleType("log")  # a module, since other things that a function reads from around it would belong to its key
FACTOR = 2.0


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluations, "FOLDER", tmp_path / "evaluations")
    # Someone may be editing the package while tests run. What that does is tested below.
    monkeypatch.setattr(evaluations, "LOADED", evaluations._mathematics())
    log.calls = 0
    return tmp_path / "evaluations"


def double(x, note="") -> dict[str, torch.Tensor]:
    log.calls += 1
    return {"twice": 2 * x, "half": x[::2]}


def weights(scale: float = 1.0) -> Weights:
    shapes = {"W_E": (5, 4), "W_pos": (3, 4), "W_Q": (1, 1, 4, 2), "W_K": (1, 1, 4, 2), "W_V": (1, 1, 4, 2), "W_O": (1, 1, 2, 4)}
    return Weights(W_U=torch.full((4, 5), scale), **{name: torch.ones(shape) for name, shape in shapes.items()})


def of_weights(w) -> dict[str, torch.Tensor]:
    log.calls += 1
    return {"sum": w.W_U.sum()[None]}


def test_computed_once_and_then_read():
    x = torch.arange(6.0)
    first, second = evaluations.kept(double, x), evaluations.kept(double, x.clone())
    assert log.calls == 1
    assert all(torch.equal(first[name], second[name]) for name in ("twice", "half"))
    assert torch.equal(second["twice"], 2 * x)


def test_names_come_back_in_their_order():
    """Files of tensors have an order of their own: "10" before "2"."""

    def numbered(n):
        return {str(i): torch.tensor([i], dtype=torch.float64 if i % 2 else torch.float32) for i in range(n)}

    for _ in range(2):
        found = evaluations.kept(numbered, 13)
        assert list(found) == [str(i) for i in range(13)]
        assert [int(tensor) for tensor in found.values()] == list(range(13))


def test_two_names_for_one_memory_are_kept(folder):
    def same(x):
        log.calls += 1
        return {"whole": x, "again": x, "row": x[0], "transposed": x.T}

    x = torch.arange(6.0).view(2, 3)
    for _ in range(2):
        found = evaluations.kept(same, x)
        assert torch.equal(found["again"], x) and torch.equal(found["transposed"], x.T) and torch.equal(found["row"], x[0])
    assert log.calls == 1 and len(list(folder.iterdir())) == 1
    found["whole"][:] = 0
    assert x.sum() == 15


@pytest.mark.parametrize(
    "other",
    [
        (torch.arange(6.0) + 1,),
        (torch.arange(6.0).double(),),
        (torch.arange(6.0).view(2, 3),),
        (torch.arange(6.0), "K"),
        (torch.arange(6.0), 1),
        (torch.arange(6.0), 1.0),
        (torch.arange(6.0), True),
        (torch.arange(6.0), None),
        (torch.arange(6.0), (1, 2)),
        (torch.arange(6.0), [1, 2]),
        (torch.arange(6.0), ((1,), 2)),
        (torch.arange(6.0), {"a": 1}),
    ],
)
def test_another_argument_is_another_evaluation(other, folder):
    evaluations.kept(double, torch.arange(6.0))
    evaluations.kept(double, torch.arange(6.0), "1")
    evaluations.kept(double, *other)
    assert log.calls == 3 == len(list(folder.iterdir()))


def test_one_weight_changed_is_another_model():
    assert evaluations.kept(of_weights, weights())["sum"] == 20
    assert evaluations.kept(of_weights, weights(2.0))["sum"] == 40
    assert evaluations.kept(of_weights, weights())["sum"] == 20
    assert log.calls == 2


def test_another_kind_of_device_is_another_evaluation():
    class Elsewhere(torch.Tensor):
        device = torch.device("cuda")

    here = torch.ones(2)
    assert evaluations._key(double, (here,)) == evaluations._key(double, (here.clone(),))
    assert evaluations._key(double, (here,)) != evaluations._key(double, (here.as_subclass(Elsewhere),))


def test_another_version_of_a_library_is_another_evaluation(monkeypatch):
    before = evaluations._key(double, (1,))
    assert evaluations._key(double, (1,)) == before
    monkeypatch.setattr(evaluations.importlib.metadata, "version", lambda name: "0")
    assert evaluations._key(double, (1,)) != before


def test_changed_mathematics_is_computed_anew(tmp_path, monkeypatch):
    (tmp_path / "circuits").mkdir()
    monkeypatch.setattr(evaluations, "PACKAGE", tmp_path)
    for text in ("a = 1", "a = 2"):
        (tmp_path / "circuits" / "module.py").write_text(text)
        monkeypatch.setattr(evaluations, "LOADED", evaluations._mathematics())  # as in a new kernel
        evaluations.kept(double, torch.ones(2))
    assert log.calls == 2


def test_an_edited_package_is_not_what_runs_so_that_nothing_is_kept(folder, tmp_path, monkeypatch):
    """The numbers are the old code's. Kept under the new code's name, they would be taken for its own later."""
    (tmp_path / "circuits").mkdir()
    monkeypatch.setattr(evaluations, "PACKAGE", tmp_path)
    for _ in range(2):
        with pytest.warns(UserWarning, match="kernel restarts"):
            assert evaluations.kept(double, torch.ones(2))["twice"].sum() == 4
    assert log.calls == 2 and not folder.exists()


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


def test_what_a_function_reads_from_around_it_belongs_to_it(monkeypatch):
    def make(factor):
        return lambda x: {"x": factor * x}

    def helped(x):
        return {"x": torch.stack([helper(part) for part in x])}

    def read(x):
        return {"x": FACTOR * x}

    def with_default(factor):
        def of(x, by=factor):
            return {"x": by * x}

        return of

    x = torch.ones(2)
    assert [evaluations.kept(make(f), x)["x"][0] for f in (2, 5, 2)] == [2, 5, 2]
    assert [evaluations.kept(with_default(f), x)["x"][0] for f in (2, 5, 2)] == [2, 5, 2]
    assert evaluations.kept(helped, x)["x"][0] == 2 and evaluations.kept(read, x)["x"][0] == 2
    monkeypatch.setitem(globals(), "helper", lambda x: 7 * x)
    monkeypatch.setitem(globals(), "FACTOR", 5.0)
    assert evaluations.kept(helped, x)["x"][0] == 7 and evaluations.kept(read, x)["x"][0] == 5


def helper(x):
    return FACTOR * x if x is not None else helper(x)  # functions may call one another in a circle


def test_decorated_functions_are_looked_into():
    def make(factor):
        @torch.no_grad()
        def of(x):
            return {"x": factor * x}

        return of

    assert [evaluations.kept(make(f), torch.ones(1))["x"].item() for f in (2, 3)] == [2, 3]


def test_the_key_is_the_same_in_another_process():
    """Sets of constants, and the memory they lie at, differ from process to process."""
    code = """
from transformer_circuits import evaluations
evaluations.LOADED = ""
def of(x):
    return {"x": x} if x in {"a", "b", "c", "d"} else {}
print(evaluations._key(of, ("a",)))
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    printed = []
    exec(code, {"__name__": "__main__", "print": printed.append})
    assert printed == [found.strip()]


def test_a_damaged_file_is_computed_anew_and_replaced(folder):
    evaluations.kept(double, torch.ones(2))
    (path,) = folder.iterdir()
    whole = path.read_bytes()
    flipped = whole[:-1] + bytes([whole[-1] ^ 1])  # a last bit, in the numbers themselves
    for n, damaged in enumerate((whole[:20], b"", bytes(len(whole)), flipped), 2):
        path.write_bytes(damaged)
        for _ in range(2):
            assert evaluations.kept(double, torch.ones(2))["twice"].sum() == 4
        assert log.calls == n
    save_file(load_file(path), path)  # without what was noted beside the tensors
    evaluations.kept(double, torch.ones(2))
    assert log.calls == n + 1
    assert [p.name for p in folder.iterdir()] == [path.name]  # nothing half-written is left


def test_a_draft_that_could_not_be_finished_is_removed(folder, monkeypatch):
    def full(found, draft, about):
        draft.write_bytes(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(evaluations, "save_file", full)
    assert evaluations.kept(double, torch.ones(2))["twice"].sum() == 4
    assert list(folder.iterdir()) == []


def test_without_a_place_to_write_it_is_computed_each_time(folder):
    folder.parent.mkdir(exist_ok=True)
    folder.write_text("a file where the folder would be")
    for _ in range(2):
        assert evaluations.kept(double, torch.ones(2))["twice"].sum() == 4
    assert log.calls == 2


THING = object()


def reads_a_thing(x):
    return {"x": x, "y": THING}


def test_what_cannot_be_told_apart_is_refused():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match="not by a set"):
            evaluations.kept(double, {1, 2})
        with pytest.raises(ValueError, match="reads_a_thing reads 'THING', a object"):
            evaluations.kept(reads_a_thing, torch.ones(1))
        with pytest.raises(ValueError, match="plain function"):
            evaluations.kept(torch.nn.Identity(), torch.ones(1))
        model = torch.nn.Linear(2, 2)  # can be called, but its name is not what it computes
        with pytest.raises(ValueError, match="a Linear"):
            evaluations.kept(lambda x: {"x": model(x)}, torch.ones(1, 2))
