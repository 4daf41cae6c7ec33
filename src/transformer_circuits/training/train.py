"""Train a model on packed tokens.

    python -m transformer_circuits.training.train --config attn-only-2l --data corpus --out runs/attn-only-2l
    python -m transformer_circuits.training.train --config ... --set tokens=1_000_000_000 batch=64 seed=1   # one GPU
    accelerate launch --multi_gpu --num_processes 8 -m transformer_circuits.training.train --config ...     # several

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
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import safetensors
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from jaxtyping import Float, Int
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from transformer_circuits.measures import ablation
from transformer_circuits.models.architecture import ModelConfig, Transformer
from transformer_circuits.models.shards import save_model
from transformer_circuits.models.tokenizer import tokenizer_of
from transformer_circuits.paths import write_atomically
from transformer_circuits.training import film
from transformer_circuits.training.evaluation import Evaluation, decimals, view_of
from transformer_circuits.training.muon import optimizers_for
from transformer_circuits.training.settings import TrainingConfig, described_settings, read_config
from transformer_circuits.training.windows import Windows

APART = 500  # windows between snapshots at least, on average: an evaluation takes the time of fifty to a hundred
SHORTEST_WINDOW = 5  # tokens
MANY = 4  # readings of a text up to which more of them are nearly as good as more text (Muennighoff et al., 2023)
UNREAD = 50  # steps after which the loss is read: on a GPU, reading it waits until it is computed


def next_token_loss(model: nn.Module, rows: Int[Tensor, "row pos"]) -> Float[Tensor, ""]:
    """Return the mean loss (nats) at each token after the first, in single precision."""
    logits = model(rows[:, :-1]).flatten(0, 1)
    return cross_entropy(logits.float(), rows[:, 1:].flatten())


def cpuinfo() -> str:
    """Return what Linux says of the processor; nothing elsewhere."""
    file = Path("/proc/cpuinfo")
    return file.read_text() if file.exists() else ""


def fast_precision(device: torch.device) -> str:
    """Return "bf16" where the processor has units for it, else "no": emulated, it takes up to 500 times as long as
    float32."""
    if device.type == "cuda":
        units = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        units = re.search("avx512_bf16|amx_bf16", cpuinfo())
    return "bf16" if units else "no"


def snapshot_steps(n_ctx: int, config: TrainingConfig, steps: int) -> set[int]:
    """Return the steps of snapshots: half of them log-spaced from a 200th of the run on, half evenly spaced. A short
    run has fewer than its settings say, but at least three."""
    half = max(4, min(config.snapshots, config.tokens // n_ctx // APART)) // 2
    spaced = np.geomspace(max(1, steps / 200), steps, half), np.linspace(0, steps, half)
    return {int(round(step)) for step in np.concatenate(spaced)}


def save_checkpoint(path: Path, **state: Any) -> None:
    """Write tensors, state dicts, and plain values by name: tensors by number, and all else as JSON beside them."""
    tensors: dict[str, Tensor] = {}

    def numbered(tensor: Tensor) -> dict[str, str]:
        name = str(len(tensors))
        tensors[name] = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {"tensor": name}

    text = json.dumps(state, default=numbered)
    write_atomically(path, save(tensors, {"state": text}))


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Return what was saved, on the CPU; nothing if there is no file. Raises ValueError if it is damaged."""
    if not path.exists():
        return {}
    try:
        with safetensors.safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}
            text = (file.metadata() or {})["state"]
    except (safetensors.SafetensorError, KeyError) as error:
        raise ValueError(f"{path} is damaged ({error}); delete it to start over") from error

    def restored(value: dict[str, Any]) -> Any:
        if "tensor" in value:
            return tensors[value["tensor"]]
        # Optimizers name parameters by whole numbers, which JSON writes as text.
        return {int(key) if key.isdigit() else key: item for key, item in value.items()}

    return json.loads(text, object_hook=restored)


