"""The stages of .ci/gpu.sh, without a GPU: on the CPU, with a tiny model, text, and book."""

import os
import subprocess
import sys
import tarfile

import numpy as np
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output, writes

from transformer_circuits.paths import ROOT
from transformer_circuits.training.train import read_config

TINY = """
[model]
n_layers = 1
d_model = 16
n_heads = 2
d_head = 8
d_vocab = 50
n_ctx = 32
[training]
tokens = 2_000
snapshots = 4
evaluate_windows = 4
repeats = 4
precision = "no"
"""
PLANS = [ROOT / ".ci" / name for name in ("gpu_plan.txt", "gpu_trials.txt")]


@pytest.fixture
def gpu(tmp_path):
    """Return a function that runs a stage, and returns its exit status and what it printed."""
    for name in ("train", "held_out"):
        tokens = np.random.default_rng(0).zipf(1.5, 3_000).clip(max=49)
        np.save(tmp_path / f"{name}.npy", tokens.astype(np.uint16))
    (tmp_path / "tiny.toml").write_text(TINY)

    def run(stage, *arguments, **variables):
        own = {"PYTHON": sys.executable, "DATA": tmp_path, "RUNS": tmp_path / "runs", "CONFIG": tmp_path / "tiny.toml"}
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **{k: str(v) for k, v in {**own, **variables}.items()}}
        command = ["bash", ROOT / ".ci" / "gpu.sh", stage, tmp_path / "out", *arguments]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return done.returncode, done.stdout

    return run


@pytest.mark.parametrize("plan", PLANS, ids=lambda path: path.stem)
def test_every_line_of_a_plan_is_a_configuration(plan):
    lines = [line.split() for line in plan.read_text().splitlines() if line[0] != "#"]
    (word, *shared), *models = lines
    assert word == "all" and len({name for name, *_ in models}) == len(models)
    for _, config, *settings in models:
        _, shape, training = read_config(config, [*shared, *settings])
        steps = training.tokens // (training.batch * shape.n_ctx)
        assert training.lr * training.weight_decay * steps == pytest.approx(2.93, rel=0.35)  # data/README.md


def test_check_compares_losses_and_measures_speed(gpu):
    status, said = gpu("check", "400", BATCHES="2")
    assert status == 0, said
    assert "nats, at most 0.02 expected" in said and "tokens/s   TFLOP/s" in said


def test_train_makes_the_models_of_a_plan_and_stops_in_time(gpu, tmp_path):
    config = tmp_path / "tiny.toml"
    (tmp_path / "plan").write_text(f"all seed=3\none {config}\nlong {config} tokens=400_000_000\n")
    status, said = gpu("train", "60", PLAN=tmp_path / "plan", SPARE="30", JOBS="2")
    assert status == 0 and "long: not finished" in said, said
    if "one: finished" not in said:  # on a busy machine: another call goes on
        said = gpu("train", "200", PLAN=tmp_path / "plan", SPARE="30", JOBS="2")[1]
    assert "one: finished" in said
    with (
        tarfile.open(tmp_path / "out" / "models.tar.aa") as models,
        tarfile.open(tmp_path / "out" / "logs.tar.gz") as logs,
    ):
        assert "one/model/manifest.json" in models.getnames() and "long/log" in logs.getnames()
    assert len(list((tmp_path / "out").iterdir())) <= 8


def test_notebooks_reports_errors_and_outputs_that_differ(gpu, tmp_path):
    book = tmp_path / "book_root"
    for folder in ("notebooks", "book", "data", "weights"):
        (book / folder).mkdir(parents=True)
    for name in ("pyproject.toml", "book/verdicts.yml"):
        (book / name).write_bytes((ROOT / name).read_bytes())
    differs = new_code_cell("print(1 + 1)", metadata={"tags": ["nbval-check-output"]})
    differs.outputs = [new_output("stream", name="stdout", text="3\n")]
    (book / "notebooks" / "one.ipynb").write_text(writes(new_notebook(cells=[differs])))
    (book / "notebooks" / "two.ipynb").write_text(writes(new_notebook(cells=[new_code_cell("1 / 0")])))
    (book / "book" / "intro.md").write_text("# A book\n")
    chapters = "".join(f"- file: notebooks/{name}\n" for name in ("one", "two"))
    (book / "_toc.yml").write_text(f"format: jb-book\nroot: book/intro\nchapters:\n{chapters}")
    status, said = gpu("notebooks", "300", TRANSFORMER_CIRCUITS_ROOT=book)
    assert status == 1 and "FAILED two.ipynb" in said and "made one.ipynb in" in said, said
    assert "one.ipynb, cell" in said and "- 3" in said and "+ 2" in said


def test_tokens_come_back_from_their_parts(gpu, tmp_path):
    before = (tmp_path / "train.npy").read_bytes()
    assert gpu("pack", "3") == (0, "") and len(list((tmp_path / "out").iterdir())) == 3
    (tmp_path / "train.npy").unlink()
    assert gpu("unpack") == (0, "") and (tmp_path / "train.npy").read_bytes() == before
