"""The exercises of the workbooks: `check` judges what a reader wrote, `helped` shows hints and the solution, `answered`
and `drawn` what it finds."""

from transformer_circuits.exercises import solutions  # noqa: F401 registers all exercises
from transformer_circuits.exercises.check import EXERCISES, answered, check, drawn, helped

__all__ = ["EXERCISES", "answered", "check", "drawn", "helped"]
