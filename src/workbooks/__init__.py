"""The exercises of the workbooks: `check` judges, and `helped`, `answered`, `drawn` show what belongs to them."""

from workbooks import solutions  # noqa: F401 registers all exercises
from workbooks.check import EXERCISES, answered, check, drawn, helped

__all__ = ["EXERCISES", "answered", "check", "drawn", "helped"]
