"""Train a model on packed tokens.

    python -m transformer_circuits.training.train --config attn-only-2l --data corpus --out runs/attn-only-2l
    python -m transformer_circuits.training.train --config ... --set tokens=1_000_000_000 batch=64 seed=1       (one
    GPU)
    accelerate launch --multi_gpu --num_processes 8 -m transformer_circuits.training.train --config ...     (several
    GPUs)

`--data` is a folder that `make corpus` wrote. A model with a smaller vocabulary reads the same text, cut finer
(`models.tokenizer`). Written to `--out`: `training.jsonl` (losses and scores), `checkpoint.safetensors` (after a kill,
the same command resumes, with the losses of an uninterrupted run), and at the end `model/`, as the book ships models.
Several CPU processes need `--multi_gpu` too: without it, Accelerate 1.15 starts a single one.
"""

import contextlib
import dataclasses
import json
import math
import os
import platform
import re
import signal
import statistics
import textwrap
import time
import tomllib
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import accelerate
import filelock
import numpy as np
import pydantic
import torch
from accelerate import Accelerator
from pydantic import ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn
from tqdm import tqdm

from transformer_circuits.models.architecture import ModelConfig, Transformer
from transformer_circuits.models.shards import reason, save_model, write_atomically
from transformer_circuits.models.tokenizer import packed, tokenizer_of
from transformer_circuits.training import film
from transformer_circuits.training.blocked import blocked_attention
from transformer_circuits.training.checkpoints import digest, read_checkpoint, restore, save_checkpoint
from transformer_circuits.training.evaluation import Evaluation, ablation_effects_of, decimals
from transformer_circuits.training.loss import linear_cross_entropy
from transformer_circuits.training.muon import HeadMuon
from transformer_circuits.training.windows import Windows

CONFIGS = Path(__file__).parent / "configs"
SHORT = 15_000_000  # tokens of a run from which on it has as many snapshots as its configuration says
SHORTEST = 5  # tokens of a window: its evaluation repeats a segment of two, whose second token is predicted
TRIAL, TRIALS = 128, 5  # tokens on which precisions are compared, and how often
EMULATED = 50  # times as slow in the first trial: no unit for it, so that one trial is enough
MANY = 4  # readings of a text up to which more of them are nearly as good as more text (Muennighoff et al., 2023)
WORDS, OTHER = {"no": "float32", "bf16": "bf16"}, {"bf16": "no", "no": "bf16"}
UNREAD = 50  # steps whose losses wait on a GPU until they are read together: reading one waits until it is computed
FORWARD = 1 / 4  # time of a window that is only evaluated, as a fraction of one that is trained on

Share = Annotated[float, Field(ge=0, le=1)]
Memory = Annotated[float, Field(gt=0, lt=1)]
Several = Annotated[int, Field(ge=2)]  # what has a standard error
STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


@pydantic.dataclasses.dataclass(frozen=True, config=STRICT)
class TrainingConfig:
    """How a model is trained. Raises ValueError for settings of another type or out of range."""

    tokens: PositiveInt = Field(description="to read in all")
    batch: PositiveInt = Field(4, description="windows per step, over all processes")
    optimizer: Literal["muon", "adamw"] = Field("muon", description="of heads: Muon for each head; all else is AdamW's")
    lr: PositiveFloat = Field(2e-3, description="learning rate")
    lr_end: Share = Field(0.05, description="fraction of lr, reached at the last step")
    warmup: Share = Field(0.01, description="fraction of the steps, over which lr rises")
    decay_from: Share = Field(
        0.5, description="fraction of the steps, after which lr falls along a cosine; constant in between"
    )
    betas: Annotated[tuple[Memory, ...], Field(strict=False, min_length=2, max_length=2)] = Field(
        (0.9, 0.95), description="of AdamW"
    )
    weight_decay: NonNegativeFloat = Field(0.1, description="of layers")
    # With the same decay the embeddings of rare tokens would fade.
    decay_embeddings: bool = Field(False, description="decay embeddings too")
    clip: PositiveFloat = Field(1.0, description="largest norm of a gradient")
    seed: NonNegativeInt = Field(0, description="of the initial weights and the order of the text")
    without_start: Share = Field(
        0.0, description="fraction of training windows that begin in running text, without the start token"
    )
    planted: Share = Field(0.0, description="fraction of training windows that contain one of their own passages twice")
    precision: Literal["auto", "bf16", "no"] = Field(
        "auto", description="bf16, no (float32), or auto: bf16 where a short trial shows that it is faster"
    )
    snapshots: PositiveInt = Field(30, description="evaluations, half of them log-spaced over the run, half even")
    evaluate_windows: Several = Field(48, description="held-out windows per evaluation")
    few_windows: Several = Field(8, description="of those, the ones whose patterns and orders are measured")
    repeats: PositiveInt = Field(16, description="rows of repeated random tokens per evaluation")
    film: bool = Field(False, description='record what the page "Watch it learn" shows, at every snapshot')
    checkpoint_minutes: PositiveFloat = Field(5.0, description="minutes between checkpoints")

    def learning_rate(self, step: int, steps: int) -> float:
        done = (step + 1) / steps
        if done < self.warmup:
            return self.lr * done / self.warmup
        start = max(self.warmup, self.decay_from)  # it never falls before it has risen
        falling = max(0.0, (done - start) / (1 - start)) if start < 1 else 0.0
        return self.lr * (self.lr_end + (1 - self.lr_end) * (1 + math.cos(math.pi * falling)) / 2)


