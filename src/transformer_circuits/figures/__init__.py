"""How numbers are shown: one style for all figures, interactive widgets, tables of tokens."""
