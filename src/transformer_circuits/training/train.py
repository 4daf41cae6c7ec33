"""Train a model on packed tokens.

    python -m transformer_circuits.training.train --config attn-only-2l --data corpus --out runs/attn-only-2l
    python -m transformer_circuits.training.train --config ... --set tokens=1_000_000_000 batch=64 seed=1       (one GPU)
    accelerate launch -m transformer_circuits.training.train --config ...                     (several GPUs or machines)

`--data` is a folder that `training.corpus` wrote; a model with a smaller vocabulary reads its text cut finer (`vocabulary`). In `--out` appear `training.jsonl` (losses and scores), `checkpoint`
(everything needed to go on: run the same command again after a kill, and the losses are those of an uninterrupted run)
and at the end `model/`, the weights as the book ships them. Imports torch, numpy, safetensors, accelerate and tqdm only.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import json
import math
import os
import platform
import signal
import threading
import time
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import safetensors
import torch
from accelerate import Accelerator
from safetensors.torch import save_file
from torch import Tensor, nn
from tqdm import tqdm

from transformer_circuits.models.architecture import BOS, ModelConfig, Transformer
from transformer_circuits.models.shards import SHARD_BYTES, save_model
from transformer_circuits.training.loss import linear_cross_entropy
from transformer_circuits.training.scores import (
    attention_patterns,
    head_matrices,
    in_context_score,
    induction_score,
    losses,
    losses_by_order,
    positivity,
    previous_token_score,
    repeated_random_tokens,
    start_token_score,
)
from transformer_circuits.training.vocabulary import packed, tokenizer_of

CONFIGS = Path(__file__).parent / "configs"


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """How a model is trained. Raises ValueError for a precision that the trainer does not know."""

    tokens: int  # to see in all
    batch: int = 4  # windows a step, over all processes
    lr: float = 2e-3
    lr_end: float = 0.05  # of lr, reached at the last step
    warmup: float = 0.01  # share of the steps over which lr rises
    decay_from: float = 0.5  # share of the steps after which lr falls along a cosine; flat in between
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.1  # of layers
    decay_embeddings: bool = False  # with the same decay the embeddings of rare tokens would fade
    clip: float = 1.0
    seed: int = 0
    precision: str = "bf16"  # "no": float32, three times as fast on CPUs without bf16 units
    snapshots: int = 30  # evaluations, half of them log-spaced over the run, half evenly
    evaluate_windows: int = 48  # held-out windows an evaluation looks at
    few_windows: int = 8  # of those, how many are looked at for patterns and orders
    repeats: int = 16  # rows of repeated random tokens
    checkpoint_minutes: float = 5.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, kind = getattr(self, field.name), str(field.type)
            numbers = value if isinstance(value, (tuple, list)) else [value]
            if kind == "bool" and not isinstance(value, bool):
                raise ValueError(f"{field.name} must be true or false, not {value!r}")
            if kind not in ("str", "bool") and any(isinstance(x, bool) or not isinstance(x, int if kind == "int" else (int, float)) for x in numbers):
                raise ValueError(f"{field.name} must be {'a whole number' if kind == 'int' else 'a number'}, not {value!r}")
            least = 0 if field.name in ("seed", "warmup", "decay_from", "weight_decay", "lr_end") else 1 if kind == "int" else 1e-12
            if kind not in ("str", "bool") and not all(least <= x < math.inf for x in numbers):
                raise ValueError(f"{field.name} must be {'at least 0' if not least else 'above 0'}, not {value!r}")
        if max(self.warmup, self.decay_from, self.lr_end) > 1 or max(self.betas) >= 1:
            raise ValueError("warmup, decay_from and lr_end are shares of one, and betas lie below one")
        if self.precision not in ("bf16", "no"):
            raise ValueError(f"precision must be 'bf16' or 'no' (float32), not {self.precision!r}")

    def learning_rate(self, step: int, steps: int) -> float:
        done = (step + 1) / steps
        if done < self.warmup:
            return self.lr * done / self.warmup
        falling = max(0.0, (done - self.decay_from) / (1 - self.decay_from)) if self.decay_from < 1 else 0.0
        return self.lr * (self.lr_end + (1 - self.lr_end) * (1 + math.cos(math.pi * falling)) / 2)


def read_config(name: str, changes: Iterable[str] = ()) -> tuple[str, ModelConfig, TrainingConfig]:
    """(name, model, training) from a TOML file, or from a configuration shipped in `configs/` by its name.

    `changes` are settings in place of the file's, of the model or of the training, as lines of TOML: "lr=1e-3".
    Raises ValueError that names what exists or what is wrong.
    """
    path = Path(name) if name.endswith(".toml") else CONFIGS / f"{name}.toml"
    if not path.exists():
        raise ValueError(f"there is no configuration {name!r}; shipped: {', '.join(sorted(p.stem for p in CONFIGS.glob('*.toml')))}")
    content = tomllib.loads(path.read_text(encoding="utf8"))
    known = {field.name: "model" for field in dataclasses.fields(ModelConfig)}
    known |= {field.name: "training" for field in dataclasses.fields(TrainingConfig)}
    for change in changes:
        try:
            ((key, value),) = tomllib.loads(change).items()
        except ValueError as error:
            raise ValueError(f"{change!r} is not a setting: write it like lr=1e-3") from error
        if key not in known:
            raise ValueError(f"there is no setting {key!r}; there are: {', '.join(known)}")
        content.setdefault(known[key], {})[key] = value
    try:
        training = content["training"] | {"betas": tuple(content["training"].get("betas", TrainingConfig.betas))}
        return path.stem, ModelConfig(**content["model"]), TrainingConfig(**training)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path.name} is not a training configuration: {error}") from error


class Windows:
    """Non-overlapping windows of packed tokens, in a new random order every epoch.

    A row is the start token and then `n_ctx` tokens of text; inputs are all but its last, targets all but its first.
    """

    def __init__(self, path: Path, n_ctx: int, d_vocab: int, seed: int):
        if not path.exists():
            raise ValueError(f"{path} is missing: make it with `python -m transformer_circuits.training.corpus --out {path.parent}`")
        try:
            self.tokens = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise ValueError(f"{path} is damaged or no array of tokens ({error}): make the corpus anew") from error
        if self.tokens.ndim != 1 or self.tokens.dtype.kind not in "ui":
            raise ValueError(f"{path} must hold one row of whole numbers, not {self.tokens.dtype} of shape {self.tokens.shape}")
        if len(self.tokens) and not 0 <= int(self.tokens.min()) <= (last := int(self.tokens.max())) < d_vocab:
            raise ValueError(f"{path} holds token ids up to {last}, but the model's vocabulary has {d_vocab}")
        self.n_ctx, self.seed = n_ctx, seed
        self.count = len(self.tokens) // n_ctx
        if not self.count:
            raise ValueError(f"{path} holds {len(self.tokens)} tokens, less than one window of {n_ctx}")
        self.epoch, self.order = -1, np.empty(0, dtype=np.int64)

    def rows(self, windows: np.ndarray | range) -> Tensor:
        rows = np.full((len(windows), self.n_ctx + 1), BOS, dtype=np.int64)
        for row, window in zip(rows, windows):
            row[1:] = self.tokens[window * self.n_ctx : (window + 1) * self.n_ctx]
        return torch.from_numpy(rows)

    def batch(self, start: int, size: int) -> Tensor:
        """Rows start ... start + size of the endless stream of shuffled epochs."""
        windows = []
        for i in range(start, start + size):
            epoch, place = divmod(i, self.count)
            if epoch != self.epoch:
                self.epoch, self.order = epoch, np.random.default_rng((self.seed, epoch)).permutation(self.count)
            windows.append(self.order[place])
        return self.rows(np.array(windows))


def digest(path: Path) -> str:
    """The first 16 digits of a file's SHA-256: which corpus a model was trained on."""
    if not path.exists():
        raise ValueError(f"{path} is missing: make it with `python -m transformer_circuits.training.corpus --out {path.parent}`")
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