SECTIONS = {"model": ModelConfig, "training": TrainingConfig}


def setting(change: str) -> tuple[str, Any]:
    """Return the name and the value of a setting such as lr=1e-3 or precision=no. Raises ValueError for anything
    else."""
    key, equals, value = change.partition("=")
    if not equals:
        raise ValueError(f"a setting must be name=value, such as lr=1e-3, got {change!r}")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except ValueError:  # text without its quotes
        return key, value


def described_settings() -> str:
    """Return a line for each setting: its name, default, and what it is."""
    lines = []
    for section, kind in SECTIONS.items():
        lines.append(f"settings of the {section} (KEY=VALUE of --set, or in [{section}] of a TOML file):")
        for name, field in kind.__pydantic_fields__.items():
            default = "" if field.is_required() or field.default is None else f"={json.dumps(field.default)}"
            lines += textwrap.wrap(
                f"{name}{default}: {field.description}", 110, initial_indent="  ", subsequent_indent="      "
            )
    return "\n".join(lines)


def read_config(name: str, changes: Iterable[str] = ()) -> tuple[str, ModelConfig, TrainingConfig]:
    """Return (name, model, training) from a TOML file, or from a configuration in `configs/` by its name.

    `changes` replace settings of the file, as lines of TOML: "lr=1e-3". Text needs no quotes: "precision=no". Raises
    ValueError that names what exists or what is wrong.
    """
    path = Path(name) if name.endswith(".toml") else CONFIGS / f"{name}.toml"
    if not path.is_file():
        shipped = ", ".join(sorted(p.stem for p in CONFIGS.glob("*.toml")))
        raise ValueError(f"there is no configuration {name}; pass a TOML file, or one of {shipped}")
    try:
        content = tomllib.loads(path.read_text(encoding="utf8"))
    except ValueError as error:
        raise ValueError(f"{path} is not a readable TOML file ({error})") from error
    sections = {"model": {}, "training": {}} | content
    if len(sections) > 2 or not all(isinstance(section, dict) for section in sections.values()):
        raise ValueError(f"{path} must have the sections [model] and [training] and nothing else, got {content}")
    section_of = {field.name: section for section, kind in SECTIONS.items() for field in dataclasses.fields(kind)}
    for change in changes:
        key, value = setting(change)
        if key not in section_of:
            raise ValueError(f"unknown setting {key!r}; there are: {', '.join(section_of)}")
        sections[section_of[key]][key] = value
    for section in sections.values():  # 1e6 is a whole number too; settings that are not whole numbers take one
        section |= {key: int(x) for key, x in section.items() if isinstance(x, float) and x.is_integer()}
    try:
        return path.stem, ModelConfig(**sections["model"]), TrainingConfig(**sections["training"])
    except pydantic.ValidationError as error:
        raise ValueError(reason(error)) from error


class NextTokenLoss(nn.Module):
    """Model and loss as one module, so that data-parallel wrappers see a single forward pass."""

    def __init__(self, model: Transformer):
        super().__init__()
        self.model = model
        for block in model.layers:
            block.attn.attend = blocked_attention

    def forward(self, rows: Tensor) -> Tensor:
        residual = self.model.residual_stream(rows[:, :-1])
        return linear_cross_entropy(residual, self.model.head.weight, rows[:, 1:])


