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
from transformer_circuits.training.scores import (
    Repeats,
    attention_patterns,
    in_context_score,
    induction_scores,
    previous_token_scores,
    start_token_scores,
)
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
    allowed = {"torch", "numpy", "safetensors", "accelerate", "tqdm", "transformer_circuits"} | set(sys.stdlib_module_names)
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


def test_repeats_repeat_at_random_places_and_keep_the_start_token():
    repeats = Repeats.draw(torch.arange(1000), rows=50, n_ctx=64)
    assert (repeats.tokens[:, 0] == 0).all()
    for row, one, two, n in zip(repeats.tokens, repeats.first, repeats.second, repeats.length):
        assert 1 <= one and one + n <= two and two + n <= 64
        assert torch.equal(row[one : one + n], row[two : two + n])
    distances = repeats.second - repeats.first
    assert len(distances.unique()) > 15 and len(repeats.length.unique()) > 8
    with pytest.raises(ValueError, match="at least 16"):
        Repeats.draw(torch.arange(100), rows=1, n_ctx=8)


def test_scores_of_perfect_and_of_indifferent_heads():
    repeats = Repeats.draw(torch.arange(1000), rows=6, n_ctx=64)
    patterns = torch.zeros(1, 6, 3, 64, 64)  # heads: induction, previous token, uniform
    for row in range(6):
        for step in range(int(repeats.length[row]) - 1):
            patterns[0, row, 0, repeats.second[row] + step, repeats.first[row] + step + 1] = 1
    patterns[0, :, 1, torch.arange(1, 64), torch.arange(63)] = 1
    patterns[0, :, 2] = torch.ones(64, 64).tril() / torch.arange(1, 65)[:, None]
    induction, previous = induction_scores(patterns, repeats)[0], previous_token_scores(patterns)[0]
    assert induction[0] == 1 and previous[1] == 1
    assert induction[1] == 0 and previous[0] < 0.1
    resting = torch.zeros(1, 2, 1, 64, 64)
    resting[..., 0] = 1
    assert start_token_scores(resting)[0, 0] == 1 and start_token_scores(patterns)[0, 1] == pytest.approx(1 / 63)
    assert 0 < induction[2] < 0.1 and 0 < previous[2] < 0.1


def test_ceiling_is_shared_among_earlier_copies():
    def ceiling(tokens):
        return Repeats(torch.tensor([tokens]), torch.tensor([1]), torch.tensor([4]), torch.tensor([3])).ceiling()

    assert ceiling([0, 5, 6, 7, 5, 6, 7]) == 1
    assert ceiling([0, 5, 6, 5, 5, 6, 5]) == pytest.approx((1 / 2 + 1) / 2)  # 5 came twice before, 6 once


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


def test_windows_start_with_the_start_token_and_cover_each_epoch_once(data):
    windows = Windows(data / "train.npy", n_ctx=32, seed=1)
    tokens = np.load(data / "train.npy")
    epoch = windows.batch(0, windows.count)
    assert epoch.shape == (625, 33) and (epoch[:, 0] == 0).all()
    assert sorted(map(tuple, epoch[:, 1:].tolist())) == sorted(map(tuple, tokens[: 625 * 32].reshape(625, 32).tolist()))
    assert not torch.equal(windows.batch(625, 10), epoch[:10])  # the next epoch has another order
    assert torch.equal(Windows(data / "train.npy", 32, 1).batch(620, 10), windows.batch(620, 10))


def test_learning_rate_rises_stays_and_falls():
    config = TrainingConfig(tokens=0, lr=1.0, lr_end=0.1, warmup=0.1, decay_from=0.5)
    rates = [config.learning_rate(step, 100) for step in range(100)]
    assert rates[0] == pytest.approx(0.1) and rates[9:50] == [1.0] * 41
    assert rates[-1] == pytest.approx(0.1) and all(a > b for a, b in zip(rates[50:], rates[51:]))


def test_snapshots_are_log_spaced_and_include_both_ends():
    steps = sorted(snapshot_steps(10_000, 40))
    assert steps[0] == 0 and steps[-1] == 10_000 and len([s for s in steps if s < 100]) >= 8


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
    (data / "often.toml").write_text(CONFIG + "checkpoint_minutes = 0\n")  # a checkpoint every step: kills hit its writing too
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


def test_the_log_says_which_heads_rest(data):
    run(data, "whole")
    last = rows(data, "whole")[-1]
    assert len(last["start_token"][0]) == 2 and all(0 < share < 1 for share in last["start_token"][0])


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
    of_weights = 2 * flops_per_token(shape) - twice  # torch does not count within its attention kernel
    assert counter.get_total_flops() == 3 * 64 * of_weights
    attention = module.model.layers[0].attn
    with FlopCounterMode(display=False) as counter:  # forward alone, written out, with masked pairs
        attention(torch.randn(3, 64, 32), torch.zeros(1, 64, 32), pattern_fn=lambda p: p)
    of_pairs = counter.get_total_flops() - 3 * 64 * 2 * 4 * 32 * 32
    assert 3 * of_pairs / 2 == 3 * 64 * (flops_per_token(shape) - of_weights) / 2  # half are masked; one of two layers


def test_errors_are_one_sentence_that_says_what_to_do(data, capsys):
    with pytest.raises(ValueError, match="no configuration 'big'; shipped: attn-only-0l"):
        read_config("big")
    (data / "wrong.toml").write_text("[model]\nlayers = 2\n[training]\ntokens = 5\n")
    with pytest.raises(ValueError, match="wrong.toml is not a training configuration"):
        read_config(str(data / "wrong.toml"))
    with pytest.raises(SystemExit, match="train.npy is missing: make it with"):
        train.main(["--config", str(data / "tiny.toml"), "--data", str(data / "nowhere"), "--out", str(data / "out")])
    run(data, "out", stop_after=3)
    checkpoint = data / "out" / "checkpoint.safetensors"
    (data / "tiny.toml").write_text(CONFIG + "lr = 1e-4\n")
    with pytest.raises(ValueError, match="belongs to another configuration"):
        run(data, "out")
    checkpoint.write_bytes(checkpoint.read_bytes()[:1000])
    with pytest.raises(ValueError, match="damaged.*delete it to start over"):
        run(data, "out")


@pytest.mark.parametrize("name", [path.stem for path in sorted(train.CONFIGS.glob("*.toml"))])
def test_every_shipped_configuration_trains_and_is_written(name, data):
    """One step of its kind of model, at a width that a test can afford."""
    small = ["d_model=16", "d_head=8", "n_heads=2", "d_vocab=50", "n_ctx=32", "tokens=64", "batch=2", "evaluate_windows=2", "repeats=2"]
    train.train(*read_config(name, small), data=data, out=data / name)
    model, manifest = shards.read_model(data / name / "model")
    assert manifest["name"] == name and model.config == read_config(name, small)[1]


@pytest.mark.parametrize("name", ["attn-only-0l", "attn-only-1l", "attn-only-2l"])
def test_shipped_configurations_have_the_papers_shape(name):
    _, model, training = read_config(name)
    assert (model.d_model, model.n_heads, model.d_head, model.n_layers) == (768, 12, 64, int(name[-2]))
    assert training.tokens >= 5_000_000
