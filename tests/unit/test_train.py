"""The trainer: its loss, its scores, and that a killed run goes on as if nothing had happened."""

import ast
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from transformer_circuits.models import architecture, load_model, shards
from transformer_circuits.models.architecture import ModelConfig, Transformer
from transformer_circuits.training import loss, scores, train
from transformer_circuits.training.corpus import train_tokenizer
from transformer_circuits.training.loss import linear_cross_entropy
from transformer_circuits.training.scores import attention_patterns, in_context_score, losses, losses_by_order, positivity
from transformer_circuits.training.train import TrainingConfig, Windows, flops_per_token, read_config, snapshot_steps

CONFIG = """
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
"""


@pytest.fixture
def data(tmp_path):
    for name, n in (("train", 20_000), ("held_out", 2_000)):
        np.save(tmp_path / f"{name}.npy", np.random.default_rng(n).zipf(1.5, n).clip(max=49).astype(np.uint16))
    (tmp_path / "tiny.toml").write_text(CONFIG)
    return tmp_path


def run(data, out, **options):
    train.train(*read_config(str(data / "tiny.toml")), data=data, out=data / out, **options)


def rows(data, out):
    """The log without times."""
    lines = [json.loads(line) for line in (data / out / "training.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def test_imports_of_the_trainer_are_few():
    allowed = {"torch", "numpy", "safetensors", "accelerate", "filelock", "tqdm", "transformer_circuits"} | set(sys.stdlib_module_names)
    for module in (architecture, shards, loss, scores, train):
        for node in ast.walk(ast.parse(open(module.__file__).read())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
            assert {name.split(".")[0] for name in names} <= allowed, module.__name__


@pytest.mark.parametrize("chunk", [1, 7, 100])
def test_chunked_loss_and_gradients_are_those_of_cross_entropy(chunk):
    torch.manual_seed(0)
    residual = torch.randn(3, 10, 8, dtype=torch.double, requires_grad=True)
    W_U = torch.randn(20, 8, dtype=torch.double, requires_grad=True)
    targets = torch.randint(20, (3, 10))
    expected = F.cross_entropy((residual @ W_U.T).flatten(0, 1), targets.flatten())
    gradients = torch.autograd.grad(3 * expected, (residual, W_U))
    ours = linear_cross_entropy(residual, W_U, targets, chunk)
    assert torch.allclose(ours.double(), expected, rtol=1e-6)
    for mine, theirs in zip(torch.autograd.grad(3 * ours, (residual, W_U)), gradients):
        assert torch.allclose(mine, theirs, rtol=1e-4, atol=1e-6)  # probabilities are float32


def test_recorded_patterns_give_the_models_output():
    torch.manual_seed(0)
    model = Transformer(ModelConfig(n_layers=2, d_model=16, n_heads=2, d_head=8, d_vocab=30, n_ctx=20))
    tokens = torch.randint(30, (2, 20))
    patterns = attention_patterns(model, tokens)
    assert patterns.shape == (2, 2, 2, 20, 20)
    assert torch.allclose(patterns.sum(-1), torch.ones(2, 2, 2, 20), atol=1e-5)
    layer = model.layers[0].attn
    values = layer.v(model.tok_embed(tokens)).unflatten(-1, (2, 8)).transpose(1, 2)
    by_hand = layer.o((patterns[0] @ values).transpose(1, 2).flatten(-2))
    assert torch.allclose(by_hand, layer(model.tok_embed(tokens), positions=model.pos.weight[None, :20])[0], atol=1e-5)


def test_in_context_score_is_late_minus_early():
    by_position = torch.zeros(3, 512)
    by_position[:, :256] = 2.0
    assert in_context_score(by_position) == -2.0
    assert in_context_score(torch.linspace(0, 1, 64).expand(3, -1)) > 0


def test_losses_by_order_end_with_the_model_itself_and_begin_with_the_direct_path():
    torch.manual_seed(0)
    model = Transformer(ModelConfig(n_layers=2, d_model=16, n_heads=2, d_head=8, d_vocab=30, n_ctx=20)).double()
    rows = torch.randint(30, (3, 21))
    orders = losses_by_order(model, rows)
    with torch.no_grad():
        direct = F.cross_entropy(model.head(model.tok_embed(rows[:, :-1])).mT.float(), rows[:, 1:])
    assert orders[0] == pytest.approx(float(direct)) and orders[2] == pytest.approx(float(losses(model, rows).mean()))
    assert len(orders) == 3 and orders[1] not in (orders[0], orders[2])


def test_positivity_of_a_product_is_that_of_its_eigenvalues():
    first, second = torch.randn(12, 3), torch.randn(3, 12)
    values = torch.linalg.eigvals((first @ second).double())
    assert float(positivity(first, second)) == pytest.approx(float(values.real.sum() / values.abs().sum()), abs=1e-5)


def test_windows_start_with_the_start_token_and_cover_each_epoch_once(data):
    windows = Windows(data / "train.npy", n_ctx=32, d_vocab=50, seed=1)
    tokens = np.load(data / "train.npy")
    epoch = windows.batch(0, windows.count)
    assert epoch.shape == (625, 33) and (epoch[:, 0] == 0).all()
    assert sorted(map(tuple, epoch[:, 1:].tolist())) == sorted(map(tuple, tokens[: 625 * 32].reshape(625, 32).tolist()))
    assert not torch.equal(windows.batch(625, 10), epoch[:10])  # the next epoch has another order
    assert torch.equal(Windows(data / "train.npy", 32, 50, 1).batch(620, 10), windows.batch(620, 10))


def test_learning_rate_rises_stays_and_falls():
    config = TrainingConfig(tokens=1, lr=1.0, lr_end=0.1, warmup=0.1, decay_from=0.5)
    rates = [config.learning_rate(step, 100) for step in range(100)]
    assert rates[0] == pytest.approx(0.1) and rates[9:50] == [1.0] * 41
    assert rates[-1] == pytest.approx(0.1) and all(a > b for a, b in zip(rates[50:], rates[51:]))


def test_snapshots_are_log_spaced_and_include_both_ends():
    steps = sorted(snapshot_steps(10_000, 40))
    assert steps[0] == 0 and steps[1] == 50 and steps[-1] == 10_000 and len([s for s in steps if s < 1000]) >= 10


def test_a_stopped_run_goes_on_as_if_uninterrupted(data):
    run(data, "whole")
    run(data, "parts", stop_after=100)
    run(data, "parts", stop_after=57)
    run(data, "parts")
    assert rows(data, "parts") == rows(data, "whole")
    shard = "model/weights-00001-of-00001.safetensors"
    assert (data / "parts" / shard).read_bytes() == (data / "whole" / shard).read_bytes()
    whole = rows(data, "whole")
    assert whole[-1]["held_out"] < whole[1]["held_out"] - 0.5  # it learned something
    model, manifest = shards.read_model(data / "whole" / "model")
    assert manifest["training"]["result"]["tokens"] == 312 * 128 and model.config.d_vocab == 50


def test_ten_kills_at_random_moments_change_nothing(data):
    run(data, "whole")
    (data / "often.toml").write_text(CONFIG + "checkpoint_minutes = 1e-9\n")  # a checkpoint every step: kills hit its writing too
    command = [sys.executable, "-m", "transformer_circuits.training.train", "--config", str(data / "often.toml")]
    command += ["--data", str(data), "--out", str(data / "killed")]
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    checkpoint, moments, kills = data / "killed" / "checkpoint.safetensors", random.Random(0), 0
    while kills < 10:
        before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else None
        process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        while process.poll() is None and (not checkpoint.exists() or checkpoint.stat().st_mtime_ns == before):
            time.sleep(0.01)  # until it is under way
        time.sleep(moments.uniform(0, 0.05))
        assert process.poll() is None, "the run ended before it was killed ten times"
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
    subprocess.run(command, env=environment, check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    assert rows(data, "killed")[1:] == rows(data, "whole")[1:]
    shard = "model/weights-00001-of-00001.safetensors"
    assert (data / "killed" / shard).read_bytes() == (data / "whole" / shard).read_bytes()


def test_settings_take_the_place_of_the_configurations(data):
    name, shape, training = read_config(str(data / "tiny.toml"), ["lr=1e-3", "n_layers=2", "betas=[0.8, 0.9]", "tokens=1_000"])
    assert (name, shape.n_layers, shape.d_model) == ("tiny", 2, 16)
    assert (training.lr, training.tokens, training.betas, training.batch) == (1e-3, 1000, (0.8, 0.9), 4)
    for wrong, sentence in [("lr", "write it like lr=1e-3"), ("rate=1", "there is no setting 'rate'; there are: n_layers, "),
                            ("lr=a b", "is not a setting"), ("n_layers=-1", "n_layers must be at least 0, not -1"),
                            ("precision='fp8'", "precision must be 'bf16' or 'no'")]:  # fmt: skip
        with pytest.raises(ValueError, match=sentence):
            read_config(str(data / "tiny.toml"), [wrong])
    arguments = ["--config", str(data / "tiny.toml"), "--data", str(data), "--out", str(data / "set")]
    train.main([*arguments, "--set", "seed=3", "batch=8", "precision='no'"])
    assert rows(data, "set")[0]["training"]["seed"] == 3 and rows(data, "set")[1]["tokens"] == 0


def test_a_smaller_vocabulary_reads_the_text_cut_finer_and_the_model_gets_its_tokenizer(data):
    texts = [f"the cat number {i} sat on the mat with the other cat" for i in range(400)]
    tokenizer = train_tokenizer(texts, 300)
    tokenizer.save(str(data / "tokenizer.json"))
    for side in ("train", "held_out"):
        np.save(data / f"{side}.npy", np.array([0, *(i for text in texts for i in tokenizer.encode(text).ids)], dtype=np.uint16))
    arguments = ["--config", str(data / "tiny.toml"), "--data", str(data), "--out", str(data / "small"), "--name", "finer"]
    train.main([*arguments, "--set", "d_vocab=270"])
    assert np.load(data / "train-270.npy").max() == 269 and rows(data, "small")[0]["name"] == "finer"
    bridge = load_model("finer", folder=data / "small" / "model", device="cpu")
    assert len(bridge.tokenizer) == 270
    assert bridge.tokenizer.decode(bridge.to_tokens(texts[7])[0, 1:]) == texts[7]


def test_the_log_tells_of_heads_circuits_and_orders(data):
    shape = ["n_layers=2", "tokens=4_000"]
    train.train(*read_config(str(data / "tiny.toml"), shape), data=data, out=data / "two")
    first, *_, last = rows(data, "two")
    assert first["corpus"].keys() == {"train.npy", "held_out.npy"} and len(first["corpus"]["train.npy"]) == 16
    for name in ("previous_token", "rest", "induction", "induction_frequent", "positivity"):
        assert len(last[name]) == 2 and all(len(layer) == 2 and all(-1 <= x <= 1 for x in layer) for layer in last[name])
    assert len(last["orders"]) == len(last["copies"]) == 3
    assert last["pair"].keys() == {"induction", "previous", "k_composition", "k_positivity"}


def test_a_model_with_a_matrix_larger_than_a_shard_is_written_all_the_same(data, monkeypatch):
    monkeypatch.setattr(train, "SHARD_BYTES", 1_000)  # W_E has 1,600
    run(data, "wide")
    model, manifest = shards.read_model(data / "wide" / "model")
    assert len(manifest["shards"]) >= 2 and model.config.d_model == 16


def test_operations_per_token_are_those_that_torch_counts():
    from torch.utils.flop_counter import FlopCounterMode

    shape = ModelConfig(2, d_model=32, n_heads=4, d_head=8, d_vocab=100, n_ctx=64, d_mlp=48)
    module = train.NextTokenLoss(Transformer(shape))
    with FlopCounterMode(display=False) as counter:
        module(torch.randint(100, (3, 65))).backward()
    twice = flops_per_token(dataclasses.replace(shape, n_ctx=128))
    of_weights = 2 * flops_per_token(shape) - twice
    of_pairs = flops_per_token(shape) - of_weights  # of those that are not masked, half; one block of queries computes all
    assert counter.get_total_flops() == 3 * 64 * (of_weights + 2 * of_pairs)


def test_errors_are_one_sentence_that_says_what_to_do(data, capsys):
    with pytest.raises(ValueError, match="no configuration 'big'; shipped: attn-only-0l"):
        read_config("big")
    (data / "wrong.toml").write_text("[model]\nlayers = 2\n[training]\ntokens = 5\n")
    with pytest.raises(ValueError, match="wrong.toml is not a training configuration"):
        read_config(str(data / "wrong.toml"))
    with pytest.raises(SystemExit, match="train.npy is missing: make it with"):
        train.main(["--config", str(data / "tiny.toml"), "--data", str(data / "nowhere"), "--out", str(data / "out")])
    (data / "file").write_text("not a folder")
    with pytest.raises(SystemExit, match="error: .*file"):
        train.main(["--config", str(data / "tiny.toml"), "--data", str(data), "--out", str(data / "file" / "out")])


@pytest.mark.parametrize("setting", ["batch=0", "clip=-1", "lr='x'", "tokens=-5", "evaluate_windows=0", "batch=2.5", "lr=nan", "warmup=2", "seed=true"])
def test_settings_that_cannot_be_are_named(data, setting):
    with pytest.raises(ValueError, match=setting.partition("=")[0]):
        read_config(str(data / "tiny.toml"), [setting])


def test_a_loss_that_is_no_number_stops_the_run_and_leaves_the_checkpoint(data, monkeypatch):
    run(data, "out", stop_after=5)
    checkpoint, log = data / "out" / "checkpoint.safetensors", data / "out" / "training.jsonl"
    before = checkpoint.read_bytes(), log.read_text()
    forward = train.NextTokenLoss.forward
    monkeypatch.setattr(train.NextTokenLoss, "forward", lambda self, rows: forward(self, rows) * float("nan"))
    with pytest.raises(ValueError, match="at step 5 the loss is nan.*lower lr; .* holds the last good state"):
        run(data, "out")
    assert (checkpoint.read_bytes(), log.read_text()) == before


def test_a_second_trainer_with_the_same_folder_is_refused(data):
    with train.only_trainer(data / "out"), pytest.raises(ValueError, match="another trainer writes to"):
        run(data, "out")
    run(data, "out", stop_after=1)


def test_tokens_are_checked_once(data):
    for wrong, sentence in [(np.array([1.0, 2.0]), "whole numbers"), (np.full(100, 50), "up to 50, but the model's vocabulary has 50")]:
        np.save(data / "train.npy", wrong)
        with pytest.raises(ValueError, match=sentence):
            run(data, "out")
    (data / "train.npy").write_bytes(b"garbage")
    with pytest.raises(ValueError, match="train.npy is damaged"):
        run(data, "out")


def test_what_changed_since_the_checkpoint_is_noticed(data):
    run(data, "out", stop_after=40)
    checkpoint, log = data / "out" / "checkpoint.safetensors", data / "out" / "training.jsonl"
    whole, lines = checkpoint.read_bytes(), log.read_text()
    log.write_text(lines[:-40])  # the last row was cut off by a kill: it stands before the checkpoint
    with pytest.raises(ValueError, match="lacks what was measured at step"):
        run(data, "out")
    log.write_text(lines + '{"step": 99, "hel')  # cut off behind the checkpoint: written again
    run(data, "out", stop_after=1)
    assert all(json.loads(line) for line in log.read_text().splitlines())
    flipped = bytearray(whole)
    flipped[-1000] ^= 1
    checkpoint.write_bytes(flipped)
    with pytest.raises(ValueError, match="damaged.*checksum.*delete it to start over"):
        run(data, "out")
    checkpoint.write_bytes(whole[:1000])
    with pytest.raises(ValueError, match="damaged.*delete it to start over"):
        run(data, "out")
    checkpoint.write_bytes(whole)
    (data / "tiny.toml").write_text(CONFIG + "lr = 1e-4\n")
    with pytest.raises(ValueError, match="belongs to another configuration"):
        run(data, "out")
    (data / "tiny.toml").write_text(CONFIG)
    np.save(data / "train.npy", np.load(data / "train.npy")[::-1])
    with pytest.raises(ValueError, match="belongs to another configuration or corpus"):
        run(data, "out")


def test_ctrl_c_writes_a_checkpoint_and_says_so(data):
    (data / "long.toml").write_text(CONFIG.replace("40_000", "40_000_000"))
    command = [sys.executable, "-m", "transformer_circuits.training.train", "--config", str(data / "long.toml")]
    for number in (signal.SIGINT, signal.SIGTERM):
        process = subprocess.Popen([*command, "--data", str(data), "--out", str(data / "out")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        log = data / "out" / "training.jsonl"
        before = len(log.read_text()) if log.exists() else 0
        while not log.exists() or len(log.read_text()) <= before:
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        time.sleep(0.5)
        process.send_signal(number)
        printed, _ = process.communicate(timeout=60)
        assert process.returncode == 128 + number and "the same command goes on from there" in printed
        assert (data / "out" / "checkpoint.safetensors").exists()


@pytest.mark.parametrize("name", [path.stem for path in sorted(train.CONFIGS.glob("*.toml"))])
def test_every_shipped_configuration_trains_and_is_written(name, data):
    """One step of its kind of model, at a width that a test can afford."""
    small = ["d_model=16", "d_head=8", "n_heads=2", "d_vocab=50", "n_ctx=32", "tokens=64", "batch=2", "evaluate_windows=2", "repeats=2"]
    train.train(*read_config(name, small), data=data, out=data / name)
    model, manifest = shards.read_model(data / name / "model")
    assert manifest["name"] == name and model.config == read_config(name, small)[1]


@pytest.mark.parametrize("name", ["attn-only-0l", "attn-only-1l", "attn-only-2l"])
def test_the_family_has_the_papers_heads(name):
    _, model, training = read_config(name)
    assert (model.d_model, model.n_heads, model.d_head, model.n_layers) == (384, 12, 64, int(name[-2]))
    assert training.tokens >= 15_000_000
