"""How models were trained, from their manifests."""

from typing import Any

from .architecture import BEYOND
from .registry import manifest

# What a comparison may be about.
SHAPE = ("n_layers", *BEYOND)
# What is measured and recorded during training changes no model; precision changes one no more than noise does.
MEASURED = ("snapshots", "evaluate_windows", "few_windows", "repeats", "checkpoint_minutes", "film")


def recipe(name: str) -> dict[str, Any]:
    """Return the settings with which a shipped model was trained: without seed, shape, and measures."""
    run = manifest(name)["training"]["run"]
    # Models from before the trainer had a choice were trained with AdamW alone.
    settings = {**run["model"], "optimizer": "adamw", **run["training"], "corpus": run.get("corpus")}
    return {key: value for key, value in settings.items() if key not in ("seed", "precision", *SHAPE, *MEASURED)}


def differing_settings(*names: str) -> dict[str, tuple[Any, ...]]:
    """Return each setting in which these models' recipes differ, with its value (or None) for each model."""
    recipes = [recipe(name) for name in names]
    keys = dict.fromkeys(key for settings in recipes for key in settings)
    values = {key: tuple(settings.get(key) for settings in recipes) for key in keys}
    return {key: found for key, found in values.items() if any(value != found[0] for value in found)}