class NextTokenLoss(nn.Module):
    """Model and loss as one module, so that data-parallel wrappers see a single forward pass."""

    def __init__(self, model: Transformer):
        super().__init__()
        self.model = model

    def forward(self, rows: Tensor) -> Tensor:
        return linear_cross_entropy(self.model.residual_stream(rows[:, :-1]), self.model.head.weight, rows[:, 1:])


def write_atomically(path: Path, write: Any) -> None:
    partial = path.with_name(f".{path.name}.partial")
    write(partial)
    with open(partial, "rb+") as file:
        os.fsync(file.fileno())
    partial.replace(path)


def parameter_groups(model: Transformer) -> tuple[dict[str, nn.Parameter], dict[str, nn.Parameter]]:
    """(those of the layers, embedding and unembedding), by name: the order in which the optimizer has them."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    inside = {name: p for name, p in trained.items() if name.startswith("layers.")}
    return inside, {name: p for name, p in trained.items() if name not in inside}


def checksum(tensors: dict[str, Tensor]) -> str:
    found = hashlib.sha256()
    for name in sorted(tensors):
        found.update(name.encode())
        found.update(tensors[name].detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def save_checkpoint(path: Path, model: Transformer, optimizer: torch.optim.Optimizer, about: dict[str, Any]) -> None:
    """Weights, optimizer moments and the place in the data, in one file that is either the old or the new one."""
    tensors = {f"model.{name}": p.detach() for name, p in model.named_parameters() if p.requires_grad}
    names = [name for group in parameter_groups(model) for name in group]
    for name, state in zip(names, optimizer.state_dict()["state"].values()):
        tensors |= {f"{key}.{name}": value for key, value in state.items()}
    metadata = {"about": json.dumps(about), "sha256": checksum(tensors)}
    write_atomically(path, lambda partial: save_file(tensors, partial, metadata=metadata))


def load_checkpoint(path: Path, model: Transformer, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Puts a checkpoint's content in place; returns what was stored about it. Raises ValueError if it is damaged."""
    try:
        with safetensors.safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}
        about = json.loads(metadata["about"])
        if "sha256" in metadata and metadata["sha256"] != checksum(tensors):
            raise ValueError("its content does not have its checksum")
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error}); delete it to start over") from error
    state = {}
    names = [name for group in parameter_groups(model) for name in group]
    with torch.no_grad():
        for i, name in enumerate(names):
            model.get_parameter(name).copy_(tensors[f"model.{name}"])
            state[i] = {key: tensors[f"{key}.{name}"] for key in ("step", "exp_avg", "exp_avg_sq")}
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    return about


