"""The settings of a training: a TOML file, in `configs/` or the user's, and what `--set` replaces in it."""

import contextlib
import json
import math
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

import pydantic
from pydantic import ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from transformer_circuits.models.architecture import ModelConfig
from transformer_circuits.models.shards import reason

CONFIGS = Path(__file__).parent / "configs"

Share = Annotated[float, Field(ge=0, le=1)]
Memory = Annotated[float, Field(gt=0, lt=1)]
Several = Annotated[int, Field(ge=2)]  # what has a standard error


@pydantic.dataclasses.dataclass(frozen=True, config=ConfigDict(extra="forbid", allow_inf_nan=False))
class TrainingConfig:
    """How a model is trained. Raises ValueError for settings of another type or out of range."""

    tokens: PositiveInt = Field(description="to read in all")
    batch: PositiveInt = Field(4, description="windows per step, over all processes")
    optimizer: Literal["muon", "adamw"] = Field("muon", description="of heads: Muon for each head; all else is AdamW's")
    lr: PositiveFloat = Field(2e-3, description="learning rate")
    lr_end: Share = Field(0.05, description="fraction of lr, reached at the last step")
    warmup: Share = Field(0.01, description="fraction of the steps, over which lr rises")
    decay_from: Share = Field(0.5, description="fraction of the steps, after which lr falls along a cosine")
    betas: tuple[Memory, Memory] = Field((0.9, 0.95), description="of AdamW")
    weight_decay: NonNegativeFloat = Field(0.1, description="of layers")
    # With the same decay the embeddings of rare tokens would fade.
    decay_embeddings: bool = Field(False, description="decay embeddings too")
    clip: PositiveFloat = Field(1.0, description="largest norm of a gradient")
    seed: NonNegativeInt = Field(0, description="of the initial weights and the order of the text")
    without_start: Share = Field(0.0, description="fraction of training windows that begin in running text")
    planted: Share = Field(0.0, description="fraction of training windows that contain one of their own passages twice")
    precision: Literal["auto", "bf16", "no"] = Field("auto", description="no: float32; auto: bf16 where that is fast")
    snapshots: PositiveInt = Field(30, description="evaluations, three at least: half of them log-spaced, half even")
    evaluate_windows: Several = Field(48, description="held-out windows per evaluation")
    few_windows: Several = Field(8, description="as many of those, evenly spaced, for patterns and costs")
    repeats: PositiveInt = Field(16, description="rows of repeated random tokens per evaluation")
    film: bool = Field(False, description='record what the page "Follow a name" shows of training, at every snapshot')
    checkpoint_minutes: PositiveFloat = Field(5.0, description="minutes between checkpoints")

    def learning_rate(self, step: int, steps: int) -> float:
        done = (step + 1) / steps
        if done < self.warmup:
            return self.lr * done / self.warmup
        start = max(self.warmup, self.decay_from)  # it never falls before it has risen
        falling = max(0.0, (done - start) / (1 - start)) if start < 1 else 0.0
        return self.lr * (self.lr_end + (1 - self.lr_end) * (1 + math.cos(math.pi * falling)) / 2)


SECTIONS = {"model": ModelConfig, "training": TrainingConfig}


def described_settings() -> str:
    """Return a line for each setting: its name, default, and what it is."""
    lines = []
    for section, kind in SECTIONS.items():
        lines.append(f"settings of the {section} (KEY=VALUE of --set, or in [{section}] of a TOML file):")
        for name, field in kind.__pydantic_fields__.items():
            default = "" if field.is_required() or field.default is None else f"={json.dumps(field.default)}"
            lines.append(f"  {name}{default}: {field.description}")
    return "\n".join(lines)


def read_config(name: str, changes: Iterable[str] = ()) -> tuple[str, ModelConfig, TrainingConfig]:
    """Return (name, model, training) from a TOML file, or from a configuration in `configs/` by its name.

    `changes` replace settings of the file: "lr=1e-3", "precision=no". Raises ValueError that names what exists or what
    is wrong.
    """
    path = Path(name) if name.endswith(".toml") else CONFIGS / f"{name}.toml"
    if not path.is_file():
        shipped = ", ".join(sorted(p.stem for p in CONFIGS.glob("*.toml")))
        raise ValueError(f"there is no configuration {name}; pass a TOML file, or one of {shipped}")
    try:
        sections = tomllib.loads(path.read_text(encoding="utf8"))
    except ValueError as error:
        raise ValueError(f"{path} is not a readable TOML file: {error}") from error
    if sections.keys() != SECTIONS.keys():
        raise ValueError(f"{path} must have the sections [model] and [training], got {', '.join(sections)}")
    section_of = {key: section for section, kind in SECTIONS.items() for key in kind.__pydantic_fields__}
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals:
            raise ValueError(f"a setting must be name=value, such as lr=1e-3, got {change!r}")
        if key not in section_of:
            raise ValueError(f"unknown setting {key!r}; there are: {', '.join(section_of)}")
        with contextlib.suppress(tomllib.TOMLDecodeError):  # text needs no quotes
            value = tomllib.loads(f"value = {value}")["value"]
        sections[section_of[key]][key] = value
    try:
        return path.stem, ModelConfig(**sections["model"]), TrainingConfig(**sections["training"])
    except pydantic.ValidationError as error:
        raise ValueError(reason(error)) from error
