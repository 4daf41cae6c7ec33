"""How numbers are shown: one style for all figures, interactive widgets, tables of tokens."""

from transformer_circuits.figures.style import diverging, use_style

__all__ = ["diverging", "use_style"]