def read_log(path: Path, step: int, expected: set[int]) -> list[str]:
    """The log's lines up to a checkpoint's step, header left out; a line that a kill cut off is dropped, to be written again.

    Raises ValueError if the log lacks a snapshot that was taken before the checkpoint.
    """
    kept: dict[int, str] = {}
    for line in path.read_text(encoding="utf8").splitlines()[1:] if path.exists() else ():
        try:
            kept[json.loads(line)["step"]] = line
        except (ValueError, KeyError, TypeError):
            continue
    if missing := sorted(at for at in expected if at <= step and at not in kept):
        raise ValueError(f"{path} lacks what was measured at step {missing[0]}, before the checkpoint: restore it, or delete the checkpoint to start over")
    return [line for at, line in kept.items() if at <= step]


@contextlib.contextmanager
def only_trainer(out: Path) -> Iterator[None]:
    """Refuses a second trainer with the same folder, in this process or another."""
    out.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(out / ".lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise ValueError(f"another trainer writes to {out}: wait for it, or choose another --out") from None
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def stop_signals() -> Iterator[list[int]]:
    """A list that SIGINT or SIGTERM puts its number into, so that the loop can end after a whole step."""
    caught: list[int] = []
    main = threading.current_thread() is threading.main_thread()
    before = {s: signal.signal(s, lambda number, frame: caught.append(number)) for s in (signal.SIGINT, signal.SIGTERM) if main}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def hardware(accelerator: Accelerator) -> dict[str, Any]:
    cuda = accelerator.device.type == "cuda"
    name = torch.cuda.get_device_name() if cuda else platform.machine()
    if not cuda and Path("/proc/cpuinfo").exists():
        models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        name = models[0].partition(":")[2].strip() if models else name
    return {
        "device": name,
        "processes": accelerator.num_processes,
        "threads": None if cuda else torch.get_num_threads(),
        "torch": torch.__version__,
    }


def snapshot_steps(steps: int, count: int) -> set[int]:
    """About `count` step numbers from 0 to `steps`: half of them log-spaced from a 200th on, half evenly spaced."""
    half = max(2, count // 2)
    spaced = np.geomspace(max(1, steps / 200), steps, half), np.linspace(0, steps, half)
    return {int(round(s)) for s in np.concatenate(spaced)}


class Evaluation:
    """Fixed held-out windows and repeated random tokens, and what the log says about a model at one moment.

    held_out, in_context     nats a token; loss late in the window less loss early in it
    previous_token, rest     of each head on held-out text; `rest` is its attention to the start token
    induction                of each head on repeated tokens drawn uniformly; `copies`: the loss in each copy
    induction_frequent       the same on tokens drawn as often as they stand in text
    positivity               of each head's OV circuit: near one for a head that copies
    orders                   loss with frozen patterns and only paths through at most 0, 1, ... heads
    pair                     of two layers, the head of best induction and the earlier head that its keys read most: K-composition as
                             a multiple of chance, and positivity of the K-composition circuit
    """

    def __init__(self, held_out: Windows, d_vocab: int, config: TrainingConfig, device: torch.device):
        rows = held_out.rows(np.linspace(0, held_out.count - 1, min(held_out.count, config.evaluate_windows)).astype(int))
        self.rows, self.few = rows.to(device), config.few_windows
        text = torch.from_numpy(np.asarray(held_out.tokens, dtype=np.int64))
        shortest = min(20, (held_out.n_ctx - 1) // 3)
        even = torch.ones(d_vocab)
        drawn = (even, torch.bincount(text, minlength=len(even)))
        self.repeated = [
            repeated_random_tokens(len(even), held_out.n_ctx, config.repeats, shortest=shortest, seed=config.seed, frequency=f).to(device)
            for f in drawn
        ]

    def __call__(self, model: Transformer) -> dict[str, Any]:
        by_position = losses(model, self.rows)
        scores: dict[str, Any] = {"held_out": float(by_position.mean()), "in_context": in_context_score(by_position)}
        if not model.config.n_layers:
            return scores
        text = attention_patterns(model, self.rows[: self.few, :-1])
        scores["previous_token"] = previous_token_score(text).mean(dim=1)
        scores["rest"] = start_token_score(text).mean(dim=1)
        del text
        for name, repeated in zip(("induction", "induction_frequent"), self.repeated):
            patterns = attention_patterns(model, repeated.tokens)
            scores[name] = torch.stack([induction_score(layer, repeated) for layer in patterns])
        scores["copies"] = self.repeated[0].by_copy(losses(model, self.repeated[0].tokens))
        if not (model.config.normalization or model.config.d_mlp or model.config.standard_positions or model.config.smeared_keys):
            scores |= self.circuits(model, scores["induction"])
            scores["orders"] = losses_by_order(model, self.rows[: self.few])
        return json.loads(json.dumps(scores, default=lambda t: t.float().tolist()), parse_float=lambda x: round(float(x), 4))

    @torch.autocast("cpu", enabled=False)
    def circuits(self, model: Transformer, induction: Tensor) -> dict[str, Any]:
        W = {name: matrix.cpu() for name, matrix in head_matrices(model).items()}
        W_E, W_U = model.tok_embed.weight.detach().float().cpu(), model.head.weight.detach().float().cpu().T
        tokens = W_U @ W_E  # what each direction of the stream becomes when it is read as a token and embedded again
        found: dict[str, Any] = {"positivity": positivity(W["W_V"], W["W_O"] @ tokens)}
        if model.config.n_layers == 2:
            head = int(induction[1].argmax())
            K, Q, OV = W["W_K"][1, head], W["W_Q"][1, head], W["W_V"][0] @ W["W_O"][0]
            norms = torch.linalg.matrix_norm
            ratio = norms(OV @ K @ Q.T) / norms(OV) / norms(K @ Q.T) * model.config.d_model**0.5
            writer = int(ratio.argmax())
            # the circuit W_E W_QK W_OV^T W_E^T, [query token, token before the key], as the product of W_E W_Q and the rest
            match = positivity(W_E @ Q, K.T @ OV[writer].T @ W_E.T)
            found["pair"] = {"induction": head, "previous": writer, "k_composition": ratio[writer], "k_positivity": match}
        return found


def flops_per_token(shape: ModelConfig) -> float:
    """Floating-point operations of the matrix products in a training step, forward and backward, per token.

    Six for each weight that multiplies (looking up an embedding multiplies nothing); attention scores and mixtures for the
    half of the pairs that are not masked.
    """
    d_heads = shape.n_heads * shape.d_head
    layer = 4 * shape.d_model * d_heads + 2 * shape.d_model * (shape.d_mlp or 0) + d_heads * shape.n_ctx
    return 6.0 * (shape.n_layers * layer + shape.d_model * shape.d_vocab)


def train(name: str, shape: ModelConfig, config: TrainingConfig, data: Path, out: Path, stop_after: int | None = None) -> None:
    """Trains to the end, or for `stop_after` steps more; goes on from `out/checkpoint` where there is one.

    Ctrl-C and SIGTERM end it after a whole step, with a checkpoint. Raises ValueError, in one sentence, for settings, tokens or a checkpoint
    that cannot be used, for a second trainer with the same `out`, and if the loss is no longer a number (nothing is written then).
    """
    with only_trainer(out) if int(os.environ.get("RANK", 0)) == 0 else contextlib.nullcontext():
        _train(name, shape, config, data, out, stop_after)


def _train(name: str, shape: ModelConfig, config: TrainingConfig, data: Path, out: Path, stop_after: int | None) -> None:
    accelerator = Accelerator(mixed_precision="no", cpu=not torch.cuda.is_available())
    # Not Accelerate's own mixed precision, which is fixed for the life of the process.
    autocast = torch.autocast(accelerator.device.type, torch.bfloat16, enabled=config.precision == "bf16")
    if config.batch % accelerator.num_processes:
        raise ValueError(f"batch {config.batch} cannot be shared evenly by {accelerator.num_processes} processes")
    torch.manual_seed(config.seed)
    plain = Transformer(shape).to(accelerator.device)
    parameters = [p for p in plain.parameters() if p.requires_grad]
    groups = [{"params": group, "weight_decay": decay} for group, decay in zip(parameter_groups(plain), (config.weight_decay, config.weight_decay * config.decay_embeddings)) if group]
    optimizer = torch.optim.AdamW([{**g, "params": list(g["params"].values())} for g in groups], lr=config.lr, betas=config.betas, fused=True)
    steps = max(1, config.tokens // (config.batch * shape.n_ctx))
    with accelerator.main_process_first():
        files = [packed(data, side, shape.d_vocab) for side in ("train", "held_out")]
    about = {"name": name, "model": dataclasses.asdict(shape), "training": json.loads(json.dumps(dataclasses.asdict(config)))}
    about["corpus"] = {file.name: digest(file) for file in files}

    checkpoint, log = out / "checkpoint.safetensors", out / "training.jsonl"
    step, seconds = 0, 0.0
    if checkpoint.exists():
        stored = load_checkpoint(checkpoint, plain, optimizer)
        if stored["about"] != about:
            raise ValueError(f"{checkpoint} belongs to another configuration or corpus; choose another --out, or delete it")
        step, seconds = stored["step"], stored["seconds"]
    snapshots = snapshot_steps(steps, config.snapshots)
    if accelerator.is_main_process:
        kept = read_log(log, step, snapshots) if step else []
        header = json.dumps(about | {"hardware": hardware(accelerator)})
        write_atomically(log, lambda partial: partial.write_text("".join(f"{line}\n" for line in [header, *kept])))
        recorded = {json.loads(line)["step"] for line in kept}

    windows, held_out = (Windows(file, shape.n_ctx, shape.d_vocab, config.seed) for file in files)
    evaluation = Evaluation(held_out, shape.d_vocab, config, accelerator.device)
    module, optimizer = accelerator.prepare(NextTokenLoss(plain), optimizer)
    share = config.batch // accelerator.num_processes

    def evaluate(step: int, train_loss: float | None) -> None:
        if accelerator.is_main_process and step in snapshots and step not in recorded:
            with autocast:
                scores = evaluation(plain)
            row = {"step": step, "tokens": step * config.batch * shape.n_ctx, "train": train_loss, **scores}
            row |= {"lr": config.learning_rate(step, steps), "seconds": round(seconds + time.monotonic() - start, 1)}
            with open(log, "a") as file:
                file.write(json.dumps(row) + "\n")
            recorded.add(step)

    def keep(step: int) -> None:
        if accelerator.is_main_process:
            state = {"about": about, "step": step, "seconds": seconds + time.monotonic() - start}
            save_checkpoint(checkpoint, plain, optimizer, state)

    start = saved = time.monotonic()
    evaluate(step, None)
    last = steps if stop_after is None else min(steps, step + stop_after)
    bar = tqdm(total=steps * config.batch * shape.n_ctx, initial=step * config.batch * shape.n_ctx, unit="tok",
               unit_scale=True, desc=name, disable=not accelerator.is_main_process, mininterval=2)  # fmt: skip
    with stop_signals() as stopped:
        while step < last and not stopped:
            for group in optimizer.param_groups:
                group["lr"] = config.learning_rate(step, steps)
            rows = windows.batch(step * config.batch + accelerator.process_index * share, share).to(accelerator.device)
            with autocast:
                loss = module(rows)
            accelerator.backward(loss)
            norm = accelerator.clip_grad_norm_(parameters, config.clip)
            if not math.isfinite(loss.item() + float(norm)):
                kept_at = f"; {checkpoint} holds the last good state" if checkpoint.exists() else ""
                raise ValueError(f"at step {step} the loss is {loss.item()} and its gradient {float(norm)}: lower lr{kept_at}")
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            bar.update(rows[:, 1:].numel() * accelerator.num_processes)
            if step % 10 == 0:
                bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
            if step in snapshots:
                evaluate(step, round(loss.item(), 4))
            if time.monotonic() - saved > 60 * config.checkpoint_minutes:
                keep(step)
                saved = time.monotonic()
        bar.close()
        keep(step)
    if stopped:
        accelerator.print(f"stopped at step {step} of {steps}; {checkpoint} holds it, and the same command goes on from there")
        raise SystemExit(128 + stopped[0])
    if step == steps and accelerator.is_main_process:
        export(plain, name, out, accelerator, *tokenizer_of(data, shape.d_vocab))


def export(model: Transformer, name: str, out: Path, accelerator: Accelerator, tokenizer: str | None, own_tokenizer: bool) -> None:
    """`out/model`: the weights as the book ships them, with the log and its last row in the manifest.

    `tokenizer`: content of its `tokenizer.json`, which is written beside it where it is its own, not the corpus's; the manifest has its checksum.
    """
    lines = [json.loads(line) for line in (out / "training.jsonl").read_text().splitlines()]
    training = {"run": lines[0], "result": lines[-1]}
    largest = max(2 * p.numel() for p in model.parameters())  # bytes in half precision; a wide model's W_E is larger than a shard
    save_model(model, out / "model", name, training, max(SHARD_BYTES, largest), tokenizer, own_tokenizer)
    write_atomically(out / "model" / "training.jsonl", lambda p: p.write_text((out / "training.jsonl").read_text()))
    rate = lines[-1]["tokens"] / max(lines[-1]["seconds"], 0.1)  # evaluations included
    accelerator.print(json.dumps(training["result"]))
    accelerator.print(f"{rate:,.0f} tokens/s, {rate * flops_per_token(model.config) / 1e12:.3g} TFLOP/s")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True, help="a shipped configuration's name, or a TOML file")
    parser.add_argument("--name", help="what the model is called (default: as its configuration)")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings in place of the configuration's")
    parser.add_argument("--data", type=Path, required=True, help="folder with train.npy and held_out.npy")
    parser.add_argument("--out", type=Path, required=True, help="folder for log, checkpoint and weights")
    parser.add_argument("--stop-after", type=int, help="stop after this many steps; the same command goes on from there")
    args = parser.parse_args(argv)
    try:
        name, shape, training = read_config(args.config, args.set)
        train(args.name or name, shape, training, data=args.data, out=args.out, stop_after=args.stop_after)
    except (ValueError, OSError) as error:  # OSError: a full disk, a folder that may not be written to
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()
