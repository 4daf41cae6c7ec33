"""The trainer: its text, its loss, its scores, and that a killed run ends as an uninterrupted one."""

import json
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import safetensors.torch
import torch

from transformer_circuits.circuits import heads
from transformer_circuits.data import held_out_tokens
from transformer_circuits.measures import attention, weights
from transformer_circuits.models import load_model, shards
from transformer_circuits.models.registry import training_film
from transformer_circuits.models.tokenizer import compact
from transformer_circuits.models.view import View
from transformer_circuits.paths import WEIGHTS
from transformer_circuits.training import train
from transformer_circuits.training.evaluation import Evaluation, view_of
from transformer_circuits.training.muon import HeadMuon
from transformer_circuits.training.settings import TrainingConfig, read_config
from transformer_circuits.training.windows import Windows

SHARD = "model/weights-00001-of-00001.safetensors"
TINY = """
[model]
n_layers = 1
d_model = 16
n_heads = 2
d_head = 8
d_vocab = 50
n_ctx = 32
[training]
tokens = 40_000
batch = 4
snapshots = 12
evaluate_windows = 4
repeats = 4
precision = "no"
without_start = 0.1
planted = 0.25
"""


@pytest.fixture
def data(tmp_path):
    """A folder with packed tokens to train on, and `tiny.toml`, a model that trains on them in seconds."""
    for name, n in (("train", 20_000), ("held_out", 2_000)):
        tokens = np.random.default_rng(n).zipf(1.5, n).clip(max=49)
        np.save(tmp_path / f"{name}.npy", tokens.astype(np.uint16))
    (tmp_path / "tiny.toml").write_text(TINY)
    yield tmp_path
    signal.signal(signal.SIGINT, signal.default_int_handler)  # `train.main` leaves its own
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@pytest.fixture
def tokenized(data, tiny_tokenizer_file):
    """The same corpus, with a tokenizer of 300 tokens."""
    for name in ("tokenizer.json", "report.json"):
        shutil.copy(tiny_tokenizer_file, data / name)
    return data


def run(data, out, *changes, **options):
    config = read_config(str(data / "tiny.toml"), changes)
    train.train(train.Run(*config, data=data, out=data / out), **options)


def command(data, out, *changes):
    options = f"--config {data}/tiny.toml --data {data} --out {data}/{out} --set"
    return [*options.split(), *(changes or ["seed=0"])]


