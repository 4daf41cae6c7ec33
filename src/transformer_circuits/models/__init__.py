"""Models: `list_models()` and `load_model(name)`; the plain transformer is in `architecture`."""

from .registry import list_models, load_model

__all__ = ["list_models", "load_model"]