class Run:
    """One run from its last checkpoint on (`out/checkpoint.safetensors`): `step` steps are done. Raises ValueError for
    settings, tokens or a checkpoint that cannot be used."""

    def __init__(
        self, name: str, shape: ModelConfig, config: TrainingConfig, data: Path, out: Path, compiled: bool = False
    ) -> None:
        self.out, self.checkpoint, self.log = out, out / "checkpoint.safetensors", out / "training.jsonl"
        self.accelerator = Accelerator(mixed_precision="no", cpu=not torch.cuda.is_available())
        self.is_main = self.accelerator.is_main_process
        device, processes = self.accelerator.device, self.accelerator.num_processes
        self.share, left_over = divmod(config.batch, processes)
        if shape.n_ctx < SHORTEST_WINDOW or shape.d_vocab < 3:  # to repeat two tokens, and predict the second
            got = f"got {shape.n_ctx} and {shape.d_vocab}"
            raise ValueError(f"n_ctx must be at least {SHORTEST_WINDOW}, and d_vocab at least 3, {got}")
        if left_over:
            raise ValueError(f"batch must be a multiple of the {processes} processes, got {config.batch}")

        files = data / "train.npy", data / "held_out.npy"
        self.tokenizer = tokenizer_of(data, shape.d_vocab)  # now: another corpus may take the place of this one
        sides = shape.n_ctx, shape.d_vocab, config.seed
        self.windows = Windows(files[0], *sides, config.without_start, config.planted, device)
        held_out = Windows(files[1], *sides, device=device)

        done = read_checkpoint(self.checkpoint)
        if config.precision == "auto":
            kept = done["about"]["training"]["precision"] if done else fast_precision(device)
            config = dataclasses.replace(config, precision=kept)
        self.config = config
        # Not Accelerate's own mixed precision, which is fixed for the life of the process.
        self.autocast = torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bf16")
        corpus = {files[0].name: self.windows.digest, files[1].name: held_out.digest}
        settings = {"model": dataclasses.asdict(shape), "training": dataclasses.asdict(config)}
        self.about = {"name": name, **settings, "corpus": corpus}

        torch.manual_seed(config.seed)
        self.model = Transformer(shape).to(device)
        self.optimizers = optimizers_for(self.model, config)
        self.resume(done)
        self.tokens_per_step = config.batch * shape.n_ctx
        self.steps = max(1, config.tokens // self.tokens_per_step)
        self.snapshots = snapshot_steps(shape.n_ctx, config, self.steps)
        self.evaluation = Evaluation(held_out, shape.d_vocab, config)
        self.filmed = film.texts(self.tokenizer, held_out.rows([0])[0], shape) if config.film else []
        self.parallel, *self.optimizers = self.accelerator.prepare(self.model, *self.optimizers)
        self.loss = torch.compile(next_token_loss) if compiled else next_token_loss
        self.caught = 0  # a signal that ends the training
        self.announce(name)

    def announce(self, name: str) -> None:
        """Print what was chosen, and a warning about too little text, and begin the progress bar."""
        done, total = self.step * self.tokens_per_step, self.steps * self.tokens_per_step
        self.accelerator.print("precision:", "bf16" if self.config.precision == "bf16" else "float32")
        text = self.windows.text.numel()
        if (readings := total / text) > MANY:
            self.accelerator.print(
                f"warning: a text of {text:,} tokens is read {readings:.0f} times. After {MANY} times, a model "
                f"learns it by heart: take more text, or --set tokens={MANY * text}"
            )
        looks = {"unit": "tok", "unit_scale": True, "mininterval": 2, "disable": not self.is_main}
        self.bar = tqdm(desc=name, initial=done, total=total, **looks)

    def resume(self, done: dict[str, Any]) -> None:
        """Go on from what a checkpoint contains (nothing: from the start). Raises ValueError if it is not about this
        run."""
        if done:
            if done["about"] != json.loads(json.dumps(self.about)):  # where tuples are lists
                raise ValueError(f"{self.checkpoint} belongs to another configuration or corpus; choose another --out")
            self.model.load_state_dict(done["model"])
            for optimizer, state in zip(self.optimizers, done["optimizers"]):
                optimizer.load_state_dict(state)
        self.step = done.get("step", 0)
        self.rows = done.get("rows", [])  # of the log, one for each snapshot
        self.frames = done.get("frames", [])  # of the film, one for each snapshot
        self.seen: Tensor | None = None  # loss and gradient norm of the last step, on the device
        self.saved = time.monotonic()
        self.start = self.saved - done.get("seconds", 0.0)  # as if there had been no interruption
        cuda = self.accelerator.device.type == "cuda"
        device = torch.cuda.get_device_name() if cuda else f"{platform.machine()}, {torch.get_num_threads()} threads"
        hardware = {"device": device, "processes": self.accelerator.num_processes, "torch": torch.__version__}
        self.header = self.about | {"hardware": hardware}

    def advance(self) -> int:
        """Take one step in all processes; if one of them caught a signal, take none and return it, else 0."""
        if caught := max(gather_object([self.caught])):
            return caught
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.config.learning_rate(self.step, self.steps)
        first = self.step * self.config.batch + self.accelerator.process_index * self.share
        with self.autocast:
            loss = self.loss(self.parallel, self.windows.batch(first, self.share))
        self.accelerator.backward(loss)
        norm = self.accelerator.clip_grad_norm_(self.model.parameters(), self.config.clip)
        self.seen = self.accelerator.reduce(torch.stack([loss.detach(), norm]), "mean")
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.step += 1
        self.bar.update(self.tokens_per_step)
        if self.step % UNREAD == 0:
            self.read_loss()
        return 0

    def read_loss(self) -> float | None:
        """Return the loss of the last step, None before the first one. Raises ValueError if the training diverged: what
        is not finite stays so."""
        if self.seen is None:
            return None
        loss, norm = self.seen.tolist()
        if not math.isfinite(loss + norm):
            raise ValueError(f"training diverged by step {self.step} (loss {loss}, gradient norm {norm}); lower lr")
        self.bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
        return round(loss, 4)

    def evaluate(self) -> None:
        """Write a row of the log at a snapshot's step, and film it."""
        if not self.is_main or self.step not in self.snapshots or self.step in {row["step"] for row in self.rows}:
            return
        done = {"step": self.step, "tokens": self.step * self.tokens_per_step, "train": self.read_loss()}
        with self.autocast:
            scores = self.evaluation(self.model)
        rate, seconds = self.config.learning_rate(self.step, self.steps), time.monotonic() - self.start
        row = {**done, **scores, "lr": rate, "seconds": round(seconds, 1)}
        self.rows.append(row)
        if self.filmed:
            self.frames.append(film.frame(self.model, self.filmed))
        content = "".join(f"{json.dumps(line)}\n" for line in (self.header, *self.rows))
        write_atomically(self.log, content.encode())

    def keep(self) -> None:
        """Write a checkpoint."""
        self.read_loss()
        self.saved = time.monotonic()
        if self.is_main and self.step:
            save_checkpoint(
                self.checkpoint,
                about=self.about,
                step=self.step,
                seconds=self.saved - self.start,
                rows=self.rows,
                frames=self.frames,
                model=self.model.state_dict(),
                optimizers=[optimizer.state_dict() for optimizer in self.optimizers],
            )

    def export(self) -> None:
        """Write `out/model` as the book ships models, with the log. The manifest has the log's header and last row, and
        the ablation effect of each head on all held-out windows of an evaluation (the log's rows have it on a few)."""
        last = self.rows[-1]
        training = {"run": self.header, "result": last}
        if self.model.config.n_layers:
            heads = ablation.effects(ablation.ablate_heads(view_of(self.model), self.evaluation.rows))
            training["heads"] = decimals(heads._asdict(), digits=6)
        frames = film.joined(self.filmed, self.frames) if self.filmed else None
        model = self.out / "model"
        save_model(self.model, model, self.header["name"], training, self.tokenizer, frames)
        write_atomically(model / "training.jsonl", self.log.read_bytes())
        rate = last["tokens"] / max(last["seconds"], 0.1)
        print(f"held-out loss {last['held_out']:.3f} after {last['tokens']:,} tokens, {rate:,.0f} a second")
        print(f'The model is in {model}. Next: NAME = "{model.resolve()}" in chapter 19 (make lab)')


def train(run: Run, stop_after: int | None = None) -> None:
    """Train to the end, or for `stop_after` more steps.

    A signal in `run.caught` ends all processes after the same whole step, with a checkpoint. Raises ValueError if the
    loss is NaN or infinity (nothing is written then).
    """
    last = run.steps if stop_after is None else min(run.steps, run.step + stop_after)
    stopped = 0
    with run.bar:
        run.evaluate()
        while run.step < last and not (stopped := run.advance()):
            run.evaluate()
            if time.monotonic() - run.saved > 60 * run.config.checkpoint_minutes:
                run.keep()
        run.keep()
        run.accelerator.wait_for_everyone()
    if stopped:
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
            run = Run(args.name or name, shape, training, args.data, args.out, args.compile)
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda number, frame: setattr(run, "caught", number))
            train(run)
    except filelock.Timeout as error:
        raise SystemExit(f"error: another trainer writes to {args.out}; choose another --out") from error
    except (ValueError, OSError) as error:  # OSError: a full disk, a folder without write permission
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()