def rows(data, out):
    """Return the log without times."""
    lines = [json.loads(line) for line in (data / out / "training.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def test_windows_start_with_the_start_token_and_cover_each_epoch_once(data):
    windows = Windows(data / "train.npy", n_ctx=32, d_vocab=50, seed=1)
    text, epoch = np.load(data / "train.npy").reshape(625, 32), windows.batch(0, windows.count)
    assert (epoch[:, 0] == 0).all()
    assert sorted(map(tuple, epoch[:, 1:].tolist())) == sorted(map(tuple, text.tolist()))
    assert not torch.equal(windows.batch(625, 10), epoch[:10])  # the next epoch has another order


def test_windows_begin_in_running_text_and_have_passages_twice_by_number_alone(data):
    # Every token once, so that copies and places can be identified.
    np.save(data / "train.npy", np.arange(1, 40_001, dtype=np.uint16))
    windows = [Windows(data / "train.npy", 64, 40_001, 3, *shares) for shares in ((), (0.1, 0.25), (0.1, 0.25))]
    plain, changed = (one.batch(0, 1200) for one in windows[:2])
    assert (plain[:, 0] == 0).all() and 0.07 < (without := changed[:, 0] != 0).float().mean() < 0.13
    assert (changed[without, 0] == plain[without, 1] - 1).all()
    moved = (changed[:, 1:] != plain[:, 1:]).any(dim=1)
    assert 0.2 < moved.float().mean() < 0.3
    for row, before in zip(changed[moved], plain[moved]):
        (at,) = (row[1:] != before[1:]).nonzero(as_tuple=True)
        (distance,) = {int(before[i + 1] - row[i + 1]) for i in at}
        assert len(at) == at[-1] - at[0] + 1 and 8 <= len(at) <= 32
        assert len(at) <= distance <= at[0]  # from an earlier place, not overlapping
    halves = [windows[2].batch(first, 2) for first in (640, 642)]  # two processes share a global batch
    assert torch.equal(torch.cat(halves), changed[640:644])


@pytest.mark.parametrize("writes", [False, True])
def test_muon_updates_each_head_by_itself_as_torchs_does(writes):
    torch.manual_seed(0)
    heads = [torch.nn.Parameter(weight) for weight in torch.randn(3, 16, 48)]

    def together(weights):
        whole = torch.cat([weight.detach() for weight in weights])
        return whole.T.clone() if writes else whole  # W_O has a column for each dimension of a head

    weight = torch.nn.Parameter(together(heads))
    ours = HeadMuon([weight] * (not writes), [weight] * writes, d_head=16, lr=0.1)
    theirs = torch.optim.Muon(heads, lr=0.1, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    for _ in range(3):
        before = weight.detach().clone()
        for head, size in zip(heads, (1, 1000, 0.001)):
            head.grad = size * torch.randn(16, 48)
        weight.grad = together([head.grad for head in heads])
        ours.step()
        theirs.step()
        # torch's iterations run in bfloat16
        assert (weight - together(heads)).norm() < 0.05 * (weight - before).norm()


def test_the_log_has_the_scores_of_the_chapters_on_all_kinds_of_text(data):
    np.save(data / "held_out.npy", held_out_tokens(512).astype(np.uint16))
    held_out, config = Windows(data / "held_out.npy", 64, 512, seed=0), TrainingConfig(tokens=1, evaluate_windows=24)
    view = View(load_model("small-2l", device="cpu"))
    row = Evaluation(held_out, 512, config)(shards.read_model(WEIGHTS / "small-2l")[0])
    spread = held_out.rows(np.linspace(0, held_out.count - 1, 24).astype(int)[::3].tolist())
    expected = {"previous_token": heads.previous_token_scores(view, spread[:, :-1])}
    expected["rest"] = heads.mean_score(view, spread[:, :-1], attention.start_token_score)
    for name, scores in (expected | {"positivity": weights.copying(view)[0]}).items():
        torch.testing.assert_close(torch.tensor(row[name]), scores, atol=1e-4, rtol=0)


def test_learning_rate_rises_stays_and_falls_without_a_jump():
    config = TrainingConfig(tokens=1, lr=1.0, lr_end=0.1, warmup=0.1, decay_from=0.5)
    rates = [config.learning_rate(step, 100) for step in range(100)]
    assert rates[0] == pytest.approx(0.1) == rates[-1] and rates[9:50] == [1.0] * 41
    late = TrainingConfig(tokens=1, lr=1.0, lr_end=0.1, warmup=0.8, decay_from=0.5)
    later = [late.learning_rate(step, 100) for step in range(100)]
    assert later[79] == 1.0
    assert all(abs(a - b) < 0.11 for steps in (rates, later) for a, b in zip(steps, steps[1:]))


def test_gradients_are_clipped_to_the_norm_of_the_settings(data, monkeypatch):
    norms, step = [], torch.optim.AdamW.step

    def noted(self, *args, **kwargs):
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        norms.append(float(torch.nn.utils.get_total_norm(gradients)))
        return step(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.AdamW, "step", noted)
    for out, clip in (("clipped", "0.01"), ("free", "1e6")):
        run(data, out, "optimizer=adamw", f"clip={clip}", "tokens=1_000", stop_after=4)
    assert norms[:4] == pytest.approx([0.01] * 4, rel=1e-3) and min(norms[4:]) > 0.02


def test_a_killed_run_goes_on_and_ends_as_an_uninterrupted_one_with_the_same_film(tokenized):
    data, changes = tokenized, ["film=true", "n_layers=2", "d_vocab=300", "n_ctx=48", "tokens=20_000"]
    run(data, "whole", *changes)
    log = rows(data, "whole")
    assert log[-1]["held_out"] < log[1]["held_out"] - 0.5  # it learned something
    line = command(data, "killed", *changes, "checkpoint_minutes=1e-9")  # so that the kill may hit its writing
    trainer = subprocess.Popen([sys.executable, "-m", train.__name__, *line], stdout=subprocess.DEVNULL)
    while not (data / "killed" / "checkpoint.safetensors").exists():
        time.sleep(0.01)
    trainer.kill()
    assert trainer.wait() == -signal.SIGKILL, "the run ended before it was killed"
    train.main(line)
    assert rows(data, "killed")[1:] == log[1:]
    for file in ("model/film.npz", SHARD):
        assert (data / "killed" / file).read_bytes() == (data / "whole" / file).read_bytes()

    arrays = training_film(str(data / "killed" / "model"))
    assert len(arrays["pattern_1"]) == len(log[1:])
    assert log[-1].keys() >= {"rest", "first_guess", "pair"}
    model, _ = shards.read_model(data / "killed" / "model")  # in half precision
    tokens = torch.from_numpy(arrays["text_1"].astype(np.int64))[None]
    expected = view_of(model).patterns(tokens).detach()[:, 0][..., torch.ones(41, 41).tril().bool()]
    assert np.abs(arrays["pattern_1"][-1] / 255 - expected.numpy()).max() < 0.02  # half a shade


def test_a_smaller_vocabulary_reads_the_text_cut_finer_and_the_model_gets_its_tokenizer(tokenized):
    data = tokenized
    np.save(data / "train.npy", np.resize(np.arange(300, dtype=np.uint16), 2_000))
    train.main([*command(data, "small", "d_vocab=270", "betas=[0.8,0.9]", "tokens=2_000"), "--name", "finer"])
    header, *_ = rows(data, "small")
    assert header["name"] == "finer" and header["training"]["betas"] == [0.8, 0.9]
    assert Windows(data / "train.npy", 48, 270, seed=0).text.max() == 269
    bridge = load_model(data / "small" / "model", device="cpu")
    assert len(bridge.tokenizer) == 270
    assert bridge.tokenizer.decode(bridge.to_tokens("the cat sat")[0, 1:]) == "the cat sat"


KINDS = ["attn-only-0l", "attn-only-1l-smeared-keys", "melodies-2l", "small-2l-mlp", "small-2l-standard-positions"]


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_of_shipped_configuration_trains_and_is_written(name, data):
    """One step, at a width that a test can afford."""
    small = "d_model=16 d_head=8 n_heads=2 d_vocab=50 n_ctx=32 tokens=64 batch=2 evaluate_windows=2 repeats=2"
    config = read_config(name, [*small.split(), f"film={json.dumps('0l' not in name)}"])
    train.train(train.Run(*config, data=data, out=data / name))
    model, manifest = shards.read_model(data / name / "model")
    assert manifest["name"] == name and model.config == config[1] and ("film" in manifest) == config[2].film


def test_two_processes_give_the_losses_of_one(data):
    change = "tokens=5_000"
    launch = "-m accelerate.commands.launch --multi_gpu --num_processes=2 --main_process_port=0 -m"
    program = [sys.executable, *launch.split(), train.__name__, *command(data, "two", change)]
    done = subprocess.run(program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    run(data, "one", change)
    (header, *two), (_, *one) = rows(data, "two"), rows(data, "one")
    assert header["hardware"]["processes"] == 2 and len(two) == len(one)
    for row, expected in zip(two[1:], one[1:]):
        for name in ("step", "train", "held_out"):
            assert row[name] == pytest.approx(expected[name], abs=3e-4)  # the log has four decimals


@pytest.mark.parametrize("change, sentence", [
    ("lr", "a setting must be name=value, such as lr=1e-3, got 'lr'"),
    ("rate=1", "unknown setting 'rate'; there are: n_layers, "),
    ("batch=2.5", "batch must be a valid integer, .*got 2.5"),
    ("n_ctx=4", "n_ctx must be at least 5, and d_vocab at least 3, got 4 and 50"),
    ("n_ctx=1_500", "held_out.npy must have at least two windows of 1500 tokens, got 2000; lower n_ctx"),
    ("d_vocab=40", "token ids must be 0 to 39, got 1 to 49 in .*train.npy"),
])  # fmt: skip
def test_settings_that_cannot_be_are_named(data, change, sentence):
    with pytest.raises(ValueError, match=sentence):
        run(data, "out", change)


def test_settings_are_read_as_people_write_them():
    with pytest.raises(ValueError, match="there is no configuration big; pass a TOML file, or one of attn-only-0l, "):
        read_config("big")
    training = read_config("small-2l", ["tokens=1e6", "lr=1", "precision=no"])[2]
    assert (training.tokens, training.lr, training.precision) == (1_000_000, 1, "no")


def test_files_that_cannot_be_used_are_named(data, tiny_tokenizer_file):
    def rejected(out, sentence):
        with pytest.raises(SystemExit, match=sentence):
            train.main(command(data, out))

    rejected("tiny.toml/out", "error: .*tiny.toml")  # not a folder
    np.save(data / "train.npy", np.ones(1_000))
    rejected("out", r"train.npy is not a readable row of token ids .got float64 \[1000\].; make it again")
    (data / "train.npy").unlink()
    rejected("out", "train.npy is missing; pass a folder that `make corpus` made")
    shutil.copy(tiny_tokenizer_file, data)
    rejected("out", "is not a whole corpus .no report.json.; make it again")


def test_a_loss_that_is_nan_stops_the_run_and_leaves_the_checkpoint(data, monkeypatch):
    run(data, "out", stop_after=5)
    checkpoint, log = data / "out" / "checkpoint.safetensors", data / "out" / "training.jsonl"
    before = checkpoint.read_bytes(), log.read_text()
    loss_of = train.next_token_loss
    monkeypatch.setattr(train, "next_token_loss", lambda model, rows: loss_of(model, rows) * float("nan"))
    with pytest.raises(ValueError, match="diverged by step .* .loss nan.*lower lr"):
        run(data, "out")
    assert (checkpoint.read_bytes(), log.read_text()) == before


def test_what_changed_since_the_checkpoint_is_noticed(data):
    run(data, "out", stop_after=40)
    checkpoint = data / "out" / "checkpoint.safetensors"
    whole = checkpoint.read_bytes()

    def rejected(sentence, *settings):
        with pytest.raises(ValueError, match=sentence):
            run(data, "out", *settings)

    for other in (whole[: len(whole) // 2], safetensors.torch.save({})):
        checkpoint.write_bytes(other)
        rejected("damaged .*; delete it to start over")
    checkpoint.write_bytes(whole)
    rejected("belongs to another configuration", "lr=1e-4")
    np.save(data / "train.npy", np.load(data / "train.npy")[::-1])
    rejected("belongs to another configuration or corpus")


@pytest.mark.parametrize("flags, precision", [("avx2 avx512_bf16", "bf16"), ("avx2", "no")])
def test_bf16_is_taken_where_the_processor_has_it_and_then_kept(data, flags, precision, monkeypatch, capsys):
    monkeypatch.setattr(train, "cpuinfo", lambda: f"flags\t: {flags}\n")
    run(data, "out", "precision=auto", stop_after=3)
    assert {"bf16": "precision: bf16", "no": "precision: float32"}[precision] in capsys.readouterr().out
    monkeypatch.setattr(train, "cpuinfo", str)  # on another machine
    run(data, "out", "precision=auto", stop_after=1)
    assert rows(data, "out")[0]["training"]["precision"] == precision


def test_a_corpus_that_takes_the_place_of_the_one_that_is_read_changes_nothing(tokenized):
    """Reported elsewhere: the model of the old text was exported with the tokenizer of the new one."""
    config = read_config(str(tokenized / "tiny.toml"), ["d_vocab=300", "tokens=4_000"])
    trainer = train.Run(*config, data=tokenized, out=tokenized / "out")
    before, text = (tokenized / "tokenizer.json").read_text(), (tokenized / "train.npy").read_bytes()
    (tokenized / "tokenizer.json").write_text(before.replace("<|start|>", "<|other|>"))
    np.save(tokenized / "train.npy", np.zeros(20_000, dtype=np.uint16))
    train.train(trainer)
    model, manifest = shards.read_model(tokenized / "out" / "model")
    assert manifest["tokenizer.json"]["sha256"] == shards.sha256(compact(json.loads(before)).encode())
    assert manifest["training"]["run"]["corpus"]["train.npy"] == shards.sha256(text)[:16]
    assert manifest["training"]["result"]["train"] > 1, "it read the old text: the new one is a single token"


def test_the_end_says_where_the_model_is_and_many_readings_are_warned_of(data, capsys):
    run(data, "out", "tokens=100_000", "snapshots=2", stop_after=0)
    said = capsys.readouterr().out
    assert "warning: a text of 20,000 tokens is read 5 times" in said and "--set tokens=80000" in said
    run(data, "few", "tokens=2_000")
    said = capsys.readouterr().out
    assert "warning" not in said
    *_, last = said.splitlines()
    assert last == f'The model is in {data}/few/model. Next: NAME = "{data}/few/model" in chapter 19 (make lab)'