@contextlib.contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Yield a list to which SIGINT or SIGTERM adds its number, so that training can end after a whole step."""
    caught: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda number, frame: caught.append(number)) for number in numbers]
    try:
        yield caught
    finally:
        for number, handler in zip(numbers, before):
            signal.signal(number, handler)


def processor() -> str:
    """Return the name of the processor, or of its kind where the system does not tell."""
    cpus = Path("/proc/cpuinfo")
    named = re.search(r"model name\s*: (.*)", cpus.read_text()) if cpus.exists() else None
    return named[1] if named else platform.machine()


def snapshot_steps(steps: int, count: int) -> set[int]:
    """Return about `count` step numbers from 0 to `steps`: half of them log-spaced from a 200th on, half evenly
    spaced."""
    half = max(2, count // 2)
    spaced = np.geomspace(max(1, steps / 200), steps, half), np.linspace(0, steps, half)
    return {int(round(s)) for s in np.concatenate(spaced)}


def snapshot_count(shape: ModelConfig, config: TrainingConfig) -> int:
    """Return `config.snapshots`, in a run of fewer than SHORT tokens at most the number that takes a tenth of its
    time."""
    if config.tokens >= SHORT:
        return config.snapshots
    per_head = shape.n_layers * shape.n_heads * config.few_windows
    windows = config.evaluate_windows + config.few_windows + per_head + 4 * config.repeats  # of one evaluation
    affordable = 0.1 * config.tokens / (FORWARD * windows * shape.n_ctx)
    return min(config.snapshots, max(4, int(affordable)))


def optimizers_for(model: Transformer, config: TrainingConfig) -> list[torch.optim.Optimizer]:
    """Return AdamW for all parameters, or HeadMuon for the matrices of heads and AdamW for the rest (embeddings, MLPs,
    norms)."""
    heads = [block.attn for block in model.layers] if config.optimizer == "muon" else []
    readers = [linear.weight for attn in heads for linear in (attn.q, attn.k, attn.v)]
    writers = [attn.o.weight for attn in heads]
    of_heads, decay = {*readers, *writers}, config.weight_decay
    layers = [parameter for parameter in model.layers.parameters() if parameter not in of_heads]
    embeddings = [*model.tok_embed.parameters(), *model.ln_out.parameters(), *model.head.parameters()]
    groups = [
        {"params": layers, "weight_decay": decay},
        {"params": embeddings, "weight_decay": decay * config.decay_embeddings},
    ]
    adamw = torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, fused=True)
    return [HeadMuon(readers, writers, model.config.d_head, config.lr, weight_decay=decay), adamw] if heads else [adamw]


def duration(seconds: float) -> str:
    """Return a time in the unit that suits it."""
    for unit, size in (("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"


class Run:
    """One run from its last checkpoint on (`out/checkpoint.safetensors`): `step` steps are done, and `train_loss` is
    the loss of the last one. Raises ValueError for settings, tokens or a checkpoint that cannot be used."""

    def __init__(
        self, name: str, shape: ModelConfig, config: TrainingConfig, data: Path, out: Path, compiled: bool = False
    ) -> None:
        self.shape, self.config, self.data, self.out = shape, config, data, out
        self.accelerator = Accelerator(mixed_precision="no", cpu=not torch.cuda.is_available())
        self.is_main = self.accelerator.is_main_process
        device, processes = self.accelerator.device, self.accelerator.num_processes
        self.share, left_over = divmod(config.batch, processes)
        if shape.n_ctx < SHORTEST:
            raise ValueError(f"n_ctx must be at least {SHORTEST}, got {shape.n_ctx}")
        if shape.d_vocab < 3:
            raise ValueError(f"d_vocab must be at least 3, the start token and two to repeat, got {shape.d_vocab}")
        if left_over:
            raise ValueError(f"batch must be a multiple of the {processes} processes, got {config.batch}")
        torch.manual_seed(config.seed)
        self.model = Transformer(shape).to(device)
        self.optimizers = optimizers_for(self.model, config)
        with self.accelerator.main_process_first():
            files = [packed(data, side, shape.d_vocab) for side in ("train", "held_out")]
        # Another corpus may take the place of this one: what is read, and exported, is what was there at the start.
        self.tokenizer = tokenizer_of(data, shape.d_vocab)
        self.opened = [open(file, "rb") for file in files if file.exists()]
        sides = shape.n_ctx, shape.d_vocab, config.seed
        on_gpu = device if device.type == "cuda" else None
        self.windows = Windows(files[0], *sides, config.without_start, config.planted, on_gpu)
        held_out = Windows(files[1], *sides)
        if held_out.count < 2:  # ablation effects would have no standard error
            raise ValueError(f"{files[1]} must have at least two windows of {shape.n_ctx} tokens, got one; lower n_ctx")
        self.tokens_per_step = config.batch * shape.n_ctx
        self.steps = max(1, config.tokens // self.tokens_per_step)
        self.checkpoint, self.log = out / "checkpoint.safetensors", out / "training.jsonl"
        done, tensors = read_checkpoint(self.checkpoint)
        loss = NextTokenLoss(self.model)
        if config.precision == "auto":
            self.config = config = dataclasses.replace(config, precision=self.kept_precision(loss))
        # Not Accelerate's own mixed precision, which is fixed for the life of the process.
        self.autocast = torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bf16")
        settings = {"model": dataclasses.asdict(shape), "training": dataclasses.asdict(config)}
        about = {"name": name, **settings, "corpus": self.digests()}
        self.about = json.loads(json.dumps(about))
        self.snapshots = snapshot_steps(self.steps, snapshot_count(shape, config))
        self.filmed = film.texts(data, held_out.tokens[: shape.n_ctx], shape) if config.film else []
        self.resume(done, tensors)
        self.evaluation = Evaluation(held_out, shape.d_vocab, config, device)
        self.expect(loss)
        if compiled:
            loss.compile()
        self.loss, *self.optimizers = self.accelerator.prepare(loss, *self.optimizers)
        self.unread: dict[int, Tensor] = {}  # loss and gradient norm of steps, on the device
        self.read_after = UNREAD if on_gpu and processes == 1 else 1
        self.caught: list[int] = []  # signals
        done, total = self.step * self.tokens_per_step, self.steps * self.tokens_per_step
        looks = {"unit": "tok", "unit_scale": True, "mininterval": 2, "disable": not self.is_main}
        self.bar = tqdm(desc=name, initial=done, total=total, **looks)

    def digests(self) -> dict[str, str]:
        """Return what identifies the text, by file, as it is now in the files that were opened at the start."""
        return {Path(file.name).name: digest(file) for file in self.opened}

    def seconds(self, loss: NextTokenLoss, precision: str, windows: int, n_ctx: int) -> float:
        """Return how long a forward and a backward pass take in this precision; the second of two, and the gradients
        are thrown away."""
        device, took = self.accelerator.device, 0.0
        rows = torch.zeros(windows, n_ctx + 1, dtype=torch.long, device=device)
        for _ in range(2):
            started = time.perf_counter()
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
                value = loss(rows)
            value.backward()
            value.item()  # waits for a GPU
            took = time.perf_counter() - started
        self.model.zero_grad()
        return took

    def kept_precision(self, loss: NextTokenLoss) -> str:
        """Return the precision with which a training in this folder began, else the faster one."""
        try:
            with open(self.log, encoding="utf8") as log:
                return json.loads(log.readline())["training"]["precision"]
        except (OSError, ValueError, KeyError):  # the first time
            return self.faster_precision(loss)

    def faster_precision(self, loss: NextTokenLoss) -> str:
        """Return "bf16" or "no", whichever is faster on this machine in the median of some trials: other programs may
        disturb one.

        On processors without bf16 units bf16 takes up to 500 times as long, so a trial is short.
        """
        n_ctx, trials = min(self.shape.n_ctx, TRIAL), []
        for _ in range(TRIALS):
            trials.append({precision: self.seconds(loss, precision, 1, n_ctx) for precision in WORDS})
            if max(trials[0].values()) > EMULATED * min(trials[0].values()):
                break
        took = {precision: statistics.median(trial[precision] for trial in trials) for precision in WORDS}
        chosen = accelerate.utils.broadcast_object_list([min(took, key=took.get)])[0]
        ratio = max(took.values()) / min(took.values())
        self.accelerator.print(f"precision: {WORDS[chosen]}, {ratio:.1f} times as fast here as {WORDS[OTHER[chosen]]}")
        return chosen

    def expect(self, loss: NextTokenLoss) -> None:
        """Print how long the rest of the run will take, from one step's forward and backward pass."""
        left = (self.steps - self.step) * self.tokens_per_step
        seconds = self.seconds(loss, self.config.precision, self.share, self.shape.n_ctx)
        rate = self.tokens_per_step / seconds
        self.accelerator.print(
            f"expected: {rate:,.0f} tokens/s in {WORDS[self.config.precision]}, {duration(left / rate)} for "
            f"{left:,} tokens, plus evaluations"
        )
        text = self.windows.text.size
        if (readings := self.steps * self.tokens_per_step / text) > MANY:
            self.accelerator.print(
                f"warning: a text of {text:,} tokens is read {readings:.0f} times. After {MANY} times, a model "
                f"learns it by heart: take more text, or --set tokens={MANY * text}"
            )

    def resume(self, done: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Go on from what a checkpoint contains (nothing: from the start), and write the log again up to there. Raises
        ValueError if it is not about this run."""
        if done and done["about"] != self.about:
            raise ValueError(f"{self.checkpoint} belongs to another configuration or corpus; choose another --out")
        self.frames = restore(tensors, self.model, self.optimizers)  # of the film, one for each snapshot
        self.step, self.train_loss = done.get("step", 0), done.get("train")
        self.rows = done.get("rows", [])  # of the log, one for each snapshot
        self.saved = time.monotonic()
        self.start = self.saved - done.get("seconds", 0.0)  # as if there had been no interruption
        cuda = self.accelerator.device.type == "cuda"
        hardware = {
            "device": torch.cuda.get_device_name() if cuda else processor(),
            "processes": self.accelerator.num_processes,
            "threads": None if cuda else torch.get_num_threads(),
            "torch": torch.__version__,
        }
        self.header = self.about | {"hardware": hardware}
        if self.is_main:
            content = "".join(f"{json.dumps(line)}\n" for line in (self.header, *self.rows))
            write_atomically(self.log, lambda partial: partial.write_text(content))

    def advance(self) -> int:
        """Take one step in all processes; if one of them caught a signal, take none and return it, else 0."""
        if self.accelerator.num_processes == 1 and self.caught:
            return max(self.caught)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.config.learning_rate(self.step, self.steps)
        first = self.step * self.config.batch + self.accelerator.process_index * self.share
        rows = self.windows.batch(first, self.share)
        if self.accelerator.device.type == "cuda" and not rows.is_cuda:
            rows = rows.pin_memory()  # its copy does not wait for the GPU
        rows = rows.to(self.accelerator.device, non_blocking=True)
        with self.autocast:
            loss = self.loss(rows)
        self.accelerator.backward(loss)
        norm = self.accelerator.clip_grad_norm_(self.model.parameters(), self.config.clip)
        seen = torch.stack([loss.detach(), norm])
        if self.accelerator.num_processes > 1:
            own = torch.cat([seen, seen.new_tensor([max(self.caught, default=0)])])
            losses, norms, signals = self.accelerator.gather(own[None]).T
            if stopped := int(signals.max()):
                return stopped
            seen = torch.stack([losses.mean(), norms.max()])
        self.unread[self.step] = seen
        if len(self.unread) >= self.read_after:
            self.read()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.step += 1
        self.bar.update(self.tokens_per_step)
        return 0

    def read(self) -> None:
        """Read the losses of the last steps. Raises ValueError if the training diverged; nothing was written since."""
        if not self.unread:
            return
        for step, (loss, norm) in zip(self.unread, torch.stack([*self.unread.values()]).tolist()):
            if not math.isfinite(loss + norm):
                raise ValueError(f"training diverged at step {step} (loss {loss}, gradient norm {norm}); lower lr")
        self.unread.clear()
        self.train_loss = round(loss, 4)
        self.bar.set_postfix(loss=f"{loss:.3f}", refresh=False)

    def evaluate(self) -> None:
        """Write a row of the log at a snapshot's step, and film it."""
        if not self.is_main or self.step not in self.snapshots or self.step in {row["step"] for row in self.rows}:
            return
        self.read()
        with self.autocast:
            scores = self.evaluation(self.model)
        done = {"step": self.step, "tokens": self.step * self.tokens_per_step, "train": self.train_loss}
        rate, seconds = self.config.learning_rate(self.step, self.steps), time.monotonic() - self.start
        row = {**done, **scores, "lr": rate, "seconds": round(seconds, 1)}
        self.rows.append(row)
        if self.filmed:
            self.frames.append(film.frame(self.model, self.filmed, row))
        with open(self.log, "a") as file:
            file.write(json.dumps(row) + "\n")

    def keep(self) -> None:
        """Write a checkpoint."""
        self.read()
        self.saved = time.monotonic()
        if self.is_main and self.step:
            seconds = self.saved - self.start
            done = {"step": self.step, "seconds": seconds, "train": self.train_loss, "rows": self.rows}
            save_checkpoint(self.checkpoint, self.model, self.optimizers, self.frames, about=self.about, **done)

    def export(self) -> None:
        """Write `out/model` as the book ships models, with the log. The manifest has the log's header and last row, and
        the ablation effect of each head on all held-out windows of an evaluation (the log's rows have it on a few)."""
        last = self.rows[-1]
        training = {"run": self.header, "result": last}
        if self.shape.n_layers:
            heads = ablation_effects_of(self.model, self.evaluation.rows)
            training["heads"] = decimals(heads._asdict(), digits=6)
        frames = film.joined(self.filmed, self.frames) if self.filmed else None
        if self.digests() != self.about["corpus"]:
            raise ValueError(f"{self.data} was written over during the training; start over with another --out")
        model = self.out / "model"
        save_model(self.model, model, self.header["name"], training, self.tokenizer, frames)
        write_atomically(model / "training.jsonl", lambda partial: partial.write_bytes(self.log.read_bytes()))
        rate = last["tokens"] / max(last["seconds"], 0.1)
        print(f"held-out loss {last['held_out']:.3f} after {last['tokens']:,} tokens, {rate:,.0f} a second")
        print(f'The model is in {model}. Next: NAME = "{model.resolve()}" in chapter 19 (make lab)')


def train(run: Run, stop_after: int | None = None) -> None:
    """Train to the end, or for `stop_after` more steps.

    SIGINT and SIGTERM end all processes after the same whole step, with a checkpoint. Raises ValueError if the loss is
    NaN or infinity (nothing is written then).
    """
    last = run.steps if stop_after is None else min(run.steps, run.step + stop_after)
    stopped = 0
    with run.bar, stop_signals() as run.caught:
        run.evaluate()
        while run.step < last and not (stopped := run.advance()):
            run.evaluate()
            if time.monotonic() - run.saved > 60 * run.config.checkpoint_minutes:
                run.keep()
        run.keep()
        run.accelerator.wait_for_everyone()
    if stopped := stopped or max(run.caught, default=0):
        goes_on = f"resumes from {run.checkpoint}" if run.step else "starts over"
        run.accelerator.print(f"stopped at step {run.step} of {run.steps}; the same command {goes_on}")
        raise SystemExit(128 + stopped)
    if run.step == run.steps and run.is_main:
        run.export()


def main(argv: list[str] | None = None) -> None:
    form = RawDescriptionHelpFormatter
    parser = ArgumentParser(description=__doc__, epilog=described_settings(), formatter_class=form)
    add = parser.add_argument
    add("--config", required=True, help="name of a shipped configuration, or a TOML file")
    add("--name", help="name of the model (default: as its configuration)")
    add("--set", nargs="+", default=[], metavar="KEY=VALUE", help="replace settings of the configuration")
    add("--data", type=Path, required=True, help="folder with train.npy and held_out.npy")
    add("--out", type=Path, required=True, help="folder for log, checkpoint and weights")
    add("--compile", action="store_true", help="compile model and loss: a minute at the start, then faster on a GPU")
    args = parser.parse_args(argv)
    try:
        name, shape, training = read_config(args.config, args.set)
        is_main = int(os.environ.get("RANK", 0)) == 0
        with filelock.FileLock(args.out / ".lock", timeout=0) if is_main else contextlib.nullcontext():
            train(Run(args.name or name, shape, training, args.data, args.out, args.compile))
    except filelock.Timeout as error:
        raise SystemExit(f"error: another trainer writes to {args.out}; choose another --out") from error
    except (ValueError, OSError) as error:  # OSError: a full disk, a folder without write permission
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()
